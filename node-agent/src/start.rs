//! From the topology that names the agent to the agent: tiers, checkpoint, engine, measurement.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};
use hypic_domain::key::{Identity, IdentityInput};
use hypic_domain::serving::ModelFile;
use hypic_domain::topology::AgentEntry;
use hypic_domain::unit::Bytes;
use hypic_kernels::op::Device;
use hypic_lookup::{Change, Claim};
use hypic_scatter::{GrpcPeers, Limits, Scatter};
use hypic_segment::{Clock, Segmenter};
use hypic_store::{Observer, Store, StoreConfig, StoreEvent};
use hypic_wire::bulk::{Budget, BulkServer, HttpPull, PullLimits, ServeLimits, Tickets};

use crate::agent::{Agent, Bulk};
use crate::args::{Config, Memory};
use crate::device::Opened;
use crate::engine::{BuiltTuple, Engine, EngineConfig, Outlets, Worker};
use crate::index::{Index, Owners};
use crate::leases::Leases;
use crate::life::Life;
use crate::metrics::Metrics;

/// Share of the engine's memory that snapshots may take.
const SNAPSHOTS: u64 = 8;

/// Many times what a layer of a step takes anywhere: a scatter device that has builds and is silent for so long loses them.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is there before the agent.
pub(crate) struct Before {
    pub(crate) config: Arc<Config>,
    pub(crate) device: Opened,
    /// Further devices of the same kind, which build.
    pub(crate) workers: Vec<Opened>,
    pub(crate) life: Arc<Life>,
    pub(crate) index: Arc<Index>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The agent and what serves beside it.
pub(crate) struct Started {
    pub(crate) agent: Arc<Agent>,
    pub(crate) peers: Arc<GrpcPeers>,
    pub(crate) bulk: Arc<BulkServer>,
}

/// Waits until the topology names this agent, loads its model and measures it.
///
/// # Errors
/// Tiers that do not open, a checkpoint that does not load, an engine that does not start.
pub(crate) async fn start(before: Before) -> Result<Started> {
    let Before { config, device, workers, life, index, metrics } = before;
    let me = named(&life, &index).await;
    index.begin_admission();
    life.enter(format!("loading the model {}", config.model.name));
    let begun = Instant::now();
    let loading = {
        let (config, index) = (Arc::clone(&config), Arc::clone(&index));
        tokio::task::spawn_blocking(move || {
            let workers = workers.into_iter();
            match device {
                Opened::Cpu(device) => {
                    let store = Arc::new(open_store(&config.memory, false, &index)?);
                    let workers = workers.filter_map(Opened::cpu).collect();
                    load(&config, (device, workers), (&store, Bytes(0)), &index).map(|loaded| (store, loaded))
                }
                #[cfg(feature = "cuda")]
                Opened::Cuda { device, pinned } => {
                    let store = open_store(&config.memory, true, &index)?;
                    let store = Arc::new(store.placing(crate::device::placing(pinned)));
                    let workers: Vec<_> = workers.filter_map(Opened::cuda).collect();
                    for worker in &workers {
                        device
                            .enable_peer(worker)
                            .context("let the device read a scatter device's memory")?;
                    }
                    let kept = Bytes(config.memory.device_bytes);
                    load(&config, (*device, workers), (&store, kept), &index).map(|loaded| (store, loaded))
                }
                #[cfg(feature = "cuda")]
                Opened::Ranks(device) => {
                    let store = Arc::new(open_store(&config.memory, true, &index)?);
                    let kept = Bytes(config.memory.device_bytes);
                    // The flags were checked: beside ranks there are no workers.
                    load(&config, (*device, Vec::new()), (&store, kept), &index).map(|loaded| (store, loaded))
                }
            }
        })
    };
    let (store, loaded) = loading.await.context("load the model")??;
    let Loaded { engine, identity, weights, device } = loaded;
    let seconds = begun.elapsed().as_secs_f64();
    tracing::info!(model = %config.model.name, %identity, seconds, "model loaded");

    life.enter("calibrating".to_owned());
    let calibration = engine.calibrate().await.context("calibrate the engine")?;
    tracing::info!(?calibration, "calibrated");

    let membership = Arc::clone(&index.membership);
    let tickets = Arc::new(Tickets::random().context("draw the key of tickets")?);
    let leases = Arc::new(Leases::new(Arc::clone(&tickets)));
    let peers = GrpcPeers::new(Arc::clone(&membership.channels), identity, membership.topology());
    let transport = Arc::new(HttpPull::new(config.security.clone(), PullLimits::default()));
    let bulk = Arc::new(BulkServer::new(Arc::clone(&leases) as _, tickets, ServeLimits::default()));
    let scatter = Scatter {
        me: config.id.clone(),
        peers: Arc::clone(&peers) as Arc<dyn hypic_scatter::Peers>,
        index: Arc::new(Owners(Arc::clone(&index))),
        transport: Arc::clone(&transport) as Arc<dyn hypic_wire::bulk::Transport>,
        budget: Budget::new(Bytes(config.memory.host_bytes.max(64 << 20))),
        limits: Limits::default(),
    };
    let agent = Arc::new(Agent {
        role: me.role,
        model: config.model.clone(),
        identity,
        weights,
        device,
        engine,
        store,
        scatter: Arc::new(scatter),
        index,
        membership,
        leases,
        metrics,
        bulk: Bulk { pulled: Arc::clone(transport.counters()), served: Arc::clone(bulk.counters()) },
        draining: AtomicBool::new(false),
    });
    life.begin(Arc::clone(&agent));
    Ok(Started { agent, peers, bulk })
}

/// This agent's entry, as soon as there is one.
async fn named(life: &Life, index: &Index) -> AgentEntry {
    let mut changes = index.membership.changes();
    loop {
        let epoch = changes.borrow_and_update().epoch;
        if let Some(me) = index.membership.named() {
            return me;
        }
        life.enter(format!(
            "waits for a topology that names '{}': epoch {epoch} does not",
            index.membership.me
        ));
        if changes.changed().await.is_err() {
            // The sender lives in the membership, which is right here.
            return std::future::pending().await;
        }
    }
}

/// Opens the tiers; every change of what they hold is announced to the index. A GPU keeps its tier itself.
fn open_store(memory: &Memory, is_gpu: bool, index: &Arc<Index>) -> Result<Store> {
    let disk = match &memory.data_dir {
        Some(folder) if memory.disk_bytes > 0 => Some((folder.clone(), Bytes(memory.disk_bytes))),
        _ => None,
    };
    let config = StoreConfig {
        device: Bytes(if is_gpu { 0 } else { memory.device_bytes }),
        kept_on_device: Bytes(if is_gpu { memory.device_bytes } else { 0 }),
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

/// Loads the checkpoint onto the device and the workers and starts the engine, whose device keeps so many bytes of tuples
/// that nobody uses. Tuples that it builds go to the store, which is told what the device keeps, and its snapshots are
/// announced to the index.
fn load<D: Device>(
    config: &Config,
    (device, workers): (D, Vec<D>),
    (store, kept): (&Arc<Store>, Bytes),
    index: &Arc<Index>,
) -> Result<Loaded> {
    let path = &config.model.path;
    check_text_files(&config.model)?;
    let onto = |device: &D| {
        hypic_models::load(path, device, config.model.name.clone())
            .with_context(|| format!("load the checkpoint {}", path.display()))
    };
    let (loaded, workers) = std::thread::scope(|scope| {
        let loading: Vec<_> =
            workers.into_iter().map(|device| scope.spawn(|| (onto(&device), device))).collect();
        let loaded = onto(&device)?;
        let worker = |loading: ScopedJoinHandle<'_, (Result<_>, D)>| {
            let (loaded, device) =
                loading.join().map_err(|_| anyhow!("loading onto a scatter device died"))?;
            let loaded: hypic_models::Loaded<D> = loaded?;
            Ok(Worker { device: Arc::new(device), model: Arc::from(loaded.model), patience: PATIENCE })
        };
        let workers = loading.into_iter().map(worker).collect::<Result<Vec<_>>>()?;
        Ok::<_, anyhow::Error>((loaded, workers))
    })?;
    let format = device.format(&config.model.format);
    let identity = Identity::derive(&IdentityInput {
        weights: loaded.weights,
        tokenizer: digest(&path.join("tokenizer.json"))?,
        architecture: &loaded.architecture,
        spec: &loaded.spec,
        format: &format,
        seam: config.model.seam.0,
        lora: None,
    });
    let engine = EngineConfig {
        identity,
        seam: config.model.seam.0,
        format,
        rows: config.memory.rows(),
        slots: config.memory.slots,
        builds: config.memory.slots,
        queue: config.memory.queue,
        page_tokens: 32,
        memory: Bytes(config.memory.engine_bytes),
        weights: Bytes(loaded.bytes),
        snapshots: Bytes(config.memory.engine_bytes / SNAPSHOTS),
        bodies: kept,
        ablation: hypic_compose::Ablation::None,
    };
    let told = Arc::clone(store);
    let bodies = move |event| match event {
        StoreEvent::Added { key, bytes, .. } => told.on_device(&key, Some(bytes)),
        StoreEvent::Removed { key } => told.on_device(&key, None),
    };
    let store = Arc::clone(store);
    let publish = move |built: BuiltTuple| {
        if let Err(error) = store.put(&built.tuple, &built.scope, built.took) {
            tracing::debug!(key = %built.tuple.key(), %error, "a built tuple is not kept");
        }
    };
    let (name, weights) = (device.name(), loaded.weights);
    let (device, model) = (Arc::new(device), Arc::from(loaded.model));
    let outlets =
        Outlets { publish: Box::new(publish), snapshots: announcing(index), bodies: Box::new(bodies) };
    let engine = Engine::start(device, model, workers, engine, outlets).context("start the engine")?;
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
