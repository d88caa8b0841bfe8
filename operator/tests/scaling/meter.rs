//! From readings of single routers to one signal.

use hypic_domain::id::{AgentId, Incarnation};
use hypic_domain::topology::AgentRole;
use hypic_operator::scaling::{Counters, Freshness, Meter, Pull, Settings, Signal, Unreachable, Worker};

use super::scene::s;

/// A router that counts steadily: so many segment tokens a second, half of them cold, from its begin on.
#[derive(Clone)]
pub(crate) struct Router {
    uid: &'static str,
    incarnation: u64,
    began: u64,
    rate: u64,
    workers: Vec<Worker>,
}

impl Router {
    pub(crate) fn new(uid: &'static str, began: u64, rate: u64) -> Self {
        Self { uid, incarnation: began + 1, began, rate, workers: Vec::new() }
    }

    fn with(mut self, workers: &[Worker]) -> Self {
        self.workers = workers.to_vec();
        self
    }

    fn counters(&self, now: u64) -> Counters {
        let up = now - self.began;
        Counters {
            incarnation: Incarnation(self.incarnation),
            uptime_seconds: up as f64,
            requests: up * self.rate / 1000,
            cold_requests: up * self.rate / 1000,
            segment_tokens: up * self.rate,
            cold_tokens: up * self.rate / 2,
            cold_first_token_ms_counts: vec![0, 0, 0, 0, up * self.rate / 1000, 0],
            queue_age_seconds: 0.0,
            workers: self.workers.clone(),
        }
    }

    pub(crate) fn answer(&self, now: u64) -> Pull {
        Pull { router: self.uid.into(), answer: Ok(self.counters(now)) }
    }

    pub(crate) fn silence(&self) -> Pull {
        Pull { router: self.uid.into(), answer: Err(Unreachable("deadline".into())) }
    }
}

pub(crate) fn worker(id: &str, role: AgentRole, speed: f64) -> Worker {
    Worker { id: AgentId(id.into()), role, usable: true, build_tokens_per_second: speed, builds: 0 }
}

pub(crate) fn run(meter: &mut Meter, routers: &[Router], from: u64, to: u64) -> Signal {
    let mut last = None;
    for now in (from..=to).step_by(5) {
        last = Some(meter.take(routers.iter().map(|router| router.answer(now)).collect(), s(now)));
    }
    last.unwrap()
}

fn meter() -> Meter {
    Meter::new(Settings::default())
}

#[test]
fn rates_are_sums_over_routers() {
    let signal = run(&mut meter(), &[Router::new("a", 0, 3000), Router::new("b", 0, 1000)], 100, 200);
    assert_eq!(signal.segment_tokens_per_second, 4000.0);
    assert_eq!(signal.cold_tokens_per_second, 2000.0);
    assert_eq!(signal.cold_requests_per_second, 4.0);
    assert_eq!((signal.cold_share_percent, signal.hit_share_percent), (50.0, 50.0));
    assert_eq!(signal.window_seconds, 60.0);
    // All in the bucket of 8 to 16 ms.
    assert_eq!(signal.cold_p95_ms, Some(8.0 + 0.95 * 8.0));
    assert_eq!(signal.freshness, Freshness::Fresh);
}

#[test]
fn the_first_readings_are_no_signal() {
    let mut meter = meter();
    let router = Router::new("a", 0, 3000);
    let fresh = |signal: Signal| (signal.freshness.clone(), signal.segment_tokens_per_second);
    assert_eq!(fresh(run(&mut meter, std::slice::from_ref(&router), 100, 100)), (Freshness::Starting, 0.0));
    assert_eq!(
        fresh(run(&mut meter, std::slice::from_ref(&router), 105, 110)),
        (Freshness::Starting, 3000.0)
    );
    assert_eq!(fresh(run(&mut meter, &[router], 115, 115)), (Freshness::Fresh, 3000.0));
}

#[test]
fn a_life_is_never_subtracted_from_another() {
    let mut meter = meter();
    run(&mut meter, &[Router::new("a", 0, 3000)], 100, 200);
    // The process began anew at 203 in the same pod: two seconds of counts at 205.
    let signal = run(&mut meter, &[Router::new("a", 203, 3000)], 205, 205);
    assert_eq!(signal.segment_tokens_per_second, (55.0 * 3000.0 + 2.0 * 3000.0) / 60.0);
}

#[test]
fn counts_that_fall_within_a_life_begin_anew() {
    let mut meter = meter();
    run(&mut meter, &[Router::new("a", 0, 3000)], 100, 200);
    let mut less = Router::new("a", 0, 1000);
    less.began = 100;
    let signal = run(&mut meter, &[less], 205, 205);
    assert_eq!(signal.segment_tokens_per_second, 55.0 * 3000.0 / 60.0);
}

#[test]
fn a_new_router_counts_from_zero_only_if_it_began_since_the_last_pull() {
    let old = Router::new("a", 0, 3000);
    for (began, counted) in [(197, 3.0), (150, 0.0)] {
        let mut meter = meter();
        run(&mut meter, std::slice::from_ref(&old), 100, 195);
        let signal = run(&mut meter, &[old.clone(), Router::new("b", began, 6000)], 200, 200);
        assert_eq!(signal.segment_tokens_per_second, 3000.0 + counted * 6000.0 / 60.0, "{began}");
    }
}

