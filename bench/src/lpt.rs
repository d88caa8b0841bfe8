//! `lpt`: how far longest-first is from the optimum, and what scatter gains at which link and format.
//!
//! Both parts are computed, not timed: the solver predicts from curves, and the curves are stated. Only the
//! time of `solve` itself is measured.

use std::time::Instant;

use anyhow::Context;
use hypic_domain::family::Family;
use hypic_domain::flow::Source;
use hypic_domain::model::{FullShape, LayerSpec, LinearShape, ModelSpec};
use hypic_domain::topology::AgentRole;
use hypic_domain::tuple::{Dtype, TupleFormat};
use hypic_domain::unit::{Bytes, Millis, Tokens};
use hypic_schedule::exact::optimum;
use hypic_schedule::problem::{Piece, Problem, Segment};
use hypic_schedule::{AgentView, Curve, Link, TupleSize, solve};
use serde::Serialize;

use crate::report::{ReportArgs, print_table};

/// Options of `lpt`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sets of uneven segments.
    #[arg(long, default_value_t = 20)]
    sets: u64,
    /// Segments per set.
    #[arg(long, default_value_t = 12)]
    segments: usize,
    /// Tokens per second of one GPU in a cold prefill of many segments (35B-A3B on an H200).
    #[arg(long, default_value_t = 90_000.0)]
    tokens_per_second: f64,
    /// Milliseconds under which no batch of one GPU gets: one pass over the weights.
    #[arg(long, default_value_t = 16.0)]
    floor_ms: f64,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Serialize)]
struct Report {
    lpt_vs_optimum: Uneven,
    scatter_8_sim: Vec<Scatter>,
    solve_us: f64,
}

/// Uneven segments on four workers. Speed-ups are against one worker, ratios against the optimum.
#[derive(Serialize)]
struct Uneven {
    sets: u64,
    segments: usize,
    speedup_round_robin: f64,
    speedup_lpt: f64,
    speedup_optimum: f64,
    lpt_over_optimum_mean: f64,
    lpt_over_optimum_worst: f64,
    round_robin_over_optimum_mean: f64,
}

/// One link and format, from one worker to eight.
#[derive(Serialize)]
struct Scatter {
    gigabytes_per_second: f64,
    format: &'static str,
    live_heads: f64,
    mib_per_segment: f64,
    move_ms: f64,
    build_ms: f64,
    /// Milliseconds until ready with 1 … 8 GPUs, the combine agent among them.
    ready_ms: Vec<f64>,
    /// Segments built by workers at 8.
    scattered: usize,
    speedup: f64,
}

const WORKERS: usize = 4;
const LINKS: [f64; 3] = [25.0, 50.0, 361.0];
/// Between pods a move has a round trip and a ticket; between GPUs of one host next to nothing.
const MOVE_FIXED_MS: f64 = 0.1;

/// Runs both parts.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let uneven = uneven(args).context("compare longest-first with the optimum")?;
    let ratio = |x: f64| format!("{x:.3}");
    let faster = |x: f64| format!("{x:.2}x");
    print_table(
        &format!(
            "{} uneven segments on {WORKERS} equal workers, {} sets (computed)",
            uneven.segments, uneven.sets
        ),
        &["", "speed-up over one", "time / optimum, mean", "worst"],
        &[
            vec![
                "round robin".into(),
                faster(uneven.speedup_round_robin),
                ratio(uneven.round_robin_over_optimum_mean),
                String::new(),
            ],
            vec![
                "longest first".into(),
                faster(uneven.speedup_lpt),
                ratio(uneven.lpt_over_optimum_mean),
                ratio(uneven.lpt_over_optimum_worst),
            ],
            vec!["optimum".into(), faster(uneven.speedup_optimum), ratio(1.0), ratio(1.0)],
        ],
    );

    let scatter = scatter(args).context("simulate scatter")?;
    let rows: Vec<Vec<String>> = scatter
        .iter()
        .map(|row| {
            vec![
                format!("{} GB/s, {}", row.gigabytes_per_second, row.format),
                format!("{:.0} %", 100.0 * row.live_heads),
                format!("{:.1}", row.mib_per_segment),
                format!("{:.2}", row.move_ms),
                format!("{:.2}", row.build_ms),
                format!("{:.0}", row.ready_ms[0]),
                format!("{:.0}", row.ready_ms[7]),
                format!("{}", row.scattered),
                faster(row.speedup),
            ]
        })
        .collect();
    print_table(
        &format!(
            "cold 32k (64 x 512 tokens), 35B-A3B shape at {:.0} tokens/s per GPU (computed)",
            args.tokens_per_second
        ),
        &["link, format", "live", "MiB", "move ms", "build ms", "1 GPU ms", "8 GPUs ms", "moved", "speed-up"],
        &rows,
    );

    let solve_us = solve_time(args)?;
    println!(
        "\nsolve, 64 uneven cold segments, 4 combine agents, 8 workers: {solve_us:.0} us (median, timed)"
    );
    args.report.write(&Report { lpt_vs_optimum: uneven, scatter_8_sim: scatter, solve_us })
}

