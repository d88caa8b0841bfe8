//! `prefill`: time to the first logits on the CPU device against transformers, and of one decoded token.
//!
//! Both sides run in turn, a repetition each, with the same number of threads; the smallest time of each counts.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};
use hypic_domain::id::ModelId;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::op::Device;
use hypic_kernels::plan::{Context, Plan, Run, RunOp};
use hypic_models::model::Memory;
use hypic_models::random::{self, RandomSpec};
use hypic_models::{Loaded, load};
use serde::Serialize;

use crate::report::{ReportArgs, print_table};

/// Options of `prefill`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A checkpoint; beside it a random one of eight layers and width 1024 is measured.
    #[arg(long, value_name = "DIR", default_value = "e2e/models/hypic-tiny")]
    model: PathBuf,
    /// Leave the random checkpoint out.
    #[arg(long)]
    no_random: bool,
    /// A Python with torch and transformers; where it lacks them only ours is measured.
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Threads of both sides.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Prompt lengths.
    #[arg(long, value_delimiter = ',', default_values_t = [512, 2048, 8192])]
    tokens: Vec<usize>,
    /// Rows of one step of ours.
    #[arg(long, default_value_t = 1024)]
    step: usize,
    /// Tokens decoded after each prompt.
    #[arg(long, default_value_t = 8)]
    decoded: usize,
    /// Repetitions.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    #[command(flatten)]
    report: ReportArgs,
}

/// Milliseconds.
#[derive(Clone, Copy, Serialize)]
struct Times {
    prefill: f64,
    decode: f64,
}

impl Times {
    const WORST: Self = Self { prefill: f64::INFINITY, decode: f64::INFINITY };

    fn least(self, other: Self) -> Self {
        Self { prefill: self.prefill.min(other.prefill), decode: self.decode.min(other.decode) }
    }
}

#[derive(Serialize)]
struct Row {
    model: String,
    tokens: usize,
    threads: usize,
    ours: Times,
    transformers: Option<Times>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let name = args.model.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut rows = measure(args, &args.model, &name)?;
    if !args.no_random {
        rows.extend(measure_random(args)?);
    }
    let cells = |row: &Row| {
        let number = |ms: f64| format!("{ms:.1}");
        let theirs =
            |of: fn(Times) -> f64| row.transformers.map_or_else(String::new, |times| number(of(times)));
        let ratio = |of: fn(Times) -> f64| {
            row.transformers.map_or_else(String::new, |times| format!("{:.2}x", of(times) / of(row.ours)))
        };
        vec![
            row.model.clone(),
            row.tokens.to_string(),
            theirs(|times| times.prefill),
            number(row.ours.prefill),
            ratio(|times| times.prefill),
            theirs(|times| times.decode),
            number(row.ours.decode),
            ratio(|times| times.decode),
        ]
    };
    let head = [
        "model",
        "tokens",
        "transformers ms",
        "ours ms",
        "faster",
        "decode transformers",
        "decode ours",
        "faster",
    ];
    let title = format!("Prefill and decode in fp32 on {} threads, least of {}", args.threads, args.repeats);
    print_table(&title, &head, &rows.iter().map(cells).collect::<Vec<_>>());
    args.report.write(&rows)
}

