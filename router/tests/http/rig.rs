//! A router with stub agents, each on a socket of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hypic_domain::flow::Mode;
use hypic_domain::id::{AgentId, Epoch, ModelId};
use hypic_domain::serving::ModelFile;
use hypic_domain::topology::{AgentEntry, AgentRole, Topology};
use hypic_domain::unit::Tokens;
use hypic_router::admission::{Admission, CpuWork, Limits};
use hypic_router::fleet_view::{FleetView, poll};
use hypic_router::front::{Bounds, Front};
use hypic_router::http::{Origins, routes};
use hypic_router::listen::{self, Connections};
use hypic_router::metrics::Metrics;
use hypic_router::tenant::{Policy, Tenants};
use hypic_segment::{Clock, Segmenter};
use hypic_wire::channel::Channels;
use hypic_wire::follow::Live;
use hypic_wire::tls::Security;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::client::KEY;
use crate::stub::Stub;

/// What a rig can differ in.
pub(crate) struct Settings {
    pub(crate) agents: usize,
    pub(crate) limits: Limits,
    pub(crate) bounds: Bounds,
    pub(crate) name: &'static str,
    pub(crate) origins: Vec<String>,
    pub(crate) connections: Connections,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            agents: 1,
            limits: Limits { running: 64, queued: 64 },
            bounds: Bounds {
                body: 1 << 20,
                deadline: Duration::from_secs(50),
                lookup: Duration::from_secs(5),
                keep_alive: Duration::from_secs(20),
            },
            name: "hypic-tiny",
            origins: Vec::new(),
            connections: Connections { most: 512, head: Duration::from_secs(30) },
        }
    }
}

pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) front: Arc<Front>,
    pub(crate) agents: Vec<Stub>,
    pub(crate) segmenter: Arc<Segmenter>,
}

/// The common case: one agent that answers `text`.
pub(crate) async fn answering(text: &str) -> Rig {
    let rig = Rig::start(Settings::default()).await;
    rig.answer(text);
    rig
}

impl Rig {
    pub(crate) async fn start(settings: Settings) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../e2e/models/hypic-tiny");
        let model = ModelFile {
            name: ModelId::from(settings.name),
            path: path.clone(),
            seam: Tokens(8),
            segment_min: Tokens(16),
            segment_max: Tokens(1024),
            format: hypic_domain::tuple::TupleFormat::default(),
            policy: Mode::Pic,
            separator: "<<hypic>>".to_owned(),
            snapshot_min: Tokens(64),
        };
        let clock: Clock = Arc::new(SystemTime::now);
        let segmenter = Arc::new(Segmenter::load(&path, &model, &clock).expect("hypic-tiny loads"));
        let (mut agents, mut entries) = (Vec::new(), Vec::new());
        for place in 0..settings.agents {
            let agent = Stub::new(&format!("combine-{place}"));
            let address = serve_agent(agent.clone()).await.to_string();
            entries.push(AgentEntry {
                id: AgentId(agent.name.clone()),
                role: AgentRole::Combine,
                control: address.clone(),
                bulk: address,
            });
            agents.push(agent);
        }
        let fleet = Arc::new(FleetView::new(Topology { epoch: Epoch(1), revision: 0, agents: entries }));
        let channels = Arc::new(Channels::new(Security::Plain));
        poll::round(&fleet, &channels, Duration::from_secs(20)).await;
        let policy = Policy {
            tenant: "test".into(),
            pinned: None,
            modes: vec![Mode::Recompute, Mode::Prefix, Mode::Pic],
            public: false,
            concurrent: None,
        };
        let front = Arc::new(Front {
            model,
            segmenter: segmenter.clone(),
            fleet,
            channels,
            admission: Admission::new(settings.limits),
            cpu: CpuWork::new(2),
            tenants: Live::read(Vec::new(), move || Ok(keys(&policy))).expect("no file is read"),
            secret: [7; 32],
            metrics: Arc::new(Metrics::new(Registry::new()).expect("registers")),
            bounds: settings.bounds,
            leaving: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        let routes = routes(front.clone(), Origins { allowed: settings.origins });
        tokio::spawn(listen::serve(listener, routes, settings.connections, std::future::pending()));
        Self { address, front, agents, segmenter }
    }

    /// All agents answer `text`, byte by byte.
    pub(crate) fn answer(&self, text: &str) {
        let ids = self.ids(text);
        for agent in &self.agents {
            agent.script(|script| script.ids.clone_from(&ids));
        }
    }

    /// One id per byte of `text`.
    pub(crate) fn ids(&self, text: &str) -> Vec<u32> {
        let id = |byte| self.segmenter.tokeniser().id(&byte_token(byte).to_string()).expect("a byte token");
        text.bytes().map(id).collect()
    }

    /// Waits until nothing runs or waits any more.
    pub(crate) async fn wait_idle(&self) {
        for _ in 0..400 {
            if self.load() == (0, (0, 0)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert_eq!(self.load(), (0, (0, 0)), "something still runs");
    }

    /// Streams that agents serve, and what the router runs and queues.
    fn load(&self) -> (usize, (usize, usize)) {
        (self.agents.iter().map(Stub::running).sum(), self.front.admission.counts())
    }
}

/// The character that byte-level vocabularies write for a byte: itself where it prints, else the next free
/// one from U+0100 on.
fn byte_token(byte: u8) -> char {
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if prints(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !prints(*byte)).count() as u32;
    char::from_u32(0x100 + before).expect("a character")
}

fn keys(policy: &Policy) -> Tenants {
    Tenants::Keys(vec![(blake3::hash(KEY.as_bytes()), policy.clone())])
}

async fn serve_agent(agent: Stub) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let routes =
        Routes::new(hypic_wire::serve::agent(agent.clone())).add_service(hypic_wire::serve::index(agent));
    tokio::spawn(hypic_wire::serve::serve(listener, Security::Plain, routes, std::future::pending()));
    address
}
