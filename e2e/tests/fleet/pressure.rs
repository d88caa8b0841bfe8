//! More work than fits, clients that go away, readers that stop, processes told to end.

use std::fs;
use std::thread;
use std::time::Duration;

use hypic_domain::flow::Mode;
use hypic_e2e::fleet::{key_of, show_key_of};
use hypic_e2e::pass::MAX_TOKENS;
use serde_json::{Value, json};

use crate::raw::{Held, SilentAsker, StayingAsker};
use crate::support::{Tested, ends_well, metric, question, signal, start_with, wait_for};

/// Gauges of an agent that are zero at rest.
const AT_REST: [&str; 6] = [
    "hypic_agent_decode_running",
    "hypic_agent_decode_queued",
    "hypic_agent_scatter_builds",
    "hypic_agent_compose_rows_ahead",
    "hypic_agent_transport_leases",
    "hypic_agent_lookup_grants",
];
/// Requests that run, and that wait, in the router.
const RUNNING: usize = 8;
const QUEUED: usize = 56;

/// An answer of `tokens` tokens; every `place` has a prompt of its own.
fn endless(place: usize, stream: bool, tokens: u32) -> Value {
    json!({
        "model": "hypic-tiny", "stream": stream, "temperature": 0, "max_tokens": tokens, "ignore_eos": true,
        "messages": [{"role": "user", "content": format!("Igor permit {place}: heron. What is the permit?")}],
    })
}

/// The same with documents that nobody has built.
fn cold(place: usize) -> Value {
    let parts = (0..12).map(|part| {
        let text = format!("Document {place} of part {part}: the permit of Igor is heron. ").repeat(6);
        json!({"type": "text", "text": text})
    });
    let mut body = endless(place, true, 4);
    body["messages"][0]["content"] = parts.collect();
    body
}

/// Everything that a request holds is given back.
fn wait_for_rest(tested: &Tested) {
    let router = tested.fleet.address();
    wait_for("the router at rest", || {
        metric(router, "hypic_router_admit_running") + metric(router, "hypic_router_admit_queued") == 0.0
    });
    for agent in &tested.fleet.topology().agents {
        let http = tested.fleet.agent_http(agent.id.as_str()).unwrap();
        for gauge in AT_REST {
            wait_for(&format!("{gauge} of {} at rest", agent.id), || metric(http, gauge) == 0.0);
        }
        for (free, all) in [("slots_free", "slots"), ("pages_free", "pages")] {
            let value = |name| metric(http, &format!("hypic_agent_decode_{name}"));
            wait_for(&format!("{free} of {} as at the start", agent.id), || value(free) == value(all));
        }
    }
}

#[test]
fn clients_that_go_away_leave_nothing_behind() {
    let tested = start_with(1, 1, |options| {
        options.router_flags =
            ["--running", &RUNNING.to_string(), "--queued", &QUEUED.to_string()].map(str::to_owned).to_vec();
        options.agent_flags = ["--slots", "4"].map(str::to_owned).to_vec();
    });
    let (router, key) = (tested.fleet.address(), key_of(Mode::Pic));
    let send = |body: &Value| Held::chat(router, &key, body);
    let drawn = || metric(tested.fleet.agent_http("combine-0").unwrap(), "hypic_agent_decode_tokens_total");

    // Unstreamed: nothing has come back yet when they go, some of them while they are still queued.
    let held: Vec<Held> = (0..50).map(|place| send(&endless(place, false, 4000))).collect();
    wait_for("work under way, and a queue", || {
        drawn() > 20.0 && metric(router, "hypic_router_admit_queued") > 0.0
    });
    drop(held);
    wait_for_rest(&tested);

    // Streamed, closed after a chunk.
    for place in 0..50 {
        send(&endless(place, true, 4000)).until("data: ");
    }
    wait_for_rest(&tested);

    // In the middle of a cold build on the worker.
    let worker = tested.fleet.agent_http("scatter-0").unwrap();
    let held: Vec<Held> = (0..20).map(|place| send(&cold(place))).collect();
    wait_for("builds under way", || metric(worker, "hypic_agent_scatter_builds") > 0.0);
    drop(held);
    wait_for_rest(&tested);

    // A full queue is a status, and takes nothing.
    let held: Vec<Held> = (0..RUNNING + QUEUED).map(|place| send(&endless(place, true, 4000))).collect();
    wait_for("a full queue", || metric(router, "hypic_router_admit_queued") == QUEUED as f64);
    let refused = tested.fleet.client(&key).post("/v1/chat/completions", &endless(0, true, 4)).unwrap();
    assert_eq!(refused.status(), 429);
    let retry = refused.headers().get("retry-after").unwrap().to_str().unwrap();
    assert!(retry.parse::<u64>().unwrap() >= 1);
    drop(held);
    wait_for_rest(&tested);

    // Tokens stop with their readers, and the next one is served.
    let before = drawn();
    let asked = question("6x128-coref-12");
    let answer = tested.fleet.client(&key).ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(answer.text.trim(), asked.answer);
    assert!(drawn() - before <= f64::from(MAX_TOKENS));
}

