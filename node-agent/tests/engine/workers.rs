//! Further devices that build: the same bits whoever builds, and no request that ends with a worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypic_domain::flow::{Mode, Order};
use hypic_domain::logits::{Logits, Need};
use hypic_domain::model::ModelSpec;
use hypic_domain::sampling::Sampling;
use hypic_domain::tuple::TupleFormat;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::op::{Device, OpError};
use hypic_kernels::plan::Plan;
use hypic_models::model::{Memory, Model};
use hypic_node_agent::engine::{BuildEvent, Worker};

use crate::harness::{Agent, Fixture, Tuples, finish, greedy, order, random, random_pieces, tiny, to_build};

type Tensor = <CpuDevice as Device>::Tensor;

/// Segments of a prompt that no device takes all of at once.
const SEGMENTS: [usize; 10] = [100, 33, 64, 90, 120, 77, 100, 9, 65, 128];

fn cold(fixture: &Fixture) -> Order {
    let everything = Sampling { logprobs: Some(u32::MAX), ..greedy(4) };
    order(random_pieces(3, fixture.spec().vocab, 20, &SEGMENTS, 30), Mode::Pic, everything)
}

/// Bytes of every tuple of an order.
fn tuples(agent: &Agent, order: &Order) -> Vec<Vec<u8>> {
    let keys = order.pieces.iter().filter_map(|piece| piece.key);
    let bytes = |key| {
        let tuple = agent.tuples.find(&key).unwrap();
        tuple.parts().iter().flat_map(|part| part.bytes().to_vec()).collect()
    };
    keys.map(bytes).collect()
}

#[test]
fn answers_and_tuples_are_the_same_bits_whoever_builds() {
    for (fixture, format) in
        [(tiny(), TupleFormat::default()), (random(), TupleFormat::default()), (random(), TupleFormat::EXACT)]
    {
        let order = cold(fixture);
        let with = |count: usize| {
            let workers = (0..count).map(|_| fixture.worker(None)).collect();
            let agent = fixture.engine_with(workers, |config| (config.format, config.rows) = (format, 128));
            let answer = agent.ask(order.clone()).unwrap();
            let counters = agent.engine.load().counters;
            assert_eq!(counters.built, SEGMENTS.len() as u64);
            assert_eq!(counters.builds_taken_back, 0);
            agent.assert_all_free();
            ((answer.bits(), tuples(&agent, &order)), counters.built_by_workers)
        };
        let (alone, by_workers) = with(0);
        assert_eq!(by_workers, 0);
        for count in [1, 2] {
            // Whoever is free takes the next build: on a busy machine that may never be a worker.
            let some_by_workers = (0..20).any(|_| {
                let (found, by_workers) = with(count);
                assert!(alone == found, "{count} workers");
                by_workers > 0
            });
            assert!(some_by_workers, "{count} workers");
        }
    }
}

#[test]
fn layers_that_a_worker_builds_come_to_others_in_order() {
    let fixture = random();
    let order = cold(fixture);
    let alone = fixture.engine(|_| {});
    alone.ask(order.clone()).unwrap();
    let right = tuples(&alone, &order);
    let some_by_worker = (0..50).any(|_| {
        let agent = fixture.engine_with(vec![fixture.worker(None)], |config| config.rows = 128);
        built_in_order(&agent, fixture, &order);
        assert_eq!(tuples(&agent, &order), right);
        agent.engine.load().counters.built_by_workers > 0
    });
    assert!(some_by_worker);
}

/// Builds what `order` needs, and looks at what comes of it meanwhile.
fn built_in_order(agent: &Agent, fixture: &Fixture, order: &Order) {
    let wanted = order.pieces.iter().filter_map(|piece| Some((piece.key?, piece.ids.clone())));
    let mut stream = agent.engine.build(wanted.map(to_build));
    let (mut next, mut built) = (std::collections::HashMap::new(), 0);
    while let Some(event) = stream.blocking_next() {
        match event {
            BuildEvent::Layer { key, layer, .. } => {
                let next = next.entry(key).or_insert(0);
                assert_eq!(layer, *next);
                *next += 1;
            }
            BuildEvent::Built { tuple } => {
                assert_eq!(next[tuple.key()], fixture.spec().layers.len());
                built += 1;
            }
            BuildEvent::Failed { error, .. } => panic!("{error}"),
        }
    }
    assert_eq!(built, SEGMENTS.len());
    agent.assert_all_free();
}

/// A model whose layers go wrong.
struct Broken {
    model: Arc<dyn Model<CpuDevice>>,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Error,
    Panic,
    Silence,
}

impl Model<CpuDevice> for Broken {
    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    fn embed(&self, device: &CpuDevice, plan: &Plan<CpuDevice>) -> Result<Tensor, OpError> {
        self.model.embed(device, plan)
    }

    fn layer(
        &self,
        device: &CpuDevice,
        layer: usize,
        plan: &Plan<CpuDevice>,
        memory: Memory<'_, CpuDevice>,
        x: Tensor,
    ) -> Result<Tensor, OpError> {
        if layer == 1 {
            match self.fault {
                Fault::Error => return Err(OpError::NoDevice { reason: "it fell off the bus".to_owned() }),
                Fault::Panic => panic!("a worker of this test dies here"),
                Fault::Silence => std::thread::sleep(Duration::from_secs(60)),
            }
        }
        self.model.layer(device, layer, plan, memory, x)
    }

    fn logits(&self, device: &CpuDevice, x: &Tensor, rows: &[(usize, Need)]) -> Result<Vec<Logits>, OpError> {
        self.model.logits(device, x, rows)
    }
}

#[test]
fn a_worker_that_fails_dies_or_is_silent_costs_no_request() {
    let fixture = random();
    let order = cold(fixture);
    let expected = fixture.engine(|config| config.rows = 128).ask(order.clone()).unwrap();
    for fault in [Fault::Error, Fault::Panic, Fault::Silence] {
        let model = Arc::new(Broken { model: Arc::clone(&fixture.model), fault });
        let patience =
            if fault == Fault::Silence { Duration::from_millis(200) } else { Duration::from_secs(60) };
        let worker = Worker { patience, ..fixture.worker(Some(model)) };
        let agent = fixture.engine_with(vec![worker], |config| config.rows = 128);
        let begun = Instant::now();
        let answer = agent.ask(order.clone()).unwrap();
        assert_eq!(answer.bits(), expected.bits());
        let counters = agent.engine.load().counters;
        assert_eq!((counters.built, counters.built_by_workers), (SEGMENTS.len() as u64, 0));
        assert!(counters.builds_taken_back > 0);
        // It was not waited for.
        assert!(fault != Fault::Silence || begun.elapsed() < Duration::from_secs(60));
        agent.assert_all_free();
    }
}

#[test]
fn workers_end_with_the_last_handle_and_streams_go_on() {
    let fixture = random();
    let worker = fixture.worker(None);
    let device = Arc::downgrade(&worker.device);
    let agent = fixture.engine_with(vec![worker], |config| config.rows = 128);
    let stream = agent.begin(cold(fixture), &Tuples::default());
    drop(agent);
    finish(stream).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while device.upgrade().is_some() {
        assert!(Instant::now() < until, "the worker goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}
