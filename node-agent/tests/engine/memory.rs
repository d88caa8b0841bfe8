//! Slots and pages: short, reused, and always given back.

use std::sync::Mutex;

use hypic_domain::flow::{Mode, Order};
use hypic_domain::sampling::{FinishReason, Sampling};
use hypic_domain::unit::Bytes;
use hypic_kernels::op::Device;
use hypic_node_agent::engine::{Engine, EngineConfig, EngineError, Outlets};

use crate::harness::{
    Agent, Fixture, Tuples, finish, greedy, live, order, random, random_pieces, with_boundaries,
};

/// A memory cap under which exactly `pages` pages fit.
fn only_pages(fixture: &Fixture, config: &mut EngineConfig, pages: u64) {
    let slots = fixture.spec().slot_bytes().0 * (config.slots + config.builds) as u64;
    // One full layer of two heads of 32 keys and 32 values.
    let page = config.page_tokens as u64 * 4 * 2 * (32 + 32);
    let recordings = fixture.device.recording_bytes(fixture.spec()) * config.builds as u64;
    config.snapshots = Bytes(0);
    config.memory = Bytes(slots + recordings + pages * page);
}

#[test]
fn a_preempted_sequence_still_answers_right() {
    let fixture = random();
    let orders: Vec<Order> = (0..8)
        .map(|i| {
            let pieces = random_pieces(20 + i, fixture.spec().vocab, 20, &[40, 30], 20);
            let mode = [Mode::Pic, Mode::Recompute][i as usize % 2];
            order(pieces, mode, Sampling { temperature: 0.8, seed: i, ..greedy(60) })
        })
        .collect();
    let roomy = fixture.engine(|_| {});
    let expected: Vec<_> = orders.iter().map(|order| roomy.ask(order.clone()).unwrap().ids()).collect();
    let tight = fixture.engine(|config| {
        config.slots = 8;
        only_pages(fixture, config, 14);
    });
    assert_eq!(tight.engine.load().pages_total, 14);
    let streams: Vec<_> = orders.iter().map(|order| tight.begin(order.clone(), &Tuples::default())).collect();
    let answers: Vec<_> = streams.into_iter().map(|stream| finish(stream).unwrap().ids()).collect();
    assert_eq!(answers, expected);
    assert!(tight.engine.load().counters.preempted > 0);
    tight.assert_all_free();
}

#[test]
fn a_sequence_gives_way_to_the_build_it_waits_for() {
    let fixture = random();
    let agent = fixture.engine(|config| only_pages(fixture, config, 4));
    let pieces = random_pieces(30, fixture.spec().vocab, 60, &[120], 30);
    let ask = order(pieces, Mode::Pic, greedy(3));
    let expected = fixture.engine(|_| {}).ask(ask.clone()).unwrap();
    assert_eq!(agent.ask(ask).unwrap().ids(), expected.ids());
}

#[test]
fn what_can_never_fit_is_refused_and_what_fits_alone_ends_at_the_edge() {
    let fixture = random();
    let agent = fixture.engine(|config| only_pages(fixture, config, 3));
    let ask = |len| agent.ask(order(vec![live(vec![1; len])], Mode::Recompute, greedy(500)));
    assert!(matches!(ask(96), Err(EngineError::FitPages { .. })));
    let answer = ask(80).unwrap();
    // Rows of the prompt and of all tokens but the last fill the pages.
    assert_eq!((answer.ids().len(), answer.finished[0]), (96 - 80 + 1, Some(FinishReason::Length)));
    agent.assert_all_free();
    let mut config = fixture.config();
    config.memory = Bytes(10_000);
    let refused =
        Engine::start(fixture.device.clone(), fixture.model.clone(), Vec::new(), config, Outlets::default());
    assert!(matches!(refused.map(|_| ()), Err(EngineError::FitMemory { .. })));
}

fn assert_as_before(agent: &Agent) {
    agent.assert_all_free();
    let load = agent.engine.load();
    assert_eq!((load.slots_free, load.pages_free), (load.slots_total, load.pages_total));
}

