//! `HypicScatterPool`: the number of scatter workers of one pool, with a `/scale` of its own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// The number of scatter workers of one pool of a HypicCluster. The operator makes it; whoever scales it (a
/// HorizontalPodAutoscaler, `kubectl scale`) owns the number from then on.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "hypic.dev",
    version = "v1alpha1",
    kind = "HypicScatterPool",
    plural = "hypicscatterpools",
    namespaced,
    shortname = "hysp",
    category = "hypic",
    status = "HypicScatterPoolStatus",
    derive = "PartialEq",
    doc = "HypicScatterPool is the number of scatter workers of one pool of a HypicCluster. The operator makes it; whoever scales it owns the number from then on.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.clusterName == oldSelf.clusterName && self.poolName == oldSelf.poolName").message("clusterName and poolName cannot be changed"))]
pub struct HypicScatterPoolSpec {
    /// The HypicCluster.
    #[schemars(length(min = 1, max = 32))]
    pub cluster_name: String,
    /// Its pool.
    #[schemars(length(min = 1, max = 18))]
    pub pool_name: String,
    /// Scatter workers.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
}

/// How many workers there are, and why.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HypicScatterPoolStatus {
    /// Generation of the spec that this status tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of the pods.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub selector: String,
    /// What the autoscaler would have, windows and steps left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommended_replicas: Option<i32>,
    /// Why the number is what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// The same as a sentence, with the figures at the time of the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// `ScatterScaling`.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
