//! The tiers as one store: look-up nearest first, promotion on a hit, demotion on eviction.
//!
//! A tuple lies in at most one memory tier, so its bytes count once and the tier's clone is the only one in the
//! store. On first sight it enters the nearest memory tier on probation; on second sight, or when marked, it is
//! due for the disk as well, where [`Store::write_pending`] brings it, away from any request. What leaves the last
//! memory tier is gone, unless the disk has it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hypic_domain::flow::ColdReason;
use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::tier::Tier;
use hypic_domain::unit::{Bytes, Millis};

use crate::arena::ArenaTier;
use crate::disk::DiskTier;
use crate::error::StoreError;
use crate::evict::{Class, Limits, Owner, Standing};
use crate::faults::{Count, FaultCounts};
use crate::history::History;
use crate::tier::{Evicted, TierStore, Usage};
use crate::tuple::StoredTuple;

/// Sizes of the tiers and the terms of eviction.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    /// Cap of the device's tier as an arena in main memory; 0 for a device that keeps tuples itself.
    pub device: Bytes,
    /// Cap of a device that keeps tuples itself and says so ([`Store::on_device`]); 0 for none.
    pub kept_on_device: Bytes,
    /// Cap of main memory; 0 for no such tier.
    pub host: Bytes,
    /// Folder and cap on a local drive.
    pub disk: Option<(PathBuf, Bytes)>,
    /// Share of each tier that one owner may use, 0 to 1.
    pub quota: f64,
    /// A sight counts half after so many further sights of anything.
    pub half_life: f64,
}

/// A change of what is held, for the index. Events of one key come in the order of the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// The tuple is now held, or held in another nearest tier.
    Added {
        /// Which tuple.
        key: SegmentKey,
        /// The nearest tier it lies in.
        tier: Tier,
        /// Its size.
        bytes: Bytes,
    },
    /// The tuple is held no longer.
    Removed {
        /// Which tuple.
        key: SegmentKey,
    },
}

/// Is told every change, under the store's lock: it must be quick and must not call the store.
pub type Observer = Box<dyn Fn(StoreEvent) + Send + Sync>;

/// Copies the parts of a layer to where the device fetches them by itself; nothing where they lie there already, or find
/// no room.
pub type Place = Box<dyn Fn(&[bytes::Bytes]) -> Option<Vec<bytes::Bytes>> + Send + Sync>;

/// A tuple that was held, and where.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The tuple. While it is held, no tier evicts it.
    pub tuple: StoredTuple,
    /// The nearest tier that has it.
    pub tier: Tier,
}

/// All tiers of one agent. Every method may be called from any thread; those that may read or write the drive
/// say so.
pub struct Store {
    memory: Vec<ArenaTier>,
    disk: Option<DiskTier>,
    place: Option<Place>,
    kept_on_device: Bytes,
    ladder: Mutex<Ladder>,
    mismatch: Count,
}

struct Ladder {
    history: History,
    kept: HashSet<SegmentKey>,
    /// Due for the disk.
    pending: HashSet<SegmentKey>,
    /// What the device says that it keeps.
    on_device: HashMap<SegmentKey, Bytes>,
    /// What the observer was last told.
    held: HashMap<SegmentKey, (Tier, Bytes)>,
    observer: Observer,
}

impl Store {
    /// Makes the tiers, takes over what the disk holds and announces it. Reads the drive.
    ///
    /// # Errors
    /// [`StoreError::OpenFolder`].
    pub fn open(config: &StoreConfig, observer: Observer) -> Result<Self, StoreError> {
        let limits = |cap: Bytes| Limits::shared(cap.0, config.quota);
        let disk =
            config.disk.as_ref().map(|(folder, cap)| DiskTier::open(folder, limits(*cap))).transpose()?;
        let memory = [(Tier::Device, config.device), (Tier::Host, config.host)].into_iter();
        let memory = memory.filter(|(_, cap)| cap.0 > 0).map(|(tier, cap)| ArenaTier::new(tier, limits(cap)));
        let store = Self::over(memory.collect(), disk, config.half_life, observer);
        Ok(Self { kept_on_device: config.kept_on_device, ..store })
    }

