//! What the demo asks of the cluster.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use hypic_e2e::kubectl::kubectl;
use serde_json::Value;

use crate::sample::NAMESPACE;

/// Runs kubectl in the sample's namespace and reads its answer as JSON.
pub(crate) fn get(kinds: &str) -> Result<Value> {
    let text = kubectl(&["--namespace", NAMESPACE, "get", kinds, "--output", "json"])?;
    serde_json::from_str(&text).with_context(|| format!("read the {kinds} that kubectl printed"))
}

/// A port of this machine that leads to a router, until it is dropped.
pub(crate) struct Forward {
    child: Child,
    /// `host:port`.
    pub(crate) address: String,
}

/// Opens a port to a Service.
pub(crate) fn forward(service: &str, port: u16) -> Result<Forward> {
    let (service, ports) = (format!("service/{service}"), format!(":{port}"));
    let mut child = Command::new("kubectl")
        .args(["--namespace", NAMESPACE, "port-forward", &service, &ports])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start kubectl port-forward")?;
    let output = child.stdout.take().context("read of kubectl port-forward")?;
    let mut forward = Forward { child, address: String::new() };
    let mut lines = BufReader::new(output).lines();
    let first =
        lines.next().context("kubectl port-forward ended at once")?.context("read of port-forward")?;
    let address = first.strip_prefix("Forwarding from ").and_then(|rest| rest.split(' ').next());
    forward.address = address.with_context(|| format!("kubectl port-forward says: {first}"))?.to_owned();
    // It writes a line per connection and must not wait for a reader.
    std::thread::spawn(move || lines.for_each(drop));
    Ok(forward)
}

impl Drop for Forward {
    fn drop(&mut self) {
        // One that is gone already needs no killing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
