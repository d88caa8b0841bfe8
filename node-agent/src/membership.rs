//! The fleet as this agent knows it: the newest topology and connections to the others.

use std::sync::Arc;

use hypic_domain::id::{AgentId, Epoch, Incarnation};
use hypic_domain::topology::{AgentEntry, Topology, TopologySource};
use hypic_wire::channel::Channels;
use hypic_wire::status::Refusal;
use tokio::sync::watch;

/// Who is in the fleet, and how to reach them.
pub struct Membership {
    /// This agent's name.
    pub me: AgentId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// Connections.
    pub channels: Arc<Channels>,
    topology: watch::Sender<Arc<Topology>>,
}

impl Membership {
    /// Starts from the topology of the file.
    pub fn new(me: AgentId, incarnation: Incarnation, channels: Arc<Channels>, topology: Topology) -> Self {
        Self { me, incarnation, channels, topology: watch::Sender::new(Arc::new(topology)) }
    }

    /// The newest topology.
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.borrow())
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.topology.borrow().epoch
    }

    /// Tells of every new topology.
    pub fn changes(&self) -> watch::Receiver<Arc<Topology>> {
        self.topology.subscribe()
    }

    /// This agent's entry, if the newest topology has one.
    pub fn named(&self) -> Option<AgentEntry> {
        self.topology.borrow().agent(&self.me).cloned()
    }

    /// Takes a topology over if it [`replaces`](Topology::replaces) the one in use. Returns the version in use
    /// after that and whether the offered one was taken.
    pub fn adopt(&self, offered: Topology, source: TopologySource) -> ((Epoch, u64), bool) {
        let mut accepted = false;
        self.topology.send_if_modified(|current| {
            accepted = offered.replaces(current, source);
            let news = accepted && **current != offered;
            if news {
                let (epoch, revision) = offered.version();
                tracing::info!(%epoch, revision, agents = offered.agents.len(), "new topology");
                *current = Arc::new(offered);
            }
            news
        });
        let topology = self.topology();
        self.channels.retain(|address| topology.agents.iter().any(|agent| agent.control == address));
        (topology.version(), accepted)
    }

    /// An agent's entry.
    ///
    /// # Errors
    /// When the topology has no such agent.
    pub fn entry(&self, agent: &AgentId) -> Result<AgentEntry, Refusal> {
        self.topology()
            .agent(agent)
            .cloned()
            .ok_or_else(|| Refusal::Unreachable { why: format!("no agent '{agent}' in the topology") })
    }
}
