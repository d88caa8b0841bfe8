//! Who is in the fleet: names only, so that it follows from the spec alone and no pod's address is in it.

use std::collections::BTreeSet;

use hypic_crds::pool::PoolRole;
use hypic_domain::id::{AgentId, Epoch};
use hypic_domain::topology::{AgentEntry, AgentRole, Topology};

use crate::plan::Inputs;
use crate::plan::names::{BULK, CONTROL, Names};

/// What is known of former topologies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The one in the ConfigMap, if it is there.
    pub current: Option<Topology>,
    /// The newest version that a pod or the status tells of.
    pub newest: (u64, u64),
}

/// A ConfigMap further ahead than this of what pods and status tell was written by a hand: pods that took it would
/// take no other after it.
const LEAP: u64 = 1 << 32;

/// The topology that the spec asks for: the current one, or its successor.
pub fn next(inputs: &Inputs<'_>, names: &Names) -> Topology {
    let agents = agents(inputs, names);
    let (epoch, revision) = inputs.known.newest;
    let plausible = |current: &&Topology| {
        current.epoch.0 <= epoch.saturating_add(LEAP) && current.revision <= revision.saturating_add(LEAP)
    };
    let Some(current) = inputs.known.current.as_ref().filter(plausible) else {
        // Lost or never there: whatever pods go by must be older.
        let (epoch, revision) = (Epoch(epoch.saturating_add(1)), revision.saturating_add(1));
        return Topology { epoch, revision, agents };
    };
    let behind = current.version() < (Epoch(epoch), revision);
    if current.agents == agents && !behind {
        return current.clone();
    }
    let moved = combine(&current.agents) != combine(&agents) || current.epoch.0 < epoch;
    Topology {
        epoch: Epoch(current.epoch.0.max(epoch).saturating_add(moved.into())),
        revision: current.revision.max(revision).saturating_add(1),
        agents,
    }
}

/// Those who own slots of the index.
fn combine(agents: &[AgentEntry]) -> BTreeSet<&AgentId> {
    agents.iter().filter(|agent| agent.role == AgentRole::Combine).map(|agent| &agent.id).collect()
}

fn agents(inputs: &Inputs<'_>, names: &Names) -> Vec<AgentEntry> {
    let mut all = Vec::new();
    for pool in &inputs.cluster.spec.node_pools {
        let role = match pool.role {
            PoolRole::Combine => AgentRole::Combine,
            PoolRole::Scatter => AgentRole::Scatter,
        };
        for number in 0..inputs.replicas(pool) {
            let id = names.agent(&pool.name, number);
            let (control, bulk) = (names.agent_address(&id, CONTROL), names.agent_address(&id, BULK));
            all.push(AgentEntry { id: AgentId(id), role, control, bulk });
        }
    }
    all
}
