//! `all`: every bench with its standard settings, one after the other, each a process of its own; a page of
//! their tables. A part that fails is named on the page, and the others go on.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use hypic_e2e::report::machine;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::report::ReportArgs;

/// Options of `all`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the tables as a page to this file.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// A Python with torch and transformers, the baseline of `prefill`.
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<String>,
    /// Small settings: shows that every part runs, and measures nothing worth keeping.
    #[arg(long, conflicts_with = "write")]
    smoke: bool,
    #[command(flatten)]
    report: ReportArgs,
}

/// One subcommand: what it shows, and small settings. Its defaults are the standard ones.
struct Part {
    name: &'static str,
    about: &'static str,
    smoke: &'static str,
}

const PARTS: [Part; 6] = [
    Part {
        name: "prefill",
        about: "Full prefill and decode of hypic-tiny in fp32, in process, against transformers on equal \
                threads: the cost of `recompute`.",
        smoke: "--tokens 64 --repeats 1 --decoded 1",
    },
    Part {
        name: "shuffled",
        about: "Time to the first token when documents that were sent before come in another order, through \
                router and agent as processes. `prefix` computes all behind the first change; `pic` composes.",
        smoke: "--segments 2,4 --repeats 1 --hidden 128 --layers 4",
    },
    Part {
        name: "pace",
        about: "Gaps between tokens of running streams, alone and while a cold prompt of 4k tokens is \
                prefilled on the same agent. A step of 8192 rows holds the whole prompt: no chunked prefill.",
        smoke: "--streams 2 --documents 4 --prefills 1 --alone-ms 300",
    },
    Part {
        name: "lookup",
        about: "The router's question to the index for all keys of a prompt, each owner a gRPC server with \
                mutual TLS.",
        smoke: "--claims 3000 --prompts 20",
    },
    Part {
        name: "lpt",
        about: "The scheduler's placement against round robin and the exact optimum (computed from stated \
                curves, not timed), and what scatter gains at which link and format.",
        smoke: "--sets 2 --segments 8",
    },
    Part {
        name: "transport",
        about: "Tensor bytes between two processes over loopback, against the bare socket.",
        smoke: "--segments 2 --layers 4 --repeats 1",
    },
];

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(name) = args.only.iter().find(|name| PARTS.iter().all(|part| part.name != **name)) {
        bail!("there is no part '{name}'");
    }
    let reports = tempfile::tempdir().context("make a folder for reports")?;
    let mut page = opening(args)?;
    let mut all = Map::new();
    let mut failed = Vec::new();
    for part in PARTS.iter().filter(|part| args.only.is_empty() || args.only.iter().any(|n| n == part.name)) {
        let outcome = run_part(part, args, reports.path())?;
        section(&mut page, part, &outcome)?;
        let value = match &outcome.failure {
            Some(why) => json!({"failed": why}),
            None => read_report(&report_of(part, reports.path()))?,
        };
        all.insert(part.name.to_owned(), value);
        failed.extend(outcome.failure.map(|_| part.name));
    }
    if let Some(path) = &args.write {
        fs::write(path, page).with_context(|| format!("write \"{}\"", path.display()))?;
    }
    args.report.write(&all)?;
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// What one part said.
struct Outcome {
    command: String,
    tables: String,
    seconds: f64,
    /// Load averages at its begin and end.
    load: [String; 2],
    failure: Option<String>,
}

fn report_of(part: &Part, dir: &Path) -> PathBuf {
    dir.join(part.name).with_extension("json")
}

/// Runs one part, its tables shown as they come.
fn run_part(part: &Part, args: &Args, dir: &Path) -> anyhow::Result<Outcome> {
    let mut flags = vec![part.name];
    if part.name == "prefill" {
        flags.push("--no-random");
    }
    if args.smoke {
        flags.extend(part.smoke.split_whitespace());
    }
    let python = (part.name == "prefill").then_some(&args.python);
    let shown = if python.is_some() { shown_python(args) } else { "" };
    let command = format!("cargo xtask bench -- {}{shown}", flags.join(" "));
    println!("\n==> {command}");
    let (start, load) = (Instant::now(), load_average()?);
    let errors = dir.join(part.name).with_extension("err");
    let mut child = Command::new(std::env::current_exe().context("find this program")?)
        .args(&flags)
        .args(python.into_iter().flat_map(|python| [Path::new("--python"), python]))
        .arg("--report")
        .arg(report_of(part, dir))
        .stdout(Stdio::piped())
        .stderr(File::create(&errors).context("make a file for errors")?)
        .spawn()
        .with_context(|| format!("start '{command}'"))?;
    let mut tables = String::new();
    for line in BufReader::new(child.stdout.take().context("read a part's tables")?).lines() {
        let line = line.context("read a part's tables")?;
        println!("{line}");
        tables.push_str(&line);
        tables.push('\n');
    }
    let status = child.wait().context("wait for a part")?;
    let failure = (!status.success()).then(|| {
        let said = fs::read_to_string(&errors).unwrap_or_default();
        format!("{status}\n{}", said.trim_end())
    });
    if let Some(why) = &failure {
        println!("FAILED: {why}");
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Outcome { command, tables, seconds, load: [load, load_average()?], failure })
}

/// The flag as a page shows it: where one machine keeps its Python is nothing to a reader.
fn shown_python(args: &Args) -> &'static str {
    if args.python == Path::new("python3") { "" } else { " --python PYTHON" }
}

fn read_report(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("read \"{}\"", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse \"{}\"", path.display()))
}

fn opening(args: &Args) -> anyhow::Result<String> {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute] UTC");
    let date = OffsetDateTime::now_utc().format(format).context("write the date")?;
    let python = shown_python(args);
    let place = args.write.as_deref().map_or_else(String::new, |path| format!(" --write {}", path.display()));
    Ok(format!(
        "# Benchmarks on a CPU\n\n\
         Written by `cargo xtask bench -- all{python}{place}`; every number is of that run.\n\n\
         - date: {date}\n\
         - machine: {}\n\
         - build: the workspace's one profile (dev, numeric crates at opt-level 3)\n\
         - a load average counts processes that run or want to, of everybody on the machine, over one minute: \
         well over the number of cores before a part means that others were at work\n",
        machine()
    ))
}

fn section(page: &mut String, part: &Part, outcome: &Outcome) -> anyhow::Result<()> {
    let [before, after] = &outcome.load;
    write!(
        page,
        "\n## {}\n\n{}\n\n`{}`: {:.0} s, load average {before} before, {after} after.\n",
        part.name, part.about, outcome.command, outcome.seconds
    )
    .context("write a section")?;
    match &outcome.failure {
        Some(why) => write!(page, "\nFailed: no numbers of this run.\n\n```\n{why}\n```\n"),
        None => write!(page, "\n{}\n", outcome.tables.trim()),
    }
    .context("write a section")
}

/// The load average over one minute.
fn load_average() -> anyhow::Result<String> {
    let text = fs::read_to_string("/proc/loadavg").context("read the load average")?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}
