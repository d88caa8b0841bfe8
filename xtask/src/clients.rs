//! The unmodified `openai` packages for Python and JavaScript, for the conversation tests in `e2e/clients`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{need, root, run, scratch};

/// Versions that the tests speak to; both are what users install today.
const PYTHON: &str = "openai==3.51.0";
const JAVASCRIPT: &str = "openai@7.55.0";

/// Installs both packages below the scratch folder, unless they are there.
pub(crate) fn install() -> Result<()> {
    let dir = scratch().join("clients");
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    python(&dir.join("python"))?;
    javascript(&dir.join("javascript"))
}

fn python(dir: &Path) -> Result<()> {
    let done = dir.join(PYTHON);
    if done.exists() {
        return Ok(());
    }
    need("python3", "Python 3.9 or newer with its venv module")?;
    run(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    run(Command::new(dir.join("bin/pip")).args(["install", "--quiet", PYTHON]))?;
    std::fs::write(&done, "").with_context(|| format!("write {}", done.display()))
}

fn javascript(dir: &Path) -> Result<()> {
    let done = dir.join(JAVASCRIPT);
    if done.exists() {
        return Ok(());
    }
    need("npm", "Node.js 20 or newer with npm")?;
    std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut command = Command::new("npm");
    command.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--silent", "--prefix"]);
    run(command.arg(dir).arg(JAVASCRIPT).current_dir(root()))?;
    std::fs::write(&done, "").with_context(|| format!("write {}", done.display()))
}
