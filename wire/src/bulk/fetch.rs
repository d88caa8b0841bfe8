//! One fetch and its parts: every part is reported exactly once, and the lease outlives the last of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hypic_domain::tuple::PartSpec;
use tokio_util::sync::CancellationToken;

use super::counters::{BulkCounters, count};
use super::{Lease, OnPart, PartError, PullFrom};

/// What the parts of one fetch share.
pub(super) struct Fetch {
    pub(super) from: PullFrom,
    pub(super) stall: Duration,
    pub(super) cancelled: CancellationToken,
    pub(super) counters: Arc<BulkCounters>,
    on_part: OnPart,
    left: AtomicUsize,
    quiet: CancellationToken,
    first_failure: Mutex<Option<PartError>>,
    lease: Mutex<Option<Lease>>,
}

/// One part on its way. Whoever holds the job may write its bytes; dropping it reports it as cancelled.
pub(super) struct Job {
    pub(super) fetch: Arc<Fetch>,
    pub(super) spec: PartSpec,
    /// Connections that broke under it.
    pub(super) broken: u32,
    index: usize,
    reported: bool,
}

impl Fetch {
    pub(super) fn start(
        from: PullFrom,
        parts: Vec<PartSpec>,
        lease: Lease,
        stall: Duration,
        on_part: OnPart,
        counters: Arc<BulkCounters>,
    ) -> (Arc<Self>, Vec<Job>) {
        let fetch = Arc::new(Self {
            from,
            stall,
            cancelled: CancellationToken::new(),
            counters,
            on_part,
            left: AtomicUsize::new(parts.len()),
            quiet: CancellationToken::new(),
            first_failure: Mutex::new(None),
            lease: Mutex::new(Some(lease)),
        });
        if parts.is_empty() {
            fetch.quiet.cancel();
        }
        let job = |(index, spec)| Job { fetch: Arc::clone(&fetch), spec, broken: 0, index, reported: false };
        let jobs = parts.into_iter().enumerate().map(job).collect();
        (fetch, jobs)
    }

    /// Waits until nobody can write any more, and takes the lease and the first failure out.
    pub(super) async fn quiesce(&self) -> (Option<Lease>, Result<(), PartError>) {
        self.quiet.cancelled().await;
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
        let failure = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        (lease, failure.map_or(Ok(()), Err))
    }
}

impl Job {
    /// Tells the receiver how the part ended.
    pub(super) fn finish(mut self, outcome: Result<Bytes, PartError>) {
        self.report(outcome);
    }

    fn report(&mut self, outcome: Result<Bytes, PartError>) {
        self.reported = true;
        let counters = &self.fetch.counters;
        match &outcome {
            Ok(bytes) => counters.count_part(bytes.len() as u64),
            Err(PartError::Checksum) => count(&counters.checksum_failures),
            Err(PartError::Stalled) => count(&counters.stalls),
            Err(PartError::Cancelled) => {}
            Err(_) => count(&counters.failures),
        }
        if let Err(error) = &outcome {
            let mut first = self.fetch.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| error.clone());
        }
        (self.fetch.on_part)(self.index, outcome);
        if self.fetch.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.fetch.quiet.cancel();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.reported {
            self.report(Err(PartError::Cancelled));
        }
    }
}