    /// The same, whose memory tiers keep the bytes of tuples where `place` puts them.
    pub fn placing(self, place: Place) -> Self {
        Self { place: Some(place), ..self }
    }

    fn over(memory: Vec<ArenaTier>, disk: Option<DiskTier>, half_life: f64, observer: Observer) -> Self {
        let ladder = Ladder {
            history: History::new(half_life),
            kept: HashSet::new(),
            pending: HashSet::new(),
            on_device: HashMap::new(),
            held: HashMap::new(),
            observer,
        };
        let store = Self {
            memory,
            disk,
            place: None,
            kept_on_device: Bytes(0),
            ladder: Mutex::new(ladder),
            mismatch: Count::default(),
        };
        let on_disk = store.disk.iter().flat_map(DiskTier::keys);
        store.announce(&mut store.ladder(), on_disk);
        store
    }

    /// Stores a tuple that cost `saved` to build. Returns the tier that took it. Touches no drive.
    ///
    /// # Errors
    /// [`StoreError::MakeRoom`]: larger than the quota of every memory tier, or all that could go is in use.
    pub fn put(&self, tuple: &StoredTuple, scope: &Scope, saved: Millis) -> Result<Tier, StoreError> {
        let key = *tuple.key();
        let tuple = &self.placed(tuple);
        let mut ladder = self.ladder();
        let (heat, seen) = ladder.history.sight(key);
        let class = ladder.class(&key, seen);
        let standing = Standing { owner: Owner::of(scope), class, saved, heat };
        self.due_for_disk(&mut ladder, key, class);
        let mut touched = vec![key];
        let holder = self.memory.iter().find(|tier| tier.contains(&key));
        let stored = match holder {
            Some(tier) => {
                tier.rank(&key, &standing);
                Ok(tier.tier())
            }
            None => self.insert(0, tuple, &standing, &mut touched),
        };
        self.announce(&mut ladder, touched);
        stored
    }

    /// The nearest tier that holds a tuple, and its size there: for a caller who weighs loading against building.
    pub fn locate(&self, key: &SegmentKey) -> Option<(Tier, Bytes)> {
        self.ladder().held.get(key).copied()
    }

    /// The tuple of `key`; `ids`, where given, must be its segment's token ids. May read the drive.
    ///
    /// # Errors
    /// Why it is a miss: nobody has it, it was damaged, the drive did not answer, or the ids differ.
    pub fn get(&self, key: &SegmentKey, ids: Option<&[u32]>) -> Result<Hit, ColdReason> {
        let mut ladder = self.ladder();
        for tier in &self.memory {
            if let Ok(Some(tuple)) = tier.get(key) {
                self.check_ids(&tuple, ids)?;
                let touched = self.hit(&mut ladder, key, tier);
                self.announce(&mut ladder, touched);
                return Ok(Hit { tuple, tier: ladder.nearest(key, tier.tier()) });
            }
        }
        drop(ladder);
        self.get_from_disk(key, ids)
    }

    /// The device keeps a tuple of so many bytes, or no longer. It counts while a memory tier has
    /// it too: only from there others can fetch it.
    pub fn on_device(&self, key: &SegmentKey, bytes: Option<Bytes>) {
        let mut ladder = self.ladder();
        match bytes {
            Some(bytes) => ladder.on_device.insert(*key, bytes),
            None => ladder.on_device.remove(key),
        };
        self.announce(&mut ladder, [*key]);
    }

    /// Marks a tuple to be kept, or lets it go again. A marked one is due for the disk and goes last.
    pub fn keep(&self, key: &SegmentKey, keep: bool) {
        let mut ladder = self.ladder();
        if keep {
            ladder.kept.insert(*key);
            self.due_for_disk(&mut ladder, *key, Class::Kept);
        } else {
            ladder.kept.remove(key);
        }
        let class = if keep { Class::Kept } else { Class::Proven };
        for tier in self.tiers() {
            if let Some(standing) = tier.standing(key) {
                tier.rank(key, &Standing { class, ..standing });
            }
        }
    }

