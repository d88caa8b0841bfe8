//! Debian packages that the project's commands need.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{on_path, run};

/// Installs those of `packages` that are missing: each is a program or file that shows it, and its name.
///
/// # Errors
/// No apt-get, no right to use it, or no server that has them.
pub(crate) fn install(packages: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> =
        packages.iter().filter(|(shows, _)| !is_there(shows)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_there("apt-get") {
        bail!("install these, there is no apt-get here to do it: {}", missing.join(" "));
    }
    // Somebody else may be installing.
    let apt = || {
        let mut command = Command::new("apt-get");
        command.args(["-qq", "-o", "DPkg::Lock::Timeout=300"]).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt().arg("update"))?;
    run(apt().args(["install", "--yes", "--no-install-recommends"]).args(&missing))
}

fn is_there(shows: &str) -> bool {
    if shows.starts_with('/') {
        return Path::new(shows).exists();
    }
    on_path(shows)
}
