//! `pace`: gaps between the tokens of running streams while a long cold prompt is prefilled on the same
//! agent, against the same streams without it, once per step size.
//!
//! A step that holds the whole prompt is the baseline: it is what an engine without chunked prefill does.
//! Streams are held to one printable token, so that each arrival is one token whatever the model would say.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use hypic_domain::flow::Mode;
use hypic_e2e::client::Client;
use hypic_e2e::fleet::{key_of, tiny};
use hypic_e2e::questions::Question;
use hypic_e2e::report::machine;
use serde::Serialize;
use serde_json::{Value, json};

use crate::report::{ReportArgs, print_table};
use crate::rig::{FleetArgs, Library, in_tree, quantile};

/// Options of `pace`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Running streams.
    #[arg(long, default_value_t = 8)]
    streams: usize,
    /// Documents of the long prompt, of about 128 tokens each.
    #[arg(long, default_value_t = 32)]
    documents: usize,
    /// Long prompts, one behind the other.
    #[arg(long, default_value_t = 3)]
    prefills: usize,
    /// Rows of one step: a fleet each. The default is the agent's, and one that holds the whole prompt.
    #[arg(long, value_delimiter = ',', default_values_t = [512, 8192])]
    step_rows: Vec<usize>,
    /// Milliseconds in which streams run alone.
    #[arg(long, default_value_t = 4000)]
    alone_ms: u64,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Streams still start this many tokens before anything is measured.
const SETTLED: usize = 8;
/// More tokens than any stream gives before it is stopped; the context holds them.
const LONGEST: usize = 15_000;

#[derive(Serialize)]
struct Report {
    machine: String,
    streams: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    step_rows: usize,
    prompt_tokens: u64,
    alone: Gaps,
    during: Gaps,
    /// Milliseconds to the first token of the long prompt on an idle agent, and beside the streams.
    prefill_ms: [f64; 2],
}

/// Milliseconds between two tokens of one stream.
#[derive(Serialize)]
struct Gaps {
    count: usize,
    p50: f64,
    p99: f64,
    worst: f64,
}

impl Gaps {
    fn of(gaps: &[f64]) -> Self {
        let at = |share| quantile(gaps, share);
        Self { count: gaps.len(), p50: at(0.5), p99: at(0.99), worst: at(1.0) }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.streams > 0 && args.prefills > 0, "there is nothing to run");
    let rows = args.step_rows.iter().map(|rows| measure(args, *rows)).collect::<anyhow::Result<Vec<_>>>()?;
    let cells = |row: &Row| {
        let line = |what: &str, gaps: &Gaps, prefill: f64| {
            vec![
                format!("{} rows a step, {what}", row.step_rows),
                format!("{:.1}", gaps.p50),
                format!("{:.1}", gaps.p99),
                format!("{:.1}", gaps.worst),
                gaps.count.to_string(),
                format!("{prefill:.0}"),
            ]
        };
        let during = format!("beside a prefill of {}", row.prompt_tokens);
        [line("alone", &row.alone, row.prefill_ms[0]), line(&during, &row.during, row.prefill_ms[1])]
    };
    print_table(
        &format!("Gaps in ms between tokens of {} streams, hypic-tiny, {}", args.streams, args.fleet.show()),
        &["", "p50", "p99", "worst", "gaps", "prefill alone / beside"],
        &rows.iter().flat_map(cells).collect::<Vec<_>>(),
    );
    args.report.write(&Report { machine: machine(), streams: args.streams, rows })
}

