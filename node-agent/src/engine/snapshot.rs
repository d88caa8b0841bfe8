//! Exact prefix snapshots: a running state and the pages before a boundary, by key, under a byte budget.

use std::collections::HashMap;
use std::rc::Rc;

use hypic_domain::key::SegmentKey;
use hypic_kernels::op::Device;

use super::pool::Lease;

/// A sequence at some point: enough to go on from there as often as one likes.
pub(super) struct Saved<D: Device> {
    /// Running states and tails.
    pub(super) state: D::SlotState,
    /// Pages up to there. The last may be partly full and is copied before anybody writes on.
    pub(super) pages: Vec<Lease>,
    /// Positions of the live tokens in them.
    pub(super) live: Vec<u32>,
}

/// Snapshots by key, least recently used first out.
///
/// The budget counts states; pages are in the pool already, and a snapshot gives way when they run out.
pub(super) struct Snapshots<D: Device> {
    by_key: HashMap<SegmentKey, (u64, Rc<Saved<D>>)>,
    capacity: usize,
    clock: u64,
}

impl<D: Device> Snapshots<D> {
    /// Room for so many bytes of states of `slot_bytes` each.
    pub(super) fn new(budget: u64, slot_bytes: u64) -> Self {
        Self { by_key: HashMap::new(), capacity: (budget / slot_bytes.max(1)) as usize, clock: 0 }
    }

    /// Whether one could be kept at all.
    pub(super) fn is_enabled(&self) -> bool {
        self.capacity > 0
    }

    pub(super) fn contains(&self, key: &SegmentKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn find(&mut self, key: &SegmentKey) -> Option<Rc<Saved<D>>> {
        self.clock += 1;
        let (used, saved) = self.by_key.get_mut(key)?;
        *used = self.clock;
        Some(Rc::clone(saved))
    }

    pub(super) fn put(&mut self, key: SegmentKey, saved: Saved<D>) {
        while self.by_key.len() >= self.capacity {
            if !self.evict() {
                return;
            }
        }
        self.clock += 1;
        self.by_key.insert(key, (self.clock, Rc::new(saved)));
    }

    /// Drops the least recently used one. False when there is none.
    pub(super) fn evict(&mut self) -> bool {
        let oldest = self.by_key.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
        oldest.is_some_and(|key| self.by_key.remove(&key).is_some())
    }
}
