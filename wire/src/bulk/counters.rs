//! What a transport counted: read by the binaries' metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that only grow. One for what an agent pulls, one for what it serves.
#[derive(Debug, Default)]
pub struct BulkCounters {
    pub(super) bytes: AtomicU64,
    pub(super) parts: AtomicU64,
    pub(super) checksum_failures: AtomicU64,
    pub(super) stalls: AtomicU64,
    pub(super) failures: AtomicU64,
}

/// A reading of [`BulkCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkCounts {
    /// Bytes of whole parts.
    pub bytes: u64,
    /// Whole parts.
    pub parts: u64,
    /// Parts with a wrong sum.
    pub checksum_failures: u64,
    /// Parts given up for want of progress.
    pub stalls: u64,
    /// Parts that did not arrive for any other reason but cancelling; on the serving side, refused requests.
    pub failures: u64,
}

impl BulkCounters {
    /// The counts now.
    pub fn read(&self) -> BulkCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BulkCounts {
            bytes: load(&self.bytes),
            parts: load(&self.parts),
            checksum_failures: load(&self.checksum_failures),
            stalls: load(&self.stalls),
            failures: load(&self.failures),
        }
    }

    pub(super) fn count_part(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.parts.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
