//! `lookup`: the router's question for all keys of a prompt, over three slot owners, each a gRPC server on
//! loopback with TLS on both sides.
//!
//! The index is filled as in a fleet: each agent announces what it holds to the owners. The baseline asks for
//! the same keys one by one, all at once, by the same client; the floor is the index without a wire.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::future::join_all;
use hypic_domain::flow::{Located, Mode, Origin, Piece, Request, SegmentedRequest};
use hypic_domain::id::{AgentId, Epoch, Incarnation, ModelId, RequestId, TenantId};
use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::model::ModelSpec;
use hypic_domain::prompt::Prompt;
use hypic_domain::sampling::Sampling;
use hypic_domain::tier::Tier;
use hypic_domain::topology::{AgentEntry, AgentRole, Topology};
use hypic_domain::unit::{Bytes, Millis, Tokens};
use hypic_e2e::certificates::{Authority, CertificateFiles};
use hypic_e2e::report::machine;
use hypic_lookup::{Change, Claim, Ring};
use hypic_node_agent::grpc::index::IndexService;
use hypic_node_agent::index::Index;
use hypic_node_agent::membership::Membership;
use hypic_router::fleet_view::{FleetView, Seen};
use hypic_router::lookup::IndexClient;
use hypic_router::metrics::Metrics;
use hypic_wire::channel::Channels;
use hypic_wire::proto::{AgentState, LocateRequest};
use hypic_wire::tls::{Security, TlsFiles};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::service::Routes;

use crate::report::{ReportArgs, print_table};
use crate::rig::quantile;

/// Options of `lookup`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Claims in the index, before each is kept by two owners.
    #[arg(long, default_value_t = 100_000)]
    claims: usize,
    /// Keys of one prompt.
    #[arg(long, default_value_t = 64)]
    keys: usize,
    /// Prompts.
    #[arg(long, default_value_t = 2000)]
    prompts: usize,
    #[command(flatten)]
    report: ReportArgs,
}

const OWNERS: usize = 3;
const REPLICAS: usize = 2;
const INCARNATION: Incarnation = Incarnation(1);
/// The first questions open connections.
const WARM: usize = 20;

#[derive(Serialize)]
struct Report {
    machine: String,
    claims: usize,
    keys: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    p50_us: f64,
    p99_us: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.claims > 0 && args.keys > 0 && args.prompts > 0, "there is nothing to look up");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start a runtime")?;
    let rows = runtime.block_on(measure(args))?;
    let cells =
        |row: &Row| vec![row.what.to_owned(), format!("{:.0}", row.p50_us), format!("{:.0}", row.p99_us)];
    print_table(
        &format!(
            "Look-up of {} keys over {OWNERS} owners, gRPC with TLS on loopback, {} claims, {} prompts",
            args.keys, args.claims, args.prompts
        ),
        &["", "p50 us", "p99 us"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    );
    args.report.write(&Report { machine: machine(), claims: args.claims, keys: args.keys, rows })
}

async fn measure(args: &Args) -> anyhow::Result<Vec<Row>> {
    let dir = tempfile::tempdir().context("make a folder for certificates")?;
    let authority = Authority::create(dir.path())?;
    let (agent, router) = (load(authority.issue("hypic-agent")?)?, load(authority.issue("hypic-router")?)?);
    let mut tasks = JoinSet::new();
    let (topology, owners) = start_owners(&agent, &mut tasks).await?;
    let mut random = StdRng::seed_from_u64(1);
    let keys: Vec<SegmentKey> = (0..args.claims).map(|_| SegmentKey(random.random())).collect();
    fill(&keys, &owners, &mut tasks).await?;

    let fleet = FleetView::new(topology.clone());
    topology.agents.iter().for_each(|entry| fleet.saw(&entry.id, seen()));
    let metrics = Metrics::new(prometheus::Registry::new()).context("register metrics")?;
    let channels = Channels::new(router);
    let timeout = Duration::from_secs(5);
    let client = IndexClient { fleet: &fleet, channels: &channels, metrics: &metrics, timeout };
    let ring = Ring::new(&topology, REPLICAS);

    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..args.prompts + WARM {
        let asked: Vec<SegmentKey> = keys.sample(&mut random, args.keys).copied().collect();
        let mut took = [0.0; 3];
        let start = Instant::now();
        join_all(asked.iter().map(|key| client.lookup(prompt(&[*key])))).await;
        took[0] = start.elapsed().as_secs_f64() * 1e6;
        let start = Instant::now();
        let found = client.lookup(prompt(&asked)).await;
        took[1] = start.elapsed().as_secs_f64() * 1e6;
        let known = found.located.located.iter().filter(|located| !located.holders.is_empty()).count();
        ensure!(known == asked.len(), "only {known} of {} keys were found", asked.len());
        let start = Instant::now();
        std::hint::black_box(without_wire(&asked, &ring, &owners)?);
        took[2] = start.elapsed().as_secs_f64() * 1e6;
        if round >= WARM {
            times.iter_mut().zip(took).for_each(|(times, us)| times.push(us));
        }
    }
    let names =
        ["a question per key, all at once", "a question per owner, as the router asks", "no wire (floor)"];
    let row =
        |(what, us): (_, &Vec<f64>)| Row { what, p50_us: quantile(us, 0.5), p99_us: quantile(us, 0.99) };
    Ok(names.into_iter().zip(&times).map(row).collect())
}

