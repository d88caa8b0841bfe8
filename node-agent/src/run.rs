//! From a checked configuration to a running agent, and back down again.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use hypic_domain::id::Incarnation;
use hypic_domain::key::{Identity, IdentityInput};
use hypic_domain::serving::ModelFile;
use hypic_domain::unit::Bytes;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::op::Device;
use hypic_lookup::{Change, Claim};
use hypic_scatter::{GrpcPeers, Limits, Scatter};
use hypic_segment::{Clock, Segmenter};
use hypic_store::{Observer, Store, StoreConfig, StoreEvent};
use hypic_wire::address::HostPort;
use hypic_wire::bulk::{BulkServer, HttpPull, PullLimits, ServeLimits, Tickets};
use hypic_wire::channel::Channels;
use prometheus::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::agent::Agent;
use crate::args::{Config, Memory};
use crate::engine::{Engine, EngineConfig};
use crate::grpc::agent::AgentService;
use crate::grpc::fleet::FleetService;
use crate::grpc::index::IndexService;
use crate::index::{Index, Owners};
use crate::leases::Leases;
use crate::membership::Membership;
use crate::metrics::Metrics;
use crate::probes;
use crate::scrape::Scrape;

/// How often tuples that are due go to the drive.
const WRITE: Duration = Duration::from_millis(500);
/// Share of the engine's memory that snapshots may take.
const SNAPSHOTS: u64 = 8;

/// Serves until `shutdown`; then takes no more orders and lets running ones finish, for a while.
///
/// # Errors
/// A checkpoint that does not load, a topology that the fleet has left behind, a listener.
pub async fn run(config: Config, registry: Registry, shutdown: impl Future<Output = ()>) -> Result<()> {
    let channels = Arc::new(Channels::new(config.security.clone()));
    let incarnation = Incarnation(rand::random());
    let membership = Arc::new(Membership::new(
        config.me.id.clone(),
        incarnation,
        Arc::clone(&channels),
        config.topology.clone(),
    ));
    membership.check_epoch().await.context("this agent's topology file is out of date")?;

    let control = listen(&config.listen.control_listen).await?;
    let bulk = listen(&config.listen.bulk_listen).await?;
    let http = listen(&config.listen.http_listen).await?;

    let index = Arc::new(Index::new(Arc::clone(&membership)));
    let store = Arc::new(open_store(&config.memory, &index)?);
    let begun = Instant::now();
    let Loaded { engine, identity, weights, device } = start_engine(&config, &store, &index)?;
    tracing::info!(
        model = %config.model.name, %identity, seconds = begun.elapsed().as_secs_f64(), "model loaded"
    );

    let tickets = Arc::new(Tickets::random().context("draw the key of tickets")?);
    let leases = Arc::new(Leases::new(Arc::clone(&tickets)));
    let metrics = Arc::new(Metrics::new(&registry).context("register the metrics")?);
    let peers = GrpcPeers::new(channels, identity, membership.topology());
    let transport = Arc::new(HttpPull::new(config.security.clone(), PullLimits::default()));
    let scatter = Scatter {
        me: config.me.id.clone(),
        peers: Arc::clone(&peers) as Arc<dyn hypic_scatter::Peers>,
        index: Arc::new(Owners(Arc::clone(&index))),
        transport: Arc::clone(&transport) as Arc<dyn hypic_wire::bulk::Transport>,
        budget: hypic_wire::bulk::Budget::new(Bytes(config.memory.host_bytes.max(64 << 20))),
        limits: Limits::default(),
    };
    let agent = Arc::new(Agent {
        role: config.me.role,
        model: config.model,
        identity,
        weights,
        device,
        engine,
        store,
        scatter: Arc::new(scatter),
        index: Arc::clone(&index),
        membership: Arc::clone(&membership),
        leases: Arc::clone(&leases),
        metrics,
        calibration: OnceLock::new(),
        draining: AtomicBool::new(false),
    });

    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let bulk_server = Arc::new(BulkServer::new(leases, tickets, ServeLimits::default()));
    let scrape = Scrape {
        agent: Arc::clone(&agent),
        registry,
        pulled: Arc::clone(transport.counters()),
        served: Arc::clone(bulk_server.counters()),
    };
    tasks.spawn(done(probes::serve(http, Arc::new(scrape))));
    tasks.spawn(done(bulk_server.serve(bulk, config.security.clone(), stop.clone().cancelled_owned())));
    tasks.spawn(done(index.clone().announce_all()));
    tasks.spawn(done(write_to_disk(Arc::clone(&agent))));
    tasks.spawn(done(follow_topology(Arc::clone(&membership), peers)));
    let mut routes = Routes::builder();
    routes
        .add_service(hypic_wire::serve::agent(AgentService(Arc::clone(&agent))))
        .add_service(hypic_wire::serve::index(IndexService { index: Arc::clone(&index) }))
        .add_service(hypic_wire::serve::fleet(FleetService { membership, index }));
    let serving =
        hypic_wire::serve::serve(control, config.security, routes.routes(), stop.clone().cancelled_owned());
    tasks.spawn(async move { serving.await.context("serve control") });

    let calibration = agent.engine.calibrate().await.context("calibrate the engine")?;
    tracing::info!(?calibration, "ready");
    // Set once, here.
    let _ = agent.calibration.set(calibration);

    tokio::select! {
        () = shutdown => {}
        ended = tasks.join_next() => match ended {
            Some(Ok(Err(error))) => return Err(error),
            _ => bail!("a task that should run for ever has ended"),
        },
    }
    drain(&agent, config.drain).await;
    stop.cancel();
    Ok(())
}