    /// Drops a tuple from every tier. Deletes files.
    pub fn remove(&self, key: &SegmentKey) {
        let mut ladder = self.ladder();
        ladder.kept.remove(key);
        ladder.pending.remove(key);
        for tier in self.tiers() {
            tier.remove(key);
        }
        self.announce(&mut ladder, [*key]);
    }

    /// Writes to the drive what is due there, and returns how many tuples it wrote. To be called off the path of
    /// requests, again and again.
    pub fn write_pending(&self) -> usize {
        let Some(disk) = &self.disk else { return 0 };
        let pending = std::mem::take(&mut self.ladder().pending);
        let mut written = 0;
        for key in pending {
            // What has left memory meanwhile proves itself again when it is built again.
            let found =
                self.memory.iter().find_map(|tier| Some((tier.get(&key).ok()??, tier.standing(&key)?)));
            let Some((tuple, standing)) = found else { continue };
            let mut evicted = Vec::new();
            match disk.put(&tuple, &standing, &mut evicted) {
                Ok(()) => written += 1,
                Err(error) => tracing::warn!(%key, error = %error, "a tuple stays in memory only"),
            }
            let touched = evicted.into_iter().map(|gone| gone.key).chain([key]);
            self.announce(&mut self.ladder(), touched);
        }
        written
    }

    /// Everything that is held: what the events so far add up to.
    pub fn held(&self) -> Vec<(SegmentKey, Tier, Bytes)> {
        self.ladder().held.iter().map(|(key, (tier, bytes))| (*key, *tier, *bytes)).collect()
    }

    /// How full each tier is, nearest first.
    pub fn usage(&self) -> Vec<Usage> {
        let ladder = self.ladder();
        let device = (self.kept_on_device.0 > 0).then(|| Usage {
            tier: Tier::Device,
            entries: ladder.on_device.len(),
            bytes: ladder.on_device.values().copied().sum(),
            cap: self.kept_on_device,
        });
        device.into_iter().chain(self.tiers().map(TierStore::usage)).collect()
    }

    /// The last write found the drive full.
    pub fn disk_is_full(&self) -> bool {
        self.disk.as_ref().is_some_and(DiskTier::is_full)
    }

    /// What went wrong so far.
    pub fn faults(&self) -> FaultCounts {
        let disk = self.disk.as_ref().map(DiskTier::faults).unwrap_or_default();
        FaultCounts { mismatch: self.mismatch.now(), ..disk }
    }

    // A panic under the lock cannot leave the ladder half changed: its steps do not panic.
    fn ladder(&self) -> MutexGuard<'_, Ladder> {
        self.ladder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tiers(&self) -> impl Iterator<Item = &dyn TierStore> {
        let memory = self.memory.iter().map(|tier| tier as &dyn TierStore);
        memory.chain(self.disk.iter().map(|tier| tier as &dyn TierStore))
    }

    /// The tuple with its bytes where they are placed: away from the lock, since it may copy all of them.
    fn placed(&self, tuple: &StoredTuple) -> StoredTuple {
        let placed = self.place.as_ref().and_then(|place| tuple.placed(place));
        placed.unwrap_or_else(|| tuple.clone())
    }

    fn check_ids(&self, tuple: &StoredTuple, ids: Option<&[u32]>) -> Result<(), ColdReason> {
        if ids.is_some_and(|ids| *ids != *tuple.head().ids) {
            self.mismatch.add();
            return Err(ColdReason::Mismatch);
        }
        Ok(())
    }

    fn get_from_disk(&self, key: &SegmentKey, ids: Option<&[u32]>) -> Result<Hit, ColdReason> {
        let Some(disk) = &self.disk else { return Err(ColdReason::Unknown) };
        let read = disk.get(key).map(|read| read.map(|tuple| self.placed(&tuple)));
        let mut ladder = self.ladder();
        let tuple = match read {
            Ok(Some(tuple)) => tuple,
            Ok(None) => return Err(ColdReason::Unknown),
            Err(error) => {
                tracing::warn!(%key, error = %error, "a tuple on disk is a miss");
                self.announce(&mut ladder, [*key]);
                let damaged = matches!(error, StoreError::CheckTuple { .. });
                return Err(if damaged { ColdReason::Corrupt } else { ColdReason::FetchFailed });
            }
        };
        self.check_ids(&tuple, ids)?;
        let mut touched = vec![*key];
        if let Some(standing) = disk.standing(key) {
            let (heat, _) = ladder.history.sight(*key);
            let standing = Standing { heat, class: ladder.class(key, true), ..standing };
            disk.rank(key, &standing);
            // No room in memory: the caller has it all the same.
            let _ = self.insert(0, &tuple, &standing, &mut touched);
        }
        self.announce(&mut ladder, touched);
        Ok(Hit { tuple, tier: Tier::Disk })
    }

