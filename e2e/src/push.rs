//! Steering a local fleet, as the operator does on a cluster: pushing a topology, to routers first, since an agent
//! refuses to describe itself to whoever is behind; reading the router's counters.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use hypic_domain::topology::Topology;
use hypic_wire::channel::Channels;
use hypic_wire::proto::ReadCountersResponse;
use hypic_wire::steer::Adopted;
use hypic_wire::tls::{ServerRole, TlsFiles};
use serde::{Deserialize, Serialize};

/// Where a local fleet's parts are; `fleet.json` in its folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Addresses {
    /// `host:port` of the OpenAI endpoint.
    pub router: String,
    /// `host:port` of the router's gRPC listener.
    pub router_control: String,
}

/// The version of one part after the push, and whether it took the topology over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Which part.
    pub to: String,
    /// Its epoch.
    pub epoch: u64,
    /// Its revision.
    pub revision: u64,
    /// It goes by the pushed topology now.
    pub accepted: bool,
}

/// Pushes `topology` to the router and then to every agent in it.
///
/// # Errors
/// The fleet's files, or a part that does not answer.
pub fn push(dir: &Path, topology: &Topology) -> Result<Vec<Pushed>> {
    push_as(dir, "hypic-router", topology)
}

/// The same with another certificate of the fleet.
///
/// # Errors
/// As [`push`]; a part refuses names that may not steer it.
pub fn push_as(dir: &Path, name: &str, topology: &Topology) -> Result<Vec<Pushed>> {
    let (addresses, channels) = reach(dir, name)?;
    runtime()?.block_on(async {
        let agents = topology.agents.iter().map(|agent| (agent.id.0.as_str(), agent.control.as_str()));
        let mut parts = vec![("router", addresses.router_control.as_str(), ServerRole::Router)];
        parts.extend(agents.map(|(id, control)| (id, control, ServerRole::Agent)));
        let mut pushed = Vec::new();
        for (to, control, role) in parts {
            let adopted = channels.push_topology(control, role, topology).await;
            let Adopted { epoch, revision, accepted } = adopted.with_context(|| format!("push to {to}"))?;
            pushed.push(Pushed { to: to.to_owned(), epoch: epoch.0, revision, accepted });
        }
        Ok(pushed)
    })
}

/// What the router has counted since it started.
///
/// # Errors
/// The fleet's files, or a router that does not answer.
pub fn counters(dir: &Path) -> Result<ReadCountersResponse> {
    let (addresses, channels) = reach(dir, "hypic-router")?;
    runtime()?.block_on(async {
        channels.read_counters(&addresses.router_control).await.context("read the counters")
    })
}

/// Where the fleet is, and connections to it as `name`.
fn reach(dir: &Path, name: &str) -> Result<(Addresses, Channels)> {
    let text = fs::read_to_string(dir.join("fleet.json")).context("read fleet.json: does a fleet run?")?;
    let addresses: Addresses = serde_json::from_str(&text).context("parse fleet.json")?;
    let tls = dir.join("tls");
    let files = TlsFiles {
        cert: tls.join(format!("{name}.crt")),
        key: tls.join(format!("{name}.key")),
        ca: tls.join("ca.crt"),
    };
    Ok((addresses, Channels::new(files.load().context("load the fleet's TLS files")?)))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")
}
