//! Who is in the fleet: one file, made by the operator (or by `up --local`), pushed when it changes.

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, Epoch};

/// What an agent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRole {
    /// Composes requests, decodes them and owns slots of the index.
    Combine,
    /// Builds cold segments.
    Scatter,
}

/// One agent and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentEntry {
    /// The agent's name.
    pub id: AgentId,
    /// What it is for.
    pub role: AgentRole,
    /// `host:port` of its gRPC listener; IPv6 hosts in brackets.
    pub control: String,
    /// `host:port` of its bulk listener.
    pub bulk: String,
}

/// The fleet of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Grows with every change of the set of combine agents.
    pub epoch: Epoch,
    /// Grows with every change, of scatter workers too.
    #[serde(default)]
    pub revision: u64,
    /// All agents.
    pub agents: Vec<AgentEntry>,
}

/// How a topology came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologySource {
    /// Pushed by whoever steers the fleet.
    Push,
    /// Read from the mounted file.
    File,
}

impl Topology {
    /// What topologies are ordered by: of two, the one with the larger version is newer.
    pub fn version(&self) -> (Epoch, u64) {
        (self.epoch, self.revision)
    }

    /// Whether it takes the place of the one in use. A push that says the same again is no fault; a file must be
    /// newer, since files change later than pushes come.
    pub fn replaces(&self, current: &Self, source: TopologySource) -> bool {
        match source {
            TopologySource::Push => self.version() >= current.version(),
            TopologySource::File => self.version() > current.version(),
        }
    }

    /// Agents of one role, in file order.
    pub fn of_role(&self, role: AgentRole) -> impl Iterator<Item = &AgentEntry> {
        self.agents.iter().filter(move |agent| agent.role == role)
    }

    /// The entry of one agent.
    pub fn agent(&self, id: &AgentId) -> Option<&AgentEntry> {
        self.agents.iter().find(|agent| agent.id == *id)
    }
}
