//! `cargo xtask charts`: charts, dashboards and rules, checked without a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::shell::{need, root, run, scratch};
use crate::{debian, helm};

/// Lints and renders both charts, and checks rules and dashboards; `write` makes the dashboards anew.
pub(crate) fn charts(write: bool) -> Result<()> {
    let root = root();
    let python = python(&root.join("e2e/monitoring/requirements.txt"))?;
    let mut dashboards = Command::new(&python);
    dashboards.arg("e2e/monitoring/dashboards.py").current_dir(&root);
    if write {
        return run(dashboards.arg("--write"));
    }
    run(&mut dashboards)?;
    let helm = helm::install()?.join("helm");
    let lint = ["lint", "--strict", "--quiet", "charts/hypic-crds", "charts/hypic"];
    run(Command::new(&helm).args(lint).current_dir(&root))?;
    let cases =
        ["-m", "unittest", "discover", "--start-directory", "charts/tests", "--pattern", "*_cases.py"];
    run(Command::new(&python).args(cases).env("HELM", &helm).current_dir(&root))?;
    debian::install(&[("promtool", "prometheus")])?;
    let promtool = |args: &[&str]| run(Command::new("promtool").args(args).current_dir(&root));
    promtool(&["check", "rules", "charts/hypic/rules/hypic.yaml"])?;
    promtool(&["test", "rules", "e2e/monitoring/rules-test.yaml"])
}

/// Flags of `panels`.
#[derive(Args)]
pub(crate) struct PanelsArgs {
    /// Address of a Prometheus that has loaded the chart's rules.
    prometheus: String,
    /// Seconds to look back.
    #[arg(long, default_value_t = 900)]
    span: u32,
    /// Folder for one picture per dashboard; needs Chromium.
    #[arg(long, value_name = "DIR")]
    draw: Option<PathBuf>,
    /// Metrics that this fleet has not, by prefix, such as `hypic_operator_`.
    #[arg(long, value_name = "PREFIX")]
    without: Vec<String>,
}

/// Asks every query of dashboards and rules.
pub(crate) fn panels(args: &PanelsArgs) -> Result<()> {
    let root = root();
    let mut command = Command::new(python(&root.join("e2e/monitoring/requirements.txt"))?);
    command.arg("e2e/monitoring/panels.py").arg(&args.prometheus).args(["--span", &args.span.to_string()]);
    if let Some(folder) = &args.draw {
        debian::install(&[("chromium", "chromium")])?;
        command.arg("--draw").arg(std::path::absolute(folder).context("find the folder of the pictures")?);
    }
    for prefix in &args.without {
        command.args(["--without", prefix]);
    }
    run(command.current_dir(&root))
}

/// A Python that has the packages of `requirements`.
fn python(requirements: &Path) -> Result<PathBuf> {
    let dir = scratch().join("charts");
    let wanted = fs::read(requirements).with_context(|| format!("read {}", requirements.display()))?;
    let done = dir.join("installed.txt");
    let python = dir.join("venv/bin/python");
    if fs::read(&done).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    need("python3", "Python 3.9 or newer with its venv module")?;
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(dir.join("venv")))?;
    let pip = ["-m", "pip", "install", "--quiet", "--retries", "5", "--requirement"];
    run(Command::new(&python).args(pip).arg(requirements))?;
    fs::write(&done, wanted).with_context(|| format!("write {}", done.display()))?;
    Ok(python)
}
