//! From `kubectl apply` to an answer, and from one spec to the next.

use serde_json::{Value, json};

use crate::support::{Fleet, Namespace, cluster, question, scatter, text, wait_for};

#[test]
fn an_applied_cluster_becomes_ready_and_answers_right() {
    let namespace = Namespace::new("e2e-serves");
    let mut spec = cluster("demo", 1, 1);
    spec["spec"]["nodePools"].as_array_mut().unwrap().push(scatter());
    let fleet = Fleet::start(&namespace, &spec);
    fleet.answers(&question()).unwrap();

    let status = fleet.get().unwrap()["status"].clone();
    assert_eq!(status["endpoint"], "http://demo.e2e-serves.svc/v1");
    assert_eq!(status["topologyEpoch"], 1);
    let kinds: Vec<&str> =
        status["conditions"].as_array().unwrap().iter().map(|condition| text(&condition["type"])).collect();
    let known = [
        "Ready",
        "Available",
        "Progressing",
        "ModelsLoaded",
        "TiersReady",
        "IndexConsistent",
        "ScatterScaling",
        "CompositionDrift",
        "Degraded",
    ];
    assert_eq!(kinds, known);
    let hold = ["Available", "ModelsLoaded", "TiersReady", "IndexConsistent", "ScatterScaling"];
    wait_for("routers have told of index and demand", 30, || {
        let missing: Vec<String> = hold.iter().filter_map(|kind| fleet.holds(kind).err()).collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    });
    assert_eq!(fleet.condition("Degraded").unwrap()["status"], "False");

    wait_for("the columns tell of the traffic", 60, || {
        fleet.ask(&question())?;
        let table = namespace.kubectl(&["get", "hypicclusters", "demo"])?;
        let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        match row.as_slice() {
            ["demo", "True", "1/1", _, cold, hit, _] if cold.ends_with('%') && hit.ends_with('%') => Ok(()),
            _ => Err(table),
        }
    });
    let model = wait_for("the model tells what it is", 60, || {
        let model = namespace.get("hypicmodels", "hypic-tiny")?;
        if model["status"]["family"].is_string() { Ok(model) } else { Err(model["status"].to_string()) }
    });
    assert_eq!(model["status"]["family"], "gdn");
    assert_eq!(model["status"]["layers"], 8);
}

/// Names of the pods of a pool that are ready and stay.
fn ready(fleet: &Fleet<'_>, pool: &str) -> Result<Vec<String>, String> {
    let is_ready = |pod: &&Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        pod["metadata"]["deletionTimestamp"].is_null()
            && conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let pods = fleet.pods(pool)?;
    Ok(pods.iter().filter(is_ready).map(|pod| text(&pod["metadata"]["name"]).to_owned()).collect())
}

#[test]
fn a_changed_spec_is_what_the_fleet_becomes() {
    let namespace = Namespace::new("e2e-changes");
    let mut spec = cluster("demo", 1, 1);
    let fleet = Fleet::start(&namespace, &spec);
    let epoch = |fleet: &Fleet<'_>| fleet.get().unwrap()["status"]["topologyEpoch"].as_u64().unwrap();
    let first = epoch(&fleet);

    for (combine, names) in [(2, vec!["demo-combine-0", "demo-combine-1"]), (1, vec!["demo-combine-0"])] {
        spec["spec"]["nodePools"][0]["replicas"] = json!(combine);
        let before = epoch(&fleet);
        namespace.apply(&spec).unwrap();
        fleet.wait_ready();
        assert_eq!(ready(&fleet, "combine").unwrap(), names);
        assert!(epoch(&fleet) > before, "the owners of the index's slots changed");
        wait_for("the index is whole", 30, || fleet.holds("IndexConsistent"));
        fleet.answers(&question()).unwrap();
    }
    assert_eq!(epoch(&fleet), first + 2);

    let old = ready(&fleet, "router").unwrap();
    fleet.patch(json!({"router": {"replicas": 2}})).unwrap();
    fleet.wait_ready();
    let two = ready(&fleet, "router").unwrap();
    assert!(two.len() == 2 && two.contains(&old[0]), "{two:?} from {old:?}");
    assert_eq!(epoch(&fleet), first + 2, "routers own no slots");

    namespace.patch("hypicmodels", "hypic-tiny", &json!({"spec": {"segmentMinTokens": 24}})).unwrap();
    wait_for("new routers cut as the model says now", 120, || {
        let now = ready(&fleet, "router")?;
        if now.len() == 2 && now.iter().all(|name| !two.contains(name)) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    });
    fleet.wait_ready();
    fleet.answers(&question()).unwrap();
}