    /// Counts a hit in a memory tier and moves the tuple to the nearest one. Returns the keys that moved.
    fn hit(&self, ladder: &mut Ladder, key: &SegmentKey, tier: &ArenaTier) -> Vec<SegmentKey> {
        let (heat, _) = ladder.history.sight(*key);
        let class = ladder.class(key, true);
        self.due_for_disk(ladder, *key, class);
        for tier in self.tiers() {
            if let Some(standing) = tier.standing(key) {
                tier.rank(key, &Standing { heat, class, ..standing });
            }
        }
        let nearest = self.memory.first().is_some_and(|first| first.tier() == tier.tier());
        let mut touched = vec![*key];
        if !nearest && let Some(Evicted { standing, tuple: Some(tuple), .. }) = tier.remove(key) {
            // It finds room at least where it lay.
            let _ = self.insert(0, &tuple, &standing, &mut touched);
        }
        touched
    }

    /// Puts a tuple into the nearest memory tier, from `first` on, that takes it; what has to go there moves on
    /// to the next.
    fn insert(
        &self,
        first: usize,
        tuple: &StoredTuple,
        standing: &Standing,
        touched: &mut Vec<SegmentKey>,
    ) -> Result<Tier, StoreError> {
        let mut refused = StoreError::MakeRoom { tier: Tier::Device, bytes: tuple.bytes() };
        for (at, tier) in self.memory.iter().enumerate().skip(first) {
            let mut evicted = Vec::new();
            match tier.put(tuple, standing, &mut evicted) {
                Ok(()) => {
                    for Evicted { key, standing, tuple } in evicted {
                        touched.push(key);
                        if let Some(tuple) = tuple {
                            // What no further tier takes is let go.
                            let _ = self.insert(at + 1, &tuple, &standing, touched);
                        }
                    }
                    return Ok(tier.tier());
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn due_for_disk(&self, ladder: &mut Ladder, key: SegmentKey, class: Class) {
        let due = class > Class::Probation && self.disk.as_ref().is_some_and(|disk| !disk.contains(&key));
        if due {
            ladder.pending.insert(key);
        }
    }

    /// Tells the observer where these keys lie now, if that is not where it believes them to be.
    fn announce(&self, ladder: &mut Ladder, keys: impl IntoIterator<Item = SegmentKey>) {
        for key in keys {
            let nearest = self.tiers().find_map(|tier| Some((tier.tier(), tier.bytes_of(&key)?)));
            let nearest = nearest.map(|(tier, bytes)| (ladder.nearest(&key, tier), bytes));
            let told = ladder.held.get(&key).copied();
            if told == nearest {
                continue;
            }
            match nearest {
                Some((tier, bytes)) => {
                    ladder.held.insert(key, (tier, bytes));
                    (ladder.observer)(StoreEvent::Added { key, tier, bytes });
                }
                None => {
                    ladder.held.remove(&key);
                    (ladder.observer)(StoreEvent::Removed { key });
                }
            }
        }
    }
}

impl Ladder {
    /// The device where it keeps what lies in `tier`, else that tier.
    fn nearest(&self, key: &SegmentKey, tier: Tier) -> Tier {
        if tier != Tier::Disk && self.on_device.contains_key(key) { Tier::Device } else { tier }
    }

    fn class(&self, key: &SegmentKey, seen: bool) -> Class {
        if self.kept.contains(key) {
            Class::Kept
        } else if seen {
            Class::Proven
        } else {
            Class::Probation
        }
    }
}

#[cfg(test)]
mod tests;
