//! Signals and pools to decide on. A worker builds 1000 tokens/s and should be used to 70 %: 700 cold
//! tokens/s are one worker's.

use std::time::Duration;

use hypic_crds::scaling::{Scaling, ScalingMode, ScalingRules};
use hypic_operator::scaling::{Decision, Freshness, History, Signal, decide};

/// Cold tokens per second that are one worker's.
pub(crate) const ONE: f64 = 700.0;

pub(crate) fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The resource's defaults between these bounds, but only half of the workers may go in a minute.
pub(crate) fn between(min_replicas: i32, max_replicas: i32) -> Scaling {
    let rules = |stabilization_window_seconds, workers, percent, period_seconds| ScalingRules {
        stabilization_window_seconds,
        workers,
        percent,
        period_seconds,
    };
    Scaling {
        min_replicas,
        max_replicas,
        mode: ScalingMode::Auto,
        activation_cold_share_percent: 5,
        target_utilization_percent: 70,
        tolerance_percent: 10,
        first_token_target_milliseconds: None,
        max_queue_age_milliseconds: None,
        idle_seconds: 300,
        scale_up: rules(0, 4, 100, 15),
        scale_down: rules(300, 1, 50, 60),
    }
}

/// A whole signal: half of the traffic is cold, in requests of 2000 cold tokens.
pub(crate) fn signal(cold: f64, usable_workers: i32) -> Signal {
    Signal {
        taken_at: Duration::ZERO,
        freshness: Freshness::Fresh,
        window_seconds: 60.0,
        segment_tokens_per_second: 2.0 * cold,
        cold_tokens_per_second: cold,
        cold_requests_per_second: cold / 2000.0,
        cold_share_percent: if cold > 0.0 { 50.0 } else { 0.0 },
        hit_share_percent: if cold > 0.0 { 50.0 } else { 0.0 },
        cold_p95_ms: None,
        queue_age_seconds: 0.0,
        tokens_per_second_per_worker: Some(1000.0),
        usable_workers,
    }
}

/// A pool with its past, and the decision that is asked for now.
pub(crate) struct Scene {
    pub(crate) policy: Scaling,
    pub(crate) current: i32,
    pub(crate) signal: Signal,
    pub(crate) history: History,
    pub(crate) now: Duration,
}

impl Scene {
    /// A pool of 0 to 20 workers that has rested for ten minutes at `current`, with just as much demand.
    pub(crate) fn at(current: i32) -> Self {
        let mut scene = Self::restarted(current);
        scene.pass(600, f64::from(current) * ONE);
        scene
    }

    /// The same without a past.
    pub(crate) fn restarted(current: i32) -> Self {
        Self {
            policy: between(0, 20),
            current,
            signal: signal(f64::from(current) * ONE, current),
            history: History::new(),
            now: s(1000),
        }
    }

    /// Lets time pass at this demand, without applying what is decided.
    pub(crate) fn pass(&mut self, seconds: u64, cold: f64) {
        let present = std::mem::replace(&mut self.signal, signal(cold, self.current));
        for _ in 0..seconds / 5 {
            self.decide();
            self.now += s(5);
        }
        self.signal = present;
    }

    /// Decides now.
    pub(crate) fn decide(&mut self) -> Decision {
        let signal = Signal { taken_at: self.now, ..self.signal.clone() };
        decide(&self.policy, &signal, self.current, &mut self.history, self.now)
    }

    /// Demand of so many workers.
    pub(crate) fn needs(mut self, workers: f64) -> Self {
        self.signal = signal(workers * ONE, self.signal.usable_workers);
        self
    }

    /// So much of the traffic is cold.
    pub(crate) fn share(mut self, percent: f64) -> Self {
        self.signal.cold_share_percent = percent;
        self
    }

    /// Changes the signal.
    pub(crate) fn but(mut self, change: impl FnOnce(&mut Signal)) -> Self {
        change(&mut self.signal);
        self
    }

    /// Changes the policy.
    pub(crate) fn under(mut self, change: impl FnOnce(&mut Scaling)) -> Self {
        change(&mut self.policy);
        self
    }

    /// After so many seconds of demand for so many workers, and the present number applied all along.
    pub(crate) fn after(mut self, seconds: u64, workers: f64) -> Self {
        self.pass(seconds, workers * ONE);
        self
    }

    /// Some seconds after the pool came to `current` from where it was.
    pub(crate) fn moved_to(mut self, current: i32, seconds: u64) -> Self {
        let demand = self.signal.cold_tokens_per_second;
        self.current = current;
        self.pass(seconds, f64::from(current) * ONE);
        self.signal = signal(demand, current);
        self
    }

    /// Somebody else has just set the replicas.
    pub(crate) fn moved_by_others(mut self, current: i32) -> Self {
        self.current = current;
        self
    }
}
