//! The charts of this tree on a cluster, with an image of this tree.

use anyhow::Result;

use crate::cluster::{Archive, Target};
use crate::shell::{root, run, step};

/// Namespace of the operator.
pub(crate) const NAMESPACE: &str = "hypic-system";
/// Namespace of the sample.
pub(crate) const SAMPLE: &str = "hypic-demo";

/// Installs the kinds and the operator, or brings them up to date, and waits until the operator is ready.
///
/// # Errors
/// What helm says.
pub(crate) fn install(target: &Target, image: &Archive) -> Result<()> {
    let helm = |release: &str, values: &[String]| {
        let mut helm = target.client("helm");
        helm.args(["upgrade", "--install", release]).arg(root().join("charts").join(release));
        helm.args(["--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "180s"]);
        helm.args(["--hide-notes", "--output", "json"]).stdout(std::process::Stdio::null());
        run(helm.args(values))
    };
    step("helm upgrade --install hypic-crds", || helm("hypic-crds", &[]))?;
    step("helm upgrade --install hypic", || helm("hypic", &values(target, image)))
}

/// What the chart is told of the image. Its digest is an annotation, so that pods are made anew when the same tag
/// has other content.
fn values(target: &Target, image: &Archive) -> Vec<String> {
    let (repository, tag) = image.reference.rsplit_once(':').unwrap_or((&image.reference, ""));
    let digest = image.key.split(' ').next().unwrap_or_default();
    let policy = if target.pulls() { "Always" } else { "Never" };
    [
        format!("--set-string=image.repository={repository}"),
        format!("--set-string=image.tag={tag}"),
        format!("--set-string=image.pullPolicy={policy}"),
        format!("--set-string=podAnnotations.hypic\\.dev/image={digest}"),
    ]
    .into()
}

/// Removes the operator, and with `kinds` the kinds too and every object of them. What is not there is no error.
///
/// # Errors
/// What helm or kubectl says.
pub(crate) fn uninstall(target: &Target, kinds: bool) -> Result<()> {
    let helm = |release: &str| {
        let mut helm = target.client("helm");
        helm.args(["uninstall", release, "--namespace", NAMESPACE, "--ignore-not-found", "--wait"]);
        step(&format!("helm uninstall {release}"), || run(&mut helm))
    };
    helm("hypic")?;
    if kinds {
        helm("hypic-crds")?;
        let kinds = ["hypicclusters.hypic.dev", "hypicmodels.hypic.dev", "hypicscatterpools.hypic.dev"];
        let mut kubectl = target.client("kubectl");
        kubectl.args(["delete", "customresourcedefinitions", "--ignore-not-found"]).args(kinds);
        step("remove the kinds", || run(&mut kubectl))?;
    }
    println!("namespace {NAMESPACE} stays with what else is in it: kubectl delete namespace {NAMESPACE}");
    Ok(())
}