/// Resident bytes of a process.
fn resident(tested: &Tested, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", tested.fleet.pids()[name])).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn readers_that_stop_hold_constant_memory_and_hold_up_nobody() {
    let tested = start_with(1, 0, |_| {});
    let agent = tested.fleet.agent_http("combine-0").unwrap();
    let key = key_of(Mode::Pic);
    let asked = question("6x128-coref-12");
    let right = tested.fleet.client(&show_key_of(Mode::Pic)).ask(&asked, MAX_TOKENS, false).unwrap().text;

    // Scores make each answer some 40 MB, far more than the sockets take.
    let mut body = endless(0, true, 15_000);
    (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(20));
    let mut held: Vec<Held> = (0..3).map(|_| Held::chat(tested.fleet.address(), &key, &body)).collect();
    for stream in &mut held {
        stream.until("data: ");
    }
    let before = ["router", "combine-0"].map(|name| resident(&tested, name));
    let drawn = || metric(agent, "hypic_agent_decode_tokens_total");
    let mut last = 0.0;
    while last < drawn() {
        last = drawn();
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(metric(agent, "hypic_agent_decode_running"), 3.0, "no stopped reader was served to the end");
    for (name, before) in ["router", "combine-0"].iter().zip(before) {
        let grown = resident(&tested, name).saturating_sub(before);
        assert!(grown < 48 << 20, "{name} grew by {grown} bytes");
    }
    let answer = tested.fleet.client(&key).ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(answer.text, right);
    drop(held);
    wait_for_rest(&tested);
}

#[test]
fn processes_told_to_end_finish_their_streams_first() {
    let mut tested = start_with(1, 1, |_| {});
    let mut stream = Held::chat(tested.fleet.address(), &key_of(Mode::Pic), &endless(0, true, 300));
    stream.until("data: ");
    for name in ["router", "combine-0", "scatter-0"] {
        signal(&tested, name, "TERM");
    }
    let text = stream.until("[DONE]");
    assert!(text.contains("\"finish_reason\":\"length\"") && !text.contains("\"error\""), "{text}");
    drop(stream);
    for name in ["router", "combine-0", "scatter-0"] {
        ends_well(&mut tested, name);
    }
}

#[test]
fn an_agent_told_to_end_stays_until_its_answers_are_taken() {
    let mut tested = start_with(1, 0, |_| {});
    let mut stream = Held::chat(tested.fleet.address(), &key_of(Mode::Pic), &endless(0, true, 300));
    stream.until("data: ");
    // Nobody reads until the last token is drawn.
    signal(&tested, "router", "STOP");
    signal(&tested, "combine-0", "TERM");
    let agent = tested.fleet.agent_http("combine-0").unwrap().to_owned();
    wait_for("the answer to be drawn", || metric(&agent, "hypic_agent_decode_running") == 0.0);
    thread::sleep(Duration::from_millis(500));
    signal(&tested, "router", "CONT");
    let text = stream.until("[DONE]");
    assert!(text.contains("\"finish_reason\":\"length\"") && !text.contains("\"error\""), "{text}");
    ends_well(&mut tested, "combine-0");
}

#[test]
fn an_agent_told_to_end_waits_for_no_asker_whose_build_has_ended() {
    let mut tested = start_with(1, 1, |options| {
        options.agent_flags = ["--drain-seconds", "600"].map(str::to_owned).to_vec();
    });
    let stays = StayingAsker::build(&tested, "scatter-0");
    signal(&tested, "scatter-0", "TERM");
    // At the end of the drain, calls are cut.
    ends_well(&mut tested, "scatter-0");
    drop(stays);
}

#[test]
fn an_agent_told_to_end_waits_for_no_asker_that_says_nothing() {
    let mut tested = start_with(1, 1, |options| {
        options.agent_flags = ["--drain-seconds", "600"].map(str::to_owned).to_vec();
    });
    let silent = SilentAsker::open(&tested, "scatter-0");
    signal(&tested, "scatter-0", "TERM");
    let refused = silent.wait();
    assert!(refused.contains("Timeout expired"), "{refused}");
    ends_well(&mut tested, "scatter-0");
}

#[test]
fn an_agent_told_to_end_takes_no_order_of_a_call_that_was_open_before() {
    let mut tested = start_with(1, 1, |_| {});
    let late = SilentAsker::open(&tested, "scatter-0");
    signal(&tested, "scatter-0", "TERM");
    wait_for("the agent to drain", || tested.fleet.log("scatter-0").unwrap().contains("draining"));
    let refused = late.start();
    assert!(refused.contains("draining"), "{refused}");
    ends_well(&mut tested, "scatter-0");
}

#[test]
fn the_deadline_ends_a_request_and_frees_what_it_held() {
    let tested = start_with(1, 1, |options| {
        options.router_flags = ["--deadline-seconds", "1"].map(str::to_owned).to_vec();
    });
    let client = tested.fleet.client(&key_of(Mode::Pic));
    let mut reply = client.post("/v1/chat/completions", &endless(0, false, 15_000)).unwrap();
    let text = reply.body_mut().read_to_string().unwrap();
    assert_eq!(reply.status(), 504, "{text}");
    let mut stream = Held::chat(tested.fleet.address(), &key_of(Mode::Pic), &endless(1, true, 15_000));
    stream.until("\"code\":\"deadline_exceeded\"");
    wait_for_rest(&tested);
}
