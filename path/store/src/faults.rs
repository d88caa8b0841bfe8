//! Plain counts of what went wrong.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Damaged tuples that were dropped.
    pub corrupt: u64,
    /// Passing errors of reading: a miss, the entry stays.
    pub unreadable: u64,
    /// Writes that found the drive full, whether eviction helped or not.
    pub disk_full: u64,
    /// Writes that failed for another reason.
    pub write_failed: u64,
    /// Files that could not be deleted; the next start tries again.
    pub remove_failed: u64,
    /// Tuples whose token ids were not the ones asked for.
    pub mismatch: u64,
    /// Left-over files deleted at the start.
    pub orphans: u64,
}

/// One count.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
