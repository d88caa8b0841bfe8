//! Prefix snapshots: running states at segment boundaries, under a byte budget of their own.
//!
//! What a snapshot is made of is the engine's affair; here it is a value with a size. Snapshots and tuples compete
//! for nothing: states would push out many tuples each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::tier::Tier;
use hypic_domain::unit::{Bytes, Millis};

use crate::error::StoreError;
use crate::evict::{Class, Limits, Owner, Standing};
use crate::history::History;
use crate::ladder::{Observer, StoreEvent};
use crate::shelf::Shelf;
use crate::tier::Usage;

/// Snapshots in the device's memory, by key. While an [`Arc`] of one is held outside, it is not evicted.
pub struct SnapshotCache<T> {
    cache: Mutex<Cache<T>>,
}

struct Cache<T> {
    shelf: Shelf<Arc<T>>,
    history: History,
    observer: Observer,
}

impl<T> SnapshotCache<T> {
    /// A cache of `cap` bytes, of which one owner may use a share of `quota`, 0 to 1. `half_life` is in sights, as
    /// for the store.
    pub fn new(cap: Bytes, quota: f64, half_life: f64, observer: Observer) -> Self {
        let shelf = Shelf::new(Limits::shared(cap.0, quota));
        Self { cache: Mutex::new(Cache { shelf, history: History::new(half_life), observer }) }
    }

    /// Stores a snapshot of `bytes` that saves `saved` when it is used. One that is there already stays.
    ///
    /// # Errors
    /// [`StoreError::MakeRoom`]: larger than the quota, or all that could go is in use.
    pub fn put(
        &self,
        key: SegmentKey,
        snapshot: Arc<T>,
        bytes: Bytes,
        scope: &Scope,
        saved: Millis,
    ) -> Result<(), StoreError> {
        let mut cache = self.cache();
        let (heat, seen) = cache.history.sight(key);
        let class = if seen { Class::Proven } else { Class::Probation };
        let standing = Standing { owner: Owner::of(scope), class, saved, heat };
        if cache.shelf.get(&key).is_some() {
            cache.shelf.rank(&key, standing);
            return Ok(());
        }
        let in_use = |snapshot: &Arc<T>| Arc::strong_count(snapshot) > 1;
        let evicted = cache.shelf.put(key, snapshot, bytes.0, standing, in_use);
        let evicted = evicted.ok_or(StoreError::MakeRoom { tier: Tier::Device, bytes: bytes.0 })?;
        for (key, ..) in evicted {
            (cache.observer)(StoreEvent::Removed { key });
        }
        (cache.observer)(StoreEvent::Added { key, tier: Tier::Device, bytes });
        Ok(())
    }

    /// The snapshot of `key`.
    pub fn get(&self, key: &SegmentKey) -> Option<Arc<T>> {
        let mut cache = self.cache();
        let snapshot = cache.shelf.get(key)?.clone();
        let standing = cache.shelf.ranking().standing(key)?;
        let (heat, _) = cache.history.sight(*key);
        cache.shelf.rank(key, Standing { heat, class: Class::Proven, ..standing });
        Some(snapshot)
    }

    /// Whether there is one; this counts as no sight.
    pub fn contains(&self, key: &SegmentKey) -> bool {
        self.cache().shelf.get(key).is_some()
    }

    /// Drops a snapshot.
    pub fn remove(&self, key: &SegmentKey) {
        let mut cache = self.cache();
        if cache.shelf.remove(key).is_some() {
            (cache.observer)(StoreEvent::Removed { key: *key });
        }
    }

    /// Drops the one that would go first, for memory that is not counted here. False when there is none.
    pub fn evict_first(&self) -> bool {
        let first = self.cache().shelf.ranking().first();
        first.inspect(|key| self.remove(key)).is_some()
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        let cache = self.cache();
        Usage {
            tier: Tier::Device,
            entries: cache.shelf.ranking().len(),
            bytes: Bytes(cache.shelf.ranking().used()),
            cap: Bytes(cache.shelf.limits().cap),
        }
    }

    // A panic under the lock cannot leave a shelf half changed: its steps do not panic.
    fn cache(&self) -> MutexGuard<'_, Cache<T>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    fn key(n: u8) -> SegmentKey {
        SegmentKey([n; 32])
    }

    #[test]
    fn the_budget_holds_and_what_is_used_again_or_just_now_stays() {
        let live = Arc::new(AtomicI64::new(0));
        let count = live.clone();
        let observer = Box::new(move |event| {
            count
                .fetch_add(if matches!(event, StoreEvent::Added { .. }) { 1 } else { -1 }, Ordering::Relaxed);
        });
        let cache = SnapshotCache::new(Bytes(100), 1.0, 64.0, observer);
        let put = |n: u8, bytes| cache.put(key(n), Arc::new(n), Bytes(bytes), &Scope::PUBLIC, Millis(5.0));
        put(1, 40).unwrap();
        put(2, 40).unwrap();
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&1));
        put(3, 40).unwrap();
        assert!(cache.contains(&key(1)) && !cache.contains(&key(2)) && cache.contains(&key(3)));

        let held = (cache.get(&key(1)), cache.get(&key(3)));
        assert!(matches!(put(4, 40), Err(StoreError::MakeRoom { bytes: 40, .. })));
        drop(held);
        put(4, 40).unwrap();
        assert!(matches!(put(5, 101), Err(StoreError::MakeRoom { .. })));
        assert_eq!((cache.usage().bytes, cache.usage().entries), (Bytes(80), 2));
        cache.remove(&key(4));
        cache.remove(&key(4));
        assert!(cache.evict_first() && !cache.evict_first());
        assert_eq!(live.load(Ordering::Relaxed), 0);
    }
}
