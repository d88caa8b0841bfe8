//! Whole rounds, with routers that answer over gRPC.

use hypic_wire::proto::fleet_server::Fleet as FleetService;
use hypic_wire::proto::{
    self, AgentState, PushTopologyRequest, PushTopologyResponse, ReadCountersRequest, ReadCountersResponse,
};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::*;

/// A router that has one combine agent and sees it as told.
#[derive(Clone)]
struct Router {
    agent: AgentState,
}

#[tonic::async_trait]
impl FleetService for Router {
    async fn push_topology(
        &self,
        _: Request<PushTopologyRequest>,
    ) -> Result<Response<PushTopologyResponse>, Status> {
        Err(Status::unimplemented("nobody pushes here"))
    }

    async fn read_counters(
        &self,
        _: Request<ReadCountersRequest>,
    ) -> Result<Response<ReadCountersResponse>, Status> {
        Ok(Response::new(ReadCountersResponse {
            incarnation: 7,
            epoch: 4,
            revision: 11,
            uptime_seconds: 60.0,
            cold_first_token_ms_counts: vec![0; 24],
            agents: vec![self.agent.clone()],
            ..ReadCountersResponse::default()
        }))
    }
}

fn agent(role: proto::AgentRole, usable: bool, index_partial: u32) -> AgentState {
    AgentState {
        id: "fleet-combine-0".into(),
        role: role.into(),
        usable,
        index_partial,
        ..AgentState::default()
    }
}

async fn start(uid: &str, agent: AgentState) -> RouterPod {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let routes = Routes::new(hypic_wire::serve::fleet(Router { agent }));
    tokio::spawn(hypic_wire::serve::serve(listener, Security::Plain, routes, std::future::pending()));
    RouterPod { uid: uid.into(), address }
}

async fn gone(uid: &str) -> RouterPod {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    RouterPod { uid: uid.into(), address: listener.local_addr().unwrap().to_string() }
}

fn fleet(routers: Vec<RouterPod>, pools: &[&str]) -> Fleet {
    let pool = |pool: &&str| ScalingPool {
        pool: (*pool).into(),
        object: "fleet-scatter".into(),
        policy: policy(2, 10),
        replicas: 0,
        ready: 0,
        scaled_by: None,
    };
    let pools = pools.iter().map(pool).collect();
    Fleet { uid: "cluster-uid".into(), routers, channels: Arc::new(Channels::new(Security::Plain)), pools }
}

#[tokio::test]
async fn a_registered_fleet_is_asked_scaled_measured_and_told_of() {
    let routers = vec![
        start("r2", agent(proto::AgentRole::Combine, false, 0)).await,
        gone("r3").await,
        start("r1", agent(proto::AgentRole::Combine, true, 2)).await,
    ];
    let (pulses, server) = (Pulses::default(), Server::of(0));
    let metrics = Arc::new(Metrics::new(prometheus::Registry::new()).unwrap());
    let (changed, mut told) = mpsc::channel(8);
    let actuator = Arc::clone(&server);
    let beating =
        tokio::spawn(run(pulses.clone(), actuator, Arc::clone(&metrics), Duration::from_millis(10), changed));
    pulses.register(key(), fleet(routers.clone(), &["scatter"]));
    assert_eq!(told.recv().await, Some(key()));

    let pulse = pulses.get(&key()).unwrap();
    assert_eq!((pulse.routers_asked, pulse.routers_answered), (3, 2));
    assert_eq!(pulse.versions, [("r1".to_owned(), 4, 11), ("r2".to_owned(), 4, 11)]);
    let [agent] = pulse.agents.as_slice() else { panic!("{:?}", pulse.agents) };
    assert_eq!((agent.id.as_str(), agent.role), ("fleet-combine-0", AgentRole::Combine));
    assert_eq!((agent.usable, agent.index_partial), (true, 2), "what any router sees of it");
    assert_eq!(server.see(|stored| stored.replicas), 2, "the minimum");
    let line = |what: &str| format!("{what}{{cluster=\"fleet\",namespace=\"ns\",pool=\"scatter\"");
    assert!(
        metrics
            .text()
            .contains(&format!("{},state=\"desired\"}} 2\n", line("hypic_operator_scatter_replicas")))
    );
    assert!(metrics.text().contains(&format!("{}}} 1\n", line("hypic_operator_scatter_frozen"))));

    // A pool that is gone leaves no series; a fleet that is gone leaves no pulse.
    pulses.register(key(), fleet(routers, &[]));
    while !pulses.get(&key()).unwrap().scaling.is_empty() {
        assert_eq!(told.recv().await, Some(key()));
    }
    assert!(!metrics.text().contains("pool=\"scatter\""));
    pulses.forget(&key());
    assert_eq!(pulses.get(&key()), None);
    beating.abort();
}

#[tokio::test]
async fn an_answer_that_is_not_understood_is_none() {
    let strange = start("r1", agent(proto::AgentRole::Unspecified, true, 0)).await;
    let channels = Channels::new(Security::Plain);
    let answers = ask::ask(&channels, &[strange]).await;
    let [Answer { router, told: Err(error) }] = answers.as_slice() else { panic!("it is none") };
    assert_eq!(router, "r1");
    assert!(error.to_string().contains("agent 'fleet-combine-0' has no role that is known"), "{error}");
}
