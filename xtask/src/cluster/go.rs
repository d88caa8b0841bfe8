//! The cluster's servers, built from Go modules and cached.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::cache::{cached, digest, folder, retry};
use super::daemon::quietly;
use crate::shell::{root, run, step};

/// Kubernetes' version; `kube/go.mod` names the same.
const KUBERNETES: [&str; 3] = ["1", "37", "v1.37.2"];
const KUBE_ROUTER: &str = "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router";

/// Every server of Kubernetes in one program.
pub(crate) fn kube() -> PathBuf {
    folder().join("bin/kube")
}

/// What enforces network policies.
pub(crate) fn kube_router() -> PathBuf {
    folder().join("bin/kube-router")
}

/// Builds both unless they are there.
pub(crate) fn build() -> Result<()> {
    let [major, minor, full] = KUBERNETES;
    let mut flags = String::from("-s -w");
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        flags += &format!(" -X {package}.gitVersion={full} -X {package}.gitMajor={major}");
        flags += &format!(" -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean");
    }
    step("build Kubernetes (5 to 15 minutes, once)", || compile("kube", ".", &flags, &kube()))?;
    step("build kube-router", || compile("kube-router", KUBE_ROUTER, "-s -w", &kube_router()))
}

/// Compiles a package of the module in `e2e/cluster/<module>`.
fn compile(module: &str, package: &str, link_flags: &str, file: &Path) -> Result<()> {
    let module = root().join("e2e/cluster").join(module);
    let key = digest(std::slice::from_ref(&module))?;
    cached(file, &(key + link_flags), |part| {
        // Listing what is needed downloads it, and nothing else.
        retry("download Go modules", || {
            quietly(Command::new("go").args(["list", "-deps", package]).current_dir(&module))
        })?;
        let mut go = Command::new("nice");
        go.args(["go", "build", "-p", "2", "-trimpath", "-ldflags", link_flags, "-o"]).arg(part).arg(package);
        run(go.env("CGO_ENABLED", "0").current_dir(&module))
    })
    .with_context(|| format!("build {}", module.display()))?;
    Ok(())
}
