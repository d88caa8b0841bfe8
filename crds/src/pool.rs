//! What a HypicCluster consists of: pools of agents, tiers, the router.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::scaling::Scaling;

/// Agents of one role and one model.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.replicas) != has(self.scaling)").message("a pool needs exactly one of replicas and scaling"),
    validation = Rule::new("self.role == 'Scatter' || !has(self.scaling)").message("only Scatter pools have scaling: combine agents own slots of the index").field_path(".scaling"),
    validation = Rule::new("self.role == 'Scatter' || !has(self.replicas) || self.replicas >= 1").message("a Combine pool needs at least one replica").field_path(".replicas"),
    validation = Rule::new("self.scatterGpusPerAgent == 0 || self.gpusPerAgent == 1").message("scatterGpusPerAgent needs a gpusPerAgent of 1: beside a CPU, or GPUs that share a model out, none can build").field_path(".scatterGpusPerAgent"),
)]
pub struct NodePool {
    /// Name of the pool: part of its pods' names.
    #[schemars(length(min = 1, max = 18), regex(pattern = r"^[a-z][a-z0-9]*$"))]
    #[x_kube(validation = Rule::new("!(self in ['router', 'agents'])").message("'router' and 'agents' are names of parts that every cluster has"))]
    pub name: String,
    /// Name of a HypicModel in the same namespace.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("modelRef cannot be changed: make a new HypicCluster"))]
    pub model_ref: String,
    /// What its agents are for.
    #[x_kube(validation = Rule::new("self == oldSelf").message("role cannot be changed: add a pool of another name and remove this one"))]
    pub role: PoolRole,
    /// A fixed number of agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// A number of scatter workers that follows the demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// GPUs of each agent, which share the model out among them: a number that divides the heads of its layers. 0 for
    /// the CPU device.
    #[serde(default)]
    #[schemars(range(min = 0, max = 16))]
    pub gpus_per_agent: i32,
    /// Further GPUs of each agent, which build cold segments for the one of `gpusPerAgent`: each has the whole model, and
    /// as much memory as `engineMemory` says.
    #[serde(default)]
    #[schemars(range(min = 0, max = 15))]
    pub scatter_gpus_per_agent: i32,
    /// Sequences that an agent runs at once.
    #[serde(default = "slots")]
    #[schemars(range(min = 1, max = 4096))]
    pub slots: i32,
    /// Requests that wait for a slot of an agent; more are refused.
    #[serde(default = "queue")]
    #[schemars(range(min = 1, max = 65536))]
    pub queue: i32,
    /// Rows of one step: the larger, the faster a prefill and the longer the gaps between tokens meanwhile. Without it 512
    /// on CPUs and 8192 on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub step_rows: Option<i32>,
    /// Threads of the CPU kernels; all cores of the node without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<i32>,
    /// Cap over weights, pages, state slots and snapshots of one agent.
    #[serde(default = "engine_memory")]
    #[x_kube(validation = Rule::new("quantity(string(self)).isGreaterThan(quantity('0')) && quantity(string(self)).isLessThan(quantity('1Pi'))").message("engineMemory must be over 0 and under 1Pi"))]
    pub engine_memory: Amount,
    /// Requests and limits of an agent's container. Memory without it: the engine's cap, the tiers in memory, and room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Where the pods may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Time that running streams and builds get to finish when an agent must go.
    #[serde(default = "drain")]
    #[schemars(range(min = 1, max = 3600))]
    pub drain_seconds: i32,
}

/// What the agents of a pool are for.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRole {
    /// They compose requests, decode them and own slots of the index.
    Combine,
    /// They build cold segments.
    Scatter,
}

