//! The autoscaler against a virtual fleet, an hour each. To see the table:
//! `cargo test -p hypic-operator --test scaling sim -- --nocapture --test-threads 1`.

mod fleet;

use fleet::{Outcome, Setup, run};
use hypic_crds::scaling::Scaling;
use hypic_operator::scaling::Reason;

use super::scene::between;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Runs once per seed and looks at each run. Prints most and last workers wanted, how often that changed and
/// turned round, and 95th percentiles of first tokens of cold requests, in ms, of the hour and of its last ten
/// minutes.
fn simulate(name: &str, setup: &Setup, policy: &Scaling, look: impl Fn(&Outcome)) {
    for seed in SEEDS {
        let outcome = run(setup.clone(), policy, seed);
        let (changes, turns) = (outcome.changes(0, 3600), outcome.turns());
        let (all, late) = (outcome.p95(0, 3600), outcome.p95(3000, 3600));
        let (peak, end) = (outcome.peak(), outcome.end());
        let row = format!("| {name} | {peak} | {end} | {changes} | {turns} | {all} | {late} |");
        println!("{row} {seed} |");
        look(&outcome);
    }
}

fn policy() -> Scaling {
    between(0, 16)
}

fn with_slo(ms: i32) -> Scaling {
    Scaling { first_token_target_milliseconds: Some(ms), ..policy() }
}

/// Six requests a second with 2400 cold tokens each are 5.1 workers' at 70 % of 4000 tokens/s.
#[test]
fn steady_traffic_settles() {
    simulate("steady", &Setup::default(), &policy(), |outcome| {
        assert!((6..=7).contains(&outcome.end()));
        assert!(outcome.changes(900, 3600) <= 8 && outcome.turns() <= 6);
        assert!(outcome.p95(3000, 3600) <= 1000);
    });
}

#[test]
fn a_step_is_followed_within_minutes() {
    let trace = |at| (if at < 900 { 2.0 } else { 9.0 }, 0.3);
    simulate("step", &Setup { trace, ..Setup::default() }, &policy(), |outcome| {
        assert!(outcome.least(1080, 3600) >= 7, "7.7 workers' work, with a tolerance of a tenth");
        assert!(outcome.peak() <= 12 && outcome.turns() <= 6);
        assert!(outcome.p95(3000, 3600) <= 1000);
    });
}

#[test]
fn a_burst_is_followed_and_left_slowly() {
    let trace = |at| (if (900..960).contains(&at) { 16.0 } else { 3.0 }, 0.3);
    simulate("burst", &Setup { trace, ..Setup::default() }, &policy(), |outcome| {
        assert!(outcome.peak() >= 7);
        assert!(outcome.least(960, 1200) >= outcome.least(955, 960), "nothing goes for a window");
        assert!((3..=4).contains(&outcome.end()) && outcome.turns() <= 6);
    });
}

#[test]
fn traffic_that_flaps_around_the_gate_does_not_flap_the_pool() {
    let trace = |at| (6.0, if at / 60 % 2 == 0 { 0.04 } else { 0.06 });
    simulate("flapping around the gate", &Setup { trace, ..Setup::default() }, &policy(), |outcome| {
        assert!(outcome.changes(0, 3600) <= 8, "sixty times over and under in the trace");
        assert!(outcome.least(300, 3600) >= 1 && outcome.peak() <= 2);
    });
}

#[test]
fn traffic_that_flaps_around_a_whole_number_does_not_flap_the_pool() {
    let trace = |at| (if at / 90 % 2 == 0 { 4.0 } else { 5.0 }, 0.3);
    simulate("flapping around a number", &Setup { trace, ..Setup::default() }, &policy(), |outcome| {
        assert!(outcome.changes(600, 3600) <= 8, "forty times up and down in the trace");
        assert!(outcome.turns() <= 6 && (5..=6).contains(&outcome.end()));
    });
}

#[test]
fn a_silent_router_freezes_and_is_forgiven() {
    let trace = |at| (if at < 900 { 8.0 } else { 2.0 }, 0.3);
    let answers = |router, at| router != 1 || !(800..2400).contains(&at);
    simulate("a silent router", &Setup { trace, answers, ..Setup::default() }, &policy(), |outcome| {
        assert_eq!(outcome.changes(820, 2700), 0, "not lowered in the silence nor for a window after it");
        assert!(outcome.end() <= 3);
    });
}

