//! Namespaces that others have filled or narrowed.

use serde_json::{Value, json};

use crate::support::{Fleet, Namespace, cluster, items, kubectl, question, text, wait_for};

#[test]
fn services_of_any_name_and_number_set_nothing_and_names_that_are_taken_stay_so() {
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
    let mine = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "taken-ca"}, "stringData": {"ca.crt": "mine"}});
    namespace.apply(&mine).unwrap();
    let taken = Fleet::apply(&namespace, &cluster("taken", 1, 1));
    let message =
        wait_for("a Secret that is taken is told of", 60, || taken.is("Ready", "False", "NameTaken"));
    assert!(message.contains("Secret taken-ca"), "{message}");
    assert_eq!(namespace.get("secret", "taken-ca").unwrap()["data"], json!({"ca.crt": "bWluZQ=="}));
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
    namespace.apply(&cluster("demo", 1, 2)).unwrap();
    let message = wait_for("the agents' quota is told of", 60, || {
        fleet.is("Ready", "False", "QuotaExceeded").and_then(|message| {
            if message.starts_with("StatefulSet demo-combine") { Ok(message) } else { Err(message) }
        })
    });
    assert!(message.contains("exceeded quota"), "{message}");
    fleet.answers(&question()).unwrap();
    namespace.apply(&quota(20)).unwrap();
    fleet.wait_ready();
    let all = kubectl(&["get", "pods", "--namespace", &namespace.name, "--output=json"]).unwrap();
    assert_eq!(items(&serde_json::from_str::<Value>(&all).unwrap()).len(), 3);
}

/// The uid that some clusters assign to a namespace; nobody's in the image.
const ASSIGNED: u64 = 1_000_690_000;

/// An admission policy that gives the namespace's pods uids of its choice; dropping it ends it.
struct AssignedIds<'a> {
    namespace: &'a Namespace,
}

impl<'a> AssignedIds<'a> {
    fn over(namespace: &'a Namespace) -> Self {
        let assigned = Self { namespace };
        let name = namespace.name.as_str();
        let pods = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]});
        let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
        let ids = format!("{{runAsUser: {ASSIGNED}, runAsGroup: 0, fsGroup: {ASSIGNED}}}");
        let expression =
            format!("Object{{spec: Object.spec{{securityContext: Object.spec.securityContext{ids}}}}}");
        let policy = json!({
            "matchConstraints": {"namespaceSelector": selector, "resourceRules": [pods]},
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
            "reinvocationPolicy": "Never",
            "failurePolicy": "Fail",
        });
        for (kind, spec) in [
            ("MutatingAdmissionPolicy", policy),
            ("MutatingAdmissionPolicyBinding", json!({"policyName": name})),
        ] {
            namespace
                .apply(&json!({
                    "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
                }))
                .unwrap();
        }
        wait_for("the API server knows the policy", 60, || {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial"},
                "spec": {
                    "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "trial", "image": "none",
                        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                    }],
                },
            });
            let made = namespace.try_create(&pod)?;
            if made.contains(&ASSIGNED.to_string()) { Ok(()) } else { Err(made) }
        });
        assigned
    }
}

impl Drop for AssignedIds<'_> {
    fn drop(&mut self) {
        for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
            if let Err(error) = kubectl(&["delete", kind, &self.namespace.name]) {
                eprintln!("{kind} {} stays: {error}", self.namespace.name);
            }
        }
    }
}

#[test]
fn pods_run_under_the_uids_that_a_cluster_assigns() {
    let namespace = Namespace::new("e2e-uids");
    let _assigned = AssignedIds::over(&namespace);
    let mut spec = cluster("demo", 1, 1);
    spec["spec"]["cacheTiers"].as_array_mut().unwrap().push(json!({"tier": "Disk", "capacity": "64Mi"}));
    let fleet = Fleet::start(&namespace, &spec);
    fleet.answers(&question()).unwrap();
    for pod in fleet.pods("combine").unwrap().iter().chain(&fleet.pods("router").unwrap()) {
        assert_eq!(
            pod["spec"]["securityContext"]["runAsUser"], ASSIGNED,
            "{}",
            pod["spec"]["securityContext"]
        );
    }
}
