use serde_json::{Value, json};

use super::*;

fn spec() -> Value {
    json!({
        "nodePools": [
            {"name": "combine", "modelRef": "tiny", "role": "Combine", "replicas": 2},
            {"name": "scatter", "modelRef": "tiny", "role": "Scatter", "scaling": {"maxReplicas": 4}},
        ],
        "cacheTiers": [
            {"tier": "Device", "capacity": "1Gi"},
            {"tier": "Host", "capacity": 1073741824},
            {"tier": "Disk", "capacity": "4Gi", "storageClassName": "fast"},
        ],
        "security": {"access": "Open"},
    })
}

fn with(path: &str, value: Value) -> HypicCluster {
    let mut spec = spec();
    let (parent, key) = path.rsplit_once('/').expect("a path");
    let parent = spec.pointer_mut(parent).expect("the path's parent");
    match parent {
        Value::Array(items) => {
            let index: usize = key.parse().expect("an index");
            if index == items.len() {
                items.push(value)
            } else {
                items[index] = value
            }
            items.retain(|item| !item.is_null());
        }
        parent => parent[key] = value,
    }
    if let Some(object) = parent_of(&mut spec, path) {
        object.retain(|_, value| !value.is_null());
    }
    HypicCluster::new("demo", serde_json::from_value(spec).expect("a spec"))
}

fn parent_of<'a>(spec: &'a mut Value, path: &str) -> Option<&'a mut serde_json::Map<String, Value>> {
    spec.pointer_mut(path.rsplit_once('/')?.0)?.as_object_mut()
}

fn refused(cluster: &HypicCluster) -> String {
    format!("{:?}", cluster.validate_cel().expect_err("a broken rule"))
}

#[test]
fn a_plain_cluster_is_taken() {
    let cluster = with("/security/access", json!("Open"));
    cluster.validate_cel().expect("no rule broken");
    assert_eq!(cluster.spec.router.replicas, 2);
    assert_eq!(cluster.spec.node_pools[1].scaling.as_ref().map(|scaling| scaling.min_replicas), Some(0));
    assert_eq!(cluster.spec.cache_tiers[1].capacity.bytes(), Some(1 << 30));
}

#[test]
fn rules_name_what_is_wrong() {
    for (path, value, word) in [
        ("/nodePools/0/role", json!("Scatter"), "at least one pool with role Combine"),
        ("/nodePools/0/replicas", json!(0), "at least one replica"),
        ("/nodePools/0/replicas", Value::Null, "exactly one of replicas and scaling"),
        ("/nodePools/1/replicas", json!(1), "exactly one of replicas and scaling"),
        ("/nodePools/1/modelRef", json!("other"), "same modelRef"),
        ("/nodePools/1/scaling/minReplicas", json!(5), "minReplicas must be at most"),
        ("/nodePools/0/name", json!("router"), "names of parts that every cluster has"),
        ("/nodePools/0/engineMemory", json!("0"), "engineMemory must be over 0"),
        ("/nodePools/0/engineMemory", json!("20Ei"), "engineMemory must be over 0 and under 1Pi"),
        ("/cacheTiers/0/capacity", json!("0"), "capacity must be over 0"),
        ("/cacheTiers/0/capacity", json!("2Ei"), "capacity must be over 0 and under 1Ei"),
        ("/cacheTiers/0/tier", json!("Disk"), "order Device, Host, Disk"),
        ("/cacheTiers/3", json!({"tier": "Object", "capacity": "1Gi"}), "Object tier does not exist yet"),
        ("/cacheTiers/0/storageClassName", json!("fast"), "belongs to the Disk tier"),
        ("/security/access", Value::Null, "exactly one of tenantsSecretRef and access"),
        ("/security/tenantsSecretRef", json!({"name": "keys"}), "exactly one of tenantsSecretRef and access"),
    ] {
        let told = refused(&with(path, value));
        assert!(told.contains(word), "{path}: {told}");
    }
    let scaled = json!({"name": "c", "modelRef": "tiny", "role": "Combine", "scaling": {"maxReplicas": 2}});
    assert!(refused(&with("/nodePools/0", scaled)).contains("only Scatter pools have scaling"));
}

#[test]
fn names_are_bounded() {
    let mut cluster = with("/security/access", json!("Open"));
    for (name, good) in
        [("a", true), ("a-1", true), ("a.b", false), ("1a", false), ("a-", false), ("A", false)]
    {
        cluster.metadata.name = Some(name.to_owned());
        assert_eq!(cluster.validate_cel().is_ok(), good, "{name}");
    }
    cluster.metadata.name = Some("a".repeat(32));
    cluster.validate_cel().expect("32 characters");
    cluster.metadata.name = Some("a".repeat(33));
    assert!(refused(&cluster).contains("at most 32 characters"));
}

#[test]
fn what_children_cannot_change_cannot_be_changed() {
    let old = with("/security/access", json!("Open"));
    for (path, value, word) in [
        ("/nodePools/1/role", json!("Combine"), "role cannot be changed"),
        ("/nodePools/0/modelRef", json!("other"), "modelRef cannot be changed"),
        ("/cacheTiers/2/storageClassName", json!("slow"), "storageClassName cannot be changed"),
        ("/cacheTiers/2/storageClassName", Value::Null, "storageClassName cannot be changed"),
        ("/cacheTiers/2/capacity", json!("8Gi"), "cannot be changed yet"),
        ("/cacheTiers/2", Value::Null, "cannot be added or removed"),
    ] {
        let told = format!("{:?}", with(path, value).validate_cel_update(&old).expect_err("immutable"));
        assert!(told.contains(word), "{path}: {told}");
    }
    with("/cacheTiers/2/capacity", json!("4096Mi")).validate_cel_update(&old).expect("the same size");
    with("/cacheTiers/0/capacity", json!("8Gi")).validate_cel_update(&old).expect("memory can change");
}
