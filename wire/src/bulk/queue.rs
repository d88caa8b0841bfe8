//! Parts wanted from one sender, low layers first, shared by the connections to it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::fetch::Job;

/// One queue for all connections and all fetches: a slow connection cannot hold up layer 0.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// By layer, then by arrival.
    jobs: BTreeMap<(u16, u64), Job>,
    arrivals: u64,
    /// Connections that wait for a job.
    waiting: usize,
    closed: bool,
}

impl Queue {
    pub(super) fn push(&self, jobs: impl IntoIterator<Item = Job>) {
        let refused = {
            let mut state = self.lock();
            let mut refused = Vec::new();
            for job in jobs {
                if state.closed {
                    refused.push(job);
                    continue;
                }
                state.arrivals += 1;
                let place = (job.spec.layer, state.arrivals);
                state.jobs.insert(place, job);
            }
            refused
        };
        // Outside the lock: dropping a job reports it to the receiver.
        drop(refused);
        self.wake.notify_waiters();
    }

    /// The next job; `None` when the queue is closed.
    pub(super) async fn take(&self) -> Option<Job> {
        let _waiting = Waiting::enter(self);
        loop {
            let woken = self.wake.notified();
            {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                if let Some((_, job)) = state.jobs.pop_first() {
                    return Some(job);
                }
            }
            woken.await;
        }
    }

    /// A job to ask for before the former has come, unless another connection is idle.
    pub(super) fn take_ahead(&self) -> Option<Job> {
        let mut state = self.lock();
        if state.waiting > 0 { None } else { state.jobs.pop_first().map(|(_, job)| job) }
    }

    /// Everything that waits: the sender cannot be reached.
    pub(super) fn take_all(&self) -> Vec<Job> {
        std::mem::take(&mut self.lock().jobs).into_values().collect()
    }

    pub(super) fn drop_cancelled(&self) {
        let cancelled: Vec<Job> = {
            let mut state = self.lock();
            state
                .jobs
                .extract_if(.., |_, job| job.fetch.cancelled.is_cancelled())
                .map(|(_, job)| job)
                .collect()
        };
        drop(cancelled);
    }

    pub(super) fn close(&self) {
        let jobs = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.jobs)
        };
        drop(jobs);
        self.wake.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Waiting<'a>(&'a Queue);

impl<'a> Waiting<'a> {
    fn enter(queue: &'a Queue) -> Self {
        queue.lock().waiting += 1;
        Self(queue)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}
