//! What an operator does to a fleet: topologies that name agents and drop them, ends, counters, odd environments.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use hypic_domain::flow::Mode;
use hypic_domain::topology::Topology;
use hypic_e2e::client::Client;
use hypic_e2e::fleet::key_of;
use hypic_e2e::pass::MAX_TOKENS;
use hypic_e2e::push::{counters, push, push_as};

use crate::support::{Tested, binaries, ends_well, metric, question, signal, start, wait_for};

fn get(tested: &Tested, agent: &str, path: &str) -> (u16, String) {
    let address = tested.fleet.agent_http(agent).unwrap();
    Client::new(address, "", "").get(path).unwrap_or_default()
}

fn waits(tested: &Tested, agent: &str, why: &str) -> bool {
    let (status, text) = get(tested, agent, "/readyz");
    status == 503 && text.contains(why)
}

fn is_ready(tested: &Tested, agent: &str) -> bool {
    get(tested, agent, "/readyz").0 == 200
}

/// The fleet's topology at a revision, with or without its worker.
fn topology(tested: &Tested, revision: u64, worker: bool) -> Topology {
    let mut topology = tested.fleet.topology().clone();
    topology.revision = revision;
    topology.agents.retain(|agent| worker || agent.id.as_str() != "scatter-0");
    topology
}

/// Puts a topology where the processes have theirs mounted.
fn mount(tested: &Tested, topology: &Topology) {
    let file = tested.fleet.dir().join("topology.json");
    fs::write(file, serde_json::to_string(topology).unwrap()).unwrap();
}

/// Holders that the one slot owner knows everything of; itself is one.
fn holders(tested: &Tested) -> f64 {
    metric(tested.fleet.agent_http("combine-0").unwrap(), "hypic_agent_lookup_holders_whole")
}

#[test]
fn an_agent_waits_until_a_topology_names_it_and_goes_when_one_drops_it() {
    let mut tested = start(1, 1);
    tested.fleet.kill("scatter-0").unwrap();
    mount(&tested, &topology(&tested, 1, false));
    tested.fleet.start_agent("scatter-0").unwrap();
    wait_for("the agent to wait", || waits(&tested, "scatter-0", "names 'scatter-0'"));
    assert_eq!(get(&tested, "scatter-0", "/healthz").0, 200);
    mount(&tested, &topology(&tested, 2, true));
    wait_for("the agent to be named by its file", || is_ready(&tested, "scatter-0"));
    wait_for("the owner to know it", || holders(&tested) == 2.0);

    wait_for("the router to read the file", || counters(tested.fleet.dir()).unwrap().revision == 2);
    let pushed = push(tested.fleet.dir(), &topology(&tested, 1, true)).unwrap();
    assert!(pushed.iter().all(|part| !part.accepted && part.revision == 2), "{pushed:?}");
    // A push comes to those that the topology names; the dropped one learns it from its file.
    push(tested.fleet.dir(), &topology(&tested, 3, false)).unwrap();
    wait_for("the owner to forget it", || holders(&tested) == 1.0);
    mount(&tested, &topology(&tested, 3, false));
    wait_for("the agent to go", || waits(&tested, "scatter-0", "not in the topology"));
    push(tested.fleet.dir(), &topology(&tested, 4, true)).unwrap();
    wait_for("the agent to stay after all", || is_ready(&tested, "scatter-0"));
    wait_for("the owner to know it again", || holders(&tested) == 2.0);
    // The file is older than the push by now, and undoes nothing.
    mount(&tested, &topology(&tested, 4, false));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(is_ready(&tested, "scatter-0"));
}

#[test]
fn who_is_told_to_end_takes_its_tuples_out_of_the_index_first() {
    let mut tested = start(2, 0);
    let client = tested.fleet.client(&key_of(Mode::Pic));
    client.ask(&question("6x128-coref-12"), MAX_TOKENS, false).unwrap();
    let of = |agent: &str, name: &str| metric(tested.fleet.agent_http(agent).unwrap(), name);
    let composed = of("combine-0", "hypic_agent_compose_orders_total") > 0.0;
    let (holder, owner) = if composed { ("combine-0", "combine-1") } else { ("combine-1", "combine-0") };
    let claims = || of(owner, "hypic_agent_lookup_claims");
    wait_for("the other owner to know the tuples", || claims() >= 6.0);
    signal(&tested, holder, "TERM");
    wait_for("the holder's claims to go", || claims() == 0.0);
    // It is not forgotten, which would take a new topology: it has said itself that it holds nothing any more.
    assert_eq!(of(owner, "hypic_agent_lookup_holders_whole"), 2.0);
    ends_well(&mut tested, holder);
}

