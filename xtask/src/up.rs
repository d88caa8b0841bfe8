//! `cargo xtask up`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::down::down;
use crate::shell::{binary, cargo, root, run, scratch, step};

/// Flags of `up`.
#[derive(Args)]
pub(crate) struct UpArgs {
    /// Processes on loopback instead of a cluster.
    #[arg(long)]
    local: bool,
    /// Leave it running; `cargo xtask down` stops it.
    #[arg(long)]
    keep: bool,
    /// Folder of a checkpoint.
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
    /// Start the fleet and ask nothing.
    #[arg(long)]
    no_eval: bool,
}

/// Builds and runs the demo.
pub(crate) fn up(args: &UpArgs) -> Result<()> {
    if !args.local {
        bail!("a cluster cannot be started yet (docs/gaps.md); run 'cargo xtask up --local'");
    }
    down()?;
    step("build router, agent and demo", || {
        cargo(&["build", "-p", "hypic-router", "-p", "hypic-node-agent", "-p", "hypic-e2e", "--bins"])
    })?;
    let dir = scratch().join("fleet");
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
        .arg(args.eval.clone().unwrap_or_else(|| root().join("e2e/eval/questions.jsonl.gz")))
        .args(["--questions", &args.questions.to_string()]);
    if let Some(report) = &args.report {
        command.arg("--report").arg(std::path::absolute(report).context("find the report's folder")?);
    }
    if args.keep {
        command.arg("--keep");
    }
    if args.no_eval {
        command.arg("--no-eval");
    }
    run(&mut command)
}
