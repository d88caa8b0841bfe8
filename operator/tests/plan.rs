//! What a HypicCluster becomes: the whole of it as YAML, and how it changes.

#[path = "plan/scene.rs"]
mod scene;

use std::collections::BTreeMap;

use hypic_operator::apply::{Action, leftovers, stamped, steps};
use hypic_operator::plan::{Plan, plan};
use scene::{Scene, live};
use serde_json::{Value, json};

fn yaml(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{}", serde_yaml_ng::to_string(object).expect("YAML"))).collect()
}

fn named<'a>(plan: &'a Plan, kind: &str, name: &str) -> &'a Value {
    let all = plan.config.iter().chain(&plan.fleet);
    all.into_iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .expect("a child of that kind and name")
}

/// Objects as they were applied.
fn applied(objects: &[Value]) -> Vec<Value> {
    objects.iter().map(stamped).collect()
}

/// An operator upgrade must not change a pod template: a change here rolls every user's pods.
#[test]
fn the_sample_as_children() {
    let scene = Scene::sample();
    let plan = plan(&scene.inputs());
    insta::assert_snapshot!("config", yaml(&plan.config));
    insta::assert_snapshot!("fleet", yaml(&plan.fleet));
}

#[test]
fn gpus_become_limits_tolerations_and_ranks() {
    let mut scene = Scene::sample();
    for (count, device) in [(1, "--device=cuda"), (2, "--device=cuda:0,1")] {
        scene.cluster.spec.node_pools[0].gpus_per_agent = count;
        scene.cluster.spec.node_pools[0].resources = None;
        let plan = plan(&scene.inputs());
        let pod = &named(&plan, "StatefulSet", "demo-combine")["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], count.to_string());
        let args = pod["containers"][0]["args"].as_array().unwrap();
        assert!(args.iter().any(|arg| arg == device));
        // The Host tier and room: the engine's memory and the Device tier are on the GPUs.
        assert_eq!(pod["containers"][0]["resources"]["limits"]["memory"], "4352Mi");
        assert_eq!(pod["tolerations"][0]["key"], "nvidia.com/gpu");
    }
}

#[test]
fn scatter_gpus_become_further_devices_with_room_to_load_the_model() {
    let mut scene = Scene::sample();
    let pool = &mut scene.cluster.spec.node_pools[0];
    (pool.gpus_per_agent, pool.scatter_gpus_per_agent) = (1, 2);
    pool.resources = None;
    let plan = plan(&scene.inputs());
    let container = &named(&plan, "StatefulSet", "demo-combine")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "3");
    assert_eq!(container["resources"]["limits"]["memory"], "12544Mi");
    let args = container["args"].as_array().unwrap();
    assert!(args.contains(&json!("--device=cuda")));
    assert!(args.contains(&json!("--scatter-device=cuda:1,cuda:2")));
}

#[test]
fn volumes_come_from_claims_where_a_class_is_named() {
    let mut scene = Scene::sample();
    scene.cluster.spec.cache_tiers[2].storage_class_name = Some("fast".to_owned());
    let plan = plan(&scene.inputs());
    let set = &named(&plan, "StatefulSet", "demo-combine")["spec"];
    assert_eq!(set["volumeClaimTemplates"][0]["spec"]["storageClassName"], "fast");
    assert_eq!(set["persistentVolumeClaimRetentionPolicy"]["whenDeleted"], "Delete");
    let volumes = set["template"]["spec"]["volumes"].as_array().expect("volumes");
    assert!(volumes.iter().all(|volume| volume["name"] != "data"));
}

#[test]
fn the_epoch_grows_with_combine_agents_and_the_revision_with_every_change() {
    let mut scene = Scene::sample();
    let version = |plan: &Plan| (plan.topology.epoch.0, plan.topology.revision);
    let first = plan(&scene.inputs());
    assert_eq!(version(&first), (1, 1));
    scene.known.current = Some(first.topology.clone());
    scene.known.newest = (1, 1);
    assert_eq!(plan(&scene.inputs()).topology, first.topology, "nothing changed");

    scene.scaled = BTreeMap::from([("scatter".to_owned(), 2)]);
    let scaled = plan(&scene.inputs());
    assert_eq!(version(&scaled), (1, 2));
    scene.known.current = Some(scaled.topology.clone());
    scene.known.newest = (1, 2);

    scene.cluster.spec.node_pools[0].replicas = Some(3);
    let grown = plan(&scene.inputs());
    assert_eq!(version(&grown), (2, 3));
    assert_eq!(grown.topology.agents.len(), 5);
}

