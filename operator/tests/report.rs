//! What a status says of what was seen.

use std::collections::BTreeSet;

use hypic_crds::condition::kind;
use hypic_crds::pool::NodePool;
use hypic_crds::{HypicCluster, HypicClusterStatus};
use hypic_domain::id::AgentId;
use hypic_domain::topology::AgentRole;
use hypic_operator::fault::Fault;
use hypic_operator::observe::{Observed, Tenants};
use hypic_operator::pulse::{AgentPulse, Pulse, ScalingPulse};
use hypic_operator::report::{self, Facts};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

fn cluster() -> HypicCluster {
    serde_json::from_value(json!({
        "metadata": {"name": "demo", "namespace": "here", "uid": "u", "generation": 4},
        "spec": {
            "nodePools": [
                {"name": "combine", "modelRef": "tiny", "role": "Combine", "replicas": 2},
                {"name": "scatter", "modelRef": "tiny", "role": "Scatter", "scaling": {"maxReplicas": 4}},
            ],
            "security": {"access": "Open"},
        },
    }))
    .expect("a cluster")
}

fn pod(pool: &str, number: i32, ready: bool) -> Pod {
    let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
    serde_json::from_value(json!({
        "metadata": {"name": format!("demo-{pool}-{number}"), "labels": {"hypic.dev/pool": pool}},
        "status": {"conditions": [condition]},
    }))
    .expect("a pod")
}

fn fleet(routers: i32, combine: i32) -> Observed {
    let pods = (0..routers).map(|number| pod("router", number, true));
    let pods = pods.chain((0..combine).map(|number| pod("combine", number, true)));
    Observed {
        model: None,
        claim: None,
        tenants: Tenants::Open,
        children: Vec::new(),
        pods: pods.collect(),
        scatter: Default::default(),
        refused: Default::default(),
    }
}

fn pulse() -> Pulse {
    let agent = |number: i32| AgentPulse {
        id: AgentId(format!("demo-combine-{number}")),
        role: AgentRole::Combine,
        usable: true,
        index_partial: 0,
        running: 0,
        queued: 0,
        builds: 0,
        facts: None,
    };
    Pulse {
        routers_asked: 2,
        routers_answered: 2,
        versions: Vec::new(),
        agents: vec![agent(0), agent(1)],
        cold_share_percent: Some(12),
        hit_share_percent: Some(88),
        scaling: [("scatter".to_owned(), scaling())].into(),
    }
}

fn scaling() -> ScalingPulse {
    ScalingPulse {
        recommended: 0,
        desired: 0,
        reason: "BelowColdShare",
        message: "nothing is cold".to_owned(),
        frozen: false,
        externally: None,
        cold_share: 0.0,
        demand: 0.0,
    }
}

struct Case {
    cluster: HypicCluster,
    observed: Observed,
    faults: Vec<Fault>,
    pulse: Option<Pulse>,
    scatter: i32,
    paused: bool,
    written: BTreeSet<String>,
}

impl Case {
    fn new(observed: Observed) -> Self {
        let pulse = Some(pulse());
        let (faults, written) = (Vec::new(), BTreeSet::new());
        Self { cluster: cluster(), observed, faults, pulse, scatter: 0, paused: false, written }
    }

    fn at(&self, second: i64) -> HypicClusterStatus {
        let pools = &self.cluster.spec.node_pools;
        let wanted: Vec<(&NodePool, i32)> = vec![(&pools[0], 2), (&pools[1], self.scatter)];
        let facts = Facts {
            cluster: &self.cluster,
            observed: &self.observed,
            wanted: &wanted,
            faults: &self.faults,
            topology: None,
            written: &self.written,
            pulse: self.pulse.as_ref(),
            paused: self.paused,
        };
        report::cluster(&facts, &Time(Timestamp::from_second(second).expect("a time")))
    }
}

/// Status and reason of a condition.
fn of(status: &HypicClusterStatus, kind: &str) -> (String, String) {
    let condition =
        status.conditions.iter().find(|condition| condition.type_ == kind).expect("the condition");
    (condition.status.clone(), condition.reason.clone())
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn a_whole_fleet_is_ready_and_every_condition_is_told() {
    let status = Case::new(fleet(2, 2)).at(1);
    let kinds: Vec<&str> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(kinds, kind::ALL);
    assert_eq!(of(&status, kind::READY), is("True", "Serving"));
    assert_eq!(of(&status, kind::PROGRESSING), is("False", "Complete"));
    assert_eq!(of(&status, kind::INDEX_CONSISTENT), is("True", "Whole"));
    assert_eq!(of(&status, kind::DEGRADED), is("False", "AsExpected"));
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(4)));
    let summary = json!(status.summary);
    let expected =
        json!({"router": "2/2", "combine": "2/2", "scatter": "0/0", "coldShare": "12%", "hitShare": "88%"});
    assert_eq!(summary, expected);
    assert_eq!(status.endpoint.as_deref(), Some("http://demo.here.svc/v1"));
}

#[test]
fn scatter_workers_that_are_missing_do_not_make_a_fleet_unready() {
    let mut case = Case::new(fleet(2, 2));
    case.scatter = 2;
    assert_eq!(of(&case.at(1), kind::READY), is("True", "Serving"));
    assert_eq!(of(&case.at(1), kind::PROGRESSING), is("True", "WaitingForPods"));
}

