use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::HypicModel;

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
    for gpus in [0, 2] {
        let mut cluster = with("/nodePools/0/scatterGpusPerAgent", json!(1));
        cluster.spec.node_pools[0].gpus_per_agent = gpus;
        assert!(refused(&cluster).contains("scatterGpusPerAgent needs a gpusPerAgent of 1"), "{gpus}");
        cluster.spec.node_pools[0].gpus_per_agent = 1;
        cluster.validate_cel().expect("one GPU computes");
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

/// What an object has that its type does not know.
fn unknown(written: &Value, read: &Value) -> Option<String> {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => written.iter().find_map(|(key, value)| {
            let Some(read) = read.get(key) else { return Some(key.clone()) };
            unknown(value, read)
        }),
        (Value::Array(written), Value::Array(read)) => {
            written.iter().zip(read).find_map(|(written, read)| unknown(written, read))
        }
        _ => None,
    }
}

#[test]
fn samples_have_known_fields_and_break_no_rule() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/samples");
    let mut clusters = 0;
    for entry in fs::read_dir(folder).expect("the samples") {
        let text = fs::read_to_string(entry.expect("a sample").path()).expect("YAML");
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let written = Value::deserialize(document).expect("a document");
            let read = match written["kind"].as_str() {
                Some("HypicCluster") => {
                    let cluster: HypicCluster = serde_json::from_value(written.clone()).expect("a cluster");
                    cluster.validate_cel().expect("no rule broken");
                    clusters += 1;
                    serde_json::to_value(cluster)
                }
                Some("HypicModel") => {
                    let model: HypicModel = serde_json::from_value(written.clone()).expect("a model");
                    model.validate_cel().expect("no rule broken");
                    serde_json::to_value(model)
                }
                _ => continue,
            };
            assert_eq!(unknown(&written, &read.expect("JSON")), None, "in {text}");
        }
    }
    assert!(clusters > 1, "there are samples");
}