#[test]
fn a_strange_uptime_counts_nothing() {
    for uptime in [f64::NAN, -1.0, f64::INFINITY] {
        let mut meter = meter();
        run(&mut meter, &[Router::new("a", 0, 3000)], 100, 195);
        let mut pull = Router::new("b", 197, 6000).answer(200);
        pull.answer.as_mut().unwrap().uptime_seconds = uptime;
        let signal = meter.take(vec![Router::new("a", 0, 3000).answer(200), pull], s(200));
        assert_eq!(signal.segment_tokens_per_second, 3000.0);
    }
}

#[test]
fn silence_is_held_for_a_grace_and_then_said() {
    let mut meter = meter();
    let (a, b) = (Router::new("a", 0, 3000), Router::new("b", 0, 1000));
    run(&mut meter, &[a.clone(), b.clone()], 100, 200);
    for now in [205, 210, 215] {
        let signal = meter.take(vec![a.answer(now), b.silence()], s(now));
        assert_eq!((signal.freshness, signal.segment_tokens_per_second.round()), (Freshness::Fresh, 4000.0));
    }
    let signal = meter.take(vec![a.answer(220), b.silence()], s(220));
    assert_eq!(signal.freshness, Freshness::Stale { router: "b".into() });
    // When it speaks again, what it counted meanwhile is known after all.
    let signal = run(&mut meter, &[a, b], 250, 250);
    assert_eq!((signal.freshness, signal.segment_tokens_per_second.round()), (Freshness::Fresh, 4000.0));
}

#[test]
fn a_router_that_was_never_heard_is_silent_too() {
    let mut meter = meter();
    let (a, b) = (Router::new("a", 0, 3000), Router::new("b", 0, 1000));
    let mut signal = run(&mut meter, std::slice::from_ref(&a), 100, 200);
    for now in (205..=225).step_by(5) {
        signal = meter.take(vec![a.answer(now), b.silence()], s(now));
    }
    assert_eq!(signal.freshness, Freshness::Stale { router: "b".into() });
}

#[test]
fn without_routers_nothing_is_known() {
    let signal = meter().take(Vec::new(), s(100));
    assert_eq!(signal.freshness, Freshness::NoRouters);
    assert_eq!((signal.tokens_per_second_per_worker, signal.cold_p95_ms), (None, None));
}

#[test]
fn the_speed_is_the_median_of_usable_scatter_workers_else_of_combine_agents() {
    use AgentRole::{Combine, Scatter};
    let speed = |workers: &[Worker]| {
        let signal = run(&mut meter(), &[Router::new("a", 0, 1).with(workers)], 100, 120);
        (signal.tokens_per_second_per_worker, signal.usable_workers)
    };
    let combine = worker("c", Combine, 400.0);
    let scatter = |id, tokens| worker(id, Scatter, tokens);
    let away = Worker { usable: false, ..scatter("z", 9.0) };
    assert_eq!(speed(&[]), (None, 0));
    assert_eq!(speed(&[combine.clone(), away.clone()]), (Some(400.0), 0));
    assert_eq!(speed(&[combine.clone(), scatter("w", 0.0)]), (Some(400.0), 1));
    assert_eq!(speed(&[combine, away, scatter("w", 100.0), scatter("x", 900.0)]), (Some(500.0), 2));
    assert_eq!(speed(&[scatter("u", 1.0), scatter("w", 100.0), scatter("x", 900.0)]), (Some(100.0), 3));
}

#[test]
fn an_agent_seen_by_two_routers_is_one() {
    let seen = |usable, builds| Worker { usable, builds, ..worker("w", AgentRole::Scatter, 100.0) };
    let routers =
        [Router::new("a", 0, 1).with(&[seen(true, 2)]), Router::new("b", 0, 1).with(&[seen(false, 4)])];
    let signal = run(&mut meter(), &routers, 100, 200);
    assert_eq!(signal.usable_workers, 1);
}

#[test]
fn busy_workers_tell_their_speed_where_it_is_less_than_they_say() {
    // 1000 cold tokens/s. Two workers of which both, one or none is busy whenever it is looked.
    let speed = |builds: [u32; 2], told, until| {
        let worker = |id, builds| Worker { builds, ..worker(id, AgentRole::Scatter, told) };
        let workers = [worker("w", builds[0]), worker("x", builds[1])];
        run(&mut meter(), &[Router::new("a", 0, 2000).with(&workers)], 100, until)
            .tokens_per_second_per_worker
    };
    assert_eq!(speed([1, 7], 800.0, 400), Some(500.0));
    assert_eq!(speed([0, 1], 1500.0, 400), Some(1000.0));
    assert_eq!(speed([1, 7], 400.0, 400), Some(400.0), "what is told is never exceeded");
    assert_eq!(speed([0, 0], 800.0, 400), Some(800.0));
    // Fewer than 120 seconds of busy workers say nothing yet.
    assert_eq!((speed([1, 7], 800.0, 155), speed([1, 7], 800.0, 160)), (Some(800.0), Some(500.0)));
}

#[test]
fn the_oldest_wait_of_any_router_counts() {
    let mut pulls = vec![Router::new("a", 0, 1).answer(100), Router::new("b", 0, 1).answer(100)];
    pulls[1].answer.as_mut().unwrap().queue_age_seconds = 1.5;
    assert_eq!(meter().take(pulls, s(100)).queue_age_seconds, 1.5);
}

#[test]
fn two_pulls_at_one_time_lose_nothing() {
    let mut meter = meter();
    let a = Router::new("a", 0, 3000);
    run(&mut meter, std::slice::from_ref(&a), 100, 200);
    meter.take(vec![a.answer(203)], s(200));
    let signal = run(&mut meter, &[a], 205, 260);
    assert_eq!(signal.segment_tokens_per_second.round(), 3000.0);
}
