//! The fleet as this agent knows it: the newest topology and connections to the others.

use std::sync::Arc;
use std::time::Duration;

use hypic_domain::id::{AgentId, Epoch, Incarnation};
use hypic_domain::topology::{AgentEntry, AgentRole, Topology};
use hypic_wire::channel::Channels;
use hypic_wire::proto;
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

    /// Takes a pushed topology over unless it is older than the one in use. Returns the version in use after
    /// that and whether the pushed one was taken.
    pub fn adopt(&self, pushed: Topology) -> ((Epoch, u64), bool) {
        let mut accepted = false;
        self.topology.send_if_modified(|current| {
            accepted = pushed.version() >= current.version();
            let news = accepted && **current != pushed;
            if news {
                let (epoch, revision) = pushed.version();
                tracing::info!(%epoch, revision, agents = pushed.agents.len(), "new topology");
                *current = Arc::new(pushed);
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

    /// Asks the other combine agents for their epoch, each for a moment: a fleet that has moved on refuses
    /// an agent of an older topology by name, instead of letting it answer for slots that it lost.
    ///
    /// # Errors
    /// [`Refusal::OldEpoch`] from the first that is ahead. Peers that do not answer say nothing.
    pub async fn check_epoch(&self) -> Result<(), Refusal> {
        let topology = self.topology();
        for agent in topology.of_role(AgentRole::Combine).filter(|agent| agent.id != self.me) {
            let Ok(mut client) = self.channels.agent(&agent.control) else { continue };
            let question = proto::DescribeRequest { epoch: topology.epoch.0 };
            let answer = tokio::time::timeout(Duration::from_secs(1), client.describe(question)).await;
            if let Ok(Err(status)) = answer
                && let refusal @ Refusal::OldEpoch { .. } = Refusal::from(status)
            {
                return Err(refusal);
            }
        }
        Ok(())
    }
}
