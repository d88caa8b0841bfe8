//! From readings of single routers to one signal of the fleet.
//!
//! Two readings of the same life of a router make a *span*: so many counts between two times. The window
//! adds up the spans of all routers by how far they lie in it. Nothing is ever subtracted across lives.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hypic_domain::id::AgentId;
use hypic_domain::topology::AgentRole;

use super::counters::{Counters, Counts, Worker, p95_ms};
use super::signal::{Freshness, Signal};

/// What a worker builds changes more slowly than what it is asked for: it is measured over so long,
const SPEED_WINDOW: Duration = Duration::from_secs(300);
/// and from so many seconds of busy workers on.
const SPEED_NEEDS: f64 = 120.0;

/// How long to look back and how long to bear silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What rates are means over. A quarter of it must have been seen before a signal is fresh.
    pub window: Duration,
    /// How long a router may be silent while its last rate is held.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { window: Duration::from_secs(60), grace: Duration::from_secs(15) }
    }
}

/// A router that gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("router does not answer: {0}")]
pub struct Unreachable(
    /// Why, for logs.
    pub String,
);

/// What came of asking one serving router pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pull {
    /// Uid of the pod, never its name: a name comes back with other counters.
    pub router: String,
    /// Its counters.
    pub answer: Result<Counters, Unreachable>,
}

/// Remembers readings; see [`take`](Self::take).
#[derive(Clone, Debug, Default)]
pub struct Meter {
    settings: Settings,
    routers: BTreeMap<String, Router>,
    spans: VecDeque<Span>,
    work: VecDeque<Work>,
    first: Option<Duration>,
    last: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Router {
    listed_at: Duration,
    read: Option<(Duration, Counters)>,
}

#[derive(Clone, Debug)]
struct Span {
    router: String,
    from: Duration,
    to: Duration,
    counts: Counts,
}

/// What was done between two rounds while there were workers.
#[derive(Clone, Debug)]
struct Work {
    at: Duration,
    cold_tokens: f64,
    busy_seconds: f64,
}

impl Meter {
    /// One that has read nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Takes the answers of one round, one for each router pod that serves now, and gives the signal.
    ///
    /// A pod that is not among them is gone: nothing is held for it and its silence means nothing. What it
    /// had counted did happen, and leaves with the window.
    pub fn take(&mut self, pulls: Vec<Pull>, now: Duration) -> Signal {
        let previous = self.last;
        let now = previous.map_or(now, |last| now.max(last));
        let mut cold_tokens = 0.0;
        self.routers.retain(|uid, _| pulls.iter().any(|pull| pull.router == *uid));
        for Pull { router: uid, answer } in pulls {
            let router = self.routers.entry(uid.clone()).or_insert(Router { listed_at: now, read: None });
            let Ok(counters) = answer else { continue };
            if router.read.as_ref().is_some_and(|(at, _)| *at == now) {
                continue;
            }
            if let Some((from, counts)) = counted(router.read.as_ref(), &counters, previous, now) {
                cold_tokens += counts.cold_tokens;
                self.spans.push_back(Span { router: uid, from, to: now, counts });
            }
            router.read = Some((now, counters));
        }
        self.first.get_or_insert(now);
        self.last = Some(now);
        let since = now.saturating_sub(self.settings.window);
        self.spans.retain(|span| span.to > since);
        let workers = self.workers(now);
        if workers.usable > 0 {
            let passed = now.saturating_sub(previous.unwrap_or(now)).as_secs_f64();
            self.work.push_back(Work { at: now, cold_tokens, busy_seconds: passed * workers.busy });
        }
        self.work.retain(|work| now.saturating_sub(work.at) < SPEED_WINDOW);
        self.signal(&workers, now)
    }

    fn signal(&self, workers: &Workers, now: Duration) -> Signal {
        let covered = self.settings.window.min(now.saturating_sub(self.first.unwrap_or(now)));
        let counts = self.counts(now, covered);
        let seconds = covered.as_secs_f64();
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let all = counts.segment_tokens;
        let share = |part: f64| if all > 0.0 { 100.0 * part / all } else { 0.0 };
        Signal {
            taken_at: now,
            freshness: self.freshness(now, covered),
            window_seconds: seconds,
            segment_tokens_per_second: rate(all),
            cold_tokens_per_second: rate(counts.cold_tokens),
            cold_requests_per_second: rate(counts.cold_requests),
            cold_share_percent: share(counts.cold_tokens),
            hit_share_percent: share(all - counts.cold_tokens),
            cold_p95_ms: p95_ms(&counts.first_token),
            queue_age_seconds: self.heard(now).map(|read| read.queue_age_seconds).fold(0.0, f64::max),
            tokens_per_second_per_worker: workers
                .told
                .map(|told| self.speed().map_or(told, |is| told.min(is))),
            usable_workers: workers.usable,
        }
    }

