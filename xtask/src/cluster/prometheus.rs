//! Prometheus beside the control plane: it finds pods through the API and scrapes them by their annotations.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::daemon::{self, quietly, succeeds};
use super::lab::{ADDRESS, Lab, PROMETHEUS, configuration};
use crate::shell::root;

/// Where it asks for its targets.
const TARGETS: &str = "9091";

/// Starts it with the chart's rules.
pub(crate) fn start(lab: &Lab) -> Result<()> {
    let mut targets = lab.inside("python3");
    targets.arg(root().join("e2e/cluster/pod_targets.py")).arg(lab.pki()).arg(TARGETS);
    daemon::start(lab, "pod-targets", targets)?;
    let rules = root().join("charts/hypic/rules/*.yaml");
    let values = [("PORT", TARGETS), ("RULES", &rules.to_string_lossy())];
    let file = lab.dir().join("prometheus.yml");
    fs::write(&file, configuration("prometheus.yml", &values)?)
        .with_context(|| format!("write {}", file.display()))?;
    let mut check = lab.inside("promtool");
    quietly(check.args(["check", "config"]).arg(&file))?;
    let mut command = lab.inside("prometheus");
    command.arg("--config.file").arg(&file).arg("--storage.tsdb.path").arg(lab.dir().join("prometheus"));
    command
        .args([format!("--web.listen-address={ADDRESS}:{PROMETHEUS}"), "--web.enable-lifecycle".to_owned()]);
    let mut server = daemon::start(lab, "prometheus", command)?;
    daemon::wait(&mut server, "it is ready", Duration::from_secs(60), || answers(lab))
}

/// Whether it is ready.
pub(crate) fn answers(lab: &Lab) -> bool {
    let address = format!("{}/-/ready", lab.prometheus());
    succeeds(lab.inside("curl").args(["--silent", "--fail", "--max-time", "5", &address]))
}
