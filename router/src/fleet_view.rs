//! What the router knows of the fleet: the topology it was given, and what each agent says of itself.
//!
//! Readers take a [`Snapshot`], which never changes; a new one replaces it. Nobody waits for an agent here:
//! the view is as fresh as the last round of [`poll`].

mod breaker;
pub mod poll;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use hypic_domain::id::{AgentId, Epoch, Incarnation};
use hypic_domain::key::Identity;
use hypic_domain::model::ModelSpec;
use hypic_domain::topology::{AgentEntry, AgentRole, Topology, TopologySource};
use hypic_domain::unit::Millis;
use hypic_lookup::Ring;
use hypic_wire::proto::AgentState;

use breaker::Breaker;

/// Owners per slot of the index.
const REPLICAS: usize = 2;

/// What an agent said of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Which life of it spoke.
    pub incarnation: Incarnation,
    /// What its tuples are compatible with.
    pub identity: Identity,
    /// Its model.
    pub spec: Arc<ModelSpec>,
    /// It takes requests.
    pub ready: bool,
    /// Prompt rows waiting or in work, those that the router sent since included.
    pub rows_ahead: u64,
    /// Milliseconds for a prefill of so many rows: points of a piecewise linear curve.
    pub prefill: Vec<(u32, f64)>,
    /// Bytes per millisecond over its bulk listener; 0 where it is not measured yet.
    pub link_bytes_per_ms: f64,
    /// Milliseconds before the first of them.
    pub link_fixed: Millis,
    /// Share of heads that store a `T`, 0 to 1.
    pub live_share: f64,
    /// It knows of its slots of the index all that there is to know.
    pub index_whole: bool,
    /// What whoever steers the fleet wants to know of it, passed on as it came.
    pub state: AgentState,
}

/// One agent that answers, whatever it may be used for.
#[derive(Clone, Debug)]
pub struct AgentSeen {
    /// Its place in the topology.
    pub entry: AgentEntry,
    /// What it said.
    pub seen: Seen,
}

/// The fleet at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Who is in the fleet.
    pub topology: Arc<Topology>,
    /// Owners of the index's slots.
    pub ring: Arc<Ring>,
    /// The identity that keys are made with: the one of most ready combine agents.
    pub identity: Option<Identity>,
    /// Agents that answer and are not shut out after failures.
    pub reachable: Vec<AgentSeen>,
}

impl Snapshot {
    /// An agent that answers.
    pub fn agent(&self, id: &AgentId) -> Option<&AgentSeen> {
        self.reachable.iter().find(|agent| agent.entry.id == *id)
    }

    /// Agents of the fleet's identity that take requests.
    pub fn usable(&self) -> impl Iterator<Item = &AgentSeen> {
        self.reachable.iter().filter(|agent| agent.seen.ready && Some(agent.seen.identity) == self.identity)
    }

    /// Whether a request could be answered now.
    pub fn is_ready(&self) -> bool {
        self.usable().any(|agent| agent.entry.role == AgentRole::Combine)
    }
}

/// The view. Cheap to share.
pub struct FleetView {
    state: Mutex<State>,
    snapshot: RwLock<Arc<Snapshot>>,
}

struct State {
    topology: Arc<Topology>,
    ring: Arc<Ring>,
    identity: Option<Identity>,
    agents: HashMap<AgentId, Known>,
}

#[derive(Default)]
struct Known {
    seen: Option<Seen>,
    breaker: Breaker,
    /// Rows sent since the agent last told its load.
    sent_rows: u64,
    /// How often it told its load.
    told: u64,
}

/// Rows that were sent to an agent. Dropping it takes them off the agent's load.
pub struct Sent {
    fleet: Arc<FleetView>,
    agent: AgentId,
    rows: u64,
    told: u64,
}

impl FleetView {
    /// A view of which nothing but the topology is known.
    pub fn new(topology: Topology) -> Self {
        let state = State::new(topology);
        let snapshot = RwLock::new(Arc::new(state.snapshot(Instant::now())));
        Self { state: Mutex::new(state), snapshot }
    }

