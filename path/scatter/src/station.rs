//! What every gathering of one agent shares.

use std::sync::Arc;
use std::time::Duration;

use hypic_domain::id::AgentId;
use hypic_domain::unit;
use hypic_wire::bulk::{Budget, Transport};

use crate::peers::{Index, Peers};

/// Bounds on waiting and on what is in flight.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A fetched segment is given up after this.
    pub fetch: Duration,
    /// A segment built elsewhere is given up after this.
    pub build: Duration,
    /// Share of its time, 0 to 1, after which a segment is late and a second source is tried beside the first.
    pub hedge: f64,
    /// An owner or holder that has not answered by then is away.
    pub answer: Duration,
    /// A sender that brings nothing for this long is stalled.
    pub stall: Duration,
    /// Layers of one segment pulled at once.
    pub window: usize,
    /// Bytes that one worker may be ahead of what was pulled from it.
    pub credit: unit::Bytes,
    /// Events that wait for the caller.
    pub events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fetch: Duration::from_secs(10),
            build: Duration::from_secs(60),
            hedge: 0.5,
            answer: Duration::from_secs(2),
            stall: Duration::from_secs(2),
            window: 4,
            credit: unit::Bytes(64 << 20),
            events: 64,
        }
    }
}

/// The station: one per agent, for all its requests.
pub struct Scatter {
    /// This agent.
    pub me: AgentId,
    /// Other agents.
    pub peers: Arc<dyn Peers>,
    /// The index.
    pub index: Arc<dyn Index>,
    /// How bytes come.
    pub transport: Arc<dyn Transport>,
    /// Cap on bytes in flight over all requests.
    pub budget: Budget,
    /// Bounds.
    pub limits: Limits,
}