fn node(id: &str, role: AgentRole, curve: &Curve, link: Link) -> AgentView {
    let tiers = [Link::default(); 4];
    AgentView { id: id.into(), role, curve: curve.clone(), link, tiers, ahead: Millis(0.0) }
}

/// One GPU: at least the floor, then in proportion to the tokens.
fn gpu(args: &Args) -> anyhow::Result<Curve> {
    let point = |ms: f64| (Tokens((ms * args.tokens_per_second / 1e3).round() as u32), Millis(ms));
    Ok(Curve::new(vec![point(args.floor_ms.max(1.0)), point(2.0 * args.floor_ms.max(1.0))])?)
}

fn cold(tokens: u32, seam: u32, bytes: Bytes) -> Piece {
    let segment = Segment { seam: Tokens(seam), bytes, holders: Vec::new(), building: None, repeats: None };
    Piece { tokens: Tokens(tokens), segment: Some(segment) }
}

fn predicted(problem: &Problem) -> anyhow::Result<f64> {
    let placement = solve(problem)?;
    Ok(placement.reasons.first().context("a placement has reasons")?.cost.0)
}

/// Lengths as documents have them: many short, a few ten times as long.
fn lengths(set: u64, segments: usize) -> Vec<u32> {
    let mut state = set.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    (0..segments).map(|_| (256.0 * (16.0f64).powf(draw())) as u32).collect()
}

fn uneven(args: &Args) -> anyhow::Result<Uneven> {
    // The combine agent is one of the four equal nodes; moving costs nothing.
    let free = Link::default();
    let curve = Curve::affine(Millis(0.0), Millis(0.01))?;
    let mut agents = vec![node("combine", AgentRole::Combine, &curve, free)];
    agents.extend((1..WORKERS).map(|n| node(&format!("worker-{n}"), AgentRole::Scatter, &curve, free)));
    let mut sums = [0.0; 5];
    let mut worst: f64 = 1.0;
    for set in 0..args.sets {
        let lengths = lengths(set, args.segments);
        let pieces = lengths.iter().map(|tokens| cold(*tokens, 0, Bytes(0))).collect();
        let problem = Problem { seed: set, layers: 1, pieces, snapshots: Vec::new(), agents: agents.clone() };
        let alone: f64 = lengths.iter().map(|tokens| 0.01 * f64::from(*tokens)).sum();
        let best = optimum(&problem).context("a combine agent is there")?.0;
        let ours = predicted(&problem)?;
        let robin = (0..WORKERS)
            .map(|worker| lengths.iter().skip(worker).step_by(WORKERS).map(|t| 0.01 * f64::from(*t)).sum())
            .fold(0.0, f64::max);
        let values = [alone / robin, alone / ours, alone / best, ours / best, robin / best];
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        worst = worst.max(ours / best);
    }
    let mean = sums.map(|sum| sum / args.sets.max(1) as f64);
    Ok(Uneven {
        sets: args.sets,
        segments: args.segments,
        speedup_round_robin: mean[0],
        speedup_lpt: mean[1],
        speedup_optimum: mean[2],
        lpt_over_optimum_mean: mean[3],
        lpt_over_optimum_worst: worst,
        round_robin_over_optimum_mean: mean[4],
    })
}

