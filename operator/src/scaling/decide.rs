//! The decision: the law, then freezing, stabilisation, steps and bounds, in this order.

use std::time::Duration;

use hypic_crds::scaling::{Scaling, ScalingMode, ScalingRules};

use super::history::{History, Seen};
use super::law::{Ask, Past, ask};
use super::reason::Reason;
use super::signal::Signal;

/// How many workers there should be, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Workers.
    pub desired: i32,
    /// What was asked for before stabilisation, steps and bounds.
    pub raw: i32,
    /// What settled it.
    pub reason: Reason,
    /// One sentence with the numbers, to two digits.
    pub message: String,
    /// It is only to be shown, not applied.
    pub advisory: bool,
}

/// Decides for a pool of `current` workers, and remembers that it did. To be called for every signal, and also
/// where none came: what is missing freezes.
///
/// `desired` always lies in the policy's bounds. Inside them, nothing that is unknown lowers it: neither
/// counters that are missing nor recommendations from before a restart.
pub fn decide(
    policy: &Scaling,
    signal: &Signal,
    current: i32,
    history: &mut History,
    now: Duration,
) -> Decision {
    let mut seen = history.observe(current, signal.usable_workers, now);
    let settled = seen.settled(Duration::from_secs_f64(signal.window_seconds.clamp(0.0, 3600.0)));
    let mut ask = ask(policy, signal, current, Past { settled, strain: seen.strain() });
    match (signal.missing(now), ask.strain) {
        (Some(missing), _) => freeze(&mut ask, current, &missing),
        (None, Some(strain)) => seen.note_strain(strain),
        (None, None) => {}
    }
    let idle_for = seen.idle(ask.idle);
    seen.recommend(ask.raw);
    let raw = ask.raw;
    let mut outcome = Outcome { desired: raw, reason: ask.reason, held: None };
    outcome.stabilise(policy, current, &seen);
    outcome.step(policy, current, &seen);
    outcome.rest(policy, current, idle_for);
    outcome.bound(policy);
    let Outcome { desired, reason, held } = outcome;
    let held = held.map(|held| format!("; {held}")).unwrap_or_default();
    let from = if desired == current { String::new() } else { format!("{current} → ") };
    let message = format!("{from}{desired} workers: {}{held}.", ask.because);
    Decision { desired, raw, reason, message, advisory: policy.mode == ScalingMode::Advisory }
}

/// Counters that are missing count as nothing upwards and as the present number downwards: what the others
/// prove may raise it, nothing lowers it.
fn freeze(ask: &mut Ask, current: i32, missing: &str) {
    ask.idle = false;
    if ask.raw > current {
        ask.because = format!("{} (although {missing})", ask.because);
    } else {
        ask.raw = current;
        ask.reason = Reason::Frozen;
        ask.because = missing.to_owned();
    }
}

struct Outcome {
    desired: i32,
    reason: Reason,
    /// What held it, where that is not what was asked for.
    held: Option<String>,
}

impl Outcome {
    fn set(&mut self, desired: i32, reason: Reason, held: String) {
        *self = Self { desired, reason, held: Some(held) };
    }

    /// Up to the lowest recommendation of the window upwards, down to the highest of the one downwards. What
    /// was recommended before anything was remembered counts as the present number.
    fn stabilise(&mut self, policy: &Scaling, current: i32, seen: &Seen<'_>) {
        let rules = if self.desired > current { &policy.scale_up } else { &policy.scale_down };
        let window = seconds(rules.stabilization_window_seconds);
        let unknown = (!seen.covers(window)).then_some(current);
        let all = seen.recommended(window).chain(unknown);
        let stable = if self.desired > current {
            all.fold(self.desired, i32::min).max(current)
        } else {
            all.fold(self.desired, i32::max).min(current)
        };
        if stable == self.desired {
            return;
        }
        let length = window.as_secs();
        if unknown.is_some() {
            let held = format!("recommendations of the last {length} s are not known yet");
            self.set(stable, Reason::WaitingForWindow, held);
        } else {
            self.set(stable, Reason::Stabilized, format!("held by a recommendation of the last {length} s"));
        }
    }

    /// No further than the rules allow.
    fn step(&mut self, policy: &Scaling, current: i32, seen: &Seen<'_>) {
        let limited = if self.desired > current {
            self.desired.min(most(&policy.scale_up, current, seen))
        } else if self.desired < current {
            self.desired.max(fewest(&policy.scale_down, current, seen))
        } else {
            return;
        };
        if limited != self.desired {
            let held = format!("a step goes no further than {limited}");
            self.set(limited, Reason::StepLimited, held);
        }
    }

    /// The last worker goes only after the pool was idle for long enough.
    fn rest(&mut self, policy: &Scaling, current: i32, idle_for: Duration) {
        if self.desired > 0 || current == 0 || policy.min_replicas > 0 {
            return;
        }
        let idle = policy.idle_seconds;
        if idle_for < seconds(idle) {
            self.set(1, Reason::BelowColdShare, format!("the last worker goes after {idle} s of this"));
        } else {
            self.set(0, Reason::ScaledToZero, format!("so it was for {idle} s"));
        }
    }

    fn bound(&mut self, policy: &Scaling) {
        if self.desired > policy.max_replicas {
            let max = policy.max_replicas;
            self.set(max, Reason::AtMaximum, format!("maxReplicas is {max}"));
        } else if self.desired < policy.min_replicas {
            let min = policy.min_replicas;
            self.set(min, Reason::AtMinimum, format!("minReplicas is {min}"));
        }
    }
}

/// Most workers that the rules allow now.
fn most(rules: &ScalingRules, current: i32, seen: &Seen<'_>) -> i32 {
    let begin = current.saturating_sub(seen.added(seconds(rules.period_seconds))).max(0);
    // Rounded up as HPA does: a percentage of few workers is still one.
    begin.saturating_add(rules.workers.max(hundredths(begin, rules.percent, 99))).max(current)
}

/// Fewest workers that the rules allow now.
fn fewest(rules: &ScalingRules, current: i32, seen: &Seen<'_>) -> i32 {
    let begin = current.saturating_add(seen.removed(seconds(rules.period_seconds)));
    begin.saturating_sub(rules.workers.max(hundredths(begin, rules.percent, 0))).clamp(0, current)
}

fn hundredths(of: i32, percent: i32, rounding: i64) -> i32 {
    i32::try_from((i64::from(of) * i64::from(percent) + rounding) / 100).unwrap_or(i32::MAX)
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
