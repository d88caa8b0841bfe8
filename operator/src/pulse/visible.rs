//! Which part of a pulse a status shows. Only when that changes is a status written: live figures move all the time.

use std::collections::BTreeMap;
use std::time::Duration;

use hypic_wire::proto::ModelFacts;

use super::{AgentPulse, Pulse, ScalingPulse};

/// Shares are shown anew at most this often.
const SHARES: Duration = Duration::from_secs(30);

/// What is seen of a pulse.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Visible {
    routers: (usize, usize),
    versions: Vec<(String, u64, u64)>,
    agents: Vec<Agent>,
    cold_share_percent: Option<u8>,
    scaling: BTreeMap<String, Scaling>,
}

#[derive(Clone, Debug, PartialEq)]
struct Agent {
    id: String,
    usable: bool,
    index_whole: bool,
    facts: Option<ModelFacts>,
}

#[derive(Clone, Debug, PartialEq)]
struct Scaling {
    recommended: i32,
    desired: i32,
    reason: &'static str,
    message: String,
    frozen: bool,
    externally: Option<String>,
}

impl Visible {
    pub(super) fn of(pulse: &Pulse) -> Self {
        Self {
            routers: (pulse.routers_asked, pulse.routers_answered),
            versions: pulse.versions.clone(),
            agents: pulse.agents.iter().map(Agent::of).collect(),
            cold_share_percent: pulse.cold_share_percent,
            scaling: pulse
                .scaling
                .iter()
                .map(|(pool, scaling)| (pool.clone(), Scaling::of(scaling)))
                .collect(),
        }
    }
}

impl Agent {
    fn of(agent: &AgentPulse) -> Self {
        Self {
            id: agent.id.as_str().to_owned(),
            usable: agent.usable,
            index_whole: agent.index_partial == 0,
            facts: agent.facts.clone(),
        }
    }
}

impl Scaling {
    fn of(scaling: &ScalingPulse) -> Self {
        Self {
            recommended: scaling.recommended,
            desired: scaling.desired,
            reason: scaling.reason,
            message: scaling.message.clone(),
            frozen: scaling.frozen,
            externally: scaling.externally.clone(),
        }
    }
}

/// The cold share as it is shown: in whole per cent, and not after every move.
#[derive(Clone, Debug, Default)]
pub(super) struct ColdShare {
    shown: Option<u8>,
    since: Option<Duration>,
}

impl ColdShare {
    /// What to show, given what it is now; nothing without traffic.
    pub(super) fn show(&mut self, live: Option<f64>, now: Duration) -> Option<u8> {
        let moved = match (self.shown, live) {
            (Some(shown), Some(live)) => (live - f64::from(shown)).abs() >= 1.0,
            (shown, live) => shown.is_some() != live.is_some(),
        };
        if moved && self.since.is_none_or(|since| now.saturating_sub(since) >= SHARES) {
            self.shown = live.map(|live| live.round().clamp(0.0, 100.0) as u8);
            self.since = Some(now);
        }
        self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_shown_anew_when_it_moved_by_a_whole_and_some_time_passed() {
        let mut share = ColdShare::default();
        let mut show = |live, at| share.show(live, Duration::from_secs(at));
        assert_eq!(show(None, 0), None);
        assert_eq!(show(Some(35.4), 5), Some(35), "the first is shown at once");
        assert_eq!(show(Some(50.0), 10), Some(35));
        assert_eq!(show(Some(50.0), 34), Some(35));
        assert_eq!(show(Some(50.0), 35), Some(50));
        for at in (40..400).step_by(5) {
            let flicker = if at % 2 == 0 { 49.4 } else { 50.9 };
            assert_eq!(show(Some(flicker), at), Some(50), "less than one is no move");
        }
        assert_eq!(show(None, 400), None);
        assert_eq!(show(Some(250.0), 430), Some(100));
    }
}
