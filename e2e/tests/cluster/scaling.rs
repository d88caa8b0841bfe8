//! Scatter workers follow the traffic, and whoever scales the pool owns it.

use serde_json::{Value, json};

use crate::support::{
    Fleet, Namespace, SYSTEM, Traffic, cluster, for_a_while, items, kubectl, new_documents, pod_command,
    scatter, text, wait_for,
};

fn scaled(routers: u32) -> Value {
    let mut spec = cluster("demo", routers, 1);
    spec["spec"]["nodePools"].as_array_mut().unwrap().push(scatter());
    spec
}

fn workers_are(fleet: &Fleet<'_>, wanted: impl Fn(u64) -> bool) -> Result<u64, String> {
    let workers = fleet.workers()?;
    let scaling =
        || fleet.condition("ScatterScaling").map(|condition| condition.to_string()).unwrap_or_default();
    if wanted(workers) { Ok(workers) } else { Err(format!("{workers} workers: {}", scaling())) }
}

/// A router whose answers do not reach the operator; dropping it lets them.
struct Silence {
    router: Value,
    operator: String,
}

impl Silence {
    fn over(router: &Value) -> Self {
        let pods = kubectl(&["--namespace", SYSTEM, "get", "pods", "--output=json"]).unwrap();
        let pods: Value = serde_json::from_str(&pods).unwrap();
        let operator = format!("{}/32", text(&items(&pods)[0]["status"]["podIP"]));
        pod_command(router, "hypic-router", &["ip", "route", "add", "blackhole", &operator]).unwrap();
        Self { router: router.clone(), operator }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let back =
            pod_command(&self.router, "hypic-router", &["ip", "route", "del", "blackhole", &self.operator]);
        if let Err(error) = back {
            eprintln!("the router stays silent: {error}");
        }
    }
}

#[test]
fn workers_come_and_go_with_cold_traffic_and_stay_while_a_router_is_silent() {
    let namespace = Namespace::new("e2e-scales");
    let fleet = Fleet::start(&namespace, &scaled(2));
    assert_eq!(fleet.workers().unwrap(), 0);

    let traffic = Traffic::start(&fleet.address(), 2, new_documents);
    wait_for("cold traffic brings a worker", 60, || workers_are(&fleet, |workers| workers > 0));
    wait_for("it is ready", 90, || {
        let ready = fleet.get()?["status"]["summary"]["scatter"].clone();
        if text(&ready).starts_with('0') { Err(ready.to_string()) } else { Ok(()) }
    });
    wait_for("it builds", 60, || match fleet.metric("scatter", "hypic_agent_build_orders_total")? {
        0.0 => Err("no build order was begun".to_owned()),
        _ => Ok(()),
    });
    traffic.all_answered(None);
    wait_for("without traffic it goes", 150, || workers_are(&fleet, |workers| workers == 0));
    wait_for("its pod is gone", 60, || {
        let pods = fleet.pods("scatter")?;
        if pods.is_empty() { Ok(()) } else { Err(format!("{} pods", pods.len())) }
    });
    let events = namespace.events("HypicScatterPool").unwrap();
    for reason in ["Normal ScaledUp: pool scatter: 0", "Normal ScaledDown: "] {
        assert!(events.iter().any(|event| event.starts_with(reason)), "no event '{reason}': {events:#?}");
    }

    let traffic = Traffic::start(&fleet.address(), 2, new_documents);
    let workers = wait_for("cold traffic brings a worker", 60, || workers_are(&fleet, |workers| workers > 0));
    let silence = Silence::over(&fleet.pods("router").unwrap()[0]);
    wait_for("a silent router freezes the number", 30, || fleet.is("ScatterScaling", "False", "Frozen"));
    traffic.all_answered(None);
    for_a_while("nobody goes for want of counters", 40, || {
        workers_are(&fleet, |now| now >= workers)
            .and_then(|_| fleet.is("ScatterScaling", "False", "Frozen"))
            .map(drop)
    });
    let events = namespace.events("HypicCluster").unwrap();
    assert!(events.iter().any(|event| event.starts_with("Warning ScalingFrozen")), "{events:#?}");
    drop(silence);
    wait_for("once it answers again, the number may fall", 60, || fleet.holds("ScatterScaling"));
}

#[test]
fn whoever_scales_the_pool_owns_the_number() {
    let namespace = Namespace::new("e2e-owned");
    let fleet = Fleet::start(&namespace, &scaled(1));
    namespace.kubectl(&["scale", "hypicscatterpool/demo-scatter", "--replicas=1"]).unwrap();
    let told = || fleet.is("ScatterScaling", "False", "ExternallyScaled");
    let message = wait_for("the owner is told", 30, told);
    assert!(message.contains("'kubectl'"), "{message}");
    let pool = |ready: u64| {
        let status = namespace.get("hypicscatterpools", "demo-scatter")?["status"].clone();
        let selector = "hypic.dev/cluster=demo,hypic.dev/pool=scatter,app.kubernetes.io/component=scatter";
        assert_eq!(status["selector"], selector);
        if status["readyReplicas"] == ready && status["replicas"] == ready {
            Ok(())
        } else {
            Err(status.to_string())
        }
    };
    wait_for("one worker is ready", 90, || pool(1));
    for_a_while("the operator leaves it", 30, || {
        workers_are(&fleet, |now| now == 1).and_then(|_| told()).map(drop)
    });

    let target =
        json!({"apiVersion": "hypic.dev/v1alpha1", "kind": "HypicScatterPool", "name": "demo-scatter"});
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
    namespace
        .apply(&json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "scatter"},
            "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3, "metrics": [cpu]},
        }))
        .unwrap();
    wait_for("a HorizontalPodAutoscaler raises it to two", 60, || {
        workers_are(&fleet, |workers| workers == 2)
    });
    wait_for("two workers are ready", 90, || pool(2));
    for_a_while("the operator leaves it", 20, || {
        workers_are(&fleet, |now| now == 2).and_then(|_| told()).map(drop)
    });

    // Given back, it begins with the workers there are; that they are not needed is for the autoscaler to say.
    namespace.delete("horizontalpodautoscaler", "scatter").unwrap();
    namespace.delete("hypicscatterpool", "demo-scatter").unwrap();
    wait_for("the number is the operator's again", 30, || {
        told().err().map(drop).ok_or_else(|| "somebody else's".to_owned())
    });
    wait_for("workers that nobody needs go", 60, || workers_are(&fleet, |workers| workers == 0));
    let events = namespace.events("HypicCluster").unwrap();
    let down = |event: &String| event.starts_with("Normal ScaledDown: pool scatter: 2");
    assert!(events.iter().any(down), "{events:#?}");
}
