//! From a checked configuration to a running agent, and back down again.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use hypic_domain::id::Incarnation;
use hypic_domain::topology::TopologySource;
use hypic_scatter::GrpcPeers;
use hypic_wire::channel::Channels;
use hypic_wire::probes;
use prometheus::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::agent::Agent;
use crate::args::Config;
use crate::device;
use crate::grpc::agent::AgentService;
use crate::grpc::fleet::FleetService;
use crate::grpc::index::IndexService;
use crate::index::Index;
use crate::life::Life;
use crate::membership::Membership;
use crate::metrics::Metrics;
use crate::scrape::Scrape;
use crate::start::{Before, Started, start};

/// How often tuples that are due go to the drive.
const WRITE: Duration = Duration::from_millis(500);
/// How often files of certificates are looked at.
const LOOK: Duration = Duration::from_secs(5);
/// Longest wait for slot owners to hear that this agent goes.
const FAREWELL: Duration = Duration::from_secs(1);
/// For what was computed last to reach whoever asked for it, at least.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves until `shutdown`; then takes no more orders and lets running ones finish, for a while. Probes, topologies
/// and the index are served from the start, the rest once the model is loaded.
///
/// # Errors
/// No such device, a checkpoint that does not load, a listener.
pub async fn run(config: Config, registry: Registry, shutdown: impl Future<Output = ()>) -> Result<()> {
    // First of all: whoever asked for a device that is not there should hear of it at once.
    let memory = &config.memory;
    let device = device::open(memory).context("open the device")?;
    let further = memory.scatter_device.iter().map(|name| {
        device::open_further(name, memory).with_context(|| format!("open the scatter device {name}"))
    });
    let workers: Vec<_> = further.collect::<Result<_>>()?;
    let config = Arc::new(config);
    let channels = Arc::new(Channels::new(config.security.clone()));
    let membership = Membership::new(config.id.clone(), incarnation(), channels, config.topology.clone());
    let membership = Arc::new(membership);
    let index = Arc::new(Index::new(Arc::clone(&membership)));
    let life = Arc::new(Life::default());
    let metrics = Arc::new(Metrics::new(&registry).context("register the metrics")?);

    let listen = &config.listen;
    let (control, bulk) = (listen.control_listen.listen().await?, listen.bulk_listen.listen().await?);
    let http = listen.http_listen.listen().await?;

    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let scrape = Scrape { life: Arc::clone(&life), index: Arc::clone(&index), registry };
    tasks.spawn(done(probes::serve(http, Arc::new(scrape))));
    let mut routes = Routes::builder();
    routes
        .add_service(hypic_wire::serve::agent(AgentService(Arc::clone(&life))))
        .add_service(hypic_wire::serve::index(IndexService { index: Arc::clone(&index) }))
        .add_service(hypic_wire::serve::fleet(FleetService { index: Arc::clone(&index) }));
    let security = config.security.clone();
    let serving =
        hypic_wire::serve::serve(control, security, routes.routes(), stop.clone().cancelled_owned());
    let served = CancellationToken::new();
    let last_call = served.clone().drop_guard();
    tasks.spawn(async move {
        let _last_call = last_call;
        serving.await.context("serve control")
    });
    tasks.spawn(done(Arc::clone(&index).announce_all()));
    let security = config.security.clone();
    tasks.spawn(done(async move { security.follow_files(LOOK).await }));
    let mounted = Arc::clone(&index);
    tasks.spawn(done(config.topology_file.clone().follow(move |topology| {
        if mounted.membership.adopt(topology, TopologySource::File).1 {
            mounted.adopt();
        }
    })));

    let mut shutdown = pin!(shutdown);
    let before = Before { config: Arc::clone(&config), device, workers, life, index, metrics };
    let Started { agent, peers, bulk: bulk_server } = tokio::select! {
        started = start(before) => started?,
        error = failure(&mut tasks) => return Err(error),
        // Nothing has been promised yet.
        () = &mut shutdown => return Ok(()),
    };
    tasks.spawn(done(bulk_server.serve(bulk, config.security.clone(), stop.clone().cancelled_owned())));
    tasks.spawn(done(write_to_disk(Arc::clone(&agent))));
    tasks.spawn(done(follow_topology(membership, peers)));
    tokio::select! {
        () = shutdown => {}
        error = failure(&mut tasks) => return Err(error),
    }
    let begun = Instant::now();
    drain(&agent, config.drain).await;
    stop.cancel();
    // What was computed last is still on its way to whoever asked for it.
    let rest = config.drain.saturating_sub(begun.elapsed()).max(LAST_WORDS);
    if tokio::time::timeout(rest, served.cancelled()).await.is_err() {
        tracing::warn!(seconds = rest.as_secs(), "calls have not ended and are cut");
    }
    Ok(())
}

/// A later life has a larger number, or slot owners would take it for one that is over: milliseconds since 1970, and
/// chance where two begin in one.
fn incarnation() -> Incarnation {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Incarnation((millis << 20) | u64::from(rand::random::<u32>() >> 12))
}

async fn done(work: impl Future<Output = ()>) -> Result<()> {
    work.await;
    Ok(())
}

/// Why a task that should run for ever has ended.
async fn failure(tasks: &mut JoinSet<Result<()>>) -> anyhow::Error {
    match tasks.join_next().await {
        Some(Ok(Err(error))) => error,
        _ => anyhow::anyhow!("a task that should run for ever has ended"),
    }
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
    loop {
        peers.set_topology(Arc::clone(&changes.borrow_and_update()));
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Takes no more orders, takes its tuples out of the index, and waits for what runs.
async fn drain(agent: &Agent, longest: Duration) {
    agent.draining.store(true, Ordering::Relaxed);
    agent.index.leave();
    let begun = Instant::now();
    tracing::info!(seconds = longest.as_secs(), "draining");
    loop {
        let load = agent.engine.load();
        let idle = load.running == 0 && load.queued == 0 && load.builds == 0 && agent.leases.is_empty();
        let told = agent.index.is_told() || begun.elapsed() >= FAREWELL;
        if (idle && told) || begun.elapsed() >= longest {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
