//! A virtual fleet: routers that count, combine agents, and scatter workers that take time to come up. Events
//! in order of their milliseconds; the same seed gives the same run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use hypic_crds::scaling::Scaling;
use hypic_domain::id::{AgentId, Incarnation};
use hypic_domain::topology::AgentRole;
use hypic_operator::scaling::{
    Counters, Decision, History, Meter, Pull, Settings, Unreachable, Worker, decide,
};

/// Segments of a request and tokens of a segment.
const SEGMENTS: u64 = 16;
const TOKENS: u64 = 500;
/// Milliseconds of a request that are not building.
const REST_MS: u64 = 200;
/// Arrivals are drawn once in so many milliseconds.
const SLOT_MS: u64 = 10;
const PULL_MS: u64 = 5000;

/// What there is, and what happens to it.
#[derive(Clone)]
pub(crate) struct Setup {
    /// Requests per second and the share of cold segments, by second.
    pub(crate) trace: fn(u64) -> (f64, f64),
    pub(crate) seconds: u64,
    /// Tokens per second that workers say they build, and that they do.
    pub(crate) told: f64,
    pub(crate) speed: f64,
    /// Requests in work at one time; the others wait for admission.
    pub(crate) admitted: usize,
    /// Seconds until a worker is up.
    pub(crate) start_up: u64,
    /// Whether a router (of three) answers the operator at this second.
    pub(crate) answers: fn(usize, u64) -> bool,
    /// The operator begins anew at this second.
    pub(crate) restart: Option<u64>,
    /// The last router's pod is replaced at this second.
    pub(crate) replace: Option<u64>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            trace: |_| (6.0, 0.3),
            seconds: 3600,
            told: 4000.0,
            speed: 4000.0,
            admitted: 64,
            start_up: 45,
            answers: |_, _| true,
            restart: None,
            replace: None,
        }
    }
}

/// What happened.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Workers wanted after each pull: second and number.
    pub(crate) wanted: Vec<(u64, i32)>,
    /// What was decided last.
    pub(crate) last: Option<Decision>,
    /// First tokens of cold requests: second and milliseconds.
    pub(crate) waits: Vec<(u64, u64)>,
}

impl Outcome {
    pub(crate) fn peak(&self) -> i32 {
        self.wanted.iter().map(|(_, workers)| *workers).max().unwrap_or(0)
    }

    pub(crate) fn end(&self) -> i32 {
        self.wanted.last().map_or(0, |(_, workers)| *workers)
    }

    /// The least that was wanted from one second to another.
    pub(crate) fn least(&self, from: u64, to: u64) -> i32 {
        let inside = self.wanted.iter().filter(|(at, _)| (from..to).contains(at));
        inside.map(|(_, workers)| *workers).min().unwrap_or(0)
    }

    /// Changes from one second to another.
    pub(crate) fn changes(&self, from: u64, to: u64) -> usize {
        self.steps().filter(|(at, _)| (from..to).contains(at)).count()
    }

