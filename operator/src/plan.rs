//! What a HypicCluster's children should be: pure, from the spec and what was observed.
//!
//! Two stages. First [`Plan::config`]: what pods read. Then, after the topology has been pushed, [`Plan::fleet`]:
//! the pods themselves. So an agent that is scaled away has been withdrawn before its pod ends, and a new one is
//! named in the topology before its pod starts.

pub mod agents;
pub mod config;
pub mod names;
pub mod network;
pub mod pod;
pub mod router;
pub mod topology;

use std::collections::BTreeMap;

use hypic_crds::pool::{NodePool, PoolRole};
use hypic_crds::{HypicCluster, HypicModel};
use hypic_domain::topology::Topology;
use serde_json::{Value, json};

use crate::plan::names::Names;
use crate::plan::topology::Known;

/// What the operator gives every fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Image of routers and agents.
    pub image: String,
    /// When it is pulled; the kubelet's choice without it.
    pub pull_policy: Option<String>,
    /// Secrets with which it is pulled.
    pub pull_secrets: Vec<String>,
    /// Pods carry `prometheus.io/*` annotations.
    pub scrape_annotations: bool,
    /// Namespace of the operator: it may push topologies.
    pub namespace: String,
}

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The cluster.
    pub cluster: &'a HypicCluster,
    /// Its model.
    pub model: &'a HypicModel,
    /// What the operator gives.
    pub defaults: &'a Defaults,
    /// Workers asked for, of each Scatter pool that scales.
    pub scaled: &'a BTreeMap<String, i32>,
    /// The topology in use.
    pub known: Known,
}

/// What should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What pods read, and what must be there before them.
    pub config: Vec<Value>,
    /// Pods, and what stands around them.
    pub fleet: Vec<Value>,
    /// Who is in the fleet.
    pub topology: Topology,
}

impl Inputs<'_> {
    /// Agents asked for, of a pool.
    pub fn replicas(&self, pool: &NodePool) -> i32 {
        replicas(pool, self.scaled)
    }
}

/// Agents asked for, of a pool: the spec's own number, or that of whoever scales it.
pub fn replicas(pool: &NodePool, scaled: &BTreeMap<String, i32>) -> i32 {
    pool.replicas.or_else(|| scaled.get(&pool.name).copied()).unwrap_or_default()
}

/// Plans every child but the Secrets, which are made once and kept.
pub fn plan(inputs: &Inputs<'_>) -> Plan {
    let names = Names::of(inputs.cluster);
    let topology = topology::next(inputs, &names);
    let config = vec![
        config::topology(&names, &topology),
        config::model(&names, inputs.model),
        config::account(&names),
        router::service(&names, inputs),
        agents::service(&names),
    ];
    let spec = &inputs.cluster.spec;
    let mut fleet = Vec::new();
    for pool in spec.node_pools.iter().filter(|pool| pool.scaling.is_some()) {
        fleet.push(agents::scatter_pool(&names, pool));
    }
    fleet.extend(network::policies(&names, inputs));
    for pool in &spec.node_pools {
        fleet.push(agents::stateful_set(&names, pool, inputs));
        if pool.role == PoolRole::Combine && inputs.replicas(pool) > 1 {
            fleet.push(budget(&names, &pool.name, "combine"));
        }
    }
    fleet.push(router::deployment(&names, inputs));
    if spec.router.replicas > 1 {
        fleet.push(budget(&names, "router", "router"));
    }
    Plan { config, fleet, topology }
}

/// One pod at a time; pods that are broken anyway never stand in the way of a drain.
fn budget(names: &Names, pool: &str, component: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(&names.child(pool), component, Some(pool)),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(component, Some(pool))},
        },
    })
}
