//! Without faults: cold, warm, counted.

use hypic_domain::flow::Mode;
use hypic_e2e::fleet::{ANY_MODE_KEY, key_of};
use hypic_e2e::pass::MAX_TOKENS;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::support::{metric, question, start, wait_for, wait_for_index};

#[test]
fn documents_in_another_order_are_answered_from_cached_segments() {
    let tested = start(3, 2);
    let client = tested.fleet.client(&key_of(Mode::Pic));
    let asked = question("6x128-coref-12");
    let shuffled = asked.shuffled(&mut StdRng::seed_from_u64(1));
    let cold = client.ask(&shuffled, MAX_TOKENS, false).unwrap();
    assert_eq!(cold.hypic["segments"]["built"], 6, "{:?}", cold.hypic);
    assert_eq!(cold.count("hit"), 0);
    wait_for_index(&tested, 6);
    let warm = client.ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(warm.hypic["segments"]["built"], 0, "{:?}", warm.hypic);
    assert_eq!(warm.text.trim(), asked.answer);
    let details = &warm.usage["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(details.as_u64(), Some(warm.cached()));
    let sum = ["exact", "hit", "built", "seam", "live"].iter().map(|name| warm.count(name)).sum::<u64>();
    assert_eq!(sum, warm.prompt_tokens());
}

#[test]
fn tenants_share_nothing() {
    let tested = start(1, 0);
    let asked = question("6x128-last-3");
    let one = tested.fleet.client(&key_of(Mode::Pic));
    one.ask(&asked, MAX_TOKENS, false).unwrap();
    wait_for_index(&tested, 6);
    assert_eq!(one.ask(&asked, MAX_TOKENS, false).unwrap().hypic["segments"]["built"], 0);
    let other = tested.fleet.client(ANY_MODE_KEY).with_mode("pic");
    assert_eq!(other.ask(&asked, MAX_TOKENS, false).unwrap().hypic["segments"]["built"], 6);
}

#[test]
fn bytes_moved_are_the_codecs_sizes() {
    let tested = start(1, 2);
    let client = tested.fleet.client(&key_of(Mode::Pic));
    let answer = client.ask(&question("4x256-last-2"), MAX_TOKENS, false).unwrap();
    assert_eq!(answer.hypic["segments"]["built"], 4);
    let combine = tested.fleet.agent_http("combine-0").unwrap();
    let workers = ["scatter-0", "scatter-1"].map(|name| tested.fleet.agent_http(name).unwrap());
    let served =
        || workers.iter().map(|http| metric(http, "hypic_agent_transport_serve_bytes_total")).sum::<f64>();
    wait_for("the last part is counted", || {
        served() == metric(combine, "hypic_agent_transport_pull_bytes_total")
    });
    let pulled = metric(combine, "hypic_agent_transport_pull_bytes_total");
    let received = metric(combine, "hypic_agent_scatter_received_bytes_total");
    assert_eq!(pulled, received, "bytes on the wire, and bytes of parts by their manifests");
    let built = metric(workers[0], "hypic_agent_scatter_built_total")
        + metric(workers[1], "hypic_agent_scatter_built_total");
    assert!(pulled > 0.0 && built > 0.0, "scatter workers built {built} tuples, {pulled} bytes moved");
}

#[test]
fn every_mode_answers_and_recompute_caches_nothing() {
    let tested = start(1, 0);
    let asked = question("4x256-coref-0");
    let mut built = 0;
    for mode in Mode::ALL {
        let client = tested.fleet.client(&key_of(mode));
        let first = client.ask(&asked, MAX_TOKENS, false).unwrap();
        built += first.hypic["segments"]["built"].as_u64().unwrap() as u32;
        wait_for_index(&tested, built);
        let again = client.ask(&asked, MAX_TOKENS, false).unwrap();
        assert_eq!(first.text, again.text, "{}", mode.name());
        match mode {
            Mode::Recompute => assert_eq!(again.cached(), 0),
            Mode::Prefix => assert!(again.count("exact") > 0 && again.count("hit") == 0, "{:?}", again.hypic),
            Mode::Pic | Mode::Add | Mode::Last => assert!(again.count("hit") > 0, "{:?}", again.hypic),
        }
    }
}
