//! `cargo xtask up`.

mod on_cluster;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::cluster::TargetArgs;
use crate::down::stop_local;
use crate::shell::{binary, cargo, local_fleet, root, run, step};

/// Flags of `up`.
#[derive(Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Processes on loopback instead of a cluster.
    #[arg(long, conflicts_with_all = ["cluster", "registry"])]
    local: bool,
    /// With --local: leave it running until `cargo xtask down --local`. A cluster stays in any case, until `cargo xtask down`.
    #[arg(long)]
    keep: bool,
    /// Folder of a checkpoint, with --local.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Question file.
    #[arg(long, value_name = "FILE")]
    eval: Option<PathBuf>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Questions of the table.
    #[arg(long, default_value_t = 72)]
    questions: usize,
    /// Seconds that the fleet may take until it is ready, on a slow machine [default: 120 with --local, else 300].
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Start the fleet and ask nothing.
    #[arg(long)]
    no_eval: bool,
    /// Take the binaries as they were built last.
    #[arg(long)]
    no_build: bool,
}

impl UpArgs {
    /// The question file. Paths are absolute: the demo may run in another folder.
    fn eval(&self) -> Result<PathBuf> {
        let own = || root().join("e2e/eval/questions.jsonl.gz");
        std::path::absolute(self.eval.clone().unwrap_or_else(own)).context("find the question file")
    }

    fn report(&self) -> Result<Option<PathBuf>> {
        self.report.as_ref().map(std::path::absolute).transpose().context("find the report's folder")
    }
}

/// Builds and runs the demo.
pub(crate) fn up(args: &UpArgs) -> Result<()> {
    if args.local { on_loopback(args) } else { on_cluster::up(args) }
}

fn on_loopback(args: &UpArgs) -> Result<()> {
    if stop_local()? > 0 {
        println!("stopped the fleet on loopback that was kept");
    }
    if !args.no_build {
        step("build router, agent and demo", || {
            cargo(&["build", "-p", "hypic-router", "-p", "hypic-node-agent", "-p", "hypic-e2e", "--bins"])
        })?;
    }
    let dir = local_fleet();
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("clear {}", dir.display()))?;
    }
    let mut command = binary("hypic-local");
    command
        .arg("--binaries")
        .arg(crate::shell::target().join("debug"))
        .arg("--dir")
        .arg(&dir)
        .arg("--model")
        .arg(args.model.clone().unwrap_or_else(|| root().join("e2e/models/hypic-tiny")))
        .arg("--eval")
        .arg(args.eval()?)
        .args(["--questions", &args.questions.to_string()]);
    if let Some(report) = args.report()? {
        command.arg("--report").arg(report);
    }
    if let Some(seconds) = args.wait {
        command.args(["--wait", &seconds.to_string()]);
    }
    if args.keep {
        command.arg("--keep");
    }
    if args.no_eval {
        command.arg("--no-eval");
    }
    run(&mut command)
}