fn load(files: CertificateFiles) -> anyhow::Result<Security> {
    let CertificateFiles { cert, key, ca } = files;
    TlsFiles { cert, key, ca }.load().context("load the throw-away certificates")
}

/// An index with its name.
type Owner = (AgentId, Arc<Index>);

/// Serves the index of each owner on a port of its own.
async fn start_owners(
    security: &Security,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<(Topology, Vec<Owner>)> {
    let mut topology = Topology { epoch: Epoch(1), revision: 0, agents: Vec::new() };
    let mut listeners = Vec::new();
    for number in 0..OWNERS {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        topology.agents.push(AgentEntry {
            id: AgentId(format!("combine-{number}")),
            role: AgentRole::Combine,
            control: listener.local_addr().context("listen")?.to_string(),
            bulk: String::new(),
        });
        listeners.push(listener);
    }
    let mut owners = Vec::new();
    for (entry, listener) in topology.agents.iter().zip(listeners) {
        let channels = Arc::new(Channels::new(security.clone()));
        let membership = Membership::new(entry.id.clone(), INCARNATION, channels, topology.clone());
        let index = Arc::new(Index::new(Arc::new(membership)));
        let service = hypic_wire::serve::index(IndexService { index: Arc::clone(&index) });
        let serving = hypic_wire::serve::serve(
            listener,
            security.clone(),
            Routes::new(service),
            std::future::pending(),
        );
        tasks.spawn(async {
            if let Err(error) = serving.await {
                eprintln!("an index no longer serves: {error}");
            }
        });
        owners.push((entry.id.clone(), index));
    }
    Ok((topology, owners))
}

/// Every agent holds a share of the tuples and tells the owners.
async fn fill(keys: &[SegmentKey], owners: &[Owner], tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
    for (place, key) in keys.iter().enumerate() {
        let claim = Claim { key: *key, tier: Tier::Device, bytes: Bytes(1 << 20) };
        owners[place % owners.len()].1.record(Change::Has(claim));
    }
    for (_, index) in owners {
        tasks.spawn(Arc::clone(index).announce_all());
    }
    let start = Instant::now();
    while !owners.iter().all(|(_, index)| index.is_told()) {
        ensure!(start.elapsed() < Duration::from_secs(120), "the index was not filled in two minutes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let claims: usize = owners.iter().map(|(_, index)| index.counts().claims).sum();
    ensure!(claims == keys.len() * REPLICAS, "the owners know {claims} claims");
    Ok(())
}

/// What each agent would say of itself.
fn seen() -> Seen {
    let spec =
        ModelSpec { id: ModelId::from("none"), layers: Vec::new(), hidden: 0, vocab: 0, context: Tokens(0) };
    Seen {
        incarnation: INCARNATION,
        identity: Identity([0; 32]),
        spec: Arc::new(spec),
        ready: true,
        rows_ahead: 0,
        prefill: Vec::new(),
        link_bytes_per_ms: 0.0,
        link_fixed: Millis(0.0),
        live_share: 1.0,
        index_whole: true,
        state: AgentState::default(),
    }
}

/// A prompt whose segments have these keys.
fn prompt(keys: &[SegmentKey]) -> SegmentedRequest {
    let request = Request {
        id: RequestId::from("bench"),
        tenant: TenantId::from("bench"),
        scope: Scope([0; 32]),
        model: ModelId::from("none"),
        mode: Mode::Pic,
        prompt: Prompt::Ids(Vec::new()),
        sampling: Sampling::default(),
        deadline: None,
    };
    let piece = |key: &SegmentKey| Piece { ids: Vec::new(), origin: Origin::Part, key: Some(*key) };
    SegmentedRequest { request, pieces: keys.iter().map(piece).collect(), boundaries: Vec::new() }
}

/// The same answers from the owners' memory.
fn without_wire(keys: &[SegmentKey], ring: &Ring, owners: &[Owner]) -> anyhow::Result<Vec<Located>> {
    let mut answers = Vec::new();
    for (owner, places) in ring.batches(keys, |_| true) {
        let (_, index) = owners.iter().find(|(id, _)| id == owner).context("an owner is missing")?;
        let keys = places.iter().map(|place| keys[*place].0.to_vec()).collect();
        let response = index.locate(&LocateRequest { epoch: 1, keys })?;
        for located in response.located {
            answers.push(Located::try_from(located)?);
        }
    }
    Ok(answers)
}
