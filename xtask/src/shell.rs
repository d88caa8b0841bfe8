//! Running programs, with a line per step and its elapsed time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "cargo's own variable, which has no flag here")]
    let set = std::env::var("CARGO_TARGET_DIR");
    set.map_or_else(|_| root().join("target"), PathBuf::from)
}

/// Where a binary of the workspace is built.
pub(crate) fn binary_path(name: &str) -> PathBuf {
    target().join("debug").join(name)
}

/// A binary that the workspace has built.
pub(crate) fn binary(name: &str) -> Command {
    let mut command = Command::new(binary_path(name));
    command.current_dir(root());
    command
}

/// Files that runs leave behind: fleets, logs, clients' packages. Ignored by git.
pub(crate) fn scratch() -> PathBuf {
    root().join(".local")
}

/// Files of the fleet on loopback.
pub(crate) fn local_fleet() -> PathBuf {
    scratch().join("fleet")
}

/// Runs a command in the workspace's root; its failure is ours.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("start '{shown}'"))?;
    if !status.success() {
        bail!("'{shown}' ended with {status}{}", full_disk(&target()).unwrap_or_default());
    }
    Ok(())
}

/// What to say beside a failure while the disk of `folder` is full: compilers and assemblers then fail with all but the reason.
fn full_disk(folder: &Path) -> Option<String> {
    const LITTLE: u64 = 1 << 30;
    let existing = folder.ancestors().find(|folder| folder.exists())?;
    let disk = rustix::fs::statvfs(existing).ok()?;
    let free = disk.f_bavail * disk.f_frsize;
    let place = existing.display();
    (free < LITTLE).then(|| {
        format!(
            "; the disk of {place} has only {} MB left: free some, the README says how much is needed",
            free >> 20
        )
    })
}

/// Runs cargo in the workspace's root.
pub(crate) fn cargo(args: &[&str]) -> Result<()> {
    run(Command::new("cargo").args(args).current_dir(root()))
}

/// Builds every binary. The whole workspace, as the tests do: nothing is built twice with other features.
pub(crate) fn build_binaries() -> Result<()> {
    cargo(&["build", "--locked", "--workspace", "--bins"])
}

/// Runs `work` between two lines that name it and tell how long it took.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("==> {name}");
    let start = Instant::now();
    let result = work();
    let end = if result.is_ok() { "done" } else { "FAILED" };
    println!("<== {name}: {end} after {:.0} s", start.elapsed().as_secs_f64());
    result
}

/// Whether a program can be started by its name.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Fails unless `program` is on the path; `what` says what to install.
pub(crate) fn need(program: &str, what: &str) -> Result<()> {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        bail!("the tests need {what}: '{program}' was not found on the PATH");
    }
    Ok(())
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
