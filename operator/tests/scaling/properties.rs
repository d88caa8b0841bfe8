//! What holds whatever the signals are.

use std::collections::VecDeque;

use hypic_crds::scaling::{Scaling, ScalingRules};
use hypic_operator::scaling::{Freshness, History, Signal, decide};
use proptest::prelude::*;

use super::scene::{ONE, Scene, between, s, signal};

fn rules() -> impl Strategy<Value = ScalingRules> {
    (0..=120, 1..6, 0..=100, 1..=120).prop_map(
        |(stabilization_window_seconds, workers, percent, period_seconds)| ScalingRules {
            stabilization_window_seconds,
            workers,
            percent,
            period_seconds,
        },
    )
}

prop_compose! {
    fn policies()(
        (min_replicas, max_replicas) in (0..4, 4..40),
        activation_cold_share_percent in 0..30,
        target_utilization_percent in 10..=100,
        slo in prop::option::of(100..5000),
        queue in prop::option::of(100..5000),
        (tolerance_percent, idle_seconds) in (0..=20, 0..200),
        (scale_up, scale_down) in (rules(), rules()),
    ) -> Scaling {
        Scaling {
            activation_cold_share_percent,
            target_utilization_percent,
            first_token_target_milliseconds: slo,
            max_queue_age_milliseconds: queue,
            tolerance_percent,
            idle_seconds,
            scale_up,
            scale_down,
            ..between(min_replicas, max_replicas)
        }
    }
}

prop_compose! {
    /// Anything that a meter might say, and some that it never does.
    fn signals()(
        cold in prop_oneof![4 => 0.0..60.0 * ONE, 1 => Just(0.0), 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)],
        share in 0.0..100.0,
        requests in 0.0..50.0,
        p95 in prop::option::of(1.0..20_000.0),
        age in 0.0..10.0,
        speed in prop::option::of(prop_oneof![8 => 100.0..3000.0, 1 => Just(0.0), 1 => Just(f64::NAN)]),
        usable_workers in 0..40,
        fresh in prop::bool::weighted(0.8),
    ) -> Signal {
        Signal {
            freshness: if fresh { Freshness::Fresh } else { Freshness::Stale { router: "r".into() } },
            cold_tokens_per_second: cold,
            cold_requests_per_second: requests,
            cold_share_percent: share,
            cold_p95_ms: p95,
            queue_age_seconds: age,
            tokens_per_second_per_worker: speed,
            ..signal(0.0, usable_workers)
        }
    }
}

