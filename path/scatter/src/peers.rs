//! What scatter needs of the rest of the fleet.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use hypic_domain::id::{AgentId, RequestId};
use hypic_domain::key::SegmentKey;
use hypic_domain::unit::Bytes;
use hypic_wire::convert::order::BuildSegment;
use hypic_wire::convert::tuple::{BuildEvent, LeasedTuple};
use hypic_wire::status::Refusal;
use tokio::sync::mpsc;

/// The events of running builds, per segment in order: parts layer-major, then built or failed.
pub type Builds = BoxStream<'static, Result<BuildEvent, Refusal>>;

/// Other agents.
pub trait Peers: Send + Sync + 'static {
    /// Where an agent's tensor bytes are pulled from, in the transport's words; `None` when it has left.
    fn endpoint(&self, agent: &AgentId) -> Option<String>;

    /// Pins a tuple on its holder; `None` when it does not have it.
    fn lease(
        &self,
        holder: &AgentId,
        key: SegmentKey,
        ttl: Duration,
    ) -> BoxFuture<'static, Result<Option<LeasedTuple>, Refusal>>;

    /// Lets go of a lease. Best effort: the holder's own time-out frees what this does not.
    fn release(&self, holder: &AgentId, lease: u64);

    /// Has segments built as one batch. A segment that the worker builds already is joined, not built twice.
    /// The worker may be `credit` bytes ahead of what `more` gave back, or one part where that is larger.
    /// Dropping the stream cancels.
    fn build(
        &self,
        worker: &AgentId,
        id: RequestId,
        segments: Vec<BuildSegment>,
        deadline: Duration,
        credit: (Bytes, mpsc::UnboundedReceiver<Bytes>),
    ) -> BoxFuture<'static, Result<Builds, Refusal>>;
}

/// The owners of the index's slots.
pub trait Index: Send + Sync + 'static {
    /// Who builds each key: the wished builder, or the one that was granted it before. `None` where the owner
    /// cannot be asked.
    fn grant(
        &self,
        wishes: Vec<(SegmentKey, AgentId)>,
        ttl: Duration,
    ) -> BoxFuture<'static, Vec<Option<AgentId>>>;
}
