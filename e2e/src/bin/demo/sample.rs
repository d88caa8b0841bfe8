//! What `e2e/samples/hypic-tiny.yaml` is, and the Secret that it asks for.

use std::path::Path;

use anyhow::{Context, Result};
use hypic_e2e::fleet::tenants;
use hypic_e2e::kubectl::{kubectl, kubectl_with};
use serde_json::json;

/// How the demo applies what it needs.
const APPLY: [&str; 4] = ["apply", "--server-side", "--field-manager=hypic-demo", "--force-conflicts"];

/// Its namespace.
pub(crate) const NAMESPACE: &str = "hypic-demo";
/// Its HypicCluster.
pub(crate) const CLUSTER: &str = "demo";
/// Its HypicScatterPool, which the operator makes.
pub(crate) const POOL: &str = "demo-scatter";
/// Its model.
pub(crate) const MODEL: &str = "hypic-tiny";
/// The Secret with the file of API keys.
const TENANTS: &str = "tenants";

/// Removes the sample of an earlier run, so that nothing is cached when the questions come.
pub(crate) fn remove(step: &dyn Fn(&str)) -> Result<()> {
    let earlier = kubectl(&["get", "namespace", NAMESPACE, "--ignore-not-found", "--output", "name"])?;
    if !earlier.is_empty() {
        step("removing the sample of an earlier run");
        kubectl(&["delete", "namespace", NAMESPACE, "--timeout=180s"])?;
    }
    Ok(())
}

/// Applies it, its Secret first.
pub(crate) fn apply(sample: &Path) -> Result<()> {
    let file = sample.to_str().context("the sample's path is not UTF-8")?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": TENANTS, "namespace": NAMESPACE},
        "stringData": {"tenants.json": tenants().to_string()},
    });
    kubectl_with(&APPLY, &namespace)?;
    kubectl_with(&APPLY, &secret)?;
    kubectl(&[&APPLY[..], &["--filename", file]].concat())?;
    Ok(())
}
