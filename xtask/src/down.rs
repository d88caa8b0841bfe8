//! `cargo xtask down`: undoes `up` with the same flags, on a cluster or on loopback; the other one is left alone.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::cluster::{Target, TargetArgs};
use crate::install::{SAMPLE, uninstall};
use crate::shell::{local_fleet, run, step};

/// Flags of `down`.
#[derive(Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The fleet on loopback, instead of a cluster.
    #[arg(long, conflicts_with_all = ["cluster", "registry", "crds"])]
    local: bool,
    /// From a cluster that stays, remove the kinds too, and with them every HypicCluster.
    #[arg(long)]
    crds: bool,
}

/// Stops the fleet on loopback or a cluster that is ours; takes sample and operator away from a cluster that is not ours.
pub(crate) fn down(args: &DownArgs) -> Result<()> {
    if args.local {
        match stop_local()? {
            0 => println!("no fleet runs on loopback"),
            stopped => println!("stopped the fleet on loopback, {stopped} processes"),
        }
        return Ok(());
    }
    if !kept().is_empty() {
        println!("the fleet on loopback goes on running: 'cargo xtask down --local' stops it");
    }
    let target = Target::new(&args.target)?;
    if !matches!(target, Target::Current { .. }) {
        return target.down();
    }
    // The operator is there until its clusters are gone.
    step("remove the sample", || {
        let mut kubectl = target.client("kubectl");
        run(kubectl.args(["delete", "namespace", SAMPLE, "--ignore-not-found"]))
    })?;
    uninstall(&target, args.crds)
}

/// Ends the processes of a kept fleet, and says how many; it is no error when there are none.
pub(crate) fn stop_local() -> Result<usize> {
    let ours = kept();
    for pid in &ours {
        run(Command::new("kill").args(["-TERM", pid]))?;
    }
    for _ in 0..100 {
        if !ours.iter().any(|pid| is_ours(pid)) {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    for pid in ours.iter().filter(|pid| is_ours(pid)) {
        run(Command::new("kill").args(["-KILL", pid]))?;
    }
    let file = pids();
    if file.exists() {
        fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
    }
    Ok(ours.len())
}

/// Where a kept fleet has its process ids.
fn pids() -> PathBuf {
    local_fleet().join("pids")
}

/// The processes of a kept fleet that still run.
fn kept() -> Vec<String> {
    let text = fs::read_to_string(pids()).unwrap_or_default();
    text.lines().filter(|pid| is_ours(pid)).map(str::to_owned).collect()
}

/// Whether a process is of our fleet: its id may have been given to somebody else since, such as another clone's fleet.
fn is_ours(pid: &str) -> bool {
    let command = fs::read(Path::new("/proc").join(pid).join("cmdline")).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    let fleet = local_fleet();
    (program.ends_with(b"hypic-router") || program.ends_with(b"hypic-node-agent"))
        && words.any(|word| Path::new(OsStr::from_bytes(word)).starts_with(&fleet))
}
