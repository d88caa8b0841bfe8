//! The law and its limits, one case a row.

use hypic_crds::scaling::Scaling;
use hypic_operator::scaling::Reason::{
    AtMaximum, AtMinimum, BelowColdShare, Demand, Frozen, NoSpeedKnown, QueueAge, ScaledToZero, SloFloor,
    Stabilized, StepLimited, WaitingForWindow, WithinTolerance,
};
use hypic_operator::scaling::{Freshness, Reason, Signal};

use super::scene::Scene;

fn slo(policy: &mut Scaling) {
    policy.first_token_target_milliseconds = Some(2000);
}

fn queue(policy: &mut Scaling) {
    policy.max_queue_age_milliseconds = Some(500);
}

fn p95(ms: f64) -> impl FnOnce(&mut Signal) {
    move |signal| signal.cold_p95_ms = Some(ms)
}

fn stale(signal: &mut Signal) {
    signal.freshness = Freshness::Stale { router: "r2".into() };
}

fn at_least_two(policy: &mut Scaling) {
    policy.min_replicas = 2;
}

fn one_a_minute_down(policy: &mut Scaling) {
    policy.scale_down.percent = 0;
}

/// Name, scene, what is desired, what was asked for, why.
type Row = (&'static str, Scene, i32, i32, Reason);

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    let at = Scene::at;
    let restarted = Scene::restarted;
    vec![
        // Demand.
        ("demand that fits changes nothing",        at(4).needs(4.0),                              4, 4, Demand),
        ("a part of a worker is a worker",          at(2).needs(2.5),                              3, 3, Demand),
        ("up at once",                              at(4).needs(7.2),                              8, 8, Demand),
        ("a little over is within tolerance",       at(10).needs(10.9),                           10, 10, WithinTolerance),
        ("more than a little is not",               at(10).needs(11.1),                           12, 12, Demand),
        ("a little under is within tolerance",      at(10).needs(9.0).after(305, 9.0),            10, 10, WithinTolerance),
        ("workers that start change no demand",     at(4).needs(4.0).but(|s| s.usable_workers = 1), 4, 4, Demand),
        ("a slow worker is asked for twice as often", at(4).needs(4.0).but(|s| s.tokens_per_second_per_worker = Some(500.0)), 8, 8, Demand),
        ("fuller use needs fewer",                  restarted(1).needs(4.0).under(|p| p.target_utilization_percent = 100), 3, 3, Demand),
        // Speed.
        ("no speed at zero: one worker to learn it", at(0).needs(3.0).but(|s| s.tokens_per_second_per_worker = None), 1, 1, NoSpeedKnown),
        ("no speed: as many as there are",          at(4).needs(9.0).but(|s| s.tokens_per_second_per_worker = None), 4, 4, NoSpeedKnown),
        ("a speed of nothing is no speed",          at(4).needs(9.0).but(|s| s.tokens_per_second_per_worker = Some(0.0)), 4, 4, NoSpeedKnown),
        // The gate.
        ("zero stays zero below the gate",          at(0).needs(6.0).share(4.9),                   0, 0, BelowColdShare),
        ("zero wakes at the gate",                  at(0).needs(3.0).share(5.0),                   3, 3, Demand),
        ("zero wakes by four at most",              at(0).needs(9.0),                              4, 9, StepLimited),
        ("above the minimum half the gate counts", at(4).needs(4.0).share(2.5),                   4, 4, Demand),
        ("below half the gate nothing is needed",  at(4).needs(4.0).share(2.4),                   4, 0, Stabilized),
        ("at the minimum all of it counts",    at(2).under(at_least_two).needs(6.0).share(4.0).after(305, 0.0), 2, 0, AtMinimum),
        ("a gate of zero is always open",           at(0).needs(2.0).share(0.1).under(|p| p.activation_cold_share_percent = 0), 2, 2, Demand),
        ("no traffic is below a gate of zero",      at(0).needs(0.0).under(|p| p.activation_cold_share_percent = 0), 0, 0, BelowColdShare),
        // Down.
        ("down waits for the window",               at(4).needs(2.0),                              4, 2, Stabilized),
        ("and not a second less",                   at(4).needs(2.0).after(295, 2.0),              4, 2, Stabilized),
        ("down after the window",                   at(4).needs(2.0).after(305, 2.0),              2, 2, Demand),
        ("down to the highest of the window",       at(4).needs(1.0).after(200, 3.0).after(200, 1.0), 3, 1, Stabilized),
        ("down by half at most",                    at(12).needs(2.0).after(305, 2.0),             6, 2, StepLimited),
        ("down by one a minute",                    at(4).under(one_a_minute_down).needs(1.0).after(305, 1.0), 3, 1, StepLimited),
        ("not again in the same minute",            at(4).under(one_a_minute_down).needs(1.0).after(305, 1.0).moved_to(3, 10).needs(1.0).after(5, 1.0), 3, 1, Stabilized),
        ("after a restart down waits for a window", restarted(4).needs(2.0).after(200, 2.0),       4, 2, WaitingForWindow),
        ("after a restart up does not wait",        restarted(4).needs(8.0),                       8, 8, Demand),
        ("an upward window waits too",              restarted(4).needs(8.0).under(|p| p.scale_up.stabilization_window_seconds = 60), 4, 8, WaitingForWindow),
        ("an upward window takes the lowest",       at(4).needs(8.0).under(|p| p.scale_up.stabilization_window_seconds = 60), 4, 8, Stabilized),
        ("up after an upward window",               at(4).needs(8.0).under(|p| p.scale_up.stabilization_window_seconds = 60).after(65, 8.0), 8, 8, Demand),
        // Zero.
        ("idle: the last worker waits",             at(1).needs(0.0).after(200, 0.0),              1, 0, Stabilized),
        ("idle long enough: none",                  at(1).needs(0.0).after(305, 0.0),              0, 0, ScaledToZero),
        ("a longer idleness is waited for",         at(1).needs(0.0).under(|p| p.idle_seconds = 900).after(600, 0.0), 1, 0, BelowColdShare),
        ("cold under the gate is idle",             at(1).needs(1.0).share(1.0).under(|p| p.idle_seconds = 0), 1, 0, Stabilized),
        ("with a minimum there is no zero",         at(2).under(at_least_two).needs(0.0).after(305, 0.0), 2, 0, AtMinimum),
        ("many idle workers go by halves",          at(8).needs(0.0).after(305, 0.0),              4, 0, StepLimited),
        // Bounds.
        ("no more than the maximum",                at(15).needs(25.0),                           20, 25, AtMaximum),
        ("a lowered maximum holds at once",         at(8).needs(8.0).under(|p| p.max_replicas = 5), 5, 8, AtMaximum),
        ("a raised minimum holds at once",          at(1).needs(1.0).under(|p| p.min_replicas = 6), 6, 1, AtMinimum),
        // First tokens.
        ("under the SLO with room: demand decides", at(4).under(slo).needs(4.0).but(p95(300.0)),   4, 4, Demand),
        ("over the SLO: one more",                  at(4).under(slo).needs(4.0).but(p95(2500.0)),  5, 5, SloFloor),
        ("without a bound it is only a number",     at(4).needs(4.0).but(p95(9000.0)),             4, 4, Demand),
        ("no cold request says nothing",            at(4).under(slo).needs(4.0),                   4, 4, Demand),
        ("the last change must show first",         at(3).under(slo).moved_to(4, 30).needs(4.0).but(p95(2500.0)), 4, 4, Demand),
        ("and workers must be up",                  at(4).under(slo).needs(4.0).but(p95(2500.0)).but(|s| s.usable_workers = 3), 4, 4, Demand),
        ("near the SLO it stays",                   at(6).under(slo).needs(4.0).but(p95(1900.0)).after(305, 4.0), 6, 6, SloFloor),
        ("far under the SLO it goes",               at(6).under(slo).needs(4.0).but(p95(200.0)).after(305, 4.0), 4, 4, Demand),
        ("slow for other reasons: no more workers", at(9).under(slo).needs(4.0).but(p95(9000.0)).after(305, 4.0), 5, 4, StepLimited),
        // Queue.
        ("a long wait of long builds: one more",    at(4).under(queue).needs(3.0).but(|s| (s.queue_age_seconds, s.cold_p95_ms) = (0.6, Some(1500.0))), 5, 5, QueueAge),
        ("a long wait with loaded workers too",     at(4).under(queue).needs(4.0).but(|s| s.queue_age_seconds = 0.6), 5, 5, QueueAge),
        ("a long wait for something else: no more", at(4).under(queue).needs(1.0).but(|s| s.queue_age_seconds = 0.6), 4, 1, Stabilized),
        ("a short wait is no reason",               at(4).under(queue).needs(4.0).but(|s| s.queue_age_seconds = 0.5), 4, 4, Demand),
        ("a wait below the gate is not ours",       at(0).under(queue).needs(4.0).share(1.0).but(|s| s.queue_age_seconds = 9.0), 0, 0, BelowColdShare),
        // What is missing.
        ("a silent router freezes downwards",       at(4).needs(1.0).after(305, 1.0).but(stale),   4, 4, Frozen),
        ("but not what the others prove",           at(4).needs(8.0).but(stale),                   8, 8, Demand),
        ("zero is frozen too",                      at(0).needs(0.0).but(stale),                   0, 0, Frozen),
        ("no router freezes",                       at(4).needs(0.0).after(305, 0.0).but(|s| s.freshness = Freshness::NoRouters), 4, 4, Frozen),
        ("first readings freeze",                   restarted(4).needs(0.0).but(|s| s.freshness = Freshness::Starting), 4, 4, Frozen),
        ("bounds hold in the frost",                at(8).needs(1.0).but(stale).under(|p| p.max_replicas = 5), 5, 8, AtMaximum),
    ]
}

