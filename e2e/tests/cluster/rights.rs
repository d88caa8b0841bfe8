//! Who may do and reach what: the operator, strangers, and clusters of the same name.

use hypic_domain::topology::Topology;
use hypic_wire::channel::Channels;
use hypic_wire::steer::Adopted;
use hypic_wire::tls::{ServerRole, TlsPem};
use serde_json::{Value, json};

use crate::support::{
    Fleet, Namespace, OPERATOR, SYSTEM, cluster, items, kubectl, pod_command, question, text, wait_for,
};

/// What an account may do in a namespace, sorted: one line per rule, what every account may do left out.
fn rights(namespace: &str, account: &str) -> String {
    let list = |account: &str| {
        let who = format!("--as={account}");
        let table = kubectl(&["auth", "can-i", "--list", "--namespace", namespace, &who]).unwrap();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        table.lines().skip(1).map(words).collect::<Vec<String>>()
    };
    let anybody = list("system:serviceaccount:default:default");
    let mut own: Vec<String> = list(account).into_iter().filter(|rule| !anybody.contains(rule)).collect();
    own.sort();
    own.join("\n")
}

/// Lines in order.
fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn the_operator_may_do_what_it_needs_and_nothing_else() {
    let namespace = Namespace::new("e2e-rights");
    let everywhere = include_str!("rights/everywhere.txt");
    assert_eq!(rights(&namespace.name, OPERATOR), sorted(everywhere));
    let at_home = format!("{everywhere}{}", include_str!("rights/at_home.txt"));
    assert_eq!(rights(SYSTEM, OPERATOR), sorted(&at_home));
    let fleet = Fleet::apply(&namespace, &cluster("demo", 1, 1));
    wait_for("the fleet's account is there", 30, || namespace.get("serviceaccount", "demo").map(drop));
    let account = format!("system:serviceaccount:{}:{}", namespace.name, fleet.name);
    assert_eq!(rights(&namespace.name, &account), "", "agents and routers need no rights");
}

/// A pod that does nothing, as strict as the namespace asks for.
fn stranger(namespace: &Namespace, labels: Value) -> Value {
    let container = json!({
        "name": "pause",
        "image": "hypic.dev/pause:1",
        "imagePullPolicy": "Never",
        "securityContext": {
            "runAsUser": 65535, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        },
    });
    let name = if labels == json!({}) { "stranger" } else { "friend" };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    });
    namespace.apply(&pod).unwrap();
    wait_for(&format!("a {name} runs in {}", namespace.name), 60, || {
        let pod = namespace.get("pod", name)?;
        if pod["status"]["phase"] == "Running" { Ok(pod) } else { Err(pod["status"].to_string()) }
    })
}

/// Whether a connection from a pod to a port comes about.
fn reaches(from: &Value, program: &str, to: &Value, port: u16) -> Result<(), String> {
    let dial = format!("</dev/tcp/{}/{port}", text(&to["status"]["podIP"]));
    pod_command(from, program, &["timeout", "2", "bash", "-c", &dial]).map(drop)
}

#[test]
fn agents_are_reached_by_the_fleet_and_the_operator_alone() {
    let namespace = Namespace::new("e2e-walls");
    let fleet = Fleet::start(&namespace, &cluster("demo", 1, 1));
    let pod = |pool: &str| fleet.pods(pool).unwrap()[0].clone();
    let (agent, router) = (pod("combine"), pod("router"));
    let other = namespace.another("e2e-walls-out");
    let outside = stranger(&other, json!({}));
    let inside = stranger(&namespace, json!({}));
    let friend = stranger(&namespace, json!({"hypic.dev/cluster": "demo"}));
    let system = kubectl(&["--namespace", SYSTEM, "get", "pods", "--output=json"]).unwrap();
    let operator = items(&serde_json::from_str::<Value>(&system).unwrap())[0].clone();

    let pause = "/pause";
    for (from, program, to, port, may) in [
        (&friend, pause, &agent, 7400, true),
        (&friend, pause, &agent, 7401, true),
        (&router, "hypic-router", &agent, 7400, true),
        (&operator, "hypic-operator", &agent, 7400, true),
        (&operator, "hypic-operator", &router, 7400, true),
        (&outside, pause, &router, 8080, true),
        (&inside, pause, &router, 8080, true),
        (&outside, pause, &agent, 7402, true),
        (&outside, pause, &agent, 7400, false),
        (&outside, pause, &agent, 7401, false),
        (&outside, pause, &router, 7400, false),
        (&inside, pause, &agent, 7400, false),
        (&inside, pause, &agent, 7401, false),
        (&inside, pause, &router, 7400, false),
        (&friend, pause, &router, 7400, false),
        (&operator, "hypic-operator", &agent, 7401, false),
        (&operator, "hypic-operator", &router, 8080, false),
    ] {
        let [from_name, to_name] = [from, to].map(|pod| text(&pod["metadata"]["name"]));
        let what =
            format!("{from_name} {} {to_name} at {port}", if may { "reaches" } else { "does not reach" });
        // Policies are enforced a moment after their pods run.
        wait_for(&what, 20, || match (reaches(from, program, to, port), may) {
            (Ok(()), true) | (Err(_), false) => Ok(()),
            (Ok(()), false) => Err("it does".to_owned()),
            (Err(error), true) => Err(error),
        });
    }
}

