//! `shuffled`: time to the first token when documents that were sent before come in another order.
//!
//! Through the router and agents as processes, on a random model of a larger shape with slow decays. One
//! request at a time. Each mode has its own tenant, so that modes share nothing, and all modes are asked the
//! same orders in turn. Answers have one token, so that the whole exchange is the time to the first token,
//! whatever text a random model says.

use std::time::Instant;

use anyhow::{Context, ensure};
use hypic_domain::flow::Mode;
use hypic_domain::id::ModelId;
use hypic_e2e::client::Client;
use hypic_e2e::fleet::{key_of, tiny};
use hypic_e2e::questions::Question;
use hypic_e2e::report::machine;
use hypic_models::random::{self, RandomSpec};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;

use crate::report::{ReportArgs, print_table};
use crate::rig::{FleetArgs, Library, in_tree, quantile};

/// Options of `shuffled`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Segments per prompt.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 16, 32, 64])]
    segments: Vec<usize>,
    /// Orders in which known documents are sent.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Width of the random model.
    #[arg(long, default_value_t = 512)]
    hidden: usize,
    /// Its layers; every fourth is full attention.
    #[arg(long, default_value_t = 8)]
    layers: usize,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    report: ReportArgs,
}

const MODES: [Mode; 3] = [Mode::Recompute, Mode::Prefix, Mode::Pic];

#[derive(Serialize)]
struct Report {
    machine: String,
    model: String,
    rows: Vec<Row>,
}

/// One prompt length. Milliseconds to the first token, beside [`MODES`]. To `recompute` no prompt is cold.
#[derive(Serialize)]
struct Row {
    segments: usize,
    tokens: u64,
    cold_ms: [Option<f64>; 3],
    /// Every order, `[mode, order]`.
    shuffled_ms: [Vec<f64>; 3],
    /// Share of prompt tokens that came out of the cache.
    cached_share: [f64; 3],
}

impl Row {
    fn median(&self, mode: usize) -> f64 {
        quantile(&self.shuffled_ms[mode], 0.5)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.repeats > 0, "there is nothing to repeat");
    let checkpoint = tempfile::tempdir().context("make a folder for the random checkpoint")?;
    random::write_with_tokenizer(checkpoint.path(), &spec(args), &in_tree("e2e/models/hypic-tiny"))
        .context("write the random checkpoint")?;
    let name = format!("random-{}x{}", args.layers, args.hidden);
    let model = hypic_domain::serving::ModelFile { name: ModelId(name.clone()), ..tiny(checkpoint.path()) };
    let rig = args.fleet.start(model, Vec::new())?;
    let clients = MODES.map(|mode| rig.fleet.client(&key_of(mode)));
    let mut library = Library::open(&["6x128", "4x256"])?;
    let mut rows = Vec::new();
    for segments in &args.segments {
        rows.push(measure(&clients, &library.take(*segments)?, args.repeats)?);
    }
    show(args, &name, &rows);
    args.report.write(&Report { machine: machine(), model: name, rows })
}

/// Heads of 64, as many as fill the width; half lives from 8 to 8192 tokens.
fn spec(args: &Args) -> RandomSpec {
    let heads = (args.hidden / 64).max(2);
    RandomSpec {
        hidden: args.hidden,
        intermediate: 3 * args.hidden,
        vocab: 3072,
        layers: args.layers,
        linear_heads: (heads / 2, heads),
        linear_width: 64,
        full_heads: (heads, 2),
        full_width: 64,
        context: 32768,
        ..RandomSpec::default()
    }
}

fn measure(clients: &[Client; 3], question: &Question, repeats: usize) -> anyhow::Result<Row> {
    let mut row = Row {
        segments: question.documents.len(),
        tokens: 0,
        cold_ms: [None; 3],
        shuffled_ms: Default::default(),
        cached_share: [f64::NAN; 3],
    };
    for (mode, client) in clients.iter().enumerate().filter(|(mode, _)| MODES[*mode] != Mode::Recompute) {
        let (ms, _, tokens) = ask(client, question)?;
        (row.cold_ms[mode], row.tokens) = (Some(ms), tokens);
    }
    let mut random = StdRng::seed_from_u64(question.documents.len() as u64);
    let mut cached = [0; 3];
    for _ in 0..repeats {
        let order = question.shuffled(&mut random);
        for (mode, client) in clients.iter().enumerate() {
            let (ms, from_cache, _) = ask(client, &order)?;
            row.shuffled_ms[mode].push(ms);
            cached[mode] += from_cache;
        }
    }
    row.cached_share = cached.map(|tokens| tokens as f64 / (row.tokens.max(1) * repeats as u64) as f64);
    Ok(row)
}

/// Milliseconds until the answer of one token, cached tokens, and tokens of the prompt.
fn ask(client: &Client, question: &Question) -> anyhow::Result<(f64, u64, u64)> {
    let start = Instant::now();
    let answer = client.ask(question, 1, false)?;
    Ok((start.elapsed().as_secs_f64() * 1e3, answer.cached(), answer.prompt_tokens()))
}

fn show(args: &Args, name: &str, rows: &[Row]) {
    let ms = |value: f64| format!("{value:.0}");
    let cells = |row: &Row| {
        let [recompute, prefix, pic] = [0, 1, 2].map(|mode| row.median(mode));
        vec![
            row.segments.to_string(),
            row.tokens.to_string(),
            ms(recompute),
            ms(prefix),
            ms(pic),
            format!("{:.1}x", prefix / pic),
            format!("{:.2}", row.cached_share[1]),
            format!("{:.2}", row.cached_share[2]),
            row.cold_ms[1].map_or_else(String::new, ms),
            row.cold_ms[2].map_or_else(String::new, ms),
        ]
    };
    let title = format!(
        "TTFT in ms, known documents in another order, {name}, {} (median of {})",
        args.fleet.show(),
        args.repeats
    );
    let head = [
        "segments",
        "tokens",
        "recompute",
        "prefix",
        "pic",
        "pic faster than prefix",
        "cached prefix",
        "cached pic",
        "cold prefix",
        "cold pic",
    ];
    print_table(&title, &head, &rows.iter().map(cells).collect::<Vec<_>>());
}
