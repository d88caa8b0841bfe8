//! Topology pushes.

use std::sync::Arc;

use hypic_domain::topology::Topology;
use hypic_wire::proto;
use hypic_wire::proto::fleet_server::Fleet;
use hypic_wire::status::Refusal;
use tonic::{Request, Response, Status};

use crate::index::Index;
use crate::membership::Membership;

/// Serves [`Fleet`].
pub struct FleetService {
    /// Takes the topology over.
    pub membership: Arc<Membership>,
    /// Goes by it.
    pub index: Arc<Index>,
}

#[tonic::async_trait]
impl Fleet for FleetService {
    async fn push_topology(
        &self,
        request: Request<proto::PushTopologyRequest>,
    ) -> Result<Response<proto::PushTopologyResponse>, Status> {
        let pushed = request.into_inner().topology;
        let pushed = pushed.ok_or(Refusal::Malformed { why: "no topology".to_owned() })?;
        let pushed = Topology::try_from(pushed).map_err(Refusal::from)?;
        let ((epoch, revision), accepted) = self.membership.adopt(pushed);
        if accepted {
            self.index.adopt(&self.membership.topology());
        }
        Ok(Response::new(proto::PushTopologyResponse { epoch: epoch.0, revision, accepted }))
    }

    async fn read_counters(
        &self,
        _: Request<proto::ReadCountersRequest>,
    ) -> Result<Response<proto::ReadCountersResponse>, Status> {
        Err(Status::unimplemented("an agent counts no requests: ask a router"))
    }
}