#[test]
fn the_cause_stands_in_the_conditions() {
    let mut missing = Case::new(fleet(0, 0));
    let message = "spec.nodePools[0].modelRef: there is no HypicModel 'tiny'".to_owned();
    missing.faults.push(Fault { reason: "ModelNotFound", message, blocks: true });
    for kind in [kind::READY, kind::PROGRESSING, kind::MODELS_LOADED] {
        assert_eq!(of(&missing.at(1), kind), is("False", "ModelNotFound"));
    }
    assert_eq!(of(&missing.at(1), kind::DEGRADED), is("True", "ModelNotFound"));

    let mut failing = Case::new(fleet(2, 1));
    let ended: Value = json!({
        "metadata": {"name": "demo-combine-1", "labels": {"hypic.dev/pool": "combine"}},
        "status": {"containerStatuses": [{
            "name": "agent", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "message": "no config.json"}},
        }]},
    });
    failing.observed.pods.push(serde_json::from_value(ended).expect("a pod"));
    assert_eq!(of(&failing.at(1), kind::READY), is("False", "ContainerFailed"));
    assert_eq!(of(&failing.at(1), kind::MODELS_LOADED), is("False", "LoadFailed"));
    assert_eq!(of(&failing.at(1), kind::AVAILABLE), is("True", "Serving"));
}

#[test]
fn an_owner_that_is_away_or_waits_makes_the_index_inconsistent() {
    let mut case = Case::new(fleet(2, 2));
    let mut seen = pulse();
    seen.agents[1].usable = false;
    case.pulse = Some(seen);
    assert_eq!(of(&case.at(1), kind::INDEX_CONSISTENT), is("False", "OwnerAway"));
    let mut seen = pulse();
    seen.agents[0].index_partial = 3;
    case.pulse = Some(seen);
    assert_eq!(of(&case.at(1), kind::INDEX_CONSISTENT), is("False", "WaitingForDumps"));
    case.pulse = None;
    assert_eq!(of(&case.at(1), kind::INDEX_CONSISTENT), is("Unknown", "NoRouterAnswers"));
}

#[test]
fn who_scales_is_told() {
    let mut case = Case::new(fleet(2, 2));
    assert_eq!(of(&case.at(1), kind::SCATTER_SCALING), is("True", "BelowColdShare"));
    let with = |change: fn(&mut ScalingPulse)| {
        let mut seen = pulse();
        seen.scaling.values_mut().for_each(change);
        Some(seen)
    };
    case.pulse = with(|scaling| scaling.externally = Some("kubectl".to_owned()));
    assert_eq!(of(&case.at(1), kind::SCATTER_SCALING), is("False", "ExternallyScaled"));
    case.pulse = with(|scaling| {
        scaling.frozen = true;
        scaling.reason = "Frozen";
    });
    assert_eq!(of(&case.at(1), kind::SCATTER_SCALING), is("False", "Frozen"));
}

#[test]
fn times_move_only_when_a_status_flips_and_a_report_of_the_same_is_the_same() {
    let mut case = Case::new(fleet(2, 2));
    let first = case.at(10);
    case.cluster.status = Some(first.clone());
    assert_eq!(case.at(20), first);
    case.observed = fleet(2, 1);
    let second = case.at(30);
    let time = |status: &HypicClusterStatus, kind: &str| {
        let found = status.conditions.iter().find(|condition| condition.type_ == kind);
        found.map(|condition| condition.last_transition_time.0.as_second())
    };
    assert_eq!(time(&second, kind::READY), Some(30));
    assert_eq!(time(&second, kind::AVAILABLE), Some(10));
}

#[test]
fn what_routers_told_stays_until_they_are_asked_again() {
    let mut case = Case::new(fleet(2, 2));
    let told = case.at(10);
    case.cluster.status = Some(told.clone());
    case.pulse = None;
    assert_eq!(case.at(20), told, "a start of the operator changes nothing");
    case.pulse =
        Some(Pulse { routers_answered: 0, agents: Vec::new(), scaling: Default::default(), ..pulse() });
    assert_eq!(of(&case.at(30), kind::INDEX_CONSISTENT), is("Unknown", "NoRouterAnswers"));
    case.paused = true;
    assert_eq!(of(&case.at(40), kind::INDEX_CONSISTENT), is("Unknown", "Paused"));
    assert_eq!(of(&case.at(40), kind::SCATTER_SCALING), is("Unknown", "Paused"));
}

#[test]
fn a_fleet_is_ready_when_its_pods_are_of_the_newest_template() {
    let set = |kind: &str, name: &str, updated: i64| {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "generation": 2},
            "spec": {"replicas": 2}, "status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": updated},
        }))
        .expect("a workload")
    };
    for (kind_of, name, ready) in [
        ("StatefulSet", "demo-combine", false),
        ("Deployment", "demo-router", false),
        ("StatefulSet", "demo-scatter", true),
    ] {
        let mut case = Case::new(fleet(2, 2));
        case.observed.children = vec![set(kind_of, name, 1)];
        assert_eq!(of(&case.at(1), kind::PROGRESSING), is("True", "RollingOut"), "{name}");
        let expected = if ready { is("True", "Serving") } else { is("False", "RollingOut") };
        assert_eq!(of(&case.at(1), kind::READY), expected, "{name}");
        assert_eq!(of(&case.at(1), kind::AVAILABLE), is("True", "Serving"));
        case.observed.children = vec![set(kind_of, name, 2)];
        assert_eq!(of(&case.at(1), kind::PROGRESSING), is("False", "Complete"), "{name}");
        // Its controller has not seen yet what this pass has written.
        case.written.insert(name.to_owned());
        assert_eq!(of(&case.at(1), kind::PROGRESSING), is("True", "RollingOut"), "{name}");
    }
}

#[test]
fn a_paused_fleet_says_so() {
    let mut case = Case::new(fleet(2, 2));
    case.paused = true;
    assert_eq!(of(&case.at(1), kind::PROGRESSING), is("False", "Paused"));
}
