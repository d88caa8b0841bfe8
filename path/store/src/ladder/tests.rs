use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::sample;

struct Rig {
    store: Store,
    events: Arc<Mutex<Vec<StoreEvent>>>,
}

/// Room for so many sample tuples in memory, and a disk, if asked for, that is large.
fn rig(device: u64, host: u64, disk: Option<&std::path::Path>) -> Rig {
    let each = sample::tuple(1).bytes();
    let config = StoreConfig {
        device: Bytes(device * each),
        kept_on_device: Bytes(0),
        host: Bytes(host * each),
        disk: disk.map(|folder| (folder.to_owned(), Bytes(100 * each))),
        quota: 1.0,
        half_life: 64.0,
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let store = Store::open(&config, Box::new(move |event| sink.lock().unwrap().push(event))).unwrap();
    Rig { store, events }
}

impl Rig {
    fn put(&self, seed: u32) -> Result<Tier, StoreError> {
        self.store.put(&sample::tuple(seed), &Scope::PUBLIC, Millis(10.0))
    }

    fn tier(&self, seed: u32) -> Option<Tier> {
        self.store.locate(&key(seed)).map(|(tier, _)| tier)
    }

    fn hit(&self, seed: u32) -> Result<Tier, ColdReason> {
        let ids = sample::tuple(seed).head().ids.clone();
        self.store.get(&key(seed), Some(&ids)).map(|hit| hit.tier)
    }

    /// The events add up to what is held.
    fn check(&self) {
        let mut told = HashMap::new();
        for event in self.events.lock().unwrap().iter() {
            match *event {
                StoreEvent::Added { key, tier, bytes } => drop(told.insert(key, (tier, bytes))),
                StoreEvent::Removed { key } => assert!(told.remove(&key).is_some()),
            }
        }
        let held: HashMap<_, _> =
            self.store.held().into_iter().map(|(key, tier, bytes)| (key, (tier, bytes))).collect();
        assert_eq!(told, held);
        for usage in self.store.usage() {
            assert!(usage.bytes <= usage.cap);
        }
    }
}

fn key(seed: u32) -> SegmentKey {
    *sample::tuple(seed).key()
}

#[test]
fn a_tuple_moves_down_when_evicted_and_up_when_hit() {
    let rig = rig(1, 2, None);
    assert_eq!(rig.put(1).unwrap(), Tier::Device);
    rig.put(2).unwrap();
    assert_eq!((rig.tier(1), rig.tier(2)), (Some(Tier::Host), Some(Tier::Device)));
    assert_eq!(rig.hit(1), Ok(Tier::Host));
    assert_eq!((rig.tier(1), rig.tier(2)), (Some(Tier::Device), Some(Tier::Host)));
    assert_eq!(rig.hit(1), Ok(Tier::Device));
    rig.check();
}

#[test]
fn what_is_seen_once_goes_before_what_was_hit() {
    let rig = rig(2, 0, None);
    rig.put(1).unwrap();
    rig.hit(1).unwrap();
    for seed in 2..20 {
        rig.put(seed).unwrap();
    }
    assert_eq!(rig.tier(1), Some(Tier::Device));
    assert_eq!(rig.store.held().len(), 2);
    assert_eq!(rig.hit(2), Err(ColdReason::Unknown));
    rig.check();
}

#[test]
fn only_what_was_seen_twice_or_marked_is_written_to_disk() {
    let folder = tempfile::tempdir().unwrap();
    let rig1 = rig(4, 0, Some(folder.path()));
    for seed in 1..=4 {
        rig1.put(seed).unwrap();
    }
    assert_eq!(rig1.store.write_pending(), 0);
    rig1.hit(1).unwrap();
    rig1.store.keep(&key(2), true);
    assert_eq!(rig1.store.write_pending(), 2);
    assert_eq!(rig1.store.write_pending(), 0);
    rig1.put(3).unwrap();
    assert_eq!(rig1.store.write_pending(), 1, "built a second time");
    rig1.check();
    drop(rig1);

    let after = rig(4, 0, Some(folder.path()));
    assert_eq!(
        [1, 2, 3, 4].map(|seed| after.tier(seed)),
        [Some(Tier::Disk), Some(Tier::Disk), Some(Tier::Disk), None]
    );
    assert_eq!(after.hit(1), Ok(Tier::Disk));
    assert_eq!(after.hit(1), Ok(Tier::Device), "promoted");
    after.check();
}

#[test]
fn what_was_evicted_and_is_built_again_has_proven_itself() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(1, 0, Some(folder.path()));
    for seed in [1, 2, 1] {
        rig.put(seed).unwrap();
    }
    assert_eq!(rig.store.write_pending(), 1);
    rig.put(3).unwrap();
    assert_eq!(rig.tier(1), Some(Tier::Disk), "evicted from memory, not gone");
    assert_eq!(rig.tier(2), None);
    rig.check();
}

