//! The pulse: every few seconds, asks the routers of every fleet, scales its scatter pools, and tells the reconciler
//! when something is to be seen that was not before.
//!
//! ```text
//! registry (fleets in, pulses out) → ask → watch (one fleet) → pool (decide → actuate → tell) → visible
//! ```
//!
//! The number of workers is `spec.replicas` of the HypicScatterPool and nothing else. It is written by server-side
//! apply without force: whoever else sets it owns it from then on. At rest nothing is written at all.

mod actuator;
mod ask;
mod owner;
mod pool;
mod registry;
mod visible;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use hypic_crds::scaling::Scaling;
use hypic_domain::id::AgentId;
use hypic_domain::topology::AgentRole;
use hypic_wire::channel::Channels;
use hypic_wire::proto::ModelFacts;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub use actuator::{ActuateError, Actuator, Doing, News, Replicas, Target, Written};
pub use owner::{AUTOSCALER, is_claimed, scaled_by};
pub use registry::Pulses;

use crate::metrics::Metrics;
use registry::Registered;
use watch::Watch;

/// Fleets in work at once.
const FLEETS: usize = 16;

/// Key of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What the reconciler knows of a fleet; registered anew at each reconcile.
pub struct Fleet {
    /// The cluster's uid: one that is made anew under the same name is another one.
    pub uid: String,
    /// The router pods whose processes run now.
    pub routers: Vec<RouterPod>,
    /// Connections to them.
    pub channels: Arc<Channels>,
    /// Scatter pools that scale.
    pub pools: Vec<ScalingPool>,
}

/// A pod of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterPod {
    /// Its uid: a name comes back with other counters.
    pub uid: String,
    /// `host:port` of its control side.
    pub address: String,
}

/// A scatter pool that scales.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingPool {
    /// Its name in the cluster.
    pub pool: String,
    /// Name of its HypicScatterPool.
    pub object: String,
    /// How it scales.
    pub policy: Scaling,
    /// `spec.replicas` as last observed.
    pub replicas: i32,
    /// Workers that are ready.
    pub ready: i32,
    /// The foreign field manager that owns `spec.replicas`; see [`scaled_by`].
    pub scaled_by: Option<String>,
}

/// How a fleet is, as its routers tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulse {
    /// Routers that were asked.
    pub routers_asked: usize,
    /// Of them, those that answered.
    pub routers_answered: usize,
    /// Pod uid, epoch and revision of each router that answered, sorted.
    pub versions: Vec<(String, u64, u64)>,
    /// The agents, by id.
    pub agents: Vec<AgentPulse>,
    /// Cold tokens in 100 segment tokens; nothing without traffic. Follows in steps, after up to 30 s.
    pub cold_share_percent: Option<u8>,
    /// The others.
    pub hit_share_percent: Option<u8>,
    /// By pool.
    pub scaling: BTreeMap<String, ScalingPulse>,
}

/// An agent as the routers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentPulse {
    /// Its id.
    pub id: AgentId,
    /// What it is for.
    pub role: AgentRole,
    /// A router can use it.
    pub usable: bool,
    /// Holders of which this owner of slots does not know everything yet.
    pub index_partial: u32,
    /// Requests in work.
    pub running: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Builds in work or waiting.
    pub builds: u32,
    /// Its model; nothing before it is loaded.
    pub facts: Option<ModelFacts>,
}

/// How a pool scales.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingPulse {
    /// What was asked for before stabilisation, steps and bounds.
    pub recommended: i32,
    /// What there should be.
    pub desired: i32,
    /// What settled it: a name of [`Reason`](crate::scaling::Reason).
    pub reason: &'static str,
    /// A sentence with the figures at the time when reason or numbers last changed.
    pub message: String,
    /// Counters are missing, so nothing is lowered.
    pub frozen: bool,
    /// Who else sets the number, so that the operator does not.
    pub externally: Option<String>,
    /// Cold part of the segment tokens, 0 to 1; live.
    pub cold_share: f64,
    /// Cold tokens per second; live.
    pub demand: f64,
}

/// Runs for ever: a round every `every`, and `changed` gets the key of each fleet of which something new is seen.
pub async fn run(
    pulses: Pulses,
    actuator: Arc<dyn Actuator>,
    metrics: Arc<Metrics>,
    every: Duration,
    changed: mpsc::Sender<ClusterKey>,
) {
    let shell = Shell { pulses, actuator, metrics, changed, origin: Instant::now() };
    let mut watches: BTreeMap<ClusterKey, Watch> = BTreeMap::new();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let fleets = shell.pulses.registered();
        watches.retain(|key, watch| fleets.get(key).is_some_and(|fleet| fleet.life == watch.life));
        for (key, fleet) in &fleets {
            watches.entry(key.clone()).or_insert_with(|| Watch::new(fleet.life));
        }
        let due = watches.iter_mut().filter_map(|(key, watch)| Some((key, watch, fleets.get(key)?)));
        let beat = |(key, watch, fleet)| shell.beat(key, watch, fleet);
        stream::iter(due).for_each_concurrent(FLEETS, beat).await;
    }
}

/// What a round works with.
struct Shell {
    pulses: Pulses,
    actuator: Arc<dyn Actuator>,
    metrics: Arc<Metrics>,
    changed: mpsc::Sender<ClusterKey>,
    origin: Instant,
}

impl Shell {
    async fn beat(&self, key: &ClusterKey, watch: &mut Watch, fleet: &Registered) {
        let answers = ask::ask(&fleet.fleet.channels, &fleet.fleet.routers).await;
        let pulse = watch.beat(key, fleet, answers, &*self.actuator, self.origin.elapsed()).await;
        self.pulses.note(key, fleet.life, &pulse, || watch.measure(key, fleet, &pulse, &self.metrics));
        // A reconciler that is behind is told in a later round.
        watch.tell(&pulse, || self.changed.try_send(key.clone()).is_ok());
    }
}

#[cfg(test)]
mod tests;