#[test]
fn a_topology_that_was_lost_is_made_newer_than_any_pod_knows() {
    let mut scene = Scene::sample();
    scene.known.newest = (7, 40);
    let made = plan(&scene.inputs());
    assert_eq!((made.topology.epoch.0, made.topology.revision), (8, 41));
    // A ConfigMap from a backup is behind its pods.
    scene.known.current = Some(made.topology);
    scene.known.newest = (9, 44);
    let next = plan(&scene.inputs());
    assert!((next.topology.epoch.0, next.topology.revision) > (9, 44));
}

#[test]
fn a_topology_from_a_hand_ends_neither_the_operator_nor_the_fleet() {
    let mut scene = Scene::sample();
    scene.known.newest = (7, 40);
    let mut current = plan(&scene.inputs()).topology;
    for version in [(u64::MAX, 41), (8, u64::MAX), (u64::MAX, u64::MAX)] {
        (current.epoch.0, current.revision) = version;
        scene.known.current = Some(current.clone());
        let made = plan(&scene.inputs()).topology;
        assert_eq!((made.epoch.0, made.revision), (8, 41), "{version:?}");
    }
    scene.known.newest = (u64::MAX, u64::MAX);
    assert_eq!(plan(&scene.inputs()).topology.agents, current.agents);
}

#[test]
fn what_is_as_planned_is_not_written() {
    let scene = Scene::sample();
    let plan = plan(&scene.inputs());
    let all: Vec<Value> = plan.config.iter().chain(&plan.fleet).cloned().collect();
    let observed = live(&applied(&all));
    assert_eq!(steps(&all, &observed, &scene.names()), []);
    assert_eq!(leftovers(&all, &observed, &scene.names()), []);
}

#[test]
fn a_hand_that_changes_a_child_is_put_right_and_named() {
    let scene = Scene::sample();
    let plan = plan(&scene.inputs());
    let mut changed = applied(&plan.fleet);
    for object in &mut changed {
        if object["kind"] == "StatefulSet" && object["metadata"]["name"] == "demo-combine" {
            object["spec"]["replicas"] = json!(9);
        }
    }
    let steps = steps(&plan.fleet, &live(&changed), &scene.names());
    assert_eq!(steps.len(), 1);
    assert!(matches!(steps[0].action, Action::Update(_)));
    assert_eq!(steps[0].why, "StatefulSet demo-combine: .spec.replicas differs");
}

