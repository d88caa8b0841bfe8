//! Processes that die at the worst moment. What is right is what the healthy fleet said to another tenant, who
//! shares nothing with the one that is harmed.

use std::io::{BufRead, BufReader};
use std::thread;
use std::time::Duration;

use hypic_domain::flow::Mode;
use hypic_e2e::client::Answer;
use hypic_e2e::fleet::{key_of, show_key_of};
use hypic_e2e::pass::MAX_TOKENS;
use hypic_e2e::questions::Question;
use serde_json::{Value, json};

use crate::support::{Tested, long, metric, question, signal, start, wait_for, wait_for_index};

/// What the fleet says while all is well.
fn healthy(tested: &Tested, asked: &Question) -> String {
    tested.fleet.client(&show_key_of(Mode::Pic)).ask(asked, MAX_TOKENS, false).unwrap().text
}

/// Asks in a thread, waits until `moment`, does `harm`, and gives the answer.
fn ask_and_harm<M>(
    tested: &mut Tested,
    asked: &Question,
    moment: impl Fn(&Tested) -> Option<M>,
    harm: impl FnOnce(&mut Tested, M),
) -> Answer {
    let client = tested.fleet.client(&key_of(Mode::Pic));
    let asked = asked.clone();
    let asking = thread::spawn(move || client.ask(&asked, MAX_TOKENS, false));
    let mut found = None;
    wait_for("the moment to do harm", || {
        found = moment(tested);
        found.is_some() || asking.is_finished()
    });
    let found = found.expect("the request was over before any harm was done");
    harm(tested, found);
    asking.join().unwrap().unwrap()
}

/// The first of `agents` whose `name` is over `least`.
fn busy(tested: &Tested, agents: &[&'static str], name: &str, least: f64) -> Option<&'static str> {
    let value = |agent: &str| metric(tested.fleet.agent_http(agent).unwrap(), name);
    agents.iter().copied().find(|agent| value(agent) > least)
}

#[test]
fn a_scatter_worker_that_dies_in_a_build_costs_time_and_nothing_else() {
    let mut tested = start(1, 2);
    let asked = long("6x128-coref-12", 60);
    let right = healthy(&tested, &asked);
    let workers = ["scatter-0", "scatter-1"];
    let answer = ask_and_harm(
        &mut tested,
        &asked,
        |tested| busy(tested, &workers, "hypic_agent_scatter_builds", 0.0),
        |tested, worker| tested.fleet.kill(worker).unwrap(),
    );
    assert_eq!(answer.text, right);
}

#[test]
fn a_holder_that_dies_in_a_fetch_costs_a_recompute() {
    let mut tested = start(2, 2);
    let asked = long("6x128-coref-12", 60);
    let right = healthy(&tested, &asked);
    let client = tested.fleet.client(&key_of(Mode::Pic));
    client.ask(&asked, MAX_TOKENS, false).unwrap();
    // Whoever composed has all tuples: without it they must come from the workers.
    let composer =
        busy(&tested, &["combine-0", "combine-1"], "hypic_agent_compose_orders_total", 0.0).unwrap();
    tested.fleet.kill(composer).unwrap();
    // A stopped process holds the fetch open; then it dies.
    for worker in ["scatter-0", "scatter-1"] {
        signal(&tested, worker, "STOP");
    }
    let other = if composer == "combine-0" { "combine-1" } else { "combine-0" };
    let answer = ask_and_harm(
        &mut tested,
        &asked,
        |tested| busy(tested, &[other], "hypic_agent_compose_orders_total", 0.0),
        |tested, _| {
            thread::sleep(Duration::from_millis(100));
            for worker in ["scatter-0", "scatter-1"] {
                tested.fleet.kill(worker).unwrap();
            }
        },
    );
    assert_eq!(answer.text, right);
}

#[test]
fn one_of_two_replicas_of_a_slot_can_die_and_no_hit_of_a_living_holder_is_lost() {
    let mut tested = start(3, 2);
    let asked = question("6x128-coref-12");
    let client = tested.fleet.client(&key_of(Mode::Pic));
    assert_eq!(client.ask(&asked, MAX_TOKENS, false).unwrap().hypic["segments"]["built"], 6);
    wait_for_index(&tested, 6);
    let combine = ["combine-0", "combine-1", "combine-2"];
    let composer = busy(&tested, &combine, "hypic_agent_compose_orders_total", 0.0).unwrap();
    let replica = combine.into_iter().find(|agent| *agent != composer).unwrap();
    tested.fleet.kill(replica).unwrap();
    for _ in 0..3 {
        let answer = client.ask(&asked, MAX_TOKENS, false).unwrap();
        assert_eq!(answer.text.trim(), asked.answer);
        assert_eq!(answer.hypic["segments"]["built"], 0, "{:?}", answer.hypic);
    }
}

#[test]
fn an_agent_that_dies_before_the_first_byte_is_replaced() {
    let mut tested = start(2, 0);
    let asked = long("6x128-coref-12", 60);
    let right = healthy(&tested, &asked);
    let answer = ask_and_harm(
        &mut tested,
        &asked,
        |tested| busy(tested, &["combine-0", "combine-1"], "hypic_agent_decode_running", 0.0),
        |tested, agent| tested.fleet.kill(agent).unwrap(),
    );
    assert_eq!(answer.text, right);
}

/// Streams an answer of 200 tokens, calls `at_fifth` after the fifth chunk with text, and gives the text, and
/// the error event if there was one.
fn stream(tested: &mut Tested, key: &str, at_fifth: impl FnOnce(&mut Tested)) -> (String, Option<Value>) {
    let body = json!({
        "model": "hypic-tiny", "stream": true, "temperature": 0, "max_tokens": 200, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Igor permit: heron. What is the permit of Igor?"}],
    });
    let mut response = tested.fleet.client(key).post("/v1/chat/completions", &body).unwrap();
    assert_eq!(response.status(), 200);
    let (mut text, mut chunks, mut harm) = (String::new(), 0, Some(at_fifth));
    for line in BufReader::new(response.body_mut().as_reader()).lines() {
        let line = line.unwrap();
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return (text, None);
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        if chunk.get("error").is_some() {
            return (text, Some(chunk["error"].clone()));
        }
        if let Some(delta) =
            chunk["choices"][0]["delta"]["content"].as_str().filter(|delta| !delta.is_empty())
        {
            text.push_str(delta);
            chunks += 1;
            if chunks == 5
                && let Some(harm) = harm.take()
            {
                harm(tested);
            }
        }
    }
    panic!("the stream ended without [DONE] and without an error event");
}

#[test]
fn an_answer_whose_agent_dies_goes_on_elsewhere_or_ends_with_an_error() {
    let mut tested = start(2, 0);
    let (right, none) = stream(&mut tested, &show_key_of(Mode::Pic), |_| {});
    assert!(none.is_none() && right.len() > 100, "{right:?} {none:?}");
    let (text, error) = stream(&mut tested, &key_of(Mode::Pic), |tested| {
        let agents = ["combine-0", "combine-1"];
        let agent = busy(tested, &agents, "hypic_agent_decode_running", 0.0).unwrap();
        tested.fleet.kill(agent).unwrap();
    });
    match error {
        None => assert_eq!(text, right),
        Some(error) => assert!(right.starts_with(&text) && error["message"].is_string(), "{error}"),
    }
}
