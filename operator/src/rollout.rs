//! Whether the pods of a workload are those that were asked for last, as its own controller tells.

use kube::api::DynamicObject;

/// Pods of a Deployment or StatefulSet are still to be made anew, or its controller has not seen the last change.
pub fn is_rolling(workload: &DynamicObject) -> bool {
    let (spec, status) = (&workload.data["spec"], &workload.data["status"]);
    let count = |value: &serde_json::Value, default| value.as_i64().unwrap_or(default);
    let asked = count(&spec["replicas"], 1);
    let (all, updated) = (count(&status["replicas"], 0), count(&status["updatedReplicas"], 0));
    let seen = count(&status["observedGeneration"], 0);
    seen < workload.metadata.generation.unwrap_or_default() || updated < asked || all > updated
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn workload(status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "demo-combine", "generation": 4},
            "spec": {"replicas": 2}, "status": status,
        }))
        .expect("a workload")
    }

    #[test]
    fn a_workload_rolls_until_its_controller_has_seen_the_change_and_all_pods_are_new() {
        for (status, rolling) in [
            (json!({}), true),
            (json!({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2}), true),
            (json!({"observedGeneration": 4, "replicas": 2, "updatedReplicas": 1}), true),
            (json!({"observedGeneration": 4, "replicas": 3, "updatedReplicas": 2}), true),
            (json!({"observedGeneration": 4, "replicas": 2, "updatedReplicas": 2}), false),
        ] {
            assert_eq!(is_rolling(&workload(status.clone())), rolling, "{status}");
        }
        let mut none = workload(json!({"observedGeneration": 4}));
        none.data["spec"]["replicas"] = json!(0);
        assert!(!is_rolling(&none));
    }
}