/// A key of a Secret.
fn secret(namespace: &Namespace, name: &str, key: &str) -> String {
    let template = format!("--output=go-template={{{{index .data \"{key}\" | base64decode}}}}");
    namespace.kubectl(&["get", "secret", name, &template]).unwrap()
}

#[test]
fn clusters_of_one_name_in_two_namespaces_do_not_see_each_other() {
    let one = Namespace::new("e2e-twin-a");
    let two = one.another("e2e-twin-b");
    let mut spec = cluster("demo", 1, 1);
    // The lab itself shall reach the agents: certificates alone have to keep it out.
    spec["spec"]["security"]["networkPolicies"] = json!("Disabled");
    let [first, second] = [&one, &two].map(|namespace| Fleet::apply(namespace, &spec));
    for fleet in [&first, &second] {
        fleet.wait_ready();
        assert_eq!(fleet.pods("combine").unwrap().len(), 1);
        fleet.answers(&question()).unwrap();
    }
    for (name, key) in [("demo-ca", "ca.crt"), ("demo-fleet", "secret"), ("demo-agent-tls", "tls.crt")] {
        assert_ne!(secret(&one, name, key), secret(&two, name, key), "{name}");
    }
    let topology = |namespace: &Namespace| -> Topology {
        let map = namespace.get("configmap", "demo-topology").unwrap();
        serde_json::from_str(text(&map["data"]["topology.json"])).unwrap()
    };
    for (namespace, own) in [(&one, "e2e-twin-a"), (&two, "e2e-twin-b")] {
        let addresses: Vec<String> =
            topology(namespace).agents.into_iter().map(|agent| agent.control).collect();
        assert_eq!(addresses, [format!("demo-combine-0.demo-agents.{own}.svc:7400")]);
    }

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The same topology once more changes nothing.
    let push = |identity: &Namespace, trusted: &Namespace, to: &Fleet<'_>| {
        let key = |key: &str| secret(identity, "demo-router-tls", key);
        let pem =
            TlsPem { cert: key("tls.crt"), key: key("tls.key"), ca: secret(trusted, "demo-ca", "ca.crt") };
        let address = format!("{}:7400", text(&to.pods("combine").unwrap()[0]["status"]["podIP"]));
        let topology = topology(to.namespace);
        let channels = Channels::new(pem.load().unwrap());
        let adopted = runtime.block_on(channels.push_topology(&address, ServerRole::Agent, &topology));
        adopted.map(|Adopted { epoch, .. }| epoch.0).map_err(|error| error.to_string())
    };
    assert_eq!(push(&one, &one, &first), Ok(1), "a router of the fleet");
    push(&two, &one, &first).expect_err("a router of another fleet that knows this one's CA");
    push(&one, &two, &first).expect_err("an agent of another fleet");

    let lives = first.lives().unwrap();
    two.delete("hypiccluster", "demo").unwrap();
    wait_for("the other is gone", 60, || match second.pods("combine")?.len() {
        0 => Ok(()),
        pods => Err(format!("{pods} pods")),
    });
    assert_eq!(first.lives().unwrap(), lives);
    first.answers(&question()).unwrap();
}
