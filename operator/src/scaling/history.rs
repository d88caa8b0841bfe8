//! What a pool's decisions must remember. Empty after a restart, and then it says so.

use std::collections::VecDeque;
use std::time::Duration;

/// The longest that any rule looks back.
const KEPT: Duration = Duration::from_secs(3600);
/// Decisions further apart than this do not belong together: somebody else may have decided in between.
const HOLE: Duration = Duration::from_secs(60);
/// A worker that has not come up for so long is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(600);

/// Past recommendations and changes of one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    life: Option<Life>,
}

#[derive(Clone, Debug, PartialEq)]
struct Life {
    began: Duration,
    last: Duration,
    /// Raw: not limited by anything, so that a limit is never mistaken for a need.
    recommendations: VecDeque<(Duration, i32)>,
    /// Changes of the replicas as seen, whoever made them.
    changes: VecDeque<(Duration, i32)>,
    replicas: i32,
    usable: i32,
    /// When replicas or usable workers last changed.
    moved: Duration,
    idle_since: Option<Duration>,
    /// When the queue was last too old, and cold tokens per second of one worker then.
    strain: Option<(Duration, f64)>,
}

impl History {
    /// Nothing is remembered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sees the pool as it is before a decision.
    pub(super) fn observe(&mut self, replicas: i32, usable: i32, now: Duration) -> Seen<'_> {
        let whole = self.life.take().filter(|life| now.saturating_sub(life.last) <= HOLE);
        let life = self.life.insert(whole.unwrap_or_else(|| Life {
            began: now,
            last: now,
            recommendations: VecDeque::new(),
            changes: VecDeque::new(),
            replicas,
            usable,
            moved: now,
            idle_since: None,
            strain: None,
        }));
        let now = now.max(life.last);
        life.last = now;
        if life.replicas != replicas {
            life.changes.push_back((now, replicas.saturating_sub(life.replicas)));
        }
        if (life.replicas, life.usable) != (replicas, usable) {
            life.moved = now;
        }
        (life.replicas, life.usable) = (replicas, usable);
        life.recommendations.retain(|(at, _)| now.saturating_sub(*at) <= KEPT);
        life.changes.retain(|(at, _)| now.saturating_sub(*at) <= KEPT);
        Seen { life, now }
    }
}

/// A history that has seen the pool at this time.
pub(super) struct Seen<'a> {
    life: &'a mut Life,
    now: Duration,
}

impl Seen<'_> {
    /// All workers are up and have been as many for a whole window: what the signal says is theirs.
    pub(super) fn settled(&self, window: Duration) -> bool {
        let missing = self.life.usable < self.life.replicas;
        let still = self.now.saturating_sub(self.life.moved);
        still >= if missing { PATIENCE.max(window) } else { window }
    }

    /// Notes whether the pool is idle; gives for how long it has been.
    pub(super) fn idle(&mut self, idle: bool) -> Duration {
        self.life.idle_since = idle.then(|| self.life.idle_since.unwrap_or(self.now));
        self.life.idle_since.map_or(Duration::ZERO, |since| self.now.saturating_sub(since))
    }

    /// What was too much for one worker, in cold tokens per second, if that is remembered.
    pub(super) fn strain(&self) -> Option<f64> {
        let (at, strain) = self.life.strain?;
        (self.now.saturating_sub(at) <= KEPT).then_some(strain)
    }

    /// Notes it.
    pub(super) fn note_strain(&mut self, strain: f64) {
        self.life.strain = Some((self.now, strain));
    }

    /// Notes a raw recommendation.
    pub(super) fn recommend(&mut self, raw: i32) {
        self.life.recommendations.push_back((self.now, raw));
    }

    /// Recommendations of a whole window are known.
    pub(super) fn covers(&self, window: Duration) -> bool {
        self.now.saturating_sub(self.life.began) >= window
    }

    /// Recommendations of the last `window`.
    pub(super) fn recommended(&self, window: Duration) -> impl Iterator<Item = i32> {
        let (now, all) = (self.now, &self.life.recommendations);
        all.iter().filter(move |(at, _)| now.saturating_sub(*at) <= window).map(|(_, raw)| *raw)
    }

    /// Workers that were added in the last `period`.
    pub(super) fn added(&self, period: Duration) -> i32 {
        self.changed(period).map(|change| change.max(0)).fold(0, i32::saturating_add)
    }

    /// Workers that were removed in the last `period`.
    pub(super) fn removed(&self, period: Duration) -> i32 {
        self.changed(period).map(|change| change.min(0).saturating_neg()).fold(0, i32::saturating_add)
    }

    fn changed(&self, period: Duration) -> impl Iterator<Item = i32> {
        let (now, all) = (self.now, &self.life.changes);
        all.iter().filter(move |(at, _)| now.saturating_sub(*at) < period).map(|(_, change)| *change)
    }
}