#[test]
fn a_field_that_is_taken_out_of_the_spec_is_taken_out_of_the_child() {
    let mut scene = Scene::sample();
    let placement =
        json!({"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "hot", "operator": "Exists"}]});
    scene.cluster.spec.node_pools[0].placement = serde_json::from_value(placement).expect("a placement");
    let before = plan(&scene.inputs());
    scene.cluster.spec.node_pools[0].placement = None;
    let after = plan(&scene.inputs());
    let steps = steps(&after.fleet, &live(&applied(&before.fleet)), &scene.names());
    let [step] = steps.as_slice() else { panic!("one child has changed: {steps:#?}") };
    assert_eq!(step.child.1, "demo-combine");
    assert!(
        matches!(&step.action, Action::Update(object) if object["spec"]["template"]["spec"].get("nodeSelector").is_none())
    );
}

#[test]
fn a_pool_whose_count_is_missing_begins_with_the_workers_there_are() {
    let scene = Scene::sample();
    let count = |workers: Option<i64>| {
        let set = workers.map(|workers| {
            json!({
                "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "demo-scatter"},
                "spec": {"replicas": workers},
            })
        });
        live(&set.into_iter().collect::<Vec<_>>()).scaled(&scene.cluster)["scatter"]
    };
    let policy = scene.cluster.spec.node_pools[1].scaling.as_ref().expect("a policy");
    assert_eq!(count(None), policy.min_replicas);
    assert_eq!(count(Some(1)), 1);
    assert_eq!(count(Some(900)), policy.max_replicas);
}

#[test]
fn a_request_over_the_limit_that_is_made_up_raises_it() {
    let mut scene = Scene::sample();
    for (asked, limit) in [("64Gi", "64Gi"), ("1Mi", "")] {
        let wanted = json!({"requests": {"memory": asked}});
        scene.cluster.spec.node_pools[0].resources = serde_json::from_value(wanted).expect("resources");
        let plan = plan(&scene.inputs());
        let set = named(&plan, "StatefulSet", "demo-combine");
        let resources = &set["spec"]["template"]["spec"]["containers"][0]["resources"];
        assert_eq!(resources["requests"]["memory"], asked);
        assert_eq!(resources["limits"]["memory"] == limit, !limit.is_empty(), "{resources}");
    }
}

#[test]
fn the_number_of_scatter_workers_is_left_to_who_scales_it() {
    let scene = Scene::sample();
    let plan = plan(&scene.inputs());
    let pool = named(&plan, "HypicScatterPool", "demo-scatter");
    assert_eq!(pool["spec"].get("replicas"), None);
    let mut scaled = stamped(pool);
    scaled["spec"]["replicas"] = json!(3);
    assert_eq!(steps(std::slice::from_ref(pool), &live(&[scaled]), &scene.names()), []);
}

#[test]
fn children_that_the_spec_has_no_more_go_and_those_of_others_stay() {
    let mut scene = Scene::sample();
    let before = plan(&scene.inputs());
    let mut observed = live(&before.fleet);
    let mut foreign = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo-extra"}});
    foreign["metadata"]["ownerReferences"] = json!([{"uid": "other", "controller": true}]);
    observed.children.extend(live(&[foreign]).children);
    scene.cluster.spec.node_pools.pop();
    let after = plan(&scene.inputs());
    let gone: Vec<(String, String)> =
        leftovers(&after.fleet, &observed, &scene.names()).into_iter().map(|step| step.child).collect();
    let name = |kind: &str| (kind.to_owned(), "demo-scatter".to_owned());
    assert_eq!(gone, [name("HypicScatterPool"), name("StatefulSet")]);
}

#[test]
fn somebody_elses_object_of_the_same_name_is_left_alone() {
    let scene = Scene::sample();
    let plan = plan(&scene.inputs());
    let mut taken = plan.config.clone();
    for object in &mut taken {
        object["metadata"]["ownerReferences"] = json!([{"uid": "an earlier cluster", "controller": true}]);
    }
    let steps = steps(&plan.config, &live(&taken), &scene.names());
    assert_eq!(steps.len(), plan.config.len());
    assert!(steps.iter().all(|step| step.action == Action::Leave && step.reason() == "NameTaken"));
}

#[test]
fn what_a_deleted_cluster_left_behind_is_taken_over() {
    let mut scene = Scene::sample();
    let before = plan(&scene.inputs());
    let all: Vec<Value> = before.config.iter().chain(&before.fleet).cloned().collect();
    let mut orphans = applied(&all);
    for object in &mut orphans {
        object["metadata"]["ownerReferences"] = json!([]);
    }
    let taken = steps(&all, &live(&orphans), &scene.names());
    assert_eq!(taken.len(), all.len());
    assert!(taken.iter().all(|step| step.why.contains(".metadata.ownerReferences")), "{taken:#?}");
    // Labels are copied easily: what no plan names goes only where the operator's record says that it made it.
    scene.cluster.spec.node_pools.pop();
    let after = plan(&scene.inputs());
    assert_eq!(leftovers(&after.fleet, &live(&orphans), &scene.names()), []);
    let mut made = orphans.clone();
    for object in &mut made {
        object["metadata"]["managedFields"] = json!([{"manager": "hypic-operator", "operation": "Apply"}]);
    }
    assert_eq!(leftovers(&after.fleet, &live(&made), &scene.names()).len(), 2 + after.config.len());
    // Labels alone make nobody's object ours where they are not all ours.
    for label in ["hypic.dev/cluster", "app.kubernetes.io/managed-by"] {
        let mut others = orphans.clone();
        for object in &mut others {
            object["metadata"]["labels"][label] = json!("other");
        }
        let left = steps(&all, &live(&others), &scene.names());
        assert!(left.iter().all(|step| step.action == Action::Leave));
    }
}