#[test]
fn slots_and_pages_come_back_whatever_happens() {
    let fixture = random();
    let agent = fixture.engine(|config| {
        (config.slots, config.queue, config.builds) = (4, 8, 1);
        config.snapshots = Bytes(0);
    });
    let pieces = random_pieces(40, fixture.spec().vocab, 20, &[60], 20);
    let warm = order(pieces.clone(), Mode::Pic, greedy(20));
    let expected = agent.ask(warm.clone()).unwrap().ids();
    // Aborted while running or queued.
    for _ in 0..50 {
        let streams: Vec<_> = (0..4).map(|_| agent.begin(warm.clone(), &agent.tuples)).collect();
        drop(streams);
    }
    assert_as_before(&agent);
    // Several choices, finished and aborted.
    let mut many = warm.clone();
    many.choices = vec![greedy(5); 4];
    for round in 0..20 {
        let stream = agent.begin(many.clone(), &agent.tuples);
        match round % 2 {
            0 => assert_eq!(finish(stream).unwrap().finished, [Some(FinishReason::Length); 4]),
            _ => drop(stream),
        }
    }
    assert_as_before(&agent);
    // More than may wait.
    let streams: Vec<_> = (0..40).map(|_| agent.begin(warm.clone(), &agent.tuples)).collect();
    let answers: Vec<_> = streams.into_iter().map(finish).collect();
    for answer in &answers {
        match answer {
            Ok(answer) => assert_eq!(answer.ids(), expected),
            Err(error) => assert!(matches!(error, EngineError::QueueOrder { .. }), "{error}"),
        }
    }
    assert!(answers.iter().any(Result::is_ok));
    assert_as_before(&agent);
}

#[test]
fn lack_of_slots_is_a_wait() {
    let fixture = random();
    let agent = fixture.engine(|config| (config.slots, config.builds) = (1, 1));
    let streams: Vec<_> = (0..10)
        .map(|i| {
            let pieces = random_pieces(50 + i, fixture.spec().vocab, 5, &[30, 20], 5);
            agent.begin(order(pieces, Mode::Pic, greedy(4)), &Tuples::default())
        })
        .collect();
    for stream in streams {
        assert_eq!(finish(stream).unwrap().ids().len(), 4);
    }
    agent.assert_all_free();
}

#[test]
fn a_flood_of_one_tenant_does_not_hold_up_another() {
    let fixture = random();
    let agent = fixture.engine(|config| config.slots = 1);
    let ask = |tenant: &str| {
        let mut order = order(vec![live(vec![3; 200])], Mode::Recompute, greedy(20));
        order.tenant = tenant.into();
        agent.begin(order, &Tuples::default())
    };
    let mut streams: Vec<_> = (0..10).map(|_| ("flood", ask("flood"))).collect();
    streams.push(("other", ask("other")));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (tenant, stream) in streams {
            let done = &done;
            scope.spawn(move || {
                finish(stream).unwrap();
                done.lock().unwrap().push(tenant);
            });
        }
    });
    let done = done.into_inner().unwrap();
    assert!(done.iter().position(|tenant| *tenant == "other").unwrap() < 7, "{done:?}");
}

#[test]
fn a_reused_slot_remembers_nothing() {
    let fixture = random();
    let single = |config: &mut EngineConfig| (config.slots, config.builds) = (1, 1);
    let everything = Sampling { logprobs: Some(u32::MAX), frequency_penalty: 0.5, ..greedy(3) };
    let mut later: Vec<Order> =
        (1..=4).map(|len| order(vec![live(vec![7; len])], Mode::Recompute, everything.clone())).collect();
    let mut composed = random_pieces(60, fixture.spec().vocab, 0, &[40, 30], 4);
    composed.remove(0);
    later.push(order(composed.clone(), Mode::Pic, everything.clone()));
    composed.insert(0, live(Vec::new()));
    later.push(order(composed, Mode::Pic, everything));
    for then in later {
        let fresh = fixture.engine(single).ask(then.clone()).unwrap();
        let used = fixture.engine(single);
        let secret = random_pieces(61, fixture.spec().vocab, 300, &[], 10);
        used.ask(order(secret.clone(), Mode::Recompute, greedy(8))).unwrap();
        // One more is aborted somewhere in its prefill.
        drop(used.begin(order(secret, Mode::Recompute, greedy(8)), &Tuples::default()));
        let reused = used.ask(then).unwrap();
        assert_eq!(fresh.bits(), reused.bits());
        assert!(reused.tokens[0].iter().all(|token| token.top.iter().all(|(_, p)| p.is_finite())));
    }
}

#[test]
fn two_requests_for_one_cold_segment_lead_to_one_build() {
    let fixture = random();
    let agent = fixture.engine(|_| {});
    let pieces = random_pieces(70, fixture.spec().vocab, 10, &[200, 200], 10);
    let mut twice = pieces.clone();
    twice.insert(1, pieces[1].clone());
    let orders = [pieces.clone(), pieces, twice].map(|pieces| order(pieces, Mode::Pic, greedy(3)));
    let streams = orders.map(|order| agent.begin(with_boundaries(order), &Tuples::default()));
    for stream in streams {
        finish(stream).unwrap();
    }
    agent.wait_for_builds();
    assert_eq!(agent.engine.load().counters.built, 2);
}
