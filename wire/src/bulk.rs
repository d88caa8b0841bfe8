//! Tensor bytes between agents: the receiver pulls parts, in its own order and at its own pace.
//!
//! The unit of [`Transport`] is a list of parts into a leased share of memory. A part is also the unit of
//! retry: parts are immutable, named by key and range, and checked against the sum in the sender's manifest
//! once, after the last byte and before anybody sees them.
//!
//! Between pods it is HTTP/1.1 range GETs ([`HttpPull`], [`BulkServer`]), which `curl` can follow. RDMA takes
//! the same trait: that is why cancelling is only a request, and why a [`Lease`] comes back from
//! [`Transfer::quiesce`] and never from a drop.

mod budget;
mod client;
mod connection;
mod counters;
mod fetch;
mod head;
mod paced;
mod queue;
mod server;
mod ticket;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use hypic_domain::key::SegmentKey;
use hypic_domain::tuple::PartSpec;

pub use budget::{Budget, Lease};
pub use client::{HttpPull, PullLimits};
pub use counters::{BulkCounters, BulkCounts};
pub use server::{BulkServer, PartSource, ReadPart, ServeLimits};
pub use ticket::{Tickets, unix_now};

/// Largest part that is taken: a forged length must not become an allocation.
pub const PART_LIMIT: u64 = 1 << 30;

/// Where to pull one tuple from, as the control plane told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullFrom {
    /// The sender's address in the transport's own words; `host:port` for HTTP.
    pub endpoint: String,
    /// Which tuple.
    pub key: SegmentKey,
    /// The right to read it.
    pub ticket: Bytes,
}

/// Why a part did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// The bytes do not have the sum of the manifest: that copy is bad, another holder may have a good one.
    #[error("checksum differs")]
    Checksum,
    /// The sender no longer has the tuple.
    #[error("the sender no longer has it")]
    Gone,
    /// The sender is at its bound.
    #[error("the sender is busy")]
    Busy {
        /// When to ask again.
        retry: Duration,
    },
    /// The sender does not accept the question: ticket, range or part.
    #[error("refused: {why}")]
    Refused {
        /// What it said.
        why: String,
    },
    /// The sender's answer is not the protocol.
    #[error("malformed answer: {why}")]
    Malformed {
        /// What is wrong with it.
        why: &'static str,
    },
    /// No connection, or it broke more than once.
    #[error("unreachable: {why}")]
    Unreachable {
        /// What the connection said.
        why: String,
    },
    /// No progress within the deadline.
    #[error("no progress")]
    Stalled,
    /// The receiver asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Called once per part, in any order, with the part's place in the list.
pub type OnPart = Arc<dyn Fn(usize, Result<Bytes, PartError>) + Send + Sync>;

/// A way for tensor bytes to come from another agent.
pub trait Transport: Send + Sync + 'static {
    /// The name in metrics and logs.
    fn name(&self) -> &'static str;

    /// Starts pulling `parts` and returns at once. Parts of low layers go before those of high ones, over
    /// all fetches from one sender. `lease` covers the parts' bytes; `stall` bounds a silence of the sender.
    fn fetch(
        &self,
        from: PullFrom,
        parts: Vec<PartSpec>,
        lease: Lease,
        stall: Duration,
        on_part: OnPart,
    ) -> Box<dyn Transfer>;
}

/// A running fetch. Dropping it cancels; the lease then comes back when the transport is quiet.
pub trait Transfer: Send {
    /// Asks to stop; frees nothing. Parts that did not arrive are reported as [`PartError::Cancelled`].
    fn cancel(&self);

    /// Resolves when nothing can write any more, with the lease and the first failure.
    fn quiesce(self: Box<Self>) -> BoxFuture<'static, (Option<Lease>, Result<(), PartError>)>;
}

#[cfg(test)]
mod tests;
