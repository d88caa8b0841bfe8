//! Faults of other autoscalers, made here. The numbers are rows of the list of faults that this design began
//! with.

use hypic_crds::scaling::ScalingMode;
use hypic_operator::scaling::{Freshness, History, Meter, Reason, Settings, Signal, decide};

use super::meter::{Router, run};
use super::scene::{ONE, Scene, s, signal};

#[test]
fn row_14_an_advisory_decision_is_marked_and_otherwise_the_same() {
    let automatic = Scene::at(4).needs(7.0).decide();
    let advisory = Scene::at(4).needs(7.0).under(|policy| policy.mode = ScalingMode::Advisory).decide();
    assert!(!automatic.advisory && advisory.advisory);
    assert_eq!((automatic.desired, automatic.message), (advisory.desired, advisory.message));
}

#[test]
fn row_15_changes_by_others_count_as_changes() {
    // Somebody took four workers away a moment ago; the policy allows no more in this minute.
    let decision = Scene::at(8).needs(0.0).after(305, 0.0).moved_by_others(4).needs(0.0).decide();
    assert_eq!((decision.desired, decision.reason), (4, Reason::StepLimited));
}

#[test]
fn row_18_a_gone_router_holds_nothing() {
    let mut meter = Meter::new(Settings::default());
    let (a, b) = (Router::new("a", 0, 1000), Router::new("b", 0, 1000));
    run(&mut meter, &[a.clone(), b.clone()], 100, 200);
    let mut before = 2000.0;
    for now in (205..=260).step_by(5) {
        let signal = meter.take(vec![a.answer(now)], s(now));
        assert_eq!(signal.freshness, Freshness::Fresh, "its silence means nothing");
        assert!(signal.segment_tokens_per_second < before, "its counts leave with the window");
        before = signal.segment_tokens_per_second;
    }
    assert_eq!(before, 1000.0);
}

#[test]
fn row_18_replacing_routers_changes_no_rate() {
    let mut meter = Meter::new(Settings::default());
    run(&mut meter, &[Router::new("a", 0, 1000)], 100, 200);
    for now in (205..=300).step_by(5) {
        let signal = meter.take(vec![Router::new("b", 200, 1000).answer(now)], s(now));
        assert_eq!(signal.segment_tokens_per_second.round(), 1000.0, "{now}");
    }
}

#[test]
fn row_19_noise_around_a_whole_number_of_workers_moves_nothing() {
    let mut scene = Scene::at(4);
    let mut seen = Vec::new();
    for tick in 0..240 {
        let noise = if tick % 3 == 0 { 1.08 } else { 0.94 };
        scene.signal = signal(4.0 * ONE * noise, 4);
        seen.push(scene.decide().desired);
        scene.now += s(5);
    }
    assert!(seen.iter().all(|&desired| desired == 4), "{seen:?}");
}

#[test]
fn row_20_recommendations_are_kept_raw() {
    // Demand for 12 met a maximum of 6. When the maximum is raised, nothing remembers the 6.
    let mut scene = Scene::at(6).under(|policy| policy.max_replicas = 6).needs(12.0);
    for _ in 0..80 {
        let decision = scene.decide();
        assert_eq!((decision.desired, decision.raw, decision.reason), (6, 12, Reason::AtMaximum));
        scene.now += s(5);
    }
    let mut scene = scene.under(|policy| policy.max_replicas = 20);
    scene.current = 12;
    let decision = scene.needs(6.0).decide();
    assert_eq!((decision.desired, decision.reason), (12, Reason::Stabilized));
}

#[test]
fn row_21_one_silent_router_blocks_no_growth_and_lowers_nothing() {
    let stale = |workers| {
        Scene::at(4)
            .after(305, 1.0)
            .needs(workers)
            .but(|signal| signal.freshness = Freshness::Stale { router: "r2".into() })
            .decide()
    };
    let (more, less) = (stale(8.0), stale(1.0));
    assert_eq!((more.desired, more.reason), (8, Reason::Demand));
    assert!(more.message.contains("although router r2 does not answer"), "{}", more.message);
    assert_eq!((less.desired, less.reason), (4, Reason::Frozen));
}