    /// How often up followed on down or down on up.
    pub(crate) fn turns(&self) -> usize {
        let signs: Vec<i32> = self.steps().map(|(_, step)| step.signum()).collect();
        signs.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    fn steps(&self) -> impl Iterator<Item = (u64, i32)> {
        let pairs = self.wanted.windows(2).map(|pair| (pair[1].0, pair[1].1 - pair[0].1));
        pairs.filter(|(_, step)| *step != 0)
    }

    /// 95th percentile in ms of first tokens that were due from one second to another.
    pub(crate) fn p95(&self, from: u64, to: u64) -> u64 {
        let inside = self.waits.iter().filter(|(at, _)| (from..to).contains(at));
        let mut waits: Vec<u64> = inside.map(|(_, ms)| *ms).collect();
        waits.sort_unstable();
        waits.get((waits.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0)
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrivals,
    Done { router: usize, arrived: u64 },
    Pull,
}

struct Router {
    uid: String,
    began: u64,
    counters: Counters,
    waiting: VecDeque<u64>,
}

impl Router {
    fn new(uid: String, now: u64) -> Self {
        let counters = Counters {
            incarnation: Incarnation(now + 1),
            uptime_seconds: 0.0,
            requests: 0,
            cold_requests: 0,
            segment_tokens: 0,
            cold_tokens: 0,
            cold_first_token_ms_counts: vec![0; 18],
            queue_age_seconds: 0.0,
            workers: Vec::new(),
        };
        Self { uid, began: now, counters, waiting: VecDeque::new() }
    }
}

/// One agent's queue of builds.
struct Lane {
    up: u64,
    builds: VecDeque<u64>,
}

impl Lane {
    fn free(&self, now: u64) -> u64 {
        self.builds.back().copied().unwrap_or(0).max(now)
    }
}

struct Fleet {
    setup: Setup,
    random: u64,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    routers: Vec<Router>,
    combine: Vec<Lane>,
    scatter: Vec<Lane>,
    admitted: usize,
    outcome: Outcome,
}

/// Lets a fleet, at first of no workers, run under a policy.
pub(crate) fn run(setup: Setup, policy: &Scaling, seed: u64) -> Outcome {
    let lane = || Lane { up: 0, builds: VecDeque::new() };
    let mut fleet = Fleet {
        routers: (0..3).map(|router| Router::new(format!("router-{router}"), 0)).collect(),
        combine: vec![lane(), lane()],
        scatter: Vec::new(),
        random: seed,
        now: 0,
        events: BinaryHeap::new(),
        sequence: 0,
        admitted: 0,
        outcome: Outcome::default(),
        setup,
    };
    fleet.at(0, Event::Arrivals);
    fleet.at(PULL_MS, Event::Pull);
    let (mut meter, mut history) = (Meter::new(Settings::default()), History::new());
    while let Some(Reverse((now, _, event))) = fleet.events.pop() {
        if now >= 1000 * fleet.setup.seconds {
            break;
        }
        fleet.now = now;
        match event {
            Event::Arrivals => fleet.arrivals(),
            Event::Done { router, arrived } => fleet.done(router, arrived),
            Event::Pull => {
                if fleet.setup.restart == Some(now / 1000) {
                    (meter, history) = (Meter::new(Settings::default()), History::new());
                }
                let at = Duration::from_millis(now);
                let signal = meter.take(fleet.pull(), at);
                let current = i32::try_from(fleet.scatter.len()).unwrap();
                let decision = decide(policy, &signal, current, &mut history, at);
                fleet.scale(usize::try_from(decision.desired).unwrap());
                fleet.outcome.wanted.push((now / 1000, decision.desired));
                fleet.outcome.last = Some(decision);
                fleet.at(now + PULL_MS, Event::Pull);
            }
        }
    }
    fleet.outcome
}

impl Fleet {
    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    /// A draw from 0 to 1.
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn arrivals(&mut self) {
        let (rate, _) = (self.setup.trace)(self.now / 1000);
        if self.draw() < rate * SLOT_MS as f64 / 1000.0 {
            let router = (self.draw() * self.routers.len() as f64) as usize;
            self.routers[router].waiting.push_back(self.now);
            self.admit();
        }
        self.at(self.now + SLOT_MS, Event::Arrivals);
    }

    /// The oldest waiting requests are placed while there is room.
    fn admit(&mut self) {
        while self.admitted < self.setup.admitted {
            let oldest = (0..self.routers.len())
                .filter_map(|router| self.routers[router].waiting.front().map(|&arrived| (arrived, router)))
                .min();
            let Some((arrived, router)) = oldest else { return };
            self.routers[router].waiting.pop_front();
            self.admitted += 1;
            self.place(router, arrived);
        }
    }

    fn place(&mut self, router: usize, arrived: u64) {
        let (_, share) = (self.setup.trace)(self.now / 1000);
        let cold = (0..SEGMENTS).filter(|_| self.draw() < share).count() as u64;
        let counters = &mut self.routers[router].counters;
        counters.requests += 1;
        counters.segment_tokens += SEGMENTS * TOKENS;
        counters.cold_tokens += cold * TOKENS;
        if cold == 0 {
            self.admitted -= 1;
            return;
        }
        counters.cold_requests += 1;
        let built = self.build(cold);
        self.at(built + REST_MS, Event::Done { router, arrived });
    }

    /// Builds cold segments on the workers, or all on one combine agent where that is no later.
    fn build(&mut self, cold: u64) -> u64 {
        let ms = (1000.0 * TOKENS as f64 / self.setup.speed) as u64;
        let now = self.now;
        let mut ahead: Vec<u64> = self.scatter.iter().map(|lane| lane.free(now)).collect();
        let up: Vec<usize> = (0..ahead.len()).filter(|&worker| self.scatter[worker].up <= now).collect();
        let own = (0..self.combine.len()).min_by_key(|&agent| self.combine[agent].free(now)).unwrap();
        // A combine agent also decodes: it builds at half the speed.
        let alone = self.combine[own].free(now) + 2 * ms * cold;
        let mut chosen = Vec::new();
        for _ in 0..cold {
            let Some(&worker) = up.iter().min_by_key(|&&worker| ahead[worker]) else { break };
            ahead[worker] += ms;
            chosen.push((worker, ahead[worker]));
        }
        match chosen.iter().map(|(_, ready)| *ready).max() {
            Some(ready) if ready < alone => {
                for (worker, ready) in chosen {
                    self.scatter[worker].builds.push_back(ready);
                }
                ready
            }
            _ => {
                self.combine[own].builds.push_back(alone);
                alone
            }
        }
    }

    fn done(&mut self, router: usize, arrived: u64) {
        self.admitted -= 1;
        let waited = self.now - arrived;
        let bucket = (waited.next_power_of_two().trailing_zeros() as usize).min(17);
        self.routers[router].counters.cold_first_token_ms_counts[bucket] += 1;
        self.outcome.waits.push((self.now / 1000, waited));
        self.admit();
    }

    /// What the operator reads.
    fn pull(&mut self) -> Vec<Pull> {
        let (now, told) = (self.now, self.setup.told);
        if self.setup.replace == Some(now / 1000) {
            let mut router = Router::new("router-new".into(), now - 2000);
            let old = self.routers.pop().unwrap();
            // What waited there is sent again.
            router.waiting = old.waiting;
            self.routers.push(router);
        }
        for lane in self.scatter.iter_mut().chain(&mut self.combine) {
            lane.builds.retain(|ready| *ready > now);
        }
        let of = |role, name: &str, lanes: &[Lane]| -> Vec<Worker> {
            let agent = |(number, lane): (usize, &Lane)| Worker {
                id: AgentId(format!("{name}-{number}")),
                role,
                usable: lane.up <= now,
                build_tokens_per_second: told,
                builds: u32::try_from(lane.builds.len()).unwrap(),
            };
            lanes.iter().enumerate().map(agent).collect()
        };
        let mut workers = of(AgentRole::Combine, "combine", &self.combine);
        workers.extend(of(AgentRole::Scatter, "scatter", &self.scatter));
        let answer = |(number, router): (usize, &Router)| {
            let queue_age_seconds = router.waiting.front().map_or(0.0, |at| (now - at) as f64 / 1000.0);
            let uptime_seconds = (now - router.began) as f64 / 1000.0;
            let counters = Counters {
                queue_age_seconds,
                uptime_seconds,
                workers: workers.clone(),
                ..router.counters.clone()
            };
            let answers = (self.setup.answers)(number, now / 1000);
            let answer = if answers { Ok(counters) } else { Err(Unreachable("deadline".into())) };
            Pull { router: router.uid.clone(), answer }
        };
        self.routers.iter().enumerate().map(answer).collect()
    }

    /// The last workers go first; what they still build is finished.
    fn scale(&mut self, workers: usize) {
        let up = self.now + 1000 * self.setup.start_up;
        while self.scatter.len() < workers {
            self.scatter.push(Lane { up, builds: VecDeque::new() });
        }
        self.scatter.truncate(workers);
    }
}