#[test]
fn an_owner_that_comes_back_is_ready_once_it_knows_what_the_others_hold() {
    let mut tested = start(2, 0);
    let client = tested.fleet.client(&key_of(Mode::Pic));
    client.ask(&question("6x128-coref-12"), MAX_TOKENS, false).unwrap();
    let of = |tested: &Tested, agent: &str, name: &str| metric(tested.fleet.agent_http(agent).unwrap(), name);
    let composed = of(&tested, "combine-0", "hypic_agent_compose_orders_total") > 0.0;
    let owner = if composed { "combine-1" } else { "combine-0" };
    tested.fleet.kill(owner).unwrap();
    tested.fleet.start_agent(owner).unwrap();
    wait_for("the owner to be back", || is_ready(&tested, owner));
    assert!(of(&tested, owner, "hypic_agent_lookup_claims") >= 6.0);
}

#[test]
fn a_router_without_a_topology_waits_for_a_push() {
    let mut tested = start(1, 0);
    tested.fleet.kill("router").unwrap();
    fs::remove_file(tested.fleet.dir().join("topology.json")).unwrap();
    tested.fleet.start_router().unwrap();
    let ready = |tested: &Tested| tested.fleet.client("").get("/readyz").map_or(0, |(status, _)| status);
    wait_for("the router to start", || ready(&tested) == 503);
    push(tested.fleet.dir(), &topology(&tested, 1, true)).unwrap();
    wait_for("the router to be ready", || ready(&tested) == 200);
}

#[test]
fn the_counters_tell_warm_from_cold_and_know_the_agents() {
    let tested = start(1, 1);
    let read = || counters(tested.fleet.dir()).unwrap();
    let zero = read();
    assert_eq!(
        (zero.requests, zero.segment_tokens, zero.cold_first_token_ms_counts.iter().sum()),
        (0, 0, 0_u64)
    );
    let asked = question("6x128-coref-12");
    tested.fleet.client(&key_of(Mode::Recompute)).ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(read().requests, 0, "what does not compose needs no segment");
    let client = tested.fleet.client(&key_of(Mode::Pic));
    client.ask(&asked, MAX_TOKENS, false).unwrap();
    let cold = read();
    assert_eq!((cold.requests, cold.cold_requests), (1, 1));
    assert!(cold.cold_tokens > 0 && cold.cold_tokens == cold.segment_tokens, "{cold:?}");
    assert_eq!(cold.cold_first_token_ms_counts.iter().sum::<u64>(), 1);
    client.ask(&asked, MAX_TOKENS, false).unwrap();
    let warm = read();
    assert_eq!((warm.requests, warm.cold_requests), (2, 1));
    assert_eq!((warm.segment_tokens, warm.cold_tokens), (2 * cold.segment_tokens, cold.cold_tokens));
    assert_eq!((warm.incarnation, warm.queue_age_seconds), (zero.incarnation, 0.0));
    assert_eq!(metric(tested.fleet.address(), "hypic_router_lookup_requests_total"), 2.0);

    assert_eq!(warm.agents.len(), 2);
    for agent in &warm.agents {
        assert!(agent.usable && agent.build_tokens_per_second > 0.0, "{agent:?}");
        let model = agent.model.as_ref().unwrap();
        assert!(model.linear_layers > 0 && model.linear_layers < model.layers && model.bytes_per_segment > 0);
        assert!(model.live_head_percent <= 100 && model.weights_digest.len() == 64, "{model:?}");
        assert_eq!(model.family, "gdn");
    }
}

#[test]
fn an_agents_certificate_cannot_steer_the_fleet() {
    let tested = start(1, 0);
    let refused = push_as(tested.fleet.dir(), "hypic-agent", tested.fleet.topology()).unwrap_err();
    assert!(format!("{refused:#}").contains("hypic-operator"), "{refused:#}");
}

#[test]
fn variables_of_services_break_no_start() {
    let tested = start(1, 0);
    let file = |name: &str| tested.fleet.dir().join(name);
    let services = ["HYPIC", "HYPIC_ROUTER", "HYPIC_OPERATOR", "HYPIC_THREADS", "HYPIC_LISTEN", "HYPIC_LOG"];
    let router = ["--tenants", "tenants.json", "--secret", "secret", "--listen", "127.0.0.1:0"];
    let agent = ["--id", "nobody", "--http-listen", "127.0.0.1:0", "--bulk-listen", "127.0.0.1:0"];
    for (binary, flags, sign) in
        [("hypic-router", router, "serving"), ("hypic-node-agent", agent, "names 'nobody'")]
    {
        let log = file(&format!("{binary}.log"));
        let mut command = Command::new(binaries().join(binary));
        command.current_dir(tested.fleet.dir()).args([
            "--topology",
            "topology.json",
            "--model",
            "model.json",
        ]);
        command.args(["--plain", "--control-listen", "127.0.0.1:0"]).args(flags);
        for service in services {
            command.env(format!("{service}_PORT"), "tcp://10.96.0.1:80");
            command.env(format!("{service}_SERVICE_HOST"), "10.96.0.1");
            command.env(format!("{service}_PORT_80_TCP_PROTO"), "tcp");
        }
        let errors = fs::File::create(&log).unwrap();
        let mut child = command.stdout(Stdio::null()).stderr(errors).spawn().unwrap();
        wait_for("the process to start", || fs::read_to_string(&log).unwrap().contains(sign));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
