//! One contract for all tiers: the same suite runs over each.

use std::sync::Arc;
use std::thread;

use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::unit::Millis;

use crate::arena::ArenaTier;
use crate::disk::DiskTier;
use crate::error::StoreError;
use crate::evict::{Class, Heat, Limits, Owner, Standing};
use crate::sample;
use crate::tier::{Evicted, TierStore};

/// Bytes that one sample tuple takes at most in any tier.
const EACH: u64 = 800;

fn standing(class: Class, saved: f64, tick: u64) -> Standing {
    Standing { owner: Owner(1), class, saved: Millis(saved), heat: Heat::COLD.sighted(tick, 8.0) }
}

/// Runs `suite` over every tier with these limits.
fn for_every_tier(limits: Limits, suite: impl Fn(&dyn TierStore)) {
    suite(&ArenaTier::new(Tier::Device, limits));
    suite(&ArenaTier::new(Tier::Host, limits));
    let folder = tempfile::tempdir().unwrap();
    suite(&DiskTier::open(folder.path(), limits).unwrap());
}

fn put(tier: &dyn TierStore, seed: u32, standing: &Standing) -> Result<Vec<SegmentKey>, StoreError> {
    let mut evicted = Vec::new();
    tier.put(&sample::tuple(seed), standing, &mut evicted)?;
    Ok(evicted.into_iter().map(|gone: Evicted| gone.key).collect())
}

fn key(seed: u32) -> SegmentKey {
    *sample::tuple(seed).key()
}

fn room_for(tuples: u64) -> Limits {
    Limits::shared(sample::tuple(1).bytes() * tuples + 24 * tuples, 1.0)
}

#[test]
fn what_is_put_is_what_comes_out() {
    assert!(sample::tuple(1).bytes() + 24 <= EACH);
    for_every_tier(room_for(4), |tier| {
        assert!(tier.get(&key(1)).unwrap().is_none());
        assert_eq!(put(tier, 1, &standing(Class::Proven, 1.0, 1)).unwrap(), []);
        let tuple = tier.get(&key(1)).unwrap().unwrap();
        assert_eq!(tuple.manifest(), sample::tuple(1).manifest());
        let bytes = |tuple: &crate::StoredTuple| -> Vec<_> {
            tuple.parts().iter().map(|part| part.bytes().clone()).collect()
        };
        assert_eq!(bytes(&tuple), bytes(&sample::tuple(1)));
        assert!(tier.contains(&key(1)) && !tier.contains(&key(2)));
        assert_eq!(tier.bytes_of(&key(1)), Some(tier.usage().bytes));

        assert_eq!(tier.remove(&key(1)).unwrap().key, key(1));
        assert!(tier.remove(&key(1)).is_none());
        assert!(tier.get(&key(1)).unwrap().is_none());
        assert_eq!((tier.usage().bytes.0, tier.usage().entries), (0, 0));
    });
}

#[test]
fn the_cap_is_never_passed_and_the_worst_goes_first() {
    for_every_tier(room_for(3), |tier| {
        put(tier, 1, &standing(Class::Proven, 9.0, 1)).unwrap();
        put(tier, 2, &standing(Class::Probation, 99.0, 1)).unwrap();
        put(tier, 3, &standing(Class::Proven, 1.0, 1)).unwrap();
        assert_eq!(put(tier, 4, &standing(Class::Proven, 5.0, 1)).unwrap(), [key(2)]);
        assert_eq!(put(tier, 5, &standing(Class::Proven, 5.0, 1)).unwrap(), [key(3)]);
        tier.rank(&key(1), &standing(Class::Proven, 0.1, 1));
        assert_eq!(put(tier, 6, &standing(Class::Probation, 5.0, 1)).unwrap(), [key(1)]);
        for seed in 10..40 {
            put(tier, seed, &standing(Class::Probation, 1.0, u64::from(seed))).unwrap();
            assert!(tier.usage().bytes <= tier.usage().cap);
            assert_eq!(tier.usage().entries, 3);
        }
    });
}

#[test]
fn a_second_put_keeps_the_bytes_and_takes_the_standing() {
    for_every_tier(room_for(2), |tier| {
        put(tier, 1, &standing(Class::Probation, 1.0, 1)).unwrap();
        put(tier, 1, &standing(Class::Kept, 2.0, 2)).unwrap();
        assert_eq!(tier.usage().entries, 1);
        assert_eq!(tier.standing(&key(1)), Some(standing(Class::Kept, 2.0, 2)));
    });
}

#[test]
fn what_cannot_fit_changes_nothing() {
    for_every_tier(Limits { cap: 4 * EACH, quota: sample::tuple(1).bytes() + 24 }, |tier| {
        put(tier, 1, &standing(Class::Proven, 1.0, 1)).unwrap();
        let other = Standing { owner: Owner(2), ..standing(Class::Proven, 1.0, 1) };
        put(tier, 2, &other).unwrap();
        assert_eq!(put(tier, 3, &standing(Class::Probation, 1.0, 1)).unwrap(), [key(1)], "the quota");
        assert!(tier.contains(&key(2)));
    });
    for_every_tier(Limits::shared(100, 1.0), |tier| {
        assert!(matches!(put(tier, 1, &standing(Class::Kept, 1.0, 1)), Err(StoreError::MakeRoom { .. })));
        assert_eq!(tier.usage().bytes.0, 0);
    });
}

#[test]
fn threads_share_a_tier() {
    for_every_tier(room_for(6), |tier| {
        thread::scope(|scope| {
            for worker in 0..4u32 {
                scope.spawn(move || {
                    for round in 0..25 {
                        let seed = (worker * 7 + round * 3) % 12;
                        match round % 5 {
                            4 => drop(tier.remove(&key(seed))),
                            3 => drop(tier.get(&key(seed)).unwrap()),
                            // On the drive too much may be in the making at once: no room is no fault.
                            _ => drop(put(tier, seed, &standing(Class::Proven, 1.0, u64::from(round)))),
                        }
                        assert!(tier.usage().bytes <= tier.usage().cap);
                    }
                });
            }
        });
        let mut whole = 0;
        for seed in 0..12 {
            whole += usize::from(tier.get(&key(seed)).unwrap().is_some());
        }
        assert_eq!(whole, tier.usage().entries);
    });
}

#[test]
fn memory_does_not_evict_what_is_in_use() {
    let tier = ArenaTier::new(Tier::Device, room_for(2));
    for seed in [1, 2] {
        put(&tier, seed, &standing(Class::Proven, 1.0, 1)).unwrap();
    }
    let pin = tier.get(&key(1)).unwrap().unwrap();
    let other = pin.clone();
    assert_eq!(put(&tier, 3, &standing(Class::Proven, 9.0, 1)).unwrap(), [key(2)]);
    drop(pin);
    assert_eq!(put(&tier, 4, &standing(Class::Proven, 9.0, 1)).unwrap(), [key(3)], "a clone still holds it");
    let all: Arc<_> = (tier.get(&key(4)).unwrap(), other).into();
    assert!(matches!(put(&tier, 5, &standing(Class::Proven, 9.0, 1)), Err(StoreError::MakeRoom { .. })));
    drop(all);
    assert_eq!(put(&tier, 5, &standing(Class::Proven, 9.0, 1)).unwrap(), [key(1)]);
}