proptest! {
    #[test]
    fn what_is_desired_is_allowed(
        policy in policies(), signals in prop::collection::vec(signals(), 1..60), begin in 0..60,
    ) {
        let (mut history, mut current) = (History::new(), begin);
        for (tick, signal) in (0..).zip(signals) {
            let now = s(5 * tick);
            let decision = decide(&policy, &Signal { taken_at: now, ..signal }, current, &mut history, now);
            prop_assert!((policy.min_replicas..=policy.max_replicas).contains(&decision.desired));
            prop_assert!(decision.raw >= 0);
            current = decision.desired;
        }
    }

    #[test]
    fn what_is_not_known_lowers_nothing(
        policy in policies(), past in prop::collection::vec(signals(), 0..60), last in signals(), current in 0..40,
        freshness in prop_oneof![
            Just(Freshness::Starting), Just(Freshness::NoRouters), Just(Freshness::Stale { router: "r".into() })
        ],
    ) {
        let mut history = History::new();
        let mut now = s(0);
        for signal in past {
            decide(&policy, &Signal { taken_at: now, ..signal }, current, &mut history, now);
            now += s(5);
        }
        let decision = decide(&policy, &Signal { taken_at: now, freshness, ..last }, current, &mut history, now);
        prop_assert!(decision.desired >= current.min(policy.max_replicas), "{}", decision.message);
    }

    #[test]
    fn more_cold_tokens_never_ask_for_fewer_workers(
        policy in policies(), signal in signals(), current in 0..40, usable in 0..40,
        (less, more) in (0.0..60.0 * ONE, 0.0..20.0 * ONE), all in 1.0..300.0 * ONE, requests in 0.1..50.0,
        settled in any::<bool>(),
    ) {
        let raw = |cold: f64| {
            let mut history = History::new();
            let signal = |now| Signal {
                taken_at: now,
                freshness: Freshness::Fresh,
                cold_tokens_per_second: cold,
                cold_requests_per_second: requests,
                cold_share_percent: 100.0 * cold / all.max(less + more),
                usable_workers: usable,
                ..signal.clone()
            };
            if settled {
                for now in (0..700).step_by(50).map(s) {
                    decide(&policy, &signal(now), current, &mut history, now);
                }
            }
            decide(&policy, &signal(s(700)), current, &mut history, s(700)).raw
        };
        prop_assert!(raw(less) <= raw(less + more), "{} > {}", raw(less), raw(less + more));
    }

    #[test]
    fn no_period_sees_more_workers_go_than_its_policies_allow(
        policy in policies(), signals in prop::collection::vec(signals(), 1..120), begin in 4i32..40,
    ) {
        let mut history = History::new();
        let mut current = begin.clamp(policy.min_replicas, policy.max_replicas);
        // Workers before each tick, newest last.
        let mut past: VecDeque<i32> = VecDeque::new();
        for (tick, signal) in (0..).zip(signals) {
            let now = s(5 * tick);
            let decision = decide(&policy, &Signal { taken_at: now, ..signal }, current, &mut history, now);
            past.push_back(current);
            // All that went within the period, and the most there were to begin with.
            let rules = &policy.scale_down;
            let ticks = usize::try_from(rules.period_seconds).unwrap().div_ceil(5);
            let recent: Vec<i32> =
                past.iter().rev().take(ticks).rev().copied().chain([decision.desired]).collect();
            let gone: i32 = recent.windows(2).map(|pair| (pair[0] - pair[1]).max(0)).sum();
            let begin = current + gone - (current - decision.desired).max(0);
            let allowed = gone <= rules.workers.max(begin * rules.percent / 100);
            prop_assert!(decision.desired >= current || allowed, "{past:?} then {}", decision.desired);
            current = decision.desired;
        }
    }

    #[test]
    fn steady_input_settles_and_stays(
        policy in policies(), cold in 0.0..30.0 * ONE, share in 0.0..100.0, begin in 0..40,
    ) {
        let (mut history, mut current) = (History::new(), begin);
        let mut directions = Vec::new();
        for now in (0..7200).step_by(5).map(s) {
            let signal = Signal { taken_at: now, cold_share_percent: share, ..signal(cold, current) };
            let desired = decide(&policy, &signal, current, &mut history, now).desired;
            // The bounds may move it first.
            if desired != current && policy.max_replicas >= current && policy.min_replicas <= current {
                directions.push(desired > current);
                prop_assert!(now < s(6000), "still moving at {now:?}");
            }
            current = desired;
        }
        directions.dedup();
        prop_assert!(directions.len() <= 1, "turned round: {directions:?}");
    }

    #[test]
    fn a_decision_is_a_function_of_its_arguments(
        policy in policies(), signals in prop::collection::vec(signals(), 1..40), current in 0..40,
    ) {
        let run = || {
            let mut history = History::new();
            let decide = |(tick, signal): (u64, &Signal)| {
                let signal = Signal { taken_at: s(5 * tick), ..signal.clone() };
                decide(&policy, &signal, current, &mut history, s(5 * tick))
            };
            (0..).zip(&signals).map(decide).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }
}

#[test]
fn first_tokens_that_answer_to_workers_are_met_and_kept() {
    // A pool that behaves as the law supposes: the time is x ÷ spare and a part that no worker shortens. The
    // speed is known, or taken for a fifth more than it is.
    for (lie, begin) in [(1.0, 5), (1.2, 5), (1.0, 15), (1.2, 15)] {
        let mut scene = Scene::at(begin).under(|policy| policy.first_token_target_milliseconds = Some(900));
        let (cold, mut changes, mut met) = (3000.0, Vec::new(), false);
        for tick in 0..1440 {
            let spare = (f64::from(scene.current) * 1000.0 / lie - cold).max(1.0);
            let p95 = 300.0 + 1000.0 * 2000.0 / spare;
            scene.signal = signal(cold, scene.current);
            scene.signal.cold_p95_ms = Some(p95);
            let desired = scene.decide().desired;
            if desired != scene.current {
                changes.push((5 * tick, desired));
            }
            met = p95 <= 900.0;
            scene.current = desired;
            scene.now += s(5);
        }
        let told = format!("from {begin}, speed taken {lie} times: {changes:?}");
        assert!(met && changes.len() <= 12, "{told}");
        assert!(changes.iter().all(|(at, _)| *at < 3600), "{told}");
    }
}