/// Formats with the share of heads that store `T`.
fn formats() -> Vec<(&'static str, f64, TupleFormat)> {
    let format = |transition, state| TupleFormat {
        transition,
        state,
        tail: Dtype::Bf16,
        kv: Dtype::Bf16,
        ..TupleFormat::default()
    };
    let kinds = [
        ("T, S fp32", format(Dtype::F32, Dtype::F32)),
        ("T fp16, S fp32", format(Dtype::F16, Dtype::F32)),
        ("T, S fp16", format(Dtype::F16, Dtype::F16)),
        ("T int8, S fp16", format(Dtype::I8, Dtype::F16)),
        ("T, S int8", format(Dtype::I8, Dtype::I8)),
    ];
    kinds
        .into_iter()
        .flat_map(|(name, format)| [1.0, 0.6, 0.2, 0.05].map(move |live| (name, live, format)))
        .collect()
}

/// Qwen3.5-35B-A3B: 30 GDN layers and 10 full ones.
fn model() -> ModelSpec {
    let linear =
        LinearShape { family: Family::Gdn, key_heads: 16, heads: 32, key: 128, value: 128, conv_kernel: 4 };
    let full = FullShape { heads: 16, kv_heads: 2, key: 256, value: 256, rotary: 64 };
    let layer = |place: usize| if place % 4 == 3 { LayerSpec::Full(full) } else { LayerSpec::Linear(linear) };
    ModelSpec {
        id: "35b-a3b".into(),
        layers: (0..40).map(layer).collect(),
        hidden: 2048,
        vocab: 248_320,
        context: Tokens(262_144),
    }
}

fn scatter(args: &Args) -> anyhow::Result<Vec<Scatter>> {
    let spec = model();
    let curve = gpu(args)?;
    let mut rows = Vec::new();
    for gigabytes in LINKS {
        for (name, live, format) in formats() {
            let bytes = TupleSize::of(&spec, live, &format).bytes(Tokens(512 - 8));
            let link = Link::of_speed(Millis(MOVE_FIXED_MS), gigabytes);
            let mut ready_ms = Vec::new();
            let mut scattered = 0;
            for gpus in 1..=8 {
                let problem = fleet_of(gpus, &curve, link, bytes, &spec);
                let placement = solve(&problem)?;
                ready_ms.push(placement.reasons.first().context("a placement has reasons")?.cost.0);
                scattered =
                    placement.sources.iter().filter(|s| matches!(s, Some(Source::Build { .. }))).count();
            }
            rows.push(Scatter {
                gigabytes_per_second: gigabytes,
                format: name,
                live_heads: live,
                mib_per_segment: bytes.0 as f64 / f64::from(1 << 20),
                move_ms: link.ms(bytes),
                build_ms: 512e3 / args.tokens_per_second,
                speedup: ready_ms[0] / ready_ms[7],
                ready_ms,
                scattered,
            });
        }
    }
    Ok(rows)
}

/// 64 cold segments of 512 tokens and a query, on one combine agent and `gpus - 1` scatter workers.
fn fleet_of(gpus: usize, curve: &Curve, link: Link, bytes: Bytes, spec: &ModelSpec) -> Problem {
    let mut agents = vec![node("combine", AgentRole::Combine, curve, link)];
    agents.extend((1..gpus).map(|n| node(&format!("worker-{n}"), AgentRole::Scatter, curve, link)));
    let query = Piece { tokens: Tokens(64), segment: None };
    let pieces = (0..64).map(|_| cold(512, 8, bytes)).chain([query]).collect();
    Problem { seed: 1, layers: spec.layers.len() as u32, pieces, snapshots: Vec::new(), agents }
}

/// Median microseconds of `solve` with 64 cold segments of uneven length.
fn solve_time(args: &Args) -> anyhow::Result<f64> {
    let (curve, link) = (gpu(args)?, Link::of_speed(Millis(MOVE_FIXED_MS), 361.0));
    let mut problem = fleet_of(9, &curve, link, Bytes(60 << 20), &model());
    for (piece, tokens) in problem.pieces.iter_mut().zip(lengths(1, 64)) {
        piece.tokens = Tokens(tokens);
    }
    let more = (1..4).map(|n| node(&format!("combine-{n}"), AgentRole::Combine, &curve, link));
    problem.agents.extend(more);
    let mut times = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        std::hint::black_box(solve(std::hint::black_box(&problem))?);
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
