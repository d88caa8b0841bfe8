//! How the number of scatter workers follows the demand.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the number of workers of a Scatter pool follows cold-segment traffic.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minReplicas <= self.maxReplicas").message("scaling.minReplicas must be at most scaling.maxReplicas").field_path(".minReplicas"))]
pub struct Scaling {
    /// Fewest workers; 0 lets the pool go to zero.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: i32,
    /// Most workers.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// Who decides.
    #[serde(default)]
    pub mode: ScalingMode,
    /// Workers are added only while at least this share of segment tokens is cold, in per cent. Above `minReplicas`
    /// half of it is enough to keep them, so that the pool does not turn round at the edge.
    #[serde(default = "activation")]
    #[schemars(range(min = 0, max = 100))]
    pub activation_cold_share_percent: i32,
    /// Share of a worker's measured speed that the demand may fill, in per cent.
    #[serde(default = "utilization")]
    #[schemars(range(min = 1, max = 100))]
    pub target_utilization_percent: i32,
    /// Changes smaller than this are not made, in per cent of the current number.
    #[serde(default = "tolerance")]
    #[schemars(range(min = 0, max = 100))]
    pub tolerance_percent: i32,
    /// Bound for the 95th percentile of the time to the first token of requests with cold segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600000))]
    pub first_token_target_milliseconds: Option<i32>,
    /// A request that waits longer for admission asks for one more worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600000))]
    pub max_queue_age_milliseconds: Option<i32>,
    /// Time without demand after which a pool with `minReplicas: 0` goes to zero.
    #[serde(default = "window")]
    #[schemars(range(min = 1, max = 86400))]
    pub idle_seconds: i32,
    /// Rules for adding workers.
    #[serde(default = "up")]
    pub scale_up: ScalingRules,
    /// Rules for taking workers away.
    #[serde(default = "down")]
    pub scale_down: ScalingRules,
}

/// Who decides on the number of workers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScalingMode {
    /// The operator decides and acts. It leaves the number alone while another client owns `spec.replicas` of the
    /// HypicScatterPool.
    #[default]
    Auto,
    /// The operator only says what it would do.
    Advisory,
}

/// How fast the number may change, as in a HorizontalPodAutoscaler's behavior.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// The most careful recommendation of this time counts.
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: i32,
    /// Most workers per period; the larger of this and `percent` counts.
    #[schemars(range(min = 1, max = 1000))]
    pub workers: i32,
    /// Largest change per period in per cent of the workers at its start.
    #[schemars(range(min = 0, max = 1000))]
    pub percent: i32,
    /// Length of the period.
    #[schemars(range(min = 1, max = 1800))]
    pub period_seconds: i32,
}

fn activation() -> i32 {
    5
}
fn utilization() -> i32 {
    70
}
fn tolerance() -> i32 {
    10
}
fn window() -> i32 {
    300
}
fn up() -> ScalingRules {
    ScalingRules { stabilization_window_seconds: 0, workers: 4, percent: 100, period_seconds: 15 }
}
fn down() -> ScalingRules {
    ScalingRules { stabilization_window_seconds: window(), workers: 1, percent: 50, period_seconds: 60 }
}
