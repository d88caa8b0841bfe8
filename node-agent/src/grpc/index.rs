//! The slots of the index that this agent owns.

use std::sync::Arc;

use hypic_wire::proto;
use hypic_wire::proto::index_server::Index as Service;
use tonic::{Request, Response, Status};

use crate::index::Index;

/// Serves the index.
pub struct IndexService {
    /// The slots.
    pub index: Arc<Index>,
}

#[tonic::async_trait]
impl Service for IndexService {
    async fn locate(
        &self,
        request: Request<proto::LocateRequest>,
    ) -> Result<Response<proto::LocateResponse>, Status> {
        Ok(Response::new(self.index.locate(request.get_ref())?))
    }

    async fn announce(
        &self,
        request: Request<proto::AnnounceRequest>,
    ) -> Result<Response<proto::AnnounceResponse>, Status> {
        Ok(Response::new(self.index.announce(request.into_inner())?))
    }

    async fn grant(
        &self,
        request: Request<proto::GrantRequest>,
    ) -> Result<Response<proto::GrantResponse>, Status> {
        Ok(Response::new(self.index.grant(request.into_inner())?))
    }
}
