//! What keeps a pod from running, in words that name the cause.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use kube::api::DynamicObject;

use crate::fault::is_over_quota;

/// One pod's trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// CamelCase word for programs.
    pub reason: &'static str,
    /// Names the pod and the cause.
    pub message: String,
}

/// The longest end of a log that a condition repeats.
const TAIL: usize = 400;

/// The first trouble among pods, in the order of their names.
pub fn first<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Option<Trouble> {
    let mut pods: Vec<&Pod> = pods.into_iter().collect();
    pods.sort_by_key(|pod| pod.name_any());
    pods.into_iter().find_map(of)
}

/// What keeps this pod from running.
pub fn of(pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let name = pod.name_any();
    let trouble = |reason, what: String| Some(Trouble { reason, message: format!("pod {name}: {what}") });
    if let Some(unplaced) = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    }) {
        return trouble("Unschedulable", unplaced.message.clone().unwrap_or_default());
    }
    for container in status.container_statuses.iter().flatten() {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        let why = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
        let told = waiting.and_then(|waiting| waiting.message.clone()).unwrap_or_default();
        match why {
            "ImagePullBackOff" | "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName"
            | "ImageInspectError" => {
                return trouble("ImageUnavailable", format!("image '{}': {why}: {told}", container.image));
            }
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
                return trouble("ContainerRefused", format!("{why}: {told}"));
            }
            _ => {}
        }
        if let Some(ended) = last_end(container) {
            return trouble("ContainerFailed", ended);
        }
    }
    None
}

/// Why a container that does not get up ended the last time. One that has started since waits for something else.
fn last_end(container: &ContainerStatus) -> Option<String> {
    if container.ready || container.started == Some(true) {
        return None;
    }
    let now = container.state.as_ref().and_then(|state| state.terminated.as_ref());
    let before = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let ended = now.or(before).filter(|ended| ended.exit_code != 0)?;
    let why = ended.reason.as_deref().unwrap_or("Error");
    let log = ended.message.as_deref().unwrap_or_default().trim();
    Some(format!("{} ended with code {} ({why}): {}", container.name, ended.exit_code, tail(log)))
}

/// What keeps a Deployment from making its pods, as its own controller tells.
pub fn of_deployment(deployment: &DynamicObject) -> Option<Trouble> {
    let conditions = deployment.data["status"]["conditions"].as_array()?;
    let failed = conditions
        .iter()
        .find(|condition| condition["type"] == "ReplicaFailure" && condition["status"] == "True")?;
    let told = failed["message"].as_str().unwrap_or_default();
    Some(refused("Deployment", &deployment.name_any(), told))
}

/// Pods that the controller of `kind` could not make, in its own words.
pub fn refused(kind: &str, name: &str, told: &str) -> Trouble {
    let reason = if is_over_quota(told) { "QuotaExceeded" } else { "PodsRefused" };
    Trouble { reason, message: format!("{kind} {name}: {told}") }
}

/// The last lines that fit.
fn tail(text: &str) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(TAIL));
    if start == 0 { text } else { text[start..].split_once('\n').map_or(&text[start..], |(_, whole)| whole) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "demo-combine-0"}, "status": status}))
            .expect("a pod")
    }

    fn container(state: serde_json::Value) -> serde_json::Value {
        let mut status =
            json!({"name": "agent", "image": "no/such:1", "imageID": "", "ready": false, "restartCount": 3});
        for (key, value) in state.as_object().into_iter().flatten() {
            status[key] = value.clone();
        }
        json!({"containerStatuses": [status]})
    }

    #[test]
    fn each_cause_has_a_reason_and_names_the_pod() {
        for (status, reason, word) in [
            (
                json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: Insufficient memory"}]}),
                "Unschedulable",
                "Insufficient memory",
            ),
            (
                container(
                    json!({"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "not there"}}}),
                ),
                "ImageUnavailable",
                "no/such:1",
            ),
            (
                container(json!({
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "load the checkpoint /models/none: no config.json"}},
                })),
                "ContainerFailed",
                "no config.json",
            ),
            (
                container(
                    json!({"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"x\" not found"}}}),
                ),
                "ContainerRefused",
                "secret",
            ),
        ] {
            let found = of(&pod(status)).expect("trouble");
            assert_eq!(found.reason, reason);
            assert!(
                found.message.contains(word) && found.message.contains("demo-combine-0"),
                "{}",
                found.message
            );
        }
    }

    #[test]
    fn a_pod_that_runs_or_just_starts_has_none() {
        assert_eq!(of(&pod(json!({}))), None);
        assert_eq!(of(&pod(container(json!({"state": {"waiting": {"reason": "ContainerCreating"}}})))), None);
        let once =
            json!({"ready": true, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}});
        assert_eq!(of(&pod(container(once))), None);
        let up = json!({"started": true, "lastState": {"terminated": {"exitCode": 137}}});
        assert_eq!(of(&pod(container(up))), None);
        let again = json!({"started": false, "lastState": {"terminated": {"exitCode": 137}}});
        assert_eq!(of(&pod(container(again))).map(|trouble| trouble.reason), Some("ContainerFailed"));
    }

    #[test]
    fn a_quota_that_keeps_pods_away_is_told_in_the_controllers_words() {
        let deployment = |message: &str| {
            let failure = json!({"type": "ReplicaFailure", "status": "True", "message": message});
            let object = json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "demo-router"},
                "status": {"conditions": [{"type": "Available", "status": "True"}, failure]},
            });
            serde_json::from_value::<DynamicObject>(object).expect("an object")
        };
        let found =
            of_deployment(&deployment("pods \"x\" is forbidden: exceeded quota: all")).expect("trouble");
        assert_eq!(found.reason, "QuotaExceeded");
        assert!(found.message.starts_with("Deployment demo-router: pods"));
        assert_eq!(
            of_deployment(&deployment("no such account")).map(|found| found.reason),
            Some("PodsRefused")
        );
    }

    #[test]
    fn a_long_log_is_cut_at_a_line() {
        let log = "first\n".repeat(200) + "the last line says it";
        assert!(
            tail(&log).ends_with("says it") && tail(&log).starts_with("first") && tail(&log).len() <= TAIL
        );
    }
}