#[test]
fn row_23_an_outage_of_the_counters_never_lowers() {
    let mut scene = Scene::at(8).but(|signal| {
        *signal =
            Signal { freshness: Freshness::Stale { router: "r".into() }, ..super::scene::signal(0.0, 8) };
    });
    for _ in 0..1000 {
        assert_eq!(scene.decide().desired, 8);
        scene.now += s(5);
    }
    // And when they are back, it is not as if the frozen time had been a window of low demand.
    let mut scene = scene.needs(1.0);
    for _ in 0..60 {
        let decision = scene.decide();
        assert_eq!((decision.desired, decision.reason), (8, Reason::Stabilized));
        scene.now += s(5);
    }
    scene.now += s(5);
    assert_eq!(scene.decide().desired, 4);
}

#[test]
fn row_23_a_pull_that_hangs_freezes_as_well() {
    let mut scene = Scene::at(4);
    let policy = scene.policy.clone();
    let old = Signal { taken_at: scene.now, ..signal(0.0, 4) };
    for _ in 0..200 {
        scene.now += s(5);
        let decision = decide(&policy, &old, 4, &mut scene.history, scene.now);
        assert_eq!(decision.desired, 4);
        if scene.now > old.taken_at + s(30) {
            assert_eq!(decision.reason, Reason::Frozen);
        }
    }
}

#[test]
fn row_23_every_policy_wakes_from_zero() {
    let mut scene = Scene::at(0).needs(3.0).under(|policy| policy.scale_up.workers = 1);
    assert_eq!(scene.decide().desired, 1, "a percentage of nothing would be nothing");
}

#[test]
fn row_24_a_leader_that_comes_back_has_forgotten() {
    let mut scene = Scene::at(4).after(305, 1.0).needs(1.0);
    assert_eq!(scene.decide().desired, 2);
    // Another decided for two minutes.
    scene.now += s(120);
    let decision = scene.decide();
    assert_eq!((decision.desired, decision.reason), (4, Reason::WaitingForWindow));
}

#[test]
fn row_27_a_rollout_of_workers_blocks_no_growth() {
    let decision = Scene::at(4).needs(8.0).but(|signal| signal.usable_workers = 1).decide();
    assert_eq!((decision.desired, decision.reason), (8, Reason::Demand));
}

#[test]
fn a_worker_that_never_comes_up_is_not_waited_for_forever() {
    let mut scene = Scene::at(4)
        .under(|policy| policy.first_token_target_milliseconds = Some(2000))
        .needs(4.0)
        .but(|signal| (signal.cold_p95_ms, signal.usable_workers) = (Some(3000.0), 3));
    let mut grew = None;
    for tick in 0..200 {
        if scene.decide().desired == 5 {
            grew = Some(tick * 5);
            break;
        }
        scene.now += s(5);
    }
    assert_eq!(grew, Some(600));
}

#[test]
fn a_restart_of_the_operator_lowers_nothing_for_a_window() {
    let mut meter = Meter::new(Settings::default());
    let mut history = History::new();
    let policy = Scene::at(0).policy;
    let idle = Router::new("a", 0, 0);
    let mut lowered = None;
    for now in (1000..2000).step_by(5) {
        let signal = meter.take(vec![idle.answer(now)], s(now));
        let decision = decide(&policy, &signal, 4, &mut history, s(now));
        if decision.desired < 4 {
            lowered = Some(now - 1000);
            break;
        }
    }
    // A window of whole signals; the first takes 15 s.
    assert_eq!(lowered, Some(315));
}

#[test]
fn what_a_queue_taught_is_kept_for_an_hour() {
    let mut scene = Scene::at(4).under(|policy| policy.max_queue_age_milliseconds = Some(500)).needs(4.0);
    scene.signal.queue_age_seconds = 2.0;
    assert_eq!(scene.decide().desired, 5, "four were too few");
    scene.current = 5;
    let mut scene = scene.needs(4.0);
    let mut kept = 0;
    while scene.decide().raw == 5 {
        kept += 5;
        scene.now += s(5);
    }
    assert_eq!(kept, 3605);
    // For half of the demand it is half of them and one.
    let mut scene = Scene::at(4).under(|policy| policy.max_queue_age_milliseconds = Some(500)).needs(4.0);
    scene.signal.queue_age_seconds = 2.0;
    scene.decide();
    let halved = scene.needs(2.0).decide();
    assert_eq!(halved.raw, 3);
    assert!(halved.message.contains("with fewer the queue was too old"), "{}", halved.message);
}
