//! What belongs to a cluster: put right when somebody changes it, back when somebody deletes it, gone with it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    Fleet, Namespace, SYSTEM, cluster, for_a_while, helm, kubectl, question, scatter, text, wait_for,
    workspace,
};

/// Every kind of child; Secrets are of none of the operator's watches.
const KINDS: &str = "configmaps,services,serviceaccounts,secrets,statefulsets,deployments,\
    poddisruptionbudgets,networkpolicies,hypicscatterpools";

fn whole(name: &str) -> Value {
    let mut spec = cluster(name, 2, 2);
    spec["spec"]["nodePools"].as_array_mut().unwrap().push(scatter());
    spec
}

/// Kind and name of every child, and of the pods.
fn children(fleet: &Fleet<'_>, kinds: &str) -> Result<BTreeSet<(String, String)>, String> {
    let label = format!("hypic.dev/cluster={}", fleet.name);
    let name = |child: &Value| (text(&child["kind"]).to_owned(), text(&child["metadata"]["name"]).to_owned());
    Ok(fleet.namespace.list(kinds, &label)?.iter().map(name).collect())
}

/// Waits until nothing bears the cluster's label any more.
fn wait_gone(fleet: &Fleet<'_>) {
    let all =
        format!("{KINDS},pods,replicasets,controllerrevisions,persistentvolumeclaims,endpointslices,leases");
    wait_for("nothing is left", 120, || {
        let left = children(fleet, &all)?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn a_child_that_was_changed_or_deleted_comes_back_and_the_pods_stay() {
    let namespace = Namespace::new("e2e-children");
    let fleet = Fleet::start(&namespace, &whole("demo"));
    let pods = fleet.lives().unwrap().len();
    let all = children(&fleet, KINDS).unwrap();

    for (kind, name, path, value) in [
        ("service", "demo", "/spec/ports", json!([{"name": "http", "port": 81, "targetPort": "http"}])),
        ("service", "demo-agents", "/spec/publishNotReadyAddresses", json!(false)),
        ("statefulset", "demo-combine", "/spec/replicas", json!(1)),
        ("deployment", "demo-router", "/spec/replicas", json!(3)),
        ("configmap", "demo-model", "/data/model.json", json!("{}")),
        ("configmap", "demo-topology", "/data/topology.json", json!("{}")),
        ("networkpolicy", "demo-agents", "/spec/ingress", json!([{}])),
        ("poddisruptionbudget", "demo-combine", "/spec/maxUnavailable", json!(2)),
        ("serviceaccount", "demo", "/automountServiceAccountToken", json!(true)),
        ("hypicscatterpool", "demo-scatter", "/metadata/labels/hypic.dev~1pool", json!("other")),
    ] {
        let before = namespace.get(kind, name).unwrap();
        let mut change = json!({});
        let keys: Vec<String> = path.split('/').skip(1).map(|key| key.replace("~1", "/")).collect();
        keys.iter().fold(&mut change, |at, key| &mut at[key.as_str()]).clone_from(&value);
        namespace.patch(kind, name, &change).unwrap();
        wait_for(&format!("{kind} {name} is put right: {path}"), 30, || {
            let now = namespace.get(kind, name)?;
            let (now, before) = (now.pointer(path), before.pointer(path));
            if path.ends_with("topology.json") || now == before {
                Ok(())
            } else {
                Err(format!("{now:?}, not {before:?}"))
            }
        });
    }
    fleet.wait_ready();

    // A number of replicas that is put right may have made a pod meanwhile.
    let lives = wait_for("a pod too many is gone", 90, || match fleet.lives()? {
        lives if lives.len() == pods => Ok(lives),
        lives => Err(format!("{lives:?}")),
    });
    for (kind, name) in &all {
        let kind = kind.to_lowercase();
        // Their pods go with them: the next test.
        if ["statefulset", "deployment"].contains(&kind.as_str()) {
            continue;
        }
        let before = namespace.get(&kind, name).unwrap();
        namespace.delete(&kind, name).unwrap();
        // Nobody tells the operator of Secrets: it looks every minute.
        wait_for(&format!("{kind} {name} is back"), 90, || {
            let now = namespace.get(&kind, name)?;
            if now["metadata"]["uid"] == before["metadata"]["uid"] {
                Err("still there".to_owned())
            } else {
                Ok(())
            }
        });
    }
    assert_eq!(children(&fleet, KINDS).unwrap(), all);
    // With the CA's Secret all certificates are new: the kubelet brings them within a minute and a half.
    wait_for("the fleet has taken the new certificates", 180, || fleet.holds("IndexConsistent"));
    fleet.wait_ready();
    fleet.answers(&question()).unwrap();
    assert_eq!(fleet.lives().unwrap(), lives, "no pod was touched");
}

#[test]
fn workloads_that_were_deleted_come_back() {
    let namespace = Namespace::new("e2e-workloads");
    let fleet = Fleet::start(&namespace, &cluster("demo", 1, 1));
    let before = fleet.lives().unwrap();
    for workload in ["statefulset/demo-combine", "deployment/demo-router"] {
        namespace.kubectl(&["delete", workload, "--timeout=90s"]).unwrap();
    }
    wait_for("the old pods are gone", 60, || {
        let left: Vec<String> = fleet.lives()?.into_iter().filter(|life| before.contains(life)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    fleet.wait_ready();
    fleet.answers(&question()).unwrap();
}

#[test]
fn a_deleted_cluster_leaves_nothing_and_can_come_back_at_once() {
    let namespace = Namespace::new("e2e-deleted");
    let spec = whole("demo");
    let fleet = Fleet::start(&namespace, &spec);
    namespace.delete("hypiccluster", "demo").unwrap();
    wait_gone(&fleet);

    let fleet = Fleet::start(&namespace, &spec);
    namespace.kubectl(&["delete", "hypiccluster", "demo", "--wait=false"]).unwrap();
    let fresh = wait_for("it can be made anew", 30, || {
        namespace.apply(&spec)?;
        let uid = text(&fleet.get()?["metadata"]["uid"]).to_owned();
        Ok(uid)
    });
    fleet.wait_ready();
    let owners = |child: &Value| {
        let owners = child["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners
            .filter(|owner| owner["kind"] == "HypicCluster")
            .map(|owner| text(&owner["uid"]).to_owned())
            .collect()
    };
    wait_for("every child is of the new one", 60, || {
        let all = namespace.list(KINDS, "hypic.dev/cluster=demo")?;
        let owners: BTreeSet<String> =
            all.iter().flat_map(|child| -> Vec<String> { owners(child) }).collect();
        if owners == BTreeSet::from([fresh.clone()]) {
            Ok(())
        } else {
            Err(format!("{owners:?}, not {fresh}"))
        }
    });
    fleet.answers(&question()).unwrap();
    // With all that is in it.
    kubectl(&["delete", "namespace", &namespace.name, "--timeout=120s"]).unwrap();
}

#[test]
fn orphans_serve_on_and_a_cluster_of_the_same_name_takes_them_over() {
    let namespace = Namespace::new("e2e-orphaned");
    let spec = whole("demo");
    let fleet = Fleet::start(&namespace, &spec);
    let (all, lives) = (children(&fleet, KINDS).unwrap(), fleet.lives().unwrap());
    namespace.kubectl(&["delete", "hypiccluster", "demo", "--cascade=orphan", "--timeout=60s"]).unwrap();
    for_a_while("answers go on without a cluster", 10, || fleet.answers(&question()));
    assert_eq!(children(&fleet, KINDS).unwrap(), all);

    let fleet = Fleet::start(&namespace, &spec);
    assert_eq!(fleet.lives().unwrap(), lives, "no pod was touched");
    fleet.answers(&question()).unwrap();
    namespace.delete("hypiccluster", "demo").unwrap();
    wait_gone(&fleet);
}

#[test]
fn a_cluster_can_be_deleted_when_the_operator_is_gone() {
    let namespace = Namespace::alone("e2e-orphan");
    let fleet = Fleet::start(&namespace, &whole("demo"));
    let lives = fleet.lives().unwrap();
    let values = tempfile::NamedTempFile::new().unwrap();
    let set = helm(&["get", "values", "hypic", "--namespace", SYSTEM, "--output=yaml"]).unwrap();
    std::fs::write(values.path(), set).unwrap();
    helm(&["uninstall", "hypic", "--namespace", SYSTEM, "--wait"]).unwrap();
    let _back = Reinstall { values: &values };

    for_a_while("answers go on without an operator", 10, || fleet.answers(&question()));
    assert_eq!(fleet.lives().unwrap(), lives);
    kubectl(&["get", "crd", "hypicclusters.hypic.dev"]).unwrap();
    namespace.delete("hypiccluster", "demo").unwrap();
    wait_gone(&fleet);
}

#[test]
fn deleted_crds_take_clusters_along_and_the_operator_goes_on_when_they_are_back() {
    let namespace = Namespace::alone("e2e-crds");
    let fleet = Fleet::start(&namespace, &whole("demo"));
    let back = CrdsBack;
    kubectl(&["delete", "crd", "hypicclusters.hypic.dev", "hypicmodels.hypic.dev", "--timeout=60s"]).unwrap();
    wait_gone(&fleet);
    drop(back);
    let fleet = Fleet::start(&namespace, &whole("demo"));
    fleet.answers(&question()).unwrap();
}

/// Installs the CRDs again when it is dropped.
struct CrdsBack;

impl Drop for CrdsBack {
    fn drop(&mut self) {
        let chart = workspace().join("charts/hypic-crds").to_string_lossy().into_owned();
        let args = ["upgrade", "hypic-crds", &chart, "--namespace", SYSTEM, "--reuse-values", "--wait"];
        if let Err(error) = helm(&args) {
            eprintln!("the CRDs are not back: {error}");
        }
    }
}

/// Installs the operator again when the test is over, whatever its end.
struct Reinstall<'a> {
    values: &'a tempfile::NamedTempFile,
}

impl Drop for Reinstall<'_> {
    fn drop(&mut self) {
        let chart = workspace().join("charts/hypic").to_string_lossy().into_owned();
        let values = self.values.path().to_string_lossy().into_owned();
        let args = [
            "install",
            "hypic",
            &chart,
            "--namespace",
            SYSTEM,
            "--values",
            &values,
            "--wait",
            "--timeout=90s",
        ];
        if let Err(error) = helm(&args) {
            eprintln!("the operator is not back: {error}");
        }
    }
}