#[test]
fn other_ids_under_the_same_key_are_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let rig1 = rig(1, 0, Some(folder.path()));
    rig1.put(1).unwrap();
    assert!(matches!(rig1.store.get(&key(1), Some(&[1, 2, 3])), Err(ColdReason::Mismatch)));
    assert_eq!(rig1.store.faults().mismatch, 1);
    rig1.hit(1).unwrap();
    rig1.store.write_pending();
    drop(rig1);
    let after = rig(1, 0, Some(folder.path()));
    assert!(matches!(after.store.get(&key(1), Some(&[1, 2, 3])), Err(ColdReason::Mismatch)));
    assert!(after.store.get(&key(1), None).is_ok());
}

#[test]
fn damage_on_disk_is_a_miss_and_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let rig1 = rig(1, 0, Some(folder.path()));
    for seed in [1, 1, 2] {
        rig1.put(seed).unwrap();
        rig1.store.write_pending();
    }
    let mut files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let parts = files.find(|path| path.extension().is_some_and(|ending| ending == "parts")).unwrap();
    let mut bytes = std::fs::read(&parts).unwrap();
    bytes[9] ^= 4;
    std::fs::write(&parts, bytes).unwrap();
    assert_eq!(rig1.tier(1), Some(Tier::Disk));
    assert_eq!(rig1.hit(1), Err(ColdReason::Corrupt));
    assert_eq!((rig1.tier(1), rig1.hit(1)), (None, Err(ColdReason::Unknown)));
    assert_eq!(rig1.store.faults().corrupt, 1);
    rig1.check();
}

#[test]
fn a_tuple_in_use_outlives_its_eviction() {
    let rig = rig(1, 0, None);
    rig.put(1).unwrap();
    let hit = rig.store.get(&key(1), None).unwrap();
    assert!(rig.put(2).is_err(), "nothing may go");
    rig.store.remove(&key(1));
    assert_eq!(rig.put(2).unwrap(), Tier::Device);
    assert_eq!(hit.tuple.manifest(), sample::tuple(1).manifest());
    rig.check();
}

#[test]
fn one_owner_cannot_push_out_another() {
    let each = sample::tuple(1).bytes();
    let config = StoreConfig {
        device: Bytes(4 * each),
        kept_on_device: Bytes(0),
        host: Bytes(0),
        disk: None,
        quota: 0.5,
        half_life: 64.0,
    };
    let store = Store::open(&config, Box::new(|_| ())).unwrap();
    let (one, two) = (Scope::of_tenant(&[1; 32], "one"), Scope::of_tenant(&[1; 32], "two"));
    store.put(&sample::tuple(1), &one, Millis(1.0)).unwrap();
    for seed in 2..30 {
        store.put(&sample::tuple(seed), &two, Millis(100.0)).unwrap();
    }
    assert!(store.locate(&key(1)).is_some());
    assert_eq!(store.held().len(), 3);
}

