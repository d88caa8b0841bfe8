use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::{Code, Request};

use super::*;
use crate::proto::fleet_server::Fleet;
use crate::tls::Security;

/// Goes by epoch 7, revision 3, and by nothing older.
struct Part;

#[tonic::async_trait]
impl Fleet for Part {
    async fn push_topology(
        &self,
        request: Request<PushTopologyRequest>,
    ) -> Result<Response<PushTopologyResponse>, Status> {
        let pushed = Topology::try_from(request.into_inner().topology.unwrap()).unwrap();
        let accepted = pushed.version() >= (Epoch(7), 3);
        let (epoch, revision) = pushed.version().max((Epoch(7), 3));
        Ok(Response::new(PushTopologyResponse { epoch: epoch.0, revision, accepted }))
    }

    async fn read_counters(
        &self,
        _: Request<ReadCountersRequest>,
    ) -> Result<Response<ReadCountersResponse>, Status> {
        Err(Status::unimplemented("an agent"))
    }
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[tokio::test]
async fn a_part_says_what_it_goes_by_and_refusals_keep_their_code() {
    let (listener, address) = listener().await;
    let routes = Routes::new(crate::serve::fleet(Part));
    tokio::spawn(crate::serve::serve(listener, Security::Plain, routes, std::future::pending()));
    let channels = Channels::new(Security::Plain);
    let push = async |revision| {
        let topology = Topology { epoch: Epoch(7), revision, agents: Vec::new() };
        channels.push_topology(&address, ServerRole::Agent, &topology).await.unwrap()
    };
    assert_eq!(push(4).await, Adopted { epoch: Epoch(7), revision: 4, accepted: true });
    assert_eq!(push(2).await, Adopted { epoch: Epoch(7), revision: 3, accepted: false });
    let refused = channels.read_counters(&address).await.unwrap_err();
    assert!(matches!(refused, SteerError::Call { source, .. } if source.code() == Code::Unimplemented));
}

#[tokio::test(start_paused = true)]
async fn silence_and_bad_addresses_are_told_apart() {
    // Connections stay in the kernel's queue.
    let (_silent, address) = listener().await;
    let channels = Channels::new(Security::Plain);
    let silent = channels.read_counters(&address).await.unwrap_err();
    assert!(matches!(silent, SteerError::Wait { address: of } if of == address));
    let nowhere = channels.read_counters("fd00::7:7001").await.unwrap_err();
    assert!(matches!(nowhere, SteerError::Dial { .. }));
}
