//! Peers over gRPC.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, TryFutureExt};
use hypic_domain::id::{AgentId, RequestId};
use hypic_domain::key::{Identity, SegmentKey};
use hypic_domain::topology::Topology;
use hypic_domain::unit::{Bytes, Millis};
use hypic_wire::channel::Channels;
use hypic_wire::convert::order::{BuildOrder, BuildSegment};
use hypic_wire::convert::tuple::{LeasedTuple, from_leased};
use hypic_wire::proto;
use hypic_wire::proto::agent_client::AgentClient;
use hypic_wire::proto::build_request::Message;
use hypic_wire::status::Refusal;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;

use crate::peers::{Builds, Peers};

/// The agents of the present topology.
pub struct GrpcPeers {
    channels: Arc<Channels>,
    identity: Identity,
    topology: RwLock<Arc<Topology>>,
    releases: mpsc::UnboundedSender<(AgentId, u64)>,
}

impl GrpcPeers {
    /// Peers that share `identity`. Must be called on a tokio runtime: leases are given back in the
    /// background.
    pub fn new(channels: Arc<Channels>, identity: Identity, topology: Arc<Topology>) -> Arc<Self> {
        let (releases, mut released) = mpsc::unbounded_channel::<(AgentId, u64)>();
        let peers = Arc::new(Self { channels, identity, topology: RwLock::new(topology), releases });
        let weak = Arc::downgrade(&peers);
        tokio::spawn(async move {
            while let Some((holder, lease)) = released.recv().await {
                let Some(peers) = weak.upgrade() else { return };
                let release = async {
                    let (mut agent, _) = peers.agent(&holder)?;
                    Ok::<_, Refusal>(agent.release(proto::ReleaseRequest { leases: vec![lease] }).await?)
                };
                if let Err(error) = release.await {
                    tracing::debug!(%holder, %error, "release a lease");
                }
            }
        });
        peers
    }

    /// Takes a newer topology.
    pub fn set_topology(&self, topology: Arc<Topology>) {
        *self.topology.write().unwrap_or_else(PoisonError::into_inner) = topology;
    }

    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The agent's service and the epoch to name.
    fn agent(&self, id: &AgentId) -> Result<(AgentClient<Channel>, u64), Refusal> {
        let topology = self.topology();
        let entry = topology
            .agent(id)
            .ok_or_else(|| Refusal::Unreachable { why: format!("'{id}' has left the topology") })?;
        Ok((self.channels.agent(&entry.control)?, topology.epoch.0))
    }
}

impl Peers for GrpcPeers {
    fn endpoint(&self, agent: &AgentId) -> Option<String> {
        self.topology().agent(agent).map(|entry| entry.bulk.clone())
    }

    fn lease(
        &self,
        holder: &AgentId,
        key: SegmentKey,
        ttl: Duration,
    ) -> BoxFuture<'static, Result<Option<LeasedTuple>, Refusal>> {
        let agent = self.agent(holder);
        let identity = self.identity.0.to_vec();
        Box::pin(async move {
            let (mut agent, epoch) = agent?;
            let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
            let request = proto::LeaseRequest { epoch, identity, keys: vec![key.0.to_vec()], ttl_ms };
            let proto::LeaseResponse { leased, incarnation: _ } = agent.lease(request).await?.into_inner();
            let leased = leased.into_iter().next().map(from_leased).transpose()?;
            Ok(leased.flatten())
        })
    }

    fn release(&self, holder: &AgentId, lease: u64) {
        // The task ends only with the runtime; the holder's time-out frees the lease then.
        drop(self.releases.send((holder.clone(), lease)));
    }

    fn build(
        &self,
        worker: &AgentId,
        id: RequestId,
        segments: Vec<BuildSegment>,
        deadline: Duration,
        (credit, more): (Bytes, mpsc::UnboundedReceiver<Bytes>),
    ) -> BoxFuture<'static, Result<Builds, Refusal>> {
        let agent = self.agent(worker);
        let identity = self.identity;
        Box::pin(async move {
            let (mut agent, epoch) = agent?;
            let order = BuildOrder {
                epoch: hypic_domain::id::Epoch(epoch),
                id,
                identity,
                segments,
                credit,
                deadline: Millis(deadline.as_secs_f64() * 1e3),
            };
            let request = |message| proto::BuildRequest { message: Some(message) };
            let start = futures::stream::iter([request(Message::Start(order.into()))]);
            let credits = UnboundedReceiverStream::new(more)
                .map(move |bytes| request(Message::Credit(proto::Credit { bytes: bytes.0 })));
            let events = agent.build(start.chain(credits)).map_err(Refusal::from).await?.into_inner();
            Ok(events.map(|event| Ok(event?.try_into()?)).boxed())
        })
    }
}
