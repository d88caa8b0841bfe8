//! Servers that outlive us: started in the background, marked, watched until they are ready.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::lab::Lab;

/// In the environment of all that a lab started, and so of their children.
const MARK: &str = "HYPIC_LAB_PROCESS=";

/// A server that we started just now.
pub(crate) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

/// Starts a server; it survives us and the terminal's Ctrl-C.
pub(crate) fn start(lab: &Lab, name: &str, mut command: Command) -> Result<Daemon> {
    let log = lab.log(name);
    let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    let errors = file.try_clone().with_context(|| format!("share {}", log.display()))?;
    let child = command
        .env(MARK.trim_end_matches('='), lab.name())
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {name}"))?;
    let pid = pid_file(lab, name);
    fs::write(&pid, child.id().to_string()).with_context(|| format!("write {}", pid.display()))?;
    Ok(Daemon { name: name.to_owned(), child, log })
}

/// Waits until `ready`; a server that ends meanwhile, or the limit, is an error with the end of its log.
pub(crate) fn wait(
    daemon: &mut Daemon,
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    let start = Instant::now();
    while !ready() {
        if let Some(status) =
            daemon.child.try_wait().with_context(|| format!("look after {}", daemon.name))?
        {
            bail!("{} ended with {status} before {what}:\n{}", daemon.name, daemon.tail());
        }
        if start.elapsed() > limit {
            bail!("{what}: not within {} s; {} says:\n{}", limit.as_secs(), daemon.name, daemon.tail());
        }
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

impl Daemon {
    fn tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("{}\n(whole log: {})", lines[lines.len().saturating_sub(15)..].join("\n"), self.log.display())
    }
}

/// The process of a server that runs.
pub(crate) fn running(lab: &Lab, name: &str) -> Option<u32> {
    let pid = fs::read_to_string(pid_file(lab, name)).ok()?.parse().ok()?;
    is_marked(lab, pid).then_some(pid)
}

/// A server that was started and does not run any more.
pub(crate) fn dead(lab: &Lab) -> Option<String> {
    let started = fs::read_dir(lab.dir().join("pids")).into_iter().flatten().flatten();
    let mut names = started.filter_map(|entry| entry.file_name().into_string().ok());
    names.find(|name| running(lab, name).is_none())
}

/// Whether the lab started this process, or one that it descends from.
pub(crate) fn is_marked(lab: &Lab, pid: u32) -> bool {
    let mark = format!("{MARK}{}", lab.name());
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()))
}

/// Runs a command for its exit status alone.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

/// Runs a command whose output only matters when it fails.
pub(crate) fn quietly(command: &mut Command) -> Result<()> {
    told(command).map(drop)
}

/// Runs a command for what it prints.
pub(crate) fn told(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {shown}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} ended with {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn pid_file(lab: &Lab, name: &str) -> PathBuf {
    lab.dir().join("pids").join(name)
}
