//! kubectl as the one client of the API server: it knows every way to log in that users have.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::ready::Endpoint;
use crate::sample::NAMESPACE;

/// Runs kubectl and gives what it prints.
///
/// # Errors
/// When it fails, with what it says.
pub(crate) fn kubectl(arguments: &[&str]) -> Result<String> {
    finish(command(arguments).stdin(Stdio::null()), arguments)
}

/// Runs kubectl in the sample's namespace and reads its answer as JSON.
pub(crate) fn get(kinds: &str) -> Result<Value> {
    let text = kubectl(&["--namespace", NAMESPACE, "get", kinds, "--output", "json"])?;
    serde_json::from_str(&text).with_context(|| format!("read the {kinds} that kubectl printed"))
}

/// Applies an object.
pub(crate) fn apply(object: &Value) -> Result<()> {
    let arguments = ["apply", "--server-side", "--field-manager=hypic-demo", "--filename=-"];
    let mut child = command(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start kubectl")?;
    let mut input = child.stdin.take().context("write to kubectl")?;
    input.write_all(object.to_string().as_bytes()).context("write to kubectl")?;
    drop(input);
    let output = child.wait_with_output().context("wait for kubectl")?;
    if !output.status.success() {
        bail!("kubectl apply: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.args(arguments);
    command
}

fn finish(command: &mut Command, arguments: &[&str]) -> Result<String> {
    let output = command.output().context("start kubectl: is it on the PATH?")?;
    if !output.status.success() {
        bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("read what kubectl printed")
}

/// A port of this machine that leads to a router, until it is dropped.
pub(crate) struct Forward {
    child: Child,
    /// `host:port`.
    pub(crate) address: String,
}

/// Opens a port to the endpoint's Service.
pub(crate) fn forward(endpoint: &Endpoint) -> Result<Forward> {
    let (service, ports) = (format!("service/{}", endpoint.service), format!(":{}", endpoint.port));
    let mut child = command(&["--namespace", NAMESPACE, "port-forward", &service, &ports])
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
