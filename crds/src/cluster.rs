//! `HypicCluster`: a serving fleet of one model.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pool::{CacheTier, NodePool, PoolRole, Router};

/// A serving fleet of one model: routers, combine agents, scatter workers.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "hypic.dev",
    version = "v1alpha1",
    kind = "HypicCluster",
    plural = "hypicclusters",
    namespaced,
    shortname = "hyc",
    category = "hypic",
    status = "HypicClusterStatus",
    derive = "PartialEq",
    doc = "HypicCluster is a serving fleet of one model: routers, combine agents, scatter workers.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Combine", type_ = "string", json_path = ".status.summary.combine", description = "Ready combine agents of those asked for"),
    printcolumn(name = "Scatter", type_ = "string", json_path = ".status.summary.scatter", description = "Ready scatter workers of those asked for"),
    printcolumn(name = "Cold", type_ = "string", json_path = ".status.summary.coldShare", description = "Share of segment tokens that no agent had"),
    printcolumn(name = "Hit", type_ = "string", json_path = ".status.summary.hitShare", description = "Share of segment tokens that an agent had"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", priority = 1),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".status.endpoint", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 32 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("the name of a HypicCluster must be a DNS label of at most 32 characters that begins with a letter: Services and pods are named after it"),
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.nodePools.exists(p, p.role == 'Combine')").message("nodePools needs at least one pool with role Combine").field_path(".nodePools"),
    validation = Rule::new("self.nodePools.all(p, p.modelRef == self.nodePools[0].modelRef)").message("all nodePools must have the same modelRef: a HypicCluster serves one model").field_path(".nodePools"),
    validation = Rule::new("self.nodePools.filter(p, has(p.scaling)).size() <= 1").message("at most one pool may have scaling: the demand is that of the whole cluster").field_path(".nodePools"),
    validation = Rule::new("!self.cacheTiers.exists(t, t.tier == 'Object')").message("the Object tier does not exist yet: use Device, Host and Disk").field_path(".cacheTiers"),
    validation = Rule::new("self.cacheTiers.exists(t, t.tier == 'Object') || (self.cacheTiers.size() >= 2 && self.cacheTiers[0].tier == 'Device' && self.cacheTiers[1].tier == 'Host')").message("cacheTiers must be in the order Device, Host, Disk, and Device and Host must be there").field_path(".cacheTiers"),
)]
pub struct HypicClusterSpec {
    /// Pools of agents.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub node_pools: Vec<NodePool>,
    /// Tiers of every agent's store, nearest first.
    #[serde(default = "tiers")]
    #[schemars(length(min = 2, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["tier".into()]), validation = Rule::new("self.exists(t, has(t.storageClassName)) == oldSelf.exists(t, has(t.storageClassName))").message("a tier with a storageClassName cannot be added or removed: volumes belong to agents from their start; make a new HypicCluster"))]
    pub cache_tiers: Vec<CacheTier>,
    /// The OpenAI endpoint.
    #[serde(default)]
    pub router: Router,
    /// Who may ask and how parts are kept apart.
    pub security: Security,
    /// Image of routers and agents; the operator's own choice without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Logs and traces.
    #[serde(default)]
    pub observability: Observability,
    /// Leave the fleet as it is: nothing is created, changed or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconciliation_paused: Option<bool>,
}

impl HypicClusterSpec {
    /// Pools of one role, in order.
    pub fn of_role(&self, role: PoolRole) -> impl Iterator<Item = &NodePool> {
        self.node_pools.iter().filter(move |pool| pool.role == role)
    }
}

/// Who may ask and how parts are kept apart. Parts always speak mutual TLS with one another.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.tenantsSecretRef) != has(self.access)").message("security needs exactly one of tenantsSecretRef and access: Open"))]
pub struct Security {
    /// A Secret with the file of API keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants_secret_ref: Option<SecretKeyRef>,
    /// `Open`: no key is asked for and everybody is one tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// NetworkPolicies around the fleet's pods.
    #[serde(default)]
    pub network_policies: Switch,
}

/// No key is asked for.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody who reaches the endpoint may ask.
    Open,
}

/// On or off.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// On.
    #[default]
    Enabled,
    /// Off.
    Disabled,
}

/// A key of a Secret in the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its key.
    #[serde(default = "tenants_key")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// An image.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Name with a tag or digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub name: Option<String>,
    /// When it is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// Names of Secrets with which it is pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pull_secrets: Vec<String>,
}

/// When an image is pulled.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// At each start.
    Always,
    /// When the node has none.
    IfNotPresent,
    /// It must be there.
    Never,
}

impl PullPolicy {
    /// As pods spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Logs and traces.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Observability {
    /// Spans go to this OTLP endpoint, such as `http://collector:4317`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^https?://"))]
    pub otlp_endpoint: Option<String>,
    /// Log filter, as of tracing-subscriber's EnvFilter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub log_filter: Option<String>,
}

fn tiers() -> Vec<CacheTier> {
    use crate::amount::Amount;
    use crate::pool::TierName;
    [TierName::Device, TierName::Host]
        .map(|tier| CacheTier { tier, capacity: Amount::from("1Gi"), storage_class_name: None })
        .into()
}
fn tenants_key() -> String {
    "tenants.json".to_owned()
}

/// How the fleet is.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HypicClusterStatus {
    /// Generation of the spec that this status tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// See the guide for every type and reason.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Base URL of the OpenAI endpoint inside the Kubernetes cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Epoch of the topology: grows with every change of the combine agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_epoch: Option<i64>,
    /// Revision of the topology: grows with every change of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_revision: Option<i64>,
    /// Pools.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pools: Vec<PoolStatus>,
    /// For `kubectl get`.
    #[serde(default)]
    pub summary: Summary,
}

/// How a pool is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Agents asked for.
    pub desired: i32,
    /// Agents that are ready.
    pub ready: i32,
}

/// What `kubectl get` shows.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Ready routers of those asked for.
    #[serde(default)]
    pub router: String,
    /// Ready combine agents of those asked for.
    #[serde(default)]
    pub combine: String,
    /// Ready scatter workers of those asked for.
    #[serde(default)]
    pub scatter: String,
    /// Share of segment tokens that no agent had.
    #[serde(default)]
    pub cold_share: String,
    /// Share of segment tokens that an agent had.
    #[serde(default)]
    pub hit_share: String,
}

#[cfg(test)]
mod tests;
