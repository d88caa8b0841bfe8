//! Namespaces that others have filled or narrowed.

use serde_json::{Value, json};

use crate::support::{Fleet, Namespace, cluster, items, kubectl, question, text, wait_for};

#[test]
fn services_of_any_name_and_number_set_nothing() {
    let namespace = Namespace::new("e2e-links");
    let mut names: Vec<String> =
        ["hypic", "hypic-router", "hypic-operator", "hypic-log", "hypic-agent"].map(str::to_owned).into();
    names.extend((0..300).map(|number| format!("hypic-{number}")));
    let services: Vec<Value> = names
        .iter()
        .map(|name| {
            let spec = json!({"ports": [{"port": 80}], "selector": {"app": "none"}});
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
        })
        .collect();
    namespace.apply(&json!({"apiVersion": "v1", "kind": "List", "items": services})).unwrap();
    let fleet = Fleet::start(&namespace, &cluster("hypic-fleet", 1, 1));
    fleet.answers(&question()).unwrap();
    // A Service of the same name is somebody's own.
    let taken = Fleet::apply(&namespace, &cluster("hypic", 1, 1));
    let message = wait_for("a name that is taken is told of", 60, || taken.is("Ready", "False", "NameTaken"));
    assert!(message.contains("Service hypic"), "{message}");
    let service = namespace.get("service", "hypic").unwrap();
    assert_eq!(service["spec"]["selector"], json!({"app": "none"}));
}

#[test]
fn a_quota_is_kept_and_one_that_is_too_small_is_told_of() {
    let namespace = Namespace::new("e2e-quota");
    let quota = |pods: u32| {
        let hard = json!({
            "pods": pods.to_string(), "requests.cpu": "2", "requests.memory": "4Gi", "limits.memory": "12Gi",
            "requests.ephemeral-storage": "20Gi", "limits.ephemeral-storage": "20Gi", "limits.cpu": "8",
        });
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": hard}})
    };
    let limits = json!({"limits": [{
        "type": "Container", "max": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "4Gi"}, "default": {"cpu": "2"},
    }]});
    namespace.apply(&quota(20)).unwrap();
    let range =
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "all"}, "spec": limits});
    namespace.apply(&range).unwrap();
    let fleet = Fleet::start(&namespace, &cluster("demo", 1, 1));
    fleet.answers(&question()).unwrap();
    for pod in fleet.pods("combine").unwrap().iter().chain(&fleet.pods("router").unwrap()) {
        let resources = &pod["spec"]["containers"][0]["resources"];
        for (bound, name) in [("requests", "cpu"), ("requests", "ephemeral-storage"), ("limits", "memory")] {
            assert!(
                resources[bound][name].is_string(),
                "{bound}.{name} of {}",
                text(&pod["metadata"]["name"])
            );
        }
    }

    namespace.apply(&quota(2)).unwrap();
    fleet.patch(json!({"router": {"replicas": 2}})).unwrap();
    let message = wait_for("the quota is told of", 60, || fleet.is("Ready", "False", "QuotaExceeded"));
    assert!(message.contains("exceeded quota"), "{message}");
    fleet.answers(&question()).unwrap();
    namespace.apply(&quota(20)).unwrap();
    fleet.wait_ready();
    let all = kubectl(&["get", "pods", "--namespace", &namespace.name, "--output=json"]).unwrap();
    assert_eq!(items(&serde_json::from_str::<Value>(&all).unwrap()).len(), 3);
}
