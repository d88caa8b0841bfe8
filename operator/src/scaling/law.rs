//! The law: how many workers a signal asks for, before any limit.
//!
//! ```text
//! demand     cold tokens/s ÷ (speed × target utilisation), rounded up
//! SLO floor  (cold tokens/s + spare tokens/s that cold requests need) ÷ speed, rounded up
//! queue age  one more than were too few for this demand
//! ```
//!
//! The largest counts. The speed of a worker is what it says, or what is seen of busy ones where that is less;
//! so a saturated pool asks for more although it counts no more than it can do. The SLO floor takes the pool
//! as one server shared by all requests (processor sharing, Kleinrock 1967): one of `x` tokens takes
//! `x ÷ (capacity − demand)`, so its time is inverse to the spare capacity. Not all of the time is building, so
//! upwards the floor goes by one worker at a time and looks again, and it stops where building is too small
//! a part to matter. A queue says that workers are too few, but not how many are enough: what was too much for
//! one is remembered, so that the pool does not try it again in the same hour.

use hypic_crds::scaling::Scaling;

use super::reason::{Reason, about};
use super::signal::Signal;

/// Above its minimum a pool is idle below this part of the activation share.
const HYSTERESIS: f64 = 0.5;
/// Downwards the SLO floor wants to stay this far under the bound, so that it need not come back at once.
const COMFORT: f64 = 0.7;
/// Building matters while it is at least this part of the time.
const PART_THAT_MATTERS: f64 = 0.25;

/// What the law asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ask {
    /// Workers, not limited by anything.
    pub(super) raw: i32,
    pub(super) reason: Reason,
    /// No work that deserves a worker.
    pub(super) idle: bool,
    /// Why, without the full stop.
    pub(super) because: String,
    /// Cold tokens per second that are too much for one worker, where a queue shows it now.
    pub(super) strain: Option<f64>,
}

impl Ask {
    fn new(raw: i32, reason: Reason, because: String) -> Self {
        Self { raw, reason, idle: false, because, strain: None }
    }
}

/// What the law needs of the past.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    /// The signal is of these workers and no others.
    pub(super) settled: bool,
    /// What was too much for one worker.
    pub(super) strain: Option<f64>,
}

/// What `signal` asks of a pool of `current` workers.
pub(super) fn ask(policy: &Scaling, signal: &Signal, current: i32, past: Past) -> Ask {
    let cold = signal.cold_tokens_per_second.max(0.0);
    let activation = f64::from(policy.activation_cold_share_percent);
    let gate = if current <= policy.min_replicas { activation } else { activation * HYSTERESIS };
    if cold <= 0.0 || signal.cold_share_percent < gate {
        let share = about(signal.cold_share_percent);
        let because = format!("{share} % of segment tokens are cold, and workers are for {gate} % and more");
        return Ask { idle: true, ..Ask::new(0, Reason::BelowColdShare, because) };
    }
    let known = signal.tokens_per_second_per_worker.filter(|speed| speed.is_finite() && *speed > 0.0);
    let Some(speed) = known else {
        let because = format!("{} cold tokens/s, but no agent tells its speed", about(cold));
        return Ask::new(current.max(1), Reason::NoSpeedKnown, because);
    };
    let pool = Pool { policy, signal, current, cold, speed, past };
    let floors = [pool.slo_floor(), pool.queue_age()].into_iter().flatten();
    let most = floors.fold(pool.demand(), |most, ask| if ask.raw > most.raw { ask } else { most });
    Ask { strain: pool.strain(), ..most }
}

struct Pool<'a> {
    policy: &'a Scaling,
    signal: &'a Signal,
    current: i32,
    cold: f64,
    speed: f64,
    past: Past,
}

impl Pool<'_> {
    fn demand(&self) -> Ask {
        let target = self.policy.target_utilization_percent;
        let exact = self.cold / (self.speed * f64::from(target) / 100.0);
        let needed = whole(exact);
        let off = (exact / f64::from(self.current) - 1.0).abs();
        let near = self.current > 0 && off <= f64::from(self.policy.tolerance_percent) / 100.0;
        let (raw, reason) = match needed {
            other if near && other != self.current => (self.current, Reason::WithinTolerance),
            needed => (needed, Reason::Demand),
        };
        let because = format!(
            "{} cold tokens/s need {} workers of {} tokens/s at {target} % use",
            about(self.cold),
            about(exact),
            about(self.speed),
        );
        Ask::new(raw, reason, because)
    }

    fn slo_floor(&self) -> Option<Ask> {
        let slo = f64::from(self.policy.first_token_target_milliseconds?);
        let p95 = self.signal.cold_p95_ms.filter(|p95| p95.is_finite())?;
        let useful = 1000.0 * self.signal.tokens_per_cold_request() / (PART_THAT_MATTERS * p95.max(slo));
        let wanted = if p95 > slo {
            f64::from(self.one_more()) * self.speed - self.cold
        } else {
            let spare = (self.capacity() - self.cold).max(0.0);
            spare * (p95 / (slo * COMFORT)).min(1.0)
        };
        let raw = whole((self.cold + wanted.min(useful)) / self.speed);
        let because =
            format!("the 95th percentile of cold first tokens is {} ms of {slo} ms allowed", about(p95));
        Some(Ask::new(raw, Reason::SloFloor, because))
    }

    fn queue_age(&self) -> Option<Ask> {
        self.policy.max_queue_age_milliseconds?;
        let enough = self.strain().or(self.past.strain).map(|strain| (self.cold / strain).round() as i32 + 1);
        let age = about(1000.0 * self.signal.queue_age_seconds);
        match (self.queue_is_too_old(), enough) {
            (true, enough) => {
                let because = format!("a request waits for admission for {age} ms while workers are busy");
                Some(Ask::new(enough.unwrap_or(0).max(self.current), Reason::QueueAge, because))
            }
            (false, Some(enough)) => {
                let because = "with fewer the queue was too old within the last hour".to_owned();
                Some(Ask::new(enough, Reason::QueueAge, because))
            }
            (false, None) => None,
        }
    }

    fn queue_is_too_old(&self) -> bool {
        let bound = self.policy.max_queue_age_milliseconds.map(f64::from);
        bound.is_some_and(|bound| 1000.0 * self.signal.queue_age_seconds > bound) && self.workers_hold_up()
    }

    /// Cold tokens per second of one worker, where that is too much now.
    fn strain(&self) -> Option<f64> {
        let shown = self.past.settled && self.queue_is_too_old();
        shown.then(|| self.cold / f64::from(self.current.max(1)))
    }

    /// One worker more, once the last change has shown what it does.
    fn one_more(&self) -> i32 {
        self.current.saturating_add(i32::from(self.past.settled))
    }

    /// Tokens per second of the workers that are up.
    fn capacity(&self) -> f64 {
        f64::from(self.signal.usable_workers) * self.speed
    }

    /// Workers are what requests wait for: loaded to the target, or building is much of the time.
    fn workers_hold_up(&self) -> bool {
        let loaded = 100.0 * self.cold >= f64::from(self.policy.target_utilization_percent) * self.capacity();
        let build_ms = 1000.0 * self.signal.tokens_per_cold_request() / (self.capacity() - self.cold);
        loaded || self.signal.cold_p95_ms.is_some_and(|p95| build_ms >= PART_THAT_MATTERS * p95)
    }
}

/// Workers for a fractional need, at least one. What is over a whole number only by rounding is not over.
fn whole(workers: f64) -> i32 {
    ((workers - 1e-9).ceil() as i32).max(1)
}