#[test]
fn a_restart_of_the_operator_changes_nothing_at_once() {
    let trace = |at| (if at < 1800 { 8.0 } else { 2.0 }, 0.3);
    let setup = Setup { trace, restart: Some(1900), ..Setup::default() };
    simulate("the operator restarts", &setup, &policy(), |outcome| {
        assert_eq!(outcome.changes(1900, 2200), 0);
        assert!(outcome.end() <= 3);
    });
}

#[test]
fn from_zero_and_back() {
    let trace = |at| (if (900..1800).contains(&at) { 4.0 } else { 0.0 }, 0.3);
    simulate("from zero and back to zero", &Setup { trace, ..Setup::default() }, &policy(), |outcome| {
        assert_eq!(outcome.changes(0, 900), 0);
        assert!(outcome.least(915, 2000) >= 1, "awake within three pulls");
        assert!(outcome.peak() >= 4 && outcome.end() == 0);
        assert_eq!(outcome.last.as_ref().unwrap().reason, Reason::BelowColdShare);
    });
}

/// Told 4000 tokens/s, building 2000: 10.3 workers' work, where what is told asks for 5.1.
#[test]
fn workers_slower_than_told_are_found_out() {
    let setup = Setup { speed: 2000.0, ..Setup::default() };
    simulate("workers slower than told", &setup, &policy(), |outcome| {
        assert!((9..=13).contains(&outcome.end()) && outcome.changes(0, 3600) <= 24);
        assert!(outcome.p95(3000, 3600) <= 1500);
    });
    simulate("slower than told, SLO 1000 ms", &setup, &with_slo(1000), |outcome| {
        assert!(outcome.p95(3000, 3600) <= 1000);
    });
}

#[test]
fn an_slo_is_met_with_more_workers_than_demand_needs() {
    simulate("SLO 700 ms", &Setup::default(), &with_slo(700), |outcome| {
        assert!(outcome.end() > 6 && outcome.turns() <= 6);
        assert!(outcome.p95(3000, 3600) <= 700);
    });
}

#[test]
fn an_slo_that_workers_cannot_meet_does_not_run_to_the_maximum() {
    simulate("SLO 100 ms, out of reach", &Setup::default(), &with_slo(100), |outcome| {
        assert!(outcome.peak() < 16 && outcome.changes(1800, 3600) <= 10);
    });
}

/// At 100 % use demand alone asks for four workers that are nearly always busy, and the queue grows.
#[test]
fn a_bound_on_the_queue_is_kept() {
    let full = Scaling { target_utilization_percent: 100, ..policy() };
    let setup = Setup { admitted: 6, ..Setup::default() };
    simulate("100 % use", &setup, &full, |outcome| assert!(outcome.p95(3000, 3600) > 1000));
    let bounded = Scaling { max_queue_age_milliseconds: Some(500), ..full };
    simulate("100 % use, queue 500 ms", &setup, &bounded, |outcome| {
        assert!((5..=8).contains(&outcome.end()) && outcome.p95(3000, 3600) <= 1000);
        assert!(outcome.turns() <= 8);
    });
}

#[test]
fn workers_that_start_slowly_are_waited_for() {
    let setup = Setup { start_up: 240, ..Setup::default() };
    simulate("240 s to start, SLO 1000 ms", &setup, &with_slo(1000), |outcome| {
        assert!(outcome.peak() <= 12, "one more for each pull in the start would be the maximum");
        assert!(outcome.end() <= 8 && outcome.p95(3000, 3600) <= 1000);
    });
}

#[test]
fn replacing_a_router_changes_nothing() {
    simulate(
        "a router is replaced",
        &Setup { replace: Some(1800), ..Setup::default() },
        &policy(),
        |outcome| {
            assert!(outcome.changes(1795, 1900) <= 1, "no more than the noise of its traffic");
            assert!(outcome.turns() <= 6);
        },
    );
}