#[test]
fn what_the_device_keeps_is_nearest_while_memory_has_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let each = sample::tuple(1).bytes();
    let config = StoreConfig {
        device: Bytes(0),
        kept_on_device: Bytes(5 * each),
        host: Bytes(2 * each),
        disk: Some((folder.path().to_owned(), Bytes(100 * each))),
        quota: 1.0,
        half_life: 64.0,
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let store = Store::open(&config, Box::new(move |event| sink.lock().unwrap().push(event))).unwrap();
    let rig = Rig { store, events };
    rig.store.on_device(&key(1), Some(Bytes(each)));
    assert_eq!(rig.tier(1), None, "nobody could fetch it");
    rig.put(1).unwrap();
    assert_eq!((rig.tier(1), rig.hit(1)), (Some(Tier::Device), Ok(Tier::Device)));
    rig.check();
    assert_eq!(rig.store.write_pending(), 1);
    let usage = rig.store.usage();
    assert_eq!((usage[0].tier, usage[0].entries, usage[0].bytes), (Tier::Device, 1, Bytes(each)));
    for seed in 2..4 {
        rig.put(seed).unwrap();
        rig.hit(seed).unwrap();
    }
    assert_eq!(rig.tier(1), Some(Tier::Disk));
    rig.put(1).unwrap();
    assert_eq!(rig.tier(1), Some(Tier::Device));
    rig.store.on_device(&key(1), None);
    assert_eq!((rig.tier(1), rig.hit(1)), (Some(Tier::Host), Ok(Tier::Host)));
    rig.check();
}

#[test]
fn memory_tiers_keep_bytes_where_they_are_placed() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(1, 1, Some(folder.path()));
    let room = Arc::new(Mutex::new(Vec::new()));
    let placed = room.clone();
    let place = move |layer: &[bytes::Bytes]| {
        let mut placed = placed.lock().unwrap();
        // A layer without a tail stays where it is.
        if layer.len() < 3 || placed.contains(&layer[0].as_ptr().addr()) {
            return None;
        }
        let copies: Vec<_> = layer.iter().map(|part| bytes::Bytes::copy_from_slice(part)).collect();
        placed.push(copies[0].as_ptr().addr());
        Some(copies)
    };
    let rig = Rig { store: rig.store.placing(Box::new(place)), events: rig.events };
    let tuple = sample::tuple(1);
    rig.store.put(&tuple, &Scope::PUBLIC, Millis(1.0)).unwrap();
    let held = rig.store.get(&key(1), None).unwrap().tuple;
    assert_eq!(held.manifest(), tuple.manifest());
    assert_eq!(room.lock().unwrap().len(), 1);
    for (part, placed) in tuple.parts().iter().zip(held.parts()) {
        assert_eq!(part.bytes(), placed.bytes());
        assert_eq!(part.bytes().as_ptr() == placed.bytes().as_ptr(), part.spec().layer == 1);
    }
    // What is there is not copied again, and what comes from the drive is placed.
    rig.store.put(&held, &Scope::PUBLIC, Millis(1.0)).unwrap();
    assert_eq!(room.lock().unwrap().len(), 1);
    assert_eq!(rig.store.write_pending(), 1);
    drop(held);
    for seed in 2..5 {
        rig.put(seed).unwrap();
    }
    let before = room.lock().unwrap().len();
    assert_eq!(rig.hit(1), Ok(Tier::Disk));
    assert_eq!(room.lock().unwrap().len(), before + 1);
    rig.check();
}

#[test]
fn threads_share_a_store_and_the_events_still_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(3, 3, Some(folder.path()));
    thread::scope(|scope| {
        for worker in 0..4u32 {
            let rig = &rig;
            scope.spawn(move || {
                for round in 0..40 {
                    let seed = (worker * 5 + round * 3) % 11;
                    match round % 6 {
                        5 => rig.store.remove(&key(seed)),
                        4 => drop(rig.store.write_pending()),
                        2 | 3 => drop(rig.store.get(&key(seed), None)),
                        _ => drop(rig.put(seed)),
                    }
                }
            });
        }
    });
    rig.check();
    for (key, ..) in rig.store.held() {
        // Promoting one may push another out of memory.
        let held = rig.store.locate(&key).is_some();
        assert_eq!(rig.store.get(&key, None).is_ok(), held);
    }
    rig.check();
    assert_eq!(rig.store.faults(), FaultCounts::default());
}
