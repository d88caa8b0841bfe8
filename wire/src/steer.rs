//! What whoever steers a fleet asks of its parts: to go by a topology, and what routers have counted.

use std::future::Future;
use std::time::Duration;

use hypic_domain::id::Epoch;
use hypic_domain::topology::Topology;
use tonic::{Response, Status};

use crate::channel::Channels;
use crate::proto::{PushTopologyRequest, PushTopologyResponse, ReadCountersRequest, ReadCountersResponse};
use crate::tls::ServerRole;
use crate::{Error, proto};

/// A part that has not answered by then is away, its connection included.
const ANSWER: Duration = Duration::from_secs(2);

/// What a part goes by after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its revision.
    pub revision: u64,
    /// It goes by the pushed topology now; otherwise by its own, newer one.
    pub accepted: bool,
}

/// Why a part did not answer.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// Nobody can dial that.
    #[error("dial")]
    Dial {
        /// What is wrong with the address.
        source: Error,
    },
    /// No answer in time.
    #[error("'{address}' does not answer")]
    Wait {
        /// Who.
        address: String,
    },
    /// An answer that is a refusal, or a connection that broke.
    #[error("ask '{address}'")]
    Call {
        /// Who.
        address: String,
        /// Why.
        source: Box<Status>,
    },
}

impl Channels {
    /// Has the part at `address` go by `topology`, unless it knows a newer one.
    ///
    /// # Errors
    /// A part that does not answer, or refuses.
    pub async fn push_topology(
        &self,
        address: &str,
        role: ServerRole,
        topology: &Topology,
    ) -> Result<Adopted, SteerError> {
        let mut fleet = self.fleet(address, role).map_err(|source| SteerError::Dial { source })?;
        let request = PushTopologyRequest { topology: Some(proto::Topology::from(topology.clone())) };
        let PushTopologyResponse { epoch, accepted, revision } =
            answer(address, fleet.push_topology(request)).await?;
        Ok(Adopted { epoch: Epoch(epoch), revision, accepted })
    }

    /// What the router at `address` has counted since it started.
    ///
    /// # Errors
    /// As [`Self::push_topology`].
    pub async fn read_counters(&self, address: &str) -> Result<ReadCountersResponse, SteerError> {
        let mut fleet =
            self.fleet(address, ServerRole::Router).map_err(|source| SteerError::Dial { source })?;
        answer(address, fleet.read_counters(ReadCountersRequest {})).await
    }
}

async fn answer<T>(
    address: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, SteerError> {
    match tokio::time::timeout(ANSWER, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(SteerError::Call { address: address.to_owned(), source: Box::new(status) }),
        Err(_) => Err(SteerError::Wait { address: address.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