    /// The fleet now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a topology over if it [`replaces`](Topology::replaces) the one in use. Returns the version in use
    /// after that and whether the offered one was taken.
    pub fn adopt(&self, topology: Topology, source: TopologySource) -> ((Epoch, u64), bool) {
        self.change(|state| {
            let offered = topology.version();
            if !topology.replaces(&state.topology, source) {
                return (state.topology.version(), false);
            }
            let mut old = std::mem::replace(state, State::new(topology));
            state.identity = old.identity;
            for (id, known) in &mut state.agents {
                *known = old.agents.remove(id).unwrap_or_default();
            }
            (offered, true)
        })
    }

    /// An agent told of itself.
    pub fn saw(&self, id: &AgentId, seen: Seen) {
        self.change(|state| {
            if let Some(known) = state.agents.get_mut(id) {
                known.sent_rows = 0;
                known.told += 1;
                known.seen = Some(seen);
            }
            state.choose_identity();
        });
    }

    /// An agent does not answer: nothing is sent to it until it tells of itself again.
    pub fn lost(&self, id: &AgentId) {
        self.change(|state| {
            if let Some(known) = state.agents.get_mut(id) {
                known.seen = None;
            }
        });
    }

    /// A call to an agent failed although the agent answers; after several it is shut out for a while.
    pub fn failed(&self, id: &AgentId) {
        self.change(|state| {
            if let Some(known) = state.agents.get_mut(id) {
                known.breaker.failed(Instant::now());
            }
        });
    }

    /// A call to an agent worked.
    pub fn worked(&self, id: &AgentId) {
        let mut state = self.lock();
        if let Some(known) = state.agents.get_mut(id) {
            known.breaker.worked();
        }
    }

    /// A prompt of so many rows is sent to an agent.
    pub fn sent(self: &Arc<Self>, id: &AgentId, rows: u64) -> Sent {
        let told = self.change(|state| {
            state.agents.get_mut(id).map_or(0, |known| {
                known.sent_rows += rows;
                known.told
            })
        });
        Sent { fleet: self.clone(), agent: id.clone(), rows, told }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let value = change(&mut state);
        let snapshot = Arc::new(state.snapshot(Instant::now()));
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
        value
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.fleet.change(|state| {
            let Some(known) = state.agents.get_mut(&self.agent) else { return };
            if known.told == self.told {
                known.sent_rows = known.sent_rows.saturating_sub(self.rows);
            } else if let Some(seen) = &mut known.seen {
                // What the agent told since had these rows in it.
                seen.rows_ahead = seen.rows_ahead.saturating_sub(self.rows);
            }
        });
    }
}

impl State {
    fn new(topology: Topology) -> Self {
        let agents = topology.agents.iter().map(|entry| (entry.id.clone(), Known::default())).collect();
        let ring = Arc::new(Ring::new(&topology, REPLICAS));
        Self { topology: Arc::new(topology), ring, identity: None, agents }
    }

    /// Most ready combine agents decide; with equal numbers the identity in use stays.
    fn choose_identity(&mut self) {
        let mut votes: HashMap<Identity, usize> = HashMap::new();
        for entry in self.topology.of_role(AgentRole::Combine) {
            let seen = self.agents.get(&entry.id).and_then(|known| known.seen.as_ref());
            if let Some(seen) = seen.filter(|seen| seen.ready) {
                *votes.entry(seen.identity).or_default() += 1;
            }
        }
        let current = self.identity;
        let rank = |identity: &Identity, votes: usize| (votes, Some(*identity) == current, identity.0);
        let chosen = votes.into_iter().max_by_key(|(identity, votes)| rank(identity, *votes));
        if let Some((identity, _)) = chosen
            && self.identity != Some(identity)
        {
            tracing::info!(%identity, "keys are made with this identity");
            self.identity = Some(identity);
        }
    }

    fn snapshot(&self, now: Instant) -> Snapshot {
        let reachable = self.topology.agents.iter().filter_map(|entry| {
            let known = self.agents.get(&entry.id)?;
            let mut seen = known.seen.clone().filter(|_| known.breaker.lets_through(now))?;
            seen.rows_ahead += known.sent_rows;
            Some(AgentSeen { entry: entry.clone(), seen })
        });
        Snapshot {
            topology: self.topology.clone(),
            ring: self.ring.clone(),
            identity: self.identity,
            reachable: reachable.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
