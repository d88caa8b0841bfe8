//! Who may run: a bounded queue that is fair between tenants, and a bound on CPU work beside it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hypic_domain::id::TenantId;
use tokio::sync::{Semaphore, oneshot};

use crate::refusal::Refusal;

/// Bounds of [`Admission`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that run at once.
    pub running: usize,
    /// Requests that wait for their turn.
    pub queued: usize,
}

/// The queue. Tenants take turns; within a tenant the first come is the first served.
#[derive(Clone)]
pub struct Admission {
    shared: Arc<Shared>,
}

struct Shared {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    queued: usize,
    next: u64,
    tenants: HashMap<TenantId, Line>,
    /// Tenants with somebody waiting, next in turn first.
    order: VecDeque<TenantId>,
    /// Mean time that a request runs, exponentially aged.
    mean_run: Option<Duration>,
}

/// One tenant's waiting requests.
#[derive(Default)]
struct Line {
    running: usize,
    concurrent: Option<usize>,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    ticket: u64,
    since: Instant,
    turn: oneshot::Sender<Turn>,
}

/// A place in the queue. Dropping it leaves the queue.
pub struct Place {
    shared: Arc<Shared>,
    tenant: TenantId,
    ticket: u64,
    turn: oneshot::Receiver<Turn>,
    since: Instant,
}

/// The right to run. Dropping it lets the next one run.
pub struct Turn {
    shared: Arc<Shared>,
    tenant: TenantId,
    since: Instant,
}

impl Admission {
    /// An empty queue.
    pub fn new(limits: Limits) -> Self {
        Self { shared: Arc::new(Shared { limits, state: Mutex::default() }) }
    }

    /// Takes a place in the queue; one that may run already has its turn.
    ///
    /// # Errors
    /// [`Refusal::Admit`] when the queue is full.
    pub fn admit(&self, tenant: &TenantId, concurrent: Option<usize>) -> Result<Place, Refusal> {
        let (sender, turn) = oneshot::channel();
        let since = Instant::now();
        let mut state = self.shared.lock();
        let line = state.tenants.entry(tenant.clone()).or_default();
        line.concurrent = concurrent;
        let runs_now = state.running < self.shared.limits.running
            && state.order.is_empty()
            && state.tenants.get(tenant).is_some_and(Line::may_run);
        if !runs_now && state.queued >= self.shared.limits.queued {
            state.forget_idle(tenant);
            return Err(Refusal::Admit { retry_after: self.shared.retry_after(&state) });
        }
        let ticket = state.next;
        state.next += 1;
        state.enqueue(tenant, Waiting { ticket, since, turn: sender });
        let granted = self.shared.grant(&mut state);
        drop(state);
        deliver(granted);
        Ok(Place { shared: self.shared.clone(), tenant: tenant.clone(), ticket, turn, since })
    }

    /// Requests that run and that wait.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.running, state.queued)
    }

    /// Since when the oldest request waits for capacity. Requests that only wait for others of their own tenant
    /// are left out: more capacity would not help them.
    pub fn oldest(&self) -> Option<Instant> {
        let state = self.shared.lock();
        let first = |line: &Line| line.waiting.front().filter(|_| line.may_run()).map(|first| first.since);
        state.tenants.values().filter_map(first).min()
    }
}

impl Place {
    /// Waits until the request may run, and says how long that took.
    ///
    /// # Errors
    /// [`Refusal::ShutDown`] when the queue itself is gone.
    pub async fn turn(mut self) -> Result<(Turn, Duration), Refusal> {
        let turn = (&mut self.turn).await.map_err(|_| Refusal::ShutDown)?;
        let waited = turn.since.saturating_duration_since(self.since);
        Ok((turn, waited))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.lock().leave(&self.tenant, self.ticket);
        // A turn that was granted but never taken goes back by its own drop.
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.running -= 1;
        let ran = self.since.elapsed();
        state.mean_run = Some(state.mean_run.map_or(ran, |mean| (mean * 7 + ran) / 8));
        if let Some(line) = state.tenants.get_mut(&self.tenant) {
            line.running -= 1;
        }
        state.forget_idle(&self.tenant);
        let granted = self.shared.grant(&mut state);
        drop(state);
        deliver(granted);
    }
}