    fn freshness(&self, now: Duration, covered: Duration) -> Freshness {
        let silent = self.routers.iter().find(|(_, router)| {
            let heard_at = router.read.as_ref().map_or(router.listed_at, |(at, _)| *at);
            now.saturating_sub(heard_at) > self.settings.grace
        });
        match silent {
            Some((uid, _)) => Freshness::Stale { router: uid.clone() },
            None if self.routers.is_empty() => Freshness::NoRouters,
            None if covered < self.settings.window / 4 => Freshness::Starting,
            None => Freshness::Fresh,
        }
    }

    /// What the fleet counted in the last `covered`, with what silent routers would have counted in their
    /// grace at the rate they had.
    fn counts(&self, now: Duration, covered: Duration) -> Counts {
        let begin = now.saturating_sub(covered);
        let mut sum = Counts::default();
        for span in &self.spans {
            let inside = span.to.saturating_sub(span.from.max(begin));
            sum.add(&span.counts, inside.as_secs_f64() / (span.to - span.from).as_secs_f64());
        }
        for (uid, router) in &self.routers {
            let Some((at, _)) = router.read else { continue };
            let silence = now.saturating_sub(at);
            if silence.is_zero() || silence > self.settings.grace {
                continue;
            }
            let own = || self.spans.iter().filter(|span| span.router == *uid);
            let seconds: f64 = own().map(|span| (span.to - span.from).as_secs_f64()).sum();
            for span in own() {
                sum.add(&span.counts, silence.as_secs_f64() / seconds);
            }
        }
        sum
    }

    /// Tokens per second of a busy worker, as seen: throughput over busy servers, the utilisation law of
    /// queues. Combine agents build a part, so this errs upwards; none before it is seen well enough.
    fn speed(&self) -> Option<f64> {
        let cold_tokens: f64 = self.work.iter().map(|work| work.cold_tokens).sum();
        let busy_seconds: f64 = self.work.iter().map(|work| work.busy_seconds).sum();
        (busy_seconds >= SPEED_NEEDS && cold_tokens > 0.0).then(|| cold_tokens / busy_seconds)
    }

    /// Readings that still speak for their routers.
    fn heard(&self, now: Duration) -> impl Iterator<Item = &Counters> {
        let grace = self.settings.grace;
        self.routers
            .values()
            .filter_map(|router| router.read.as_ref())
            .filter(move |(at, _)| now.saturating_sub(*at) <= grace)
            .map(|(_, counters)| counters)
    }

    /// The agents, each once: usable if any router can use it.
    fn workers(&self, now: Duration) -> Workers {
        let mut agents: BTreeMap<&AgentId, Worker> = BTreeMap::new();
        for worker in self.heard(now).flat_map(|counters| &counters.workers) {
            let seen = agents.entry(&worker.id).or_insert_with(|| worker.clone());
            seen.usable |= worker.usable;
            seen.builds = seen.builds.max(worker.builds);
            seen.build_tokens_per_second = seen.build_tokens_per_second.max(worker.build_tokens_per_second);
        }
        let usable = |role| agents.values().filter(move |agent| agent.usable && agent.role == role);
        let count = usable(AgentRole::Scatter).count();
        let busy = usable(AgentRole::Scatter).filter(|worker| worker.builds > 0).count();
        Workers {
            usable: i32::try_from(count).unwrap_or(i32::MAX),
            told: median(usable(AgentRole::Scatter)).or_else(|| median(usable(AgentRole::Combine))),
            busy: busy as f64,
        }
    }
}

/// What the routers say of the scatter workers now.
struct Workers {
    usable: i32,
    told: Option<f64>,
    busy: f64,
}

/// What a reading adds to what is known, and since when. None where it is only a place to count from.
fn counted(
    read: Option<&(Duration, Counters)>,
    counters: &Counters,
    previous: Option<Duration>,
    now: Duration,
) -> Option<(Duration, Counts)> {
    // A life that began after `known` has all its counts since then.
    let from_zero = |known: Duration| {
        let uptime = Duration::try_from_secs_f64(counters.uptime_seconds).ok()?;
        let from = now.saturating_sub(uptime);
        (from >= known && from < now).then(|| (from, counters.all()))
    };
    match read {
        Some((at, before)) if before.incarnation == counters.incarnation => {
            counters.since(before).map(|counts| (*at, counts))
        }
        Some((at, _)) => from_zero(*at),
        None => from_zero(previous?),
    }
}

fn median<'a>(workers: impl Iterator<Item = &'a Worker>) -> Option<f64> {
    let mut speeds: Vec<f64> = workers
        .map(|worker| worker.build_tokens_per_second)
        .filter(|speed| speed.is_finite() && *speed > 0.0)
        .collect();
    speeds.sort_by(f64::total_cmp);
    let middle = speeds.len() / 2;
    match speeds.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(speeds[middle - 1], speeds[middle])),
        _ => Some(speeds[middle]),
    }
}
