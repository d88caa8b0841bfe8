//! Pushing a topology to a local fleet, as the operator does on a cluster: routers first, since an agent
//! refuses to describe itself to whoever is behind.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use hypic_domain::topology::Topology;
use hypic_wire::channel::Channels;
use hypic_wire::proto;
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
    let text = fs::read_to_string(dir.join("fleet.json")).context("read fleet.json: does a fleet run?")?;
    let addresses: Addresses = serde_json::from_str(&text).context("parse fleet.json")?;
    let tls = dir.join("tls");
    let files = TlsFiles {
        cert: tls.join("hypic-router.crt"),
        key: tls.join("hypic-router.key"),
        ca: tls.join("ca.crt"),
    };
    let security = files.load().context("load the fleet's TLS files")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let channels = Arc::new(Channels::new(security));
        let agents = topology.agents.iter().map(|agent| (agent.id.0.as_str(), agent.control.as_str()));
        let mut parts = vec![("router", addresses.router_control.as_str(), ServerRole::Router)];
        parts.extend(agents.map(|(id, control)| (id, control, ServerRole::Agent)));
        let mut pushed = Vec::new();
        for (to, control, role) in parts {
            let mut client = channels.fleet(control, role).with_context(|| format!("reach {to}"))?;
            let request = proto::PushTopologyRequest { topology: Some(topology.clone().into()) };
            let answer = client.push_topology(request).await.with_context(|| format!("push to {to}"))?;
            let proto::PushTopologyResponse { epoch, revision, accepted } = answer.into_inner();
            pushed.push(Pushed { to: to.to_owned(), epoch, revision, accepted });
        }
        Ok(pushed)
    })
}
