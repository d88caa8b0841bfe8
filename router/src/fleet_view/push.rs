//! Takes a newer topology from whoever steers the fleet.

use std::sync::Arc;

use hypic_wire::proto::fleet_server::Fleet;
use hypic_wire::proto::{PushTopologyRequest, PushTopologyResponse};
use hypic_wire::status::Refusal as PeerRefusal;
use tonic::{Request, Response, Status};

use super::FleetView;

/// The fleet service of the router.
pub struct Push {
    /// What is kept up to date.
    pub fleet: Arc<FleetView>,
}

#[tonic::async_trait]
impl Fleet for Push {
    async fn push_topology(
        &self,
        request: Request<PushTopologyRequest>,
    ) -> Result<Response<PushTopologyResponse>, Status> {
        let Some(topology) = request.into_inner().topology else {
            return Err(PeerRefusal::Malformed { why: "field 'topology' is missing".to_owned() }.into());
        };
        let topology = topology.try_into().map_err(PeerRefusal::from)?;
        let (epoch, accepted) = self.fleet.adopt(topology);
        tracing::info!(%epoch, accepted, "topology pushed");
        Ok(Response::new(PushTopologyResponse { epoch: epoch.0, accepted }))
    }
}