/// One tier of every agent's store.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.tier == 'Disk' || !has(self.storageClassName)").message("storageClassName belongs to the Disk tier").field_path(".storageClassName"),
    validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)").message("storageClassName cannot be changed: volumes of running agents keep their class; make a new HypicCluster"),
    validation = Rule::new("!has(self.storageClassName) || quantity(string(self.capacity)).compareTo(quantity(string(oldSelf.capacity))) == 0").message("the capacity of a Disk tier on volumes cannot be changed yet: make a new HypicCluster"),
)]
pub struct CacheTier {
    /// Which tier.
    pub tier: TierName,
    /// Its hard cap per agent.
    #[x_kube(validation = Rule::new("quantity(string(self)).isGreaterThan(quantity('0')) && quantity(string(self)).isLessThan(quantity('1Ei'))").message("capacity must be over 0 and under 1Ei"))]
    pub capacity: Amount,
    /// Disk only: each agent gets a volume of this class; without it the tier lies on the node's own drive (emptyDir)
    /// and goes with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

/// Where tuples can lie, nearest first.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierName {
    /// The device's own memory; on a CPU an arena in main memory.
    Device,
    /// Main memory.
    Host,
    /// A local drive.
    Disk,
    /// An object store. Not there yet: refused.
    Object,
}

/// The OpenAI endpoint.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Router {
    /// Routers.
    #[serde(default = "routers")]
    #[schemars(range(min = 1, max = 64))]
    pub replicas: i32,
    /// Requests that one router runs at once.
    #[serde(default = "running")]
    #[schemars(range(min = 1, max = 65536))]
    pub running: i32,
    /// Requests that wait in one router; more are refused with 429.
    #[serde(default = "queued")]
    #[schemars(range(min = 1, max = 1048576))]
    pub queued: i32,
    /// Time from a request's arrival to its last token.
    #[serde(default = "deadline")]
    #[schemars(range(min = 1, max = 86400))]
    pub deadline_seconds: i32,
    /// Time that running answers get to finish when a router must go.
    #[serde(default = "drain")]
    #[schemars(range(min = 1, max = 3600))]
    pub drain_seconds: i32,
    /// Origins whose web pages may call, such as `https://chat.example`; none by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub cors_origins: Vec<String>,
    /// Requests and limits of a router's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Where the pods may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The Service in front of the routers.
    #[serde(default)]
    pub service: RouterService,
}

impl Default for Router {
    fn default() -> Self {
        Self {
            replicas: routers(),
            running: running(),
            queued: queued(),
            deadline_seconds: deadline(),
            drain_seconds: drain(),
            cors_origins: Vec::new(),
            resources: None,
            placement: None,
            service: RouterService::default(),
        }
    }
}

/// The Service in front of the routers. It has the cluster's name.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RouterService {
    /// Kind of the Service.
    #[serde(default, rename = "type")]
    pub kind: ServiceKind,
    /// Port of the Service.
    #[serde(default = "port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Annotations, for load balancers and the like.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
}

impl Default for RouterService {
    fn default() -> Self {
        Self { kind: ServiceKind::default(), port: port(), annotations: BTreeMap::new() }
    }
}

/// How a Service can be reached.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceKind {
    /// From inside the cluster.
    #[default]
    ClusterIP,
    /// By a port of every node.
    NodePort,
    /// By a load balancer of the cloud.
    LoadBalancer,
}

/// Requests and limits of a container.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What the node must have free, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub requests: BTreeMap<String, Amount>,
    /// What the container may take, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub limits: BTreeMap<String, Amount>,
}

/// Where pods may run.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that are borne.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub tolerations: Vec<Toleration>,
    /// A PriorityClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// A RuntimeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
}

fn slots() -> i32 {
    32
}
fn queue() -> i32 {
    256
}
fn engine_memory() -> Amount {
    Amount::from("2Gi")
}
fn drain() -> i32 {
    30
}
fn routers() -> i32 {
    2
}
fn running() -> i32 {
    256
}
fn queued() -> i32 {
    1024
}
fn deadline() -> i32 {
    600
}
fn port() -> i32 {
    80
}