fn measure_random(args: &Args) -> anyhow::Result<Vec<Row>> {
    let spec = RandomSpec {
        hidden: 1024,
        intermediate: 3072,
        vocab: 16384,
        layers: 8,
        linear_heads: (4, 8),
        linear_width: 128,
        full_heads: (8, 2),
        full_width: 128,
        context: 16384,
        ..RandomSpec::default()
    };
    let dir = std::env::temp_dir().join(format!("hypic-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).context("make a folder for the random checkpoint")?;
    let written = random::write(&dir, &spec).context("write the random checkpoint");
    let rows = written.and_then(|()| measure(args, &dir, "random 8 x 1024"));
    std::fs::remove_dir_all(&dir).context("remove the random checkpoint")?;
    rows
}

fn measure(args: &Args, dir: &Path, name: &str) -> anyhow::Result<Vec<Row>> {
    let device = CpuDevice::new(args.threads)?;
    let loaded = load(dir, &device, ModelId::from("bench"))?;
    let mut baseline = match imports_torch(&args.python) {
        true => Some(Baseline::start(&args.python, dir, args.threads)?),
        false => {
            println!("\nNo baseline: \"{}\" does not import torch and transformers.", args.python.display());
            None
        }
    };
    let mut rows = Vec::new();
    for &tokens in &args.tokens {
        let mut row = Row {
            model: name.to_owned(),
            tokens,
            threads: args.threads,
            ours: Times::WORST,
            transformers: None,
        };
        for _ in 0..args.repeats {
            row.ours = row.ours.least(ours(&device, &loaded, tokens, args)?);
            if let Some(baseline) = &mut baseline {
                let times = baseline.time(tokens, args.decoded)?;
                row.transformers = Some(row.transformers.unwrap_or(Times::WORST).least(times));
            }
        }
        rows.push(row);
    }
    Ok(rows)
}

/// One prompt in steps, then some tokens one by one.
fn ours(device: &CpuDevice, loaded: &Loaded<CpuDevice>, tokens: usize, args: &Args) -> anyhow::Result<Times> {
    const PAGE: usize = 64;
    let pages = (tokens + args.decoded).div_ceil(PAGE);
    let mut states = device.states(&loaded.spec, 1)?;
    let mut pool = device.pages(&loaded.spec, pages, PAGE)?;
    device.reset_slot(&mut states, 0)?;
    let mut step = |ids: Vec<u32>, before: usize| -> anyhow::Result<u32> {
        let rows = ids.len();
        let live = (0..(before + rows) as u32).collect();
        let context = Context { pages: (0..pages).collect(), live, bodies: Vec::new() };
        let run = Run { rows: 0..rows, slot: 0, context, ops: vec![RunOp::Rows(0..rows)], record: None };
        let plan = Plan { ids, runs: vec![run] };
        let mut x = loaded.model.embed(device, &plan)?;
        for layer in 0..loaded.spec.layers.len() {
            let memory = Memory { states: &mut states, pages: &mut pool };
            x = loaded.model.layer(device, layer, &plan, memory, x)?;
        }
        let logits = loaded.model.all_logits(device, &x, &[rows - 1])?;
        let best = logits.iter().zip(0..).max_by(|a, b| a.0.total_cmp(b.0));
        best.map(|(_, id)| id).context("a model without a vocabulary")
    };
    let ids: Vec<u32> = (0..tokens).map(|i| (i * 7919 % loaded.spec.vocab) as u32).collect();
    let start = Instant::now();
    let mut next = 0;
    for (i, chunk) in ids.chunks(args.step).enumerate() {
        next = step(chunk.to_vec(), i * args.step)?;
    }
    let prefill = start.elapsed();
    let start = Instant::now();
    for i in 0..args.decoded {
        next = step(vec![next], tokens + i)?;
    }
    let decode = start.elapsed() / args.decoded.max(1) as u32;
    Ok(Times { prefill: prefill.as_secs_f64() * 1e3, decode: decode.as_secs_f64() * 1e3 })
}

/// Whether a Python is there and has what the baseline needs.
fn imports_torch(python: &Path) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", "import torch, transformers"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The Python side, kept running so that both are measured in turn.
struct Baseline {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Baseline {
    fn start(python: &Path, model: &Path, threads: usize) -> anyhow::Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("prefill_torch.py");
        let mut child = Command::new(python)
            .args([script.as_path(), model, Path::new(&threads.to_string())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start \"{}\"", python.display()))?;
        let ask = child.stdin.take().context("the baseline's input")?;
        let answers = BufReader::new(child.stdout.take().context("the baseline's output")?);
        let mut baseline = Self { child, ask, answers };
        if baseline.line()? != "ready" {
            bail!("the baseline did not start: can \"{}\" import torch and transformers?", python.display());
        }
        Ok(baseline)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("read the baseline's answer")?;
        Ok(line.trim().to_owned())
    }

    fn time(&mut self, tokens: usize, decoded: usize) -> anyhow::Result<Times> {
        writeln!(self.ask, "{tokens} {decoded}").context("ask the baseline")?;
        let line = self.line()?;
        let times: Vec<f64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        match times[..] {
            [prefill, decode] => Ok(Times { prefill, decode }),
            _ => bail!("the baseline answered \"{line}\""),
        }
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        // It may have ended by itself; in both cases it is gone afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
