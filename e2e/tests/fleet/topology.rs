//! A topology that changes while the fleet runs.

use hypic_domain::flow::Mode;
use hypic_domain::id::Epoch;
use hypic_e2e::fleet::key_of;
use hypic_e2e::pass::MAX_TOKENS;
use hypic_e2e::push::push;

use crate::support::{metric, question, start, wait_for, wait_for_index};

#[test]
fn slots_move_when_a_combine_agent_leaves_and_nothing_held_elsewhere_is_forgotten() {
    let mut tested = start(3, 1);
    let asked = question("6x128-coref-12");
    let client = tested.fleet.client(&key_of(Mode::Pic));
    client.ask(&asked, MAX_TOKENS, false).unwrap();
    wait_for_index(&tested, 6);
    let composed = |agent: &str| {
        metric(tested.fleet.agent_http(agent).unwrap(), "hypic_agent_compose_orders_total") > 0.0
    };
    let leaves = ["combine-0", "combine-1", "combine-2"].into_iter().find(|agent| !composed(agent)).unwrap();
    let mut smaller = tested.fleet.topology().clone();
    smaller.epoch = Epoch(2);
    smaller.agents.retain(|agent| agent.id.as_str() != leaves);
    let pushed = push(tested.fleet.dir(), &smaller).unwrap();
    assert!(pushed.iter().all(|part| part.accepted && part.epoch == 2), "{pushed:?}");
    tested.fleet.kill(leaves).unwrap();
    for agent in &smaller.agents {
        let http = tested.fleet.agent_http(agent.id.as_str()).unwrap();
        wait_for("every owner knows every holder again", || {
            metric(http, "hypic_agent_lookup_epoch") == 2.0
                && metric(http, "hypic_agent_lookup_holders_partial") == 0.0
        });
    }
    let answer = client.ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(answer.text.trim(), asked.answer);
    assert_eq!(answer.hypic["segments"]["built"], 0, "{:?}", answer.hypic);

    let mut older = smaller.clone();
    older.epoch = Epoch(1);
    let pushed = push(tested.fleet.dir(), &older).unwrap();
    assert!(pushed.iter().all(|part| !part.accepted && part.epoch == 2), "{pushed:?}");
}
