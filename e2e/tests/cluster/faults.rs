//! Faults of what the fleet stands on: the operator, the API server, a pod, a node's network.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    Fleet, Namespace, SYSTEM, Traffic, cluster, items, kill_api_server, kubectl, link, question, text,
    wait_for,
};

/// The operator's pod.
fn operator() -> Result<Value, String> {
    let pods = kubectl(&["--namespace", SYSTEM, "get", "pods", "--output=json"])?;
    let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
    let mut running = items(&pods).iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    running.next().cloned().ok_or_else(|| "no operator runs".to_owned())
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[test]
fn an_operator_that_is_killed_in_the_middle_finishes_when_it_is_back() {
    let namespace = Namespace::new("e2e-killed");
    let fleet = Fleet::apply(&namespace, &cluster("demo", 2, 2));
    // Some children are there and some are not.
    wait_for("the first child is there", 30, || namespace.get("configmap", "demo-topology").map(drop));
    let name = text(&operator().unwrap()["metadata"]["name"]).to_owned();
    let kill = ["--namespace", SYSTEM, "delete", "pod", &name, "--grace-period=0", "--force"];
    kubectl(&kill).unwrap();
    fleet.wait_ready();
    fleet.answers(&question()).unwrap();
    let uids: BTreeSet<String> = fleet
        .lives()
        .unwrap()
        .into_iter()
        .map(|life| life.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(uids.len(), 4, "two routers and two agents, none twice: {uids:?}");
}

#[test]
fn no_request_fails_while_the_api_server_is_away() {
    let namespace = Namespace::alone("e2e-headless");
    let fleet = Fleet::start(&namespace, &cluster("demo", 2, 2));
    let lives = fleet.lives().unwrap();
    let right = fleet.ask(&question()).unwrap().text.trim().to_owned();
    let traffic = Traffic::start(&fleet.address(), 2, question);
    let stopped = Instant::now();
    let away = kill_api_server();
    sleep(Duration::from_secs(60));
    drop(away);
    eprintln!("  the API server was away for {:.0} s", stopped.elapsed().as_secs_f64());
    wait_for("the operator leads again", 120, || {
        let log =
            kubectl(&["--namespace", SYSTEM, "logs", text(&operator()?["metadata"]["name"]), "--tail=200"])?;
        if log.contains("leading") && is_ready(&operator()?) { Ok(()) } else { Err(log) }
    });
    // A change is taken up as ever.
    fleet.patch(json!({"router": {"replicas": 3}})).unwrap();
    fleet.wait_ready();
    assert!(traffic.all_answered(Some(&right)) > 60);
    let now = fleet.lives().unwrap();
    assert!(lives.iter().all(|life| now.contains(life)), "{now:#?} instead of {lives:#?}");
}

#[test]
fn a_combine_agent_that_goes_costs_no_answer_and_the_index_is_whole_again() {
    let namespace = Namespace::new("e2e-replaced");
    let fleet = Fleet::start(&namespace, &cluster("demo", 2, 2));
    let right = fleet.ask(&question()).unwrap().text.trim().to_owned();
    assert_eq!(right, question().answer);
    for force in [&["--wait=false"][..], &["--wait=false", "--grace-period=0", "--force"]] {
        let before = namespace.get("pod", "demo-combine-0").unwrap()["metadata"]["uid"].clone();
        let traffic = Traffic::start(&fleet.address(), 2, question);
        namespace.kubectl(&[&["delete", "pod", "demo-combine-0"], force].concat()).unwrap();
        wait_for("the agent is back and ready", 120, || {
            let pod = namespace.get("pod", "demo-combine-0")?;
            if pod["metadata"]["uid"] != before && is_ready(&pod) {
                Ok(())
            } else {
                Err(pod["status"].to_string())
            }
        });
        wait_for("the index is whole", 60, || fleet.holds("IndexConsistent"));
        assert!(traffic.all_answered(Some(&right)) > 10);
        fleet.wait_ready();
    }
}

#[test]
fn a_node_that_is_cut_off_is_done_without() {
    let namespace = Namespace::alone("e2e-cut");
    let fleet = Fleet::start(&namespace, &cluster("demo", 2, 2));
    let right = fleet.ask(&question()).unwrap().text.trim().to_owned();
    let lives = fleet.lives().unwrap();
    let node = |pod: &Value| text(&pod["spec"]["nodeName"]).to_owned();
    let kept = node(&operator().unwrap());
    let cut = if kept == "node-1" { "node-2" } else { "node-1" };
    for pool in ["combine", "router"] {
        let nodes: BTreeSet<String> = fleet.pods(pool).unwrap().iter().map(node).collect();
        assert_eq!(nodes.len(), 2, "{pool} is spread over the nodes");
    }
    let routers = fleet.pods("router").unwrap();
    let router = routers.iter().find(|pod| node(pod) == kept).unwrap();
    let address = format!("{}:8080", text(&router["status"]["podIP"]));
    let traffic = Traffic::start(&address, 2, question);

    let link = link(cut);
    let start = Instant::now();
    wait_for("the cluster is told of", 60, || fleet.is("Ready", "False", "WaitingForPods"));
    sleep(Duration::from_secs(60).saturating_sub(start.elapsed()));
    drop(link);
    wait_for("the index is whole", 60, || fleet.holds("IndexConsistent"));
    fleet.wait_ready();
    traffic.all_answered(Some(&right));
    assert_eq!(fleet.lives().unwrap(), lives, "nothing was torn down");
}