async fn done(work: impl Future<Output = ()>) -> Result<()> {
    work.await;
    Ok(())
}

async fn listen(address: &str) -> Result<tokio::net::TcpListener> {
    let parsed: HostPort = address.parse().with_context(|| format!("read the address '{address}'"))?;
    parsed.listen().await.with_context(|| format!("listen on {address}"))
}

/// Opens the tiers; every change of what they hold is announced to the index.
fn open_store(memory: &Memory, index: &Arc<Index>) -> Result<Store> {
    let disk = match &memory.data_dir {
        Some(folder) if memory.disk_bytes > 0 => Some((folder.clone(), Bytes(memory.disk_bytes))),
        _ => None,
    };
    let config = StoreConfig {
        device: Bytes(memory.device_bytes),
        host: Bytes(memory.host_bytes),
        disk,
        quota: 1.0,
        half_life: 4096.0,
    };
    Store::open(&config, announcing(index)).context("open the tiers")
}

/// Tells the index of every change.
fn announcing(index: &Arc<Index>) -> Observer {
    let index = Arc::clone(index);
    Box::new(move |event| {
        index.record(match event {
            StoreEvent::Added { key, tier, bytes } => Change::Has(Claim { key, tier, bytes }),
            StoreEvent::Removed { key } => Change::Gone(key),
        });
    })
}

/// A running engine and what it runs.
struct Loaded {
    engine: Engine,
    identity: Identity,
    weights: [u8; 32],
    device: &'static str,
}

/// Loads the checkpoint and starts the engine; tuples that it builds go to the store, and its snapshots are
/// announced to the index.
fn start_engine(config: &Config, store: &Arc<Store>, index: &Arc<Index>) -> Result<Loaded> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let device = CpuDevice::new(config.memory.threads.unwrap_or(cores)).context("start the CPU device")?;
    let path = &config.model.path;
    check_text_files(&config.model)?;
    let loaded = hypic_models::load(path, &device, config.model.name.clone())
        .with_context(|| format!("load the checkpoint {}", path.display()))?;
    let identity = Identity::derive(&IdentityInput {
        weights: loaded.weights,
        tokenizer: digest(&path.join("tokenizer.json"))?,
        architecture: &loaded.architecture,
        spec: &loaded.spec,
        format: &config.model.format,
        seam: config.model.seam.0,
        lora: None,
    });
    let engine = EngineConfig {
        identity,
        seam: config.model.seam.0,
        format: config.model.format,
        rows: config.memory.step_rows,
        slots: config.memory.slots,
        builds: config.memory.slots,
        queue: config.memory.queue,
        page_tokens: 32,
        memory: Bytes(config.memory.engine_bytes),
        // The CPU device computes in fp32.
        weights: Bytes(4 * loaded.values),
        snapshots: Bytes(config.memory.engine_bytes / SNAPSHOTS),
        ablation: hypic_compose::Ablation::None,
    };
    let store = Arc::clone(store);
    let publish = move |built: crate::engine::BuiltTuple| {
        if let Err(error) = store.put(&built.tuple, &built.scope, built.took) {
            tracing::debug!(key = %built.tuple.key(), %error, "a built tuple is not kept");
        }
    };
    let (name, weights) = (device.name(), loaded.weights);
    let (device, model) = (Arc::new(device), Arc::from(loaded.model));
    let engine = Engine::start(device, model, engine, Box::new(publish), announcing(index))
        .context("start the engine")?;
    Ok(Loaded { engine, identity, weights, device: name })
}

/// Only routers tokenise and render; but ids of a tokenizer that does not fit the model would give wrong
/// answers here, and a fleet should find a broken template when it starts.
fn check_text_files(model: &ModelFile) -> Result<()> {
    let clock: Clock = Arc::new(SystemTime::now);
    Segmenter::load(&model.path, model, &clock)
        .with_context(|| format!("check the tokenizer and template of {}", model.path.display()))?;
    Ok(())
}

fn digest(path: &Path) -> Result<[u8; 32]> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Ok(*blake3::hash(&bytes).as_bytes())
}

async fn write_to_disk(agent: Arc<Agent>) {
    loop {
        tokio::time::sleep(WRITE).await;
        let store = Arc::clone(&agent.store);
        if let Err(error) = tokio::task::spawn_blocking(move || store.write_pending()).await {
            tracing::error!(%error, "write to the drive");
        }
    }
}

async fn follow_topology(membership: Arc<Membership>, peers: Arc<GrpcPeers>) {
    let mut changes = membership.changes();
    while changes.changed().await.is_ok() {
        peers.set_topology(Arc::clone(&changes.borrow_and_update()));
    }
}

/// Takes no more orders, and waits for what runs.
async fn drain(agent: &Agent, longest: Duration) {
    agent.draining.store(true, Ordering::Relaxed);
    let end = Instant::now() + longest;
    tracing::info!(seconds = longest.as_secs(), "draining");
    loop {
        let load = agent.engine.load();
        let idle = load.running == 0 && load.queued == 0 && load.builds == 0 && agent.leases.is_empty();
        if idle || Instant::now() >= end {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
