//! The memory tiers: Device, which on a machine without a GPU is main memory as well, and Host.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::unit::Bytes;

use crate::error::StoreError;
use crate::evict::{Limits, Standing};
use crate::shelf::Shelf;
use crate::tier::{Evicted, TierStore, Usage};
use crate::tuple::StoredTuple;

/// Tuples in main memory.
#[derive(Debug)]
pub struct ArenaTier {
    tier: Tier,
    shelf: Mutex<Shelf<StoredTuple>>,
}

impl ArenaTier {
    /// The arena of one memory tier.
    pub fn new(tier: Tier, limits: Limits) -> Self {
        Self { tier, shelf: Mutex::new(Shelf::new(limits)) }
    }

    // A panic under the lock cannot leave a shelf half changed: its steps do not panic.
    fn shelf(&self) -> MutexGuard<'_, Shelf<StoredTuple>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TierStore for ArenaTier {
    fn tier(&self) -> Tier {
        self.tier
    }

    fn put(
        &self,
        tuple: &StoredTuple,
        standing: &Standing,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), StoreError> {
        let (key, bytes) = (*tuple.key(), tuple.bytes());
        let mut shelf = self.shelf();
        if shelf.get(&key).is_some() {
            shelf.rank(&key, *standing);
            return Ok(());
        }
        let gone = shelf.put(key, tuple.clone(), bytes, *standing, StoredTuple::in_use);
        let gone = gone.ok_or(StoreError::MakeRoom { tier: self.tier, bytes })?;
        evicted.extend(gone.into_iter().map(|(key, tuple, standing)| Evicted {
            key,
            standing,
            tuple: Some(tuple),
        }));
        Ok(())
    }

    fn get(&self, key: &SegmentKey) -> Result<Option<StoredTuple>, StoreError> {
        Ok(self.shelf().get(key).cloned())
    }

    fn standing(&self, key: &SegmentKey) -> Option<Standing> {
        self.shelf().ranking().standing(key)
    }

    fn bytes_of(&self, key: &SegmentKey) -> Option<Bytes> {
        self.shelf().ranking().bytes(key).map(Bytes)
    }

    fn rank(&self, key: &SegmentKey, standing: &Standing) {
        self.shelf().rank(key, *standing);
    }

    fn remove(&self, key: &SegmentKey) -> Option<Evicted> {
        let (tuple, standing) = self.shelf().remove(key)?;
        Some(Evicted { key: *key, standing, tuple: Some(tuple) })
    }

    fn usage(&self) -> Usage {
        let shelf = self.shelf();
        Usage {
            tier: self.tier,
            entries: shelf.ranking().len(),
            bytes: Bytes(shelf.ranking().used()),
            cap: Bytes(shelf.limits().cap),
        }
    }
}
