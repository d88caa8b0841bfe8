//! The pulling side: one queue and a few connections per sender.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use hypic_domain::tuple::PartSpec;
use tokio::task::JoinSet;

use super::connection::{Dialer, work};
use super::counters::BulkCounters;
use super::fetch::Fetch;
use super::queue::Queue;
use super::{Lease, OnPart, PART_LIMIT, PartError, PullFrom, Transfer, Transport};
use crate::address::Resolver;
use crate::tls::Security;

/// Bounds of the pulling side.
#[derive(Clone, Copy, Debug)]
pub struct PullLimits {
    /// Connections to one sender. Two cost no more CPU than one and carry up to a quarter more.
    pub connections: usize,
    /// A sender that does not take a connection by then is unreachable.
    pub connect: Duration,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self { connections: 2, connect: Duration::from_secs(2) }
    }
}

/// Pulls parts by HTTP/1.1 range GETs.
pub struct HttpPull {
    security: Security,
    resolver: Resolver,
    limits: PullLimits,
    counters: Arc<BulkCounters>,
    senders: Mutex<HashMap<String, Sender>>,
}

/// A sender's queue; its connections end with it.
struct Sender {
    queue: Arc<Queue>,
    _connections: JoinSet<()>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl HttpPull {
    /// No connection yet.
    pub fn new(security: Security, limits: PullLimits) -> Self {
        Self::resolving(security, limits, Resolver::system())
    }

    pub(crate) fn resolving(security: Security, limits: PullLimits, resolver: Resolver) -> Self {
        Self { security, resolver, limits, counters: Arc::default(), senders: Mutex::default() }
    }

    /// What was pulled.
    pub fn counters(&self) -> &Arc<BulkCounters> {
        &self.counters
    }

    /// Closes connections to endpoints that `keep` refuses: senders that left the topology.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut left = Vec::new();
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        left.extend(senders.extract_if(|endpoint, _| !keep(endpoint)));
        // Closing reports parts to receivers, who may fetch again: not under the lock.
        drop(senders);
        drop(left);
    }

    fn queue_of(&self, endpoint: &str) -> Result<Arc<Queue>, crate::Error> {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = senders.get(endpoint) {
            return Ok(Arc::clone(&sender.queue));
        }
        let dialer = Arc::new(Dialer {
            address: endpoint.parse()?,
            security: self.security.clone(),
            resolver: self.resolver.clone(),
            connect: self.limits.connect,
        });
        let queue = Arc::new(Queue::default());
        let mut connections = JoinSet::new();
        for _ in 0..self.limits.connections.max(1) {
            connections.spawn(work(Arc::clone(&dialer), Arc::clone(&queue)));
        }
        let sender = Sender { queue: Arc::clone(&queue), _connections: connections };
        senders.insert(endpoint.to_owned(), sender);
        Ok(queue)
    }
}

impl Transport for HttpPull {
    fn name(&self) -> &'static str {
        "http"
    }

    fn fetch(
        &self,
        from: PullFrom,
        parts: Vec<PartSpec>,
        lease: Lease,
        stall: Duration,
        on_part: OnPart,
    ) -> Box<dyn Transfer> {
        let queue = self.queue_of(&from.endpoint);
        let (fetch, jobs) = Fetch::start(from, parts, lease, stall, on_part, Arc::clone(&self.counters));
        match queue {
            Ok(queue) => {
                let valid = |spec: &PartSpec| {
                    (1..=PART_LIMIT).contains(&spec.len) && spec.offset.checked_add(spec.len).is_some()
                };
                let (good, bad) = jobs.into_iter().partition::<Vec<_>, _>(|job| valid(&job.spec));
                for job in bad {
                    job.finish(Err(PartError::Refused { why: "a part of impossible size".to_owned() }));
                }
                queue.push(good);
                Box::new(HttpTransfer { fetch, queue: Arc::downgrade(&queue) })
            }
            Err(error) => {
                for job in jobs {
                    job.finish(Err(PartError::Unreachable { why: error.to_string() }));
                }
                Box::new(HttpTransfer { fetch, queue: Weak::new() })
            }
        }
    }
}

/// The receiver's end of a fetch over HTTP.
struct HttpTransfer {
    fetch: Arc<Fetch>,
    queue: Weak<Queue>,
}

impl Transfer for HttpTransfer {
    fn cancel(&self) {
        self.fetch.cancelled.cancel();
        if let Some(queue) = self.queue.upgrade() {
            queue.drop_cancelled();
        }
    }

    fn quiesce(self: Box<Self>) -> BoxFuture<'static, (Option<Lease>, Result<(), PartError>)> {
        Box::pin(async move { self.fetch.quiesce().await })
    }
}

impl Drop for HttpTransfer {
    fn drop(&mut self) {
        self.cancel();
    }
}
