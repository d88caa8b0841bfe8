//! Tests of chart, operator and fleet on a real cluster: `e2e/tests/cluster`, run inside a lab of their own.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::{Binaries, Lab, TAG, Target, check_machine};
use crate::install::install;
use crate::shell::{root, run, step};

/// The lab that only these tests use.
const LAB: &str = "test";
/// Two nodes: faults of one must leave the other.
const NODES: u8 = 2;
/// Tests at once: each waits for pods most of its time.
const AT_ONCE: &str = "3";

/// Starts a lab, installs the charts, runs the tests and takes the lab down again. A machine that cannot run the lab
/// (no root, no cgroup v1) is told so loudly, and the other tests count.
///
/// # Errors
/// A test that failed, or a lab that does not come up where it could.
pub(crate) fn cluster_tests() -> Result<()> {
    if let Err(why) = check_machine() {
        println!("SKIPPED: the cluster tests did not run. {why:#}");
        return Ok(());
    }
    let tests = step("build the cluster tests", executable)?;
    let target = Target::Lab(Lab::new(LAB)?);
    let tested = in_lab(&target, &tests);
    let downed = target.down();
    tested.and(downed)
}

fn in_lab(target: &Target, tests: &str) -> Result<()> {
    target.up(NODES)?;
    // The step before has built every binary.
    let image = target.images(TAG, Binaries::AsBuilt)?;
    install(target, &image)?;
    let words = [tests, "--test-threads", AT_ONCE].map(str::to_owned);
    let failed = step("cluster tests", || told(&mut target.command(&words)?))?;
    if failed.is_empty() {
        return Ok(());
    }
    // Faults of nodes and servers on two cores: a wait can be too short beside other tests. Alone it must not be.
    println!("FAILED beside others, and run again alone: {}", failed.join(", "));
    let words = [tests, "--test-threads", "1", "--exact"].map(str::to_owned);
    let words: Vec<String> = words.into_iter().chain(failed).collect();
    step("failed cluster tests, alone", || run(&mut target.command(&words)?))
}

/// Runs the tests, shows what they print, and gives the names of those that failed.
fn told(command: &mut Command) -> Result<Vec<String>> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("start the cluster tests")?;
    let output = child.stdout.take().context("read the cluster tests")?;
    let mut failed = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.context("read the cluster tests")?;
        println!("{line}");
        let name = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
        failed.extend(name.map(str::to_owned));
    }
    let status = child.wait().context("wait for the cluster tests")?;
    // Tests that failed, and all others were run: any other end leaves some that never began.
    let tests_failed = status.code() == Some(101) && !failed.is_empty();
    if !status.success() && !tests_failed {
        bail!("the cluster tests ended with {status}");
    }
    Ok(failed)
}

/// The test binary, which cargo names only in its messages.
fn executable() -> Result<String> {
    let mut cargo = Command::new("cargo");
    // The whole workspace, so that nothing is built anew with other features.
    cargo.args(["test", "--locked", "--workspace", "--test", "cluster", "--no-run"]);
    cargo.args(["--message-format", "json-render-diagnostics"]).current_dir(root()).stderr(Stdio::inherit());
    let output = cargo.output().context("start cargo")?;
    if !output.status.success() {
        bail!("the cluster tests do not build");
    }
    let text = String::from_utf8(output.stdout).context("read cargo's messages")?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of = |message: &Value| message["target"]["name"] == "cluster" && message["profile"]["test"] == true;
    let found = messages.filter(of).find_map(|message| message["executable"].as_str().map(str::to_owned));
    found.context("cargo names no executable of the cluster tests")
}
