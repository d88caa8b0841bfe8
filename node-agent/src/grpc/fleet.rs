//! Topology pushes.

use std::sync::Arc;

use hypic_domain::topology::{Topology, TopologySource};
use hypic_wire::proto;
use hypic_wire::proto::fleet_server::Fleet;
use hypic_wire::serve::check_steers;
use hypic_wire::status::Refusal;
use tonic::{Request, Response, Status};

use crate::index::Index;

/// Serves [`Fleet`].
pub struct FleetService {
    /// Goes by it.
    pub index: Arc<Index>,
}

#[tonic::async_trait]
impl Fleet for FleetService {
    async fn push_topology(
        &self,
        request: Request<proto::PushTopologyRequest>,
    ) -> Result<Response<proto::PushTopologyResponse>, Status> {
        check_steers(&request)?;
        let pushed = request.into_inner().topology;
        let pushed = pushed.ok_or(Refusal::Malformed { why: "no topology".to_owned() })?;
        let pushed = Topology::try_from(pushed).map_err(Refusal::from)?;
        let ((epoch, revision), accepted) = self.index.membership.adopt(pushed, TopologySource::Push);
        if accepted {
            self.index.adopt();
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