/// Hands turns to their places. One whose place is gone comes back and is dropped, which grants the next;
/// so this must be called without the lock.
fn deliver(granted: Vec<(oneshot::Sender<Turn>, Turn)>) {
    for (sender, turn) in granted {
        drop(sender.send(turn));
    }
}

impl Line {
    fn may_run(&self) -> bool {
        self.concurrent.is_none_or(|most| self.running < most)
    }
}

impl State {
    fn enqueue(&mut self, tenant: &TenantId, waiting: Waiting) {
        let line = self.tenants.entry(tenant.clone()).or_default();
        if line.waiting.is_empty() {
            self.order.push_back(tenant.clone());
        }
        line.waiting.push_back(waiting);
        self.queued += 1;
    }

    fn leave(&mut self, tenant: &TenantId, ticket: u64) {
        let Some(line) = self.tenants.get_mut(tenant) else { return };
        let before = line.waiting.len();
        line.waiting.retain(|waiting| waiting.ticket != ticket);
        self.queued -= before - line.waiting.len();
        if line.waiting.is_empty() {
            self.order.retain(|waiting| waiting != tenant);
        }
        self.forget_idle(tenant);
    }

    /// A tenant without work costs no memory.
    fn forget_idle(&mut self, tenant: &TenantId) {
        if self.tenants.get(tenant).is_some_and(|line| line.running == 0 && line.waiting.is_empty()) {
            self.tenants.remove(tenant);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes whose turn it is out of the queue, as many as may run.
    fn grant(self: &Arc<Self>, state: &mut State) -> Vec<(oneshot::Sender<Turn>, Turn)> {
        let mut granted = Vec::new();
        while state.running < self.limits.running {
            let next =
                state.order.iter().position(|tenant| state.tenants.get(tenant).is_some_and(Line::may_run));
            let Some(tenant) = next.and_then(|at| state.order.remove(at)) else { break };
            let Some(line) = state.tenants.get_mut(&tenant) else { continue };
            let Some(Waiting { turn: sender, .. }) = line.waiting.pop_front() else { continue };
            line.running += 1;
            if !line.waiting.is_empty() {
                state.order.push_back(tenant.clone());
            }
            state.running += 1;
            state.queued -= 1;
            granted.push((sender, Turn { shared: self.clone(), tenant, since: Instant::now() }));
        }
        granted
    }

    /// When the queue is likely to have moved on by one: at least a second, at most a minute.
    fn retry_after(&self, state: &State) -> Duration {
        let mean = state.mean_run.unwrap_or(Duration::from_secs(1));
        let rounds = (state.queued + 1).div_ceil(self.limits.running.max(1));
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        mean.saturating_mul(rounds).clamp(Duration::from_secs(1), Duration::from_secs(60))
    }
}

/// Parsing and tokenising: on blocking threads, a few at once, so that probes and streams keep their pace.
#[derive(Clone)]
pub struct CpuWork {
    permits: Arc<Semaphore>,
}

impl CpuWork {
    /// At most `threads` pieces of work at once.
    pub fn new(threads: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(threads.max(1))) }
    }

    /// Runs `work` and waits for it.
    ///
    /// # Errors
    /// [`Refusal::Internal`] when the work panics; the panic is in the log.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| Refusal::ShutDown)?;
        let span = tracing::Span::current();
        let work = move || {
            let _entered = span.entered();
            // The permit goes back when the work ends, not when its caller goes away.
            let _permit = permit;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| Refusal::Internal)
    }
}

#[cfg(test)]
mod tests;
