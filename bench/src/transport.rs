//! `transport`: pulling tuples between two processes over loopback, plain and over TLS, against the bare
//! socket: GB/s and CPU seconds per GB of both ends together.
//!
//! The shape is that of `docs` on the transport: one part per segment and layer, 1.51 and 2.41 MB in turn.
//! Variants take turns within a repetition; medians are printed. The bare socket checks nothing and is the
//! floor.

mod receiver;
mod sender;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use hypic_domain::key::SegmentKey;
use hypic_domain::tuple::{PartKind, PartSpec};
use hypic_e2e::certificates::Authority;
use hypic_e2e::report::machine;
use hypic_wire::tls::{Security, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::report::{ReportArgs, print_table};

/// Options of `transport`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Segments pulled at once.
    #[arg(long, default_value_t = 8)]
    segments: usize,
    /// Layers, one part each.
    #[arg(long, default_value_t = 38)]
    layers: u16,
    /// Repetitions.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    #[command(flatten)]
    report: ReportArgs,
    /// Be the sender of one variant: the bench starts itself so.
    #[arg(long, hide = true)]
    serve: Option<Variant>,
    /// Folder of the throw-away certificates.
    #[arg(long, hide = true)]
    certificates: Option<PathBuf>,
}

/// A way to move the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Variant {
    Tcp,
    Plain,
    Tls,
}

impl Variant {
    const ALL: [Self; 3] = [Self::Tcp, Self::Plain, Self::Tls];

    fn title(self) -> &'static str {
        match self {
            Self::Tcp => "bare TCP, unchecked (floor)",
            Self::Plain => "pull, checked",
            Self::Tls => "pull, checked, TLS 1.3",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Plain => "plain",
            Self::Tls => "tls",
        }
    }
}

/// What the sender tells on its standard output once it listens.
#[derive(Serialize, Deserialize)]
struct Hello {
    endpoint: String,
    /// Hex, one per segment.
    tickets: Vec<String>,
}

/// What one run took.
#[derive(Clone, Copy, Serialize)]
struct Run {
    gb_per_s: f64,
    sender_cpu_s_per_gb: f64,
    receiver_cpu_s_per_gb: f64,
    first_layer_ms: f64,
}

#[derive(Serialize)]
struct Report {
    machine: String,
    bytes: u64,
    runs: Vec<(Variant, Run)>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(variant) = args.serve {
        return sender::run(variant, args);
    }
    ensure!(args.segments > 0 && args.layers > 0 && args.repeats > 0, "there is nothing to move");
    let dir = tempfile::tempdir().context("make a folder for certificates")?;
    Authority::create(dir.path())?.issue("hypic-agent")?;
    let bytes = parts(args.layers).iter().map(|part| part.len).sum::<u64>() * args.segments as u64;
    let mut runs = Vec::new();
    for _ in 0..args.repeats {
        for variant in Variant::ALL {
            let (mut child, hello) = start_sender(variant, args, dir.path())?;
            let outcome = receiver::run(variant, args, &hello, dir.path(), child.id());
            // The sender has no more to do; it ends by being killed.
            child.kill().context("stop the sender")?;
            child.wait().context("wait for the sender")?;
            runs.push((variant, outcome?));
        }
    }
    let median = |variant: Variant, figure: fn(&Run) -> f64| {
        let mut values: Vec<f64> =
            runs.iter().filter(|(of, _)| *of == variant).map(|(_, run)| figure(run)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let rows = Variant::ALL.map(|variant| {
        let both = median(variant, |run| run.sender_cpu_s_per_gb + run.receiver_cpu_s_per_gb);
        vec![
            variant.title().to_owned(),
            format!("{both:.3}"),
            format!("{:.3}", median(variant, |run| run.sender_cpu_s_per_gb)),
            format!("{:.3}", median(variant, |run| run.receiver_cpu_s_per_gb)),
            format!("{:.2}", median(variant, |run| run.gb_per_s)),
            format!("{:.1}", median(variant, |run| run.first_layer_ms)),
        ]
    });
    let machine = machine();
    print_table(
        &format!("{} segments x {} layers, {bytes} bytes, loopback, {machine}", args.segments, args.layers),
        &["", "CPU-s/GB", "sender", "receiver", "GB/s", "layer 0, ms"],
        &rows,
    );
    args.report.write(&Report { machine, bytes, runs })
}

/// One part per layer, as its tuple lies on the sender; the sums are the sender's to tell.
fn parts(layers: u16) -> Vec<PartSpec> {
    let mut offset = 0;
    (0..layers)
        .map(|layer| {
            let len = if layer % 2 == 0 { 1_510_000 } else { 2_410_000 };
            let part = PartSpec { layer, kind: PartKind::State, offset, len, sum: 0 };
            offset += len;
            part
        })
        .collect()
}

/// The bytes of one tuple: both ends can make them, so that both know the sums.
fn tuple_bytes(layers: u16, source: usize) -> Vec<u8> {
    let len = parts(layers).iter().map(|part| part.len as usize).sum::<usize>();
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(source) >> 11) as u8).collect()
}

/// Segments share two tuples: together far over the cache, and little memory.
const SOURCES: usize = 2;

fn key(segment: usize) -> SegmentKey {
    SegmentKey([segment as u8; 32])
}

fn security(variant: Variant, certificates: &Path) -> anyhow::Result<Security> {
    let file = |name: &str| certificates.join(name);
    match variant {
        Variant::Tcp | Variant::Plain => Ok(Security::Plain),
        Variant::Tls => {
            TlsFiles { cert: file("hypic-agent.crt"), key: file("hypic-agent.key"), ca: file("ca.crt") }
                .load()
                .context("load the throw-away certificates")
        }
    }
}

fn start_sender(variant: Variant, args: &Args, certificates: &Path) -> anyhow::Result<(Child, Hello)> {
    let mut child = Command::new(std::env::current_exe().context("find this program")?)
        .args(["transport", "--serve", variant.name()])
        .args(["--segments", &args.segments.to_string(), "--layers", &args.layers.to_string()])
        .arg("--certificates")
        .arg(certificates)
        .stdout(Stdio::piped())
        .spawn()
        .context("start the sender")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("read from the sender")?).read_line(&mut line)?;
    let hello = serde_json::from_str(&line).context("read the sender's first line")?;
    Ok((child, hello))
}

/// CPU seconds of all threads of a process, from the scheduler's own nanoseconds.
fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task")).context("list threads")? {
        let line = std::fs::read_to_string(task?.path().join("schedstat")).context("read a thread's time")?;
        nanos +=
            line.split_whitespace().next().unwrap_or("0").parse::<u64>().context("read a thread's time")?;
    }
    Ok(nanos as f64 / 1e9)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start a runtime")
}
