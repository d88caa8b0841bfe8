//! Waiting until the HypicCluster is Ready, with a line per change of its conditions.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::kubectl::get;
use crate::sample::{CLUSTER, NAMESPACE};

/// The OpenAI endpoint, as the status tells it.
pub(crate) struct Endpoint {
    /// `host:port`.
    pub(crate) address: String,
    /// Name of the Service.
    pub(crate) service: String,
    /// Its port.
    pub(crate) port: u16,
}

/// Waits for so long, and gives the endpoint.
///
/// # Errors
/// When it is not Ready in time; says what the conditions say.
pub(crate) fn wait(limit: Duration, step: &dyn Fn(&str)) -> Result<Endpoint> {
    let start = Instant::now();
    let mut shown = BTreeMap::new();
    loop {
        let cluster = get(&format!("hypicclusters/{CLUSTER}"))?;
        for (kind, line) in conditions(&cluster) {
            if shown.get(&kind) != Some(&line) {
                step(&format!("{kind:<16} {line}"));
                shown.insert(kind, line);
            }
        }
        if is_ready(&cluster) {
            let text =
                cluster["status"]["endpoint"].as_str().context("a Ready HypicCluster has no endpoint")?;
            return endpoint(text);
        }
        if start.elapsed() > limit {
            let said: Vec<String> = shown.iter().map(|(kind, line)| format!("  {kind:<16} {line}")).collect();
            bail!(
                "HypicCluster {NAMESPACE}/{CLUSTER} is not Ready after {} s (a slow machine needs a longer '--wait SECONDS'):\n{}",
                limit.as_secs(),
                said.join("\n")
            );
        }
        sleep(Duration::from_millis(500));
    }
}

/// Each condition's type, and the rest as a line.
fn conditions(object: &Value) -> Vec<(String, String)> {
    let text = |condition: &Value, name: &str| condition[name].as_str().unwrap_or_default().to_owned();
    let all = object["status"]["conditions"].as_array().into_iter().flatten();
    all.map(|condition| {
        let line = format!(
            "{:<8} {}: {}",
            text(condition, "status"),
            text(condition, "reason"),
            text(condition, "message")
        );
        (text(condition, "type"), line)
    })
    .collect()
}

fn is_ready(cluster: &Value) -> bool {
    let mut all = cluster["status"]["conditions"].as_array().into_iter().flatten();
    cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"]
        && all.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn endpoint(url: &str) -> Result<Endpoint> {
    let parse = || {
        let host = url.strip_prefix("http://")?.strip_suffix("/v1")?;
        let (name, port) = host.split_once(':').unwrap_or((host, "80"));
        let service = name.split('.').next()?.to_owned();
        Some(Endpoint { address: format!("{name}:{port}"), service, port: port.parse().ok()? })
    };
    parse().with_context(|| format!("status.endpoint '{url}' is not http://SERVICE.NAMESPACE.svc[:PORT]/v1"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_endpoint_has_a_port_of_its_own_or_that_of_http() {
        let plain = endpoint("http://demo.hypic-demo.svc/v1").unwrap();
        assert_eq!((plain.address.as_str(), plain.service.as_str()), ("demo.hypic-demo.svc:80", "demo"));
        assert_eq!(endpoint("http://demo.hypic-demo.svc:8000/v1").unwrap().port, 8000);
        assert!(endpoint("demo.hypic-demo.svc").is_err());
    }

    #[test]
    fn a_status_of_an_older_spec_is_not_ready() {
        let cluster = |generation: u64| {
            json!({
                "metadata": {"generation": generation},
                "status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]},
            })
        };
        assert!(is_ready(&cluster(1)));
        assert!(!is_ready(&cluster(2)));
    }
}
