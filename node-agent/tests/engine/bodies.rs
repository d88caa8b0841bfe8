//! Tuples that stay on the device.

use std::sync::atomic::Ordering;

use hypic_domain::flow::{Mode, SegmentOutcome};
use hypic_domain::sampling::Sampling;
use hypic_domain::tuple::TupleFormat;
use hypic_domain::unit::Bytes;
use hypic_node_agent::engine::{Engine, EngineConfig, EngineError, Outlets};

use crate::harness::{Agent, Tuples, finish, greedy, order, random, random_pieces, tiny};

/// Once nothing runs: how many stay, and all bytes; what was told adds up to them.
fn settled(agent: &Agent) -> (usize, u64) {
    agent.assert_all_free();
    // One more turn, after which the last request's bodies are looked at.
    agent.ask(order(vec![crate::harness::live(vec![1])], Mode::Recompute, greedy(1))).unwrap();
    agent.assert_all_free();
    let load = agent.engine.load();
    assert_eq!(agent.bodies.load(Ordering::Relaxed), load.bodies as i64);
    (load.bodies, load.body_bytes.0)
}

#[test]
fn what_stays_on_the_device_gives_the_same_bits() {
    let everything = Sampling { logprobs: Some(u32::MAX), ..greedy(4) };
    for (fixture, format) in [(tiny(), TupleFormat::default()), (random(), TupleFormat::default())] {
        let pieces = random_pieces(3, fixture.spec().vocab, 30, &[100, 33, 64], 20);
        let order = order(pieces, Mode::Pic, everything.clone());
        let none = fixture.engine(|config| config.format = format);
        let cold = none.ask(order.clone()).unwrap();
        assert_eq!(none.ask(order.clone()).unwrap().bits(), cold.bits());
        assert_eq!(settled(&none), (0, 0));
        let agent = fixture.engine(|config| (config.format, config.bodies) = (format, Bytes(64 << 20)));
        assert_eq!(agent.ask(order.clone()).unwrap().bits(), cold.bits());
        assert_eq!(settled(&agent).0, 3);
        // Found on the device, whether its bytes come again or not.
        let warm = agent.ask(order.clone()).unwrap();
        assert!(warm.ready.segments.iter().all(|s| matches!(s.outcome, SegmentOutcome::Hit { .. })));
        assert_eq!(warm.bits(), cold.bits());
        agent.tuples.clear();
        assert_eq!(agent.ask(order).unwrap().bits(), cold.bits());
        assert_eq!(settled(&agent).0, 3);
    }
}

#[test]
fn bodies_that_nobody_uses_go_oldest_first_under_the_budget() {
    let fixture = random();
    let vocab = fixture.spec().vocab;
    let ask = |seed| order(random_pieces(seed, vocab, 5, &[60], 5), Mode::Pic, greedy(1));
    let roomy = fixture.engine(|config| config.bodies = Bytes(64 << 20));
    roomy.ask(ask(1)).unwrap();
    let (count, each) = settled(&roomy);
    assert_eq!(count, 1);
    assert!(each > 10_000, "{each}");
    let tight = fixture.engine(|config| config.bodies = Bytes(2 * each + each / 2));
    for seed in [1, 2, 1, 3] {
        tight.ask(ask(seed)).unwrap();
    }
    assert_eq!(settled(&tight), (2, 2 * each));
    // The first was used after the second: a build tells whether one is there by what it counts.
    let built = |agent: &Agent| {
        agent.wait_for_builds();
        agent.engine.load().counters.built
    };
    let before = built(&tight);
    let nothing = Tuples::default();
    finish(tight.begin(ask(1), &nothing)).unwrap();
    assert_eq!(built(&tight), before, "it is on the device");
    finish(tight.begin(ask(2), &nothing)).unwrap();
    assert_eq!(built(&tight), before + 1, "it had to go");
    assert_eq!(settled(&tight), (2, 2 * each));
}

#[test]
fn what_is_in_use_stays_and_the_budget_counts_under_the_cap() {
    let fixture = random();
    let pieces = random_pieces(7, fixture.spec().vocab, 5, &[60, 70, 80], 5);
    let order = order(pieces, Mode::Pic, greedy(8));
    let expected = fixture.engine(|_| {}).ask(order.clone()).unwrap();
    let agent = fixture.engine(|config| config.bodies = Bytes(1));
    assert_eq!(agent.ask(order).unwrap().ids(), expected.ids());
    assert_eq!(settled(&agent), (0, 0));
    let mut config = fixture.config();
    config.bodies = config.memory;
    let (device, model) = (fixture.device.clone(), fixture.model.clone());
    let refused = Engine::start(device, model, Vec::new(), config, Outlets::default());
    assert!(matches!(refused.map(|_| ()), Err(EngineError::FitMemory { .. })));
}

#[test]
fn what_a_further_device_built_stays_and_goes_to_the_tiers() {
    let fixture = random();
    let lens = [100, 33, 64, 90, 120, 77];
    let order = order(random_pieces(9, fixture.spec().vocab, 20, &lens, 10), Mode::Pic, greedy(4));
    let set = |config: &mut EngineConfig| (config.bodies, config.rows) = (Bytes(64 << 20), 128);
    let alone = fixture.engine(set);
    let expected = alone.ask(order.clone()).unwrap();
    let agent = fixture.engine_with(vec![fixture.worker(None)], set);
    assert_eq!(agent.ask(order.clone()).unwrap().bits(), expected.bits());
    let counters = agent.engine.load().counters;
    assert_eq!((counters.built, counters.builds_taken_back), (lens.len() as u64, 0));
    assert!(counters.built_by_workers > 0);
    assert_eq!(settled(&agent), settled(&alone));
    assert_eq!(settled(&agent).0, lens.len());
    assert!(order.pieces.iter().filter_map(|piece| piece.key).all(|key| agent.tuples.find(&key).is_some()));
}