fn measure(args: &Args, step_rows: usize) -> anyhow::Result<Row> {
    let checkpoint = in_tree("e2e/models/hypic-tiny");
    let rig = args.fleet.start(tiny(&checkpoint), vec!["--step-rows".to_owned(), step_rows.to_string()])?;
    // Recompute uses nothing cached: the same prompt is cold every time.
    let client = rig.fleet.client(&key_of(Mode::Recompute));
    let mut library = Library::open(&["6x128"])?;
    let long = library.take(args.documents)?;
    let idle = prefills(&client, &long, args.prefills)?;

    let body = endless(&library.take(1)?, printable(&checkpoint)?);
    let arrivals: Vec<Mutex<Vec<Instant>>> = (0..args.streams).map(|_| Mutex::default()).collect();
    let over = AtomicBool::new(false);
    let (alone, during, beside) = scope(|threads| {
        let run = |arrived| stream(&client, &body, arrived, &over);
        let streams: Vec<_> = arrivals.iter().map(|arrived| threads.spawn(move || run(arrived))).collect();
        let watched = watch(args, &client, &long, &arrivals, &|| streams.iter().any(|s| s.is_finished()));
        over.store(true, Ordering::Relaxed);
        for stream in streams {
            stream.join().map_err(|_| anyhow!("a stream's thread ended"))??;
        }
        watched
    })?;
    let tokens: Vec<Vec<Instant>> = arrivals
        .into_iter()
        .map(|times| times.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect();
    Ok(Row {
        step_rows,
        prompt_tokens: beside.tokens,
        alone: Gaps::of(&gaps(&tokens, alone)),
        during: Gaps::of(&gaps(&tokens, during)),
        prefill_ms: [idle.ms, beside.ms],
    })
}

/// From when to when.
type Span = (Instant, Instant);

/// Lets the streams run alone, then beside the long prompts.
fn watch(
    args: &Args,
    client: &Client,
    long: &Question,
    arrivals: &[Mutex<Vec<Instant>>],
    ended: &dyn Fn() -> bool,
) -> anyhow::Result<(Span, Span, Prefills)> {
    let settled =
        |times: &Mutex<Vec<Instant>>| times.lock().unwrap_or_else(PoisonError::into_inner).len() >= SETTLED;
    while !arrivals.iter().all(settled) {
        ensure!(!ended(), "a stream ended before all of them ran");
        sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    sleep(Duration::from_millis(args.alone_ms));
    let middle = Instant::now();
    let beside = prefills(client, long, args.prefills)?;
    let end = Instant::now();
    // The gap in which the last prefill ended is to be seen whole.
    sleep(Duration::from_millis(200));
    ensure!(!ended(), "a stream ended before the prefill did");
    Ok(((begin, middle), (middle, end), beside))
}

/// The long prompt's median time to the first token, and its length.
struct Prefills {
    ms: f64,
    tokens: u64,
}

fn prefills(client: &Client, long: &Question, count: usize) -> anyhow::Result<Prefills> {
    let mut times = Vec::new();
    let mut tokens = 0;
    for _ in 0..count {
        let start = Instant::now();
        tokens = client.ask(long, 1, false).context("prefill the long prompt")?.prompt_tokens();
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Prefills { ms: quantile(&times, 0.5), tokens })
}

/// Runs one stream until all is over.
fn stream(
    client: &Client,
    body: &Value,
    arrived: &Mutex<Vec<Instant>>,
    over: &AtomicBool,
) -> anyhow::Result<()> {
    let mut more = |_: &str| {
        arrived.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        !over.load(Ordering::Relaxed)
    };
    client.chat_while(body, &mut more).context("run a stream").map(drop)
}

/// Gaps of all streams that touch the span, or lie within it.
fn gaps(tokens: &[Vec<Instant>], (from, to): Span) -> Vec<f64> {
    let pairs = tokens.iter().flat_map(|times| times.windows(2));
    let touching = pairs.filter(|pair| pair[1] > from && pair[0] < to);
    touching.map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect()
}

fn endless(question: &Question, token: u64) -> Value {
    json!({
        "model": "hypic-tiny",
        "messages": [{"role": "user", "content": question.question}],
        "temperature": 0,
        "max_tokens": LONGEST,
        "ignore_eos": true,
        "logit_bias": {token.to_string(): 100},
    })
}

/// The id of a token that is one letter.
fn printable(checkpoint: &std::path::Path) -> anyhow::Result<u64> {
    let path = checkpoint.join("tokenizer.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let tokenizer: Value =
        serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    tokenizer["model"]["vocab"]["a"].as_u64().context("the vocabulary has no letter 'a'")
}
