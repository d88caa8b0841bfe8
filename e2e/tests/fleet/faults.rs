//! Processes that die at the worst moment.

use std::thread;

use hypic_domain::flow::Mode;
use hypic_e2e::client::Answer;
use hypic_e2e::fleet::key_of;
use hypic_e2e::pass::MAX_TOKENS;
use hypic_e2e::questions::Question;

use crate::support::{Tested, long, metric, question, start, wait_for};

/// Asks in a thread, waits until `moment`, does `harm`, and gives the answer.
fn ask_and_harm(
    tested: &mut Tested,
    asked: &Question,
    moment: impl Fn(&Tested) -> bool,
    harm: impl FnOnce(&mut Tested),
) -> anyhow::Result<Answer> {
    let client = tested.fleet.client(&key_of(Mode::Pic));
    let asked = asked.clone();
    let asking = thread::spawn(move || client.ask(&asked, MAX_TOKENS, false));
    wait_for("the moment to do harm", || moment(tested) || asking.is_finished());
    assert!(!asking.is_finished(), "the request was over before any harm was done");
    harm(tested);
    asking.join().unwrap()
}

fn builds(tested: &Tested, agent: &str) -> f64 {
    metric(tested.fleet.agent_http(agent).unwrap(), "hypic_agent_scatter_builds")
}

#[test]
fn a_scatter_worker_that_dies_in_a_build_costs_time_and_nothing_else() {
    let mut tested = start(1, 2);
    let asked = long("6x128-coref-12", 60);
    let answer = ask_and_harm(
        &mut tested,
        &asked,
        |tested| builds(tested, "scatter-0") > 0.0,
        |tested| tested.fleet.kill("scatter-0").unwrap(),
    );
    assert_eq!(answer.unwrap().text.trim(), asked.answer);
    let next = question("6x128-coref-9");
    let after = tested.fleet.client(&key_of(Mode::Pic)).ask(&next, MAX_TOKENS, false).unwrap();
    assert_eq!(after.prompt_tokens(), after.count("built") + after.count("seam") + after.count("live") + after.cached());
}

#[test]
fn a_dead_holder_costs_a_recompute() {
    let mut tested = start(2, 2);
    let client = tested.fleet.client(&key_of(Mode::Pic));
    let asked = question("6x128-coref-12");
    client.ask(&asked, MAX_TOKENS, false).unwrap();
    for holder in ["scatter-0", "scatter-1"] {
        tested.fleet.kill(holder).unwrap();
    }
    let answer = client.ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(answer.text.trim(), asked.answer);
}

#[test]
fn one_of_two_replicas_of_a_slot_can_die_and_no_living_holder_is_forgotten() {
    let mut tested = start(3, 2);
    let client = tested.fleet.client(&key_of(Mode::Pic));
    let asked = question("6x128-coref-12");
    let first = client.ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(first.hypic["segments"]["built"], 6);
    // The workers that built them hold them; whoever composed may be the one that dies.
    tested.fleet.kill("combine-2").unwrap();
    let answer = client.ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(answer.text.trim(), asked.answer);
    assert_eq!(answer.hypic["segments"]["built"], 0, "{:?}", answer.hypic);
}

#[test]
fn an_agent_that_dies_before_the_first_byte_is_replaced() {
    let mut tested = start(2, 0);
    let asked = long("6x128-coref-12", 60);
    let running = |tested: &Tested, name: &str| {
        metric(tested.fleet.agent_http(name).unwrap(), "hypic_agent_decode_running") > 0.0
    };
    let answer = ask_and_harm(
        &mut tested,
        &asked,
        |tested| running(tested, "combine-0") || running(tested, "combine-1"),
        |tested| {
            let victim = if running(tested, "combine-0") { "combine-0" } else { "combine-1" };
            tested.fleet.kill(victim).unwrap();
        },
    );
    assert_eq!(answer.unwrap().text.trim(), asked.answer);
}