#[test]
fn the_law_and_its_limits() {
    let mut wrong = Vec::new();
    for (name, mut scene, desired, raw, reason) in rows() {
        let got = scene.decide();
        if (got.desired, got.raw, got.reason) != (desired, raw, reason) {
            wrong.push(format!(
                "{name}: expected {desired} (raw {raw}, {reason:?}), got {} (raw {}, {:?}): {}",
                got.desired, got.raw, got.reason, got.message
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_reason_has_a_row() {
    let rows = rows();
    for reason in Reason::ALL {
        assert!(rows.iter().any(|row| row.4 == reason), "{reason:?}");
    }
}

#[test]
fn messages_have_the_numbers_and_are_one_sentence() {
    let message = |mut scene: Scene| scene.decide().message;
    assert_eq!(
        message(Scene::at(4).needs(7.2)),
        "4 → 8 workers: 5000 cold tokens/s need 7.2 workers of 1000 tokens/s at 70 % use."
    );
    assert_eq!(
        message(Scene::at(4).needs(2.0)),
        "4 workers: 1400 cold tokens/s need 2.0 workers of 1000 tokens/s at 70 % use; \
         held by a recommendation of the last 300 s."
    );
    assert_eq!(message(Scene::at(4).but(stale)), "4 workers: router r2 does not answer.");
    for (name, mut scene, ..) in rows() {
        let message = scene.decide().message;
        assert!(
            message.ends_with('.') && message.len() < 300 && !message.contains('\n'),
            "{name}: {message}"
        );
    }
}
