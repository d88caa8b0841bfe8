use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hypic_domain::flow::{ColdReason, Mode, Order, Origin, Piece, SegmentOutcome, Source};
use hypic_domain::id::{AgentId, RequestId, TenantId};
use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::tuple::PartSpec;
use hypic_domain::unit::{self, Tokens};
use hypic_wire::bulk::{Budget, Transport};
use hypic_wire::convert::order::BuildSegment;
use proptest::prelude::*;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;

mod world;

use world::{Faults, Fleet, LAYERS, World, manifest_of, parts_of};

fn key(byte: u8) -> SegmentKey {
    SegmentKey([byte; 32])
}

fn agents(names: &[&str]) -> Vec<AgentId> {
    names.iter().map(|name| AgentId::from(*name)).collect()
}

fn fetch(holders: &[&str]) -> Source {
    Source::Fetch { holders: agents(holders) }
}

fn build(worker: &str) -> Source {
    Source::Build { worker: AgentId::from(worker) }
}

fn order(sources: Vec<(u8, Source)>) -> Order {
    let piece =
        |(byte, _): &(u8, Source)| Piece { ids: vec![7; 20], origin: Origin::Part, key: Some(key(*byte)) };
    Order {
        id: RequestId::from("r"),
        tenant: TenantId::from("t"),
        scope: Scope::PUBLIC,
        mode: Mode::Pic,
        pieces: sources.iter().map(piece).collect(),
        boundaries: Vec::new(),
        sources: sources.into_iter().map(|(_, source)| Some(source)).collect(),
        snapshot: Tokens(0),
        choices: Vec::new(),
        deadline: None,
        answered: Vec::new(),
        measure_gap: false,
    }
}

fn station(world: &Arc<World>, budget: u64, credit: u64) -> Arc<Scatter> {
    let fleet = || Arc::new(Fleet(Arc::clone(world)));
    Arc::new(Scatter {
        me: AgentId::from("me"),
        peers: fleet(),
        index: fleet(),
        transport: fleet(),
        budget: Budget::new(unit::Bytes(budget)),
        limits: Limits { credit: unit::Bytes(credit), events: 2, ..Limits::default() },
    })
}

/// How one piece ended.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Whole(AgentId, SegmentOutcome),
    Lost(ColdReason, Option<AgentId>),
}

/// Takes events as an engine would, and checks each against the world.
#[derive(Default)]
struct Engine {
    layers: HashMap<usize, BTreeMap<u16, Layer>>,
    ends: HashMap<usize, End>,
    failed: Vec<(usize, ColdReason, AgentId)>,
}

impl Engine {
    fn take(&mut self, order: &Order, event: GatherEvent) {
        match event {
            GatherEvent::Layer { piece, layer } => {
                assert!(!self.ends.contains_key(&piece), "a layer after the end");
                for (spec, bytes) in &layer.parts {
                    assert_eq!(xxhash_rust::xxh3::xxh3_64(bytes), spec.sum);
                    assert_eq!(spec.layer, layer.layer);
                }
                self.layers.entry(piece).or_default().insert(layer.layer, layer);
            }
            GatherEvent::Failed { piece, reason, by } => {
                assert!(!self.ends.contains_key(&piece), "a failure after the end");
                self.failed.push((piece, reason, by));
            }
            GatherEvent::Manifest { piece, manifest, by, outcome } => {
                let copy = manifest[0];
                let stands =
                    self.layers.get(&piece).into_iter().flatten().flat_map(|(_, layer)| &layer.parts);
                let stands: Vec<_> = stands.map(|(spec, _)| spec.clone()).collect();
                assert_eq!(stands, parts_of(order.pieces[piece].key.unwrap(), copy), "one whole copy");
                assert_eq!(manifest, manifest_of(copy));
                assert!(self.ends.insert(piece, End::Whole(by, outcome)).is_none(), "two ends");
            }
            GatherEvent::Lost { piece, reason, by } => {
                assert!(self.ends.insert(piece, End::Lost(reason, by)).is_none(), "two ends");
            }
        }
    }
}

async fn run(scatter: &Arc<Scatter>, order: &Order) -> Engine {
    let mut gathered = scatter.gather(order);
    let mut engine = Engine::default();
    while let Some(event) = gathered.events.next().await {
        engine.take(order, event);
    }
    let coming = gathered.segments.handles.iter().filter(|handle| **handle == Some(Handle::Coming)).count();
    assert_eq!(engine.ends.len(), coming, "every segment ends");
    engine
}

/// Nothing is left in flight, on any side.
async fn assert_quiet(scatter: &Scatter, world: &World) {
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(scatter.budget.used(), unit::Bytes(0), "budget");
    assert_eq!(world.leases.load(Ordering::SeqCst), 0, "leases");
    assert_eq!(world.building.load(Ordering::SeqCst), 0, "builds");
}

/// A mixed order over a world that has some of it.
fn mixed(world: &World) -> Order {
    for byte in 0..4 {
        world.hold("a", key(byte), 1);
        // A replica that was fetched, and one that was built apart.
        world.hold("b", key(byte), if byte % 2 == 0 { 1 } else { 2 });
    }
    order(vec![
        (0, fetch(&["a", "b"])),
        (1, fetch(&["b", "a"])),
        (2, fetch(&["gone", "a"])),
        (3, fetch(&["me", "a", "b"])),
        (4, fetch(&["a"])),
        (5, build("w1")),
        (6, build("w1")),
        (7, build("w2")),
        (5, build("w1")),
        (8, Source::BuildHere),
        (9, Source::Local),
    ])
}

fn in_virtual_time<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(test)
}

#[tokio::test(start_paused = true)]
async fn without_faults_everything_comes_but_what_nobody_has() {
    let world = Arc::new(World::new(1, Faults::default()));
    let scatter = station(&world, 1 << 20, 1 << 20);
    let order = mixed(&world);
    let engine = run(&scatter, &order).await;
    let built = SegmentOutcome::Built { cold: ColdReason::Unknown };
    let whole = |by: &str, outcome| End::Whole(AgentId::from(by), outcome);
    for (piece, end) in [
        (0, whole("a", SegmentOutcome::Fetched)),
        (1, whole("b", SegmentOutcome::Fetched)),
        (2, whole("a", SegmentOutcome::Fetched)),
        (3, whole("a", SegmentOutcome::Fetched)),
        (4, End::Lost(ColdReason::Stale, Some(AgentId::from("a")))),
        (5, whole("w1", built)),
        (6, whole("w1", built)),
        (7, whole("w2", built)),
        (8, whole("w1", built)),
        (9, End::Lost(ColdReason::Unknown, None)),
    ] {
        assert_eq!(engine.ends[&piece], end, "piece {piece}");
    }
    assert_eq!(world.builds.load(Ordering::SeqCst), 3);
    assert_quiet(&scatter, &world).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn under_faults_every_segment_ends_once_whole_or_lost(seed: u64, budget in 1u64..200_000, credit in 1u64..60_000) {
        in_virtual_time(async {
            let world = Arc::new(World::new(seed, Faults::ALL));
            // The fake worker needs credit for one part; the contract lets one part pass.
            let scatter = station(&world, budget, credit.max(3000));
            let order = mixed(&world);
            let started = Instant::now();
            let engine = run(&scatter, &order).await;
            assert!(started.elapsed() <= scatter.limits.build + scatter.limits.answer + Duration::from_secs(1));
            for (piece, end) in &engine.ends {
                if let End::Lost(reason, Some(by)) = end {
                    assert!(engine.failed.iter().any(|(p, r, b)| (p, r, b) == (piece, reason, by))
                        || *reason == ColdReason::FetchFailed);
                }
            }
            assert_quiet(&scatter, &world).await;
        });
    }

    #[test]
    fn letting_go_at_any_moment_leaves_nothing_in_flight(seed: u64, events in 0usize..60, millis in 0u64..300) {
        in_virtual_time(async {
            let world = Arc::new(World::new(seed, Faults { hang: 0, ..Faults::ALL }));
            let scatter = station(&world, 50_000, 10_000);
            let order = mixed(&world);
            let mut gathered = scatter.gather(&order);
            let mut engine = Engine::default();
            for _ in 0..events {
                let Some(event) = gathered.events.next().await else { break };
                engine.take(&order, event);
            }
            tokio::time::sleep(Duration::from_millis(millis)).await;
            drop(gathered);
            assert_quiet(&scatter, &world).await;
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_is_used_before_the_next_one_exists() {
    let mut world = World::new(2, Faults::default());
    world.steps = Some(Semaphore::new(0));
    let world = Arc::new(world);
    let scatter = station(&world, 1 << 20, 1 << 20);
    let order = order(vec![(1, build("w"))]);
    let mut gathered = scatter.gather(&order);
    for layer in 0..LAYERS {
        world.steps.as_ref().unwrap().add_permits(1);
        let event = gathered.events.next().await.unwrap();
        assert!(
            matches!(event, GatherEvent::Layer { piece: 0, layer: ref l } if l.layer == layer),
            "{event:?}"
        );
    }
    assert!(matches!(gathered.events.next().await, Some(GatherEvent::Manifest { .. })));
    assert!(gathered.events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn two_gathers_of_one_key_lead_to_one_build() {
    let world = Arc::new(World::new(3, Faults::default()));
    let (one, two) = (station(&world, 1 << 20, 1 << 20), station(&world, 1 << 20, 1 << 20));
    let (first, second) = (order(vec![(1, build("w1"))]), order(vec![(1, build("w2"))]));
    let here = order(vec![(1, Source::BuildHere)]);
    let (a, b, c) = tokio::join!(run(&one, &first), run(&two, &second), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        run(&two, &here).await
    });
    assert_eq!(world.builds.load(Ordering::SeqCst), 1);
    for engine in [a, b, c] {
        assert!(matches!(engine.ends[&0], End::Whole(_, SegmentOutcome::Built { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_holder_is_overtaken_by_the_next() {
    let mut world = World::new(4, Faults::default());
    world.slow.insert("slow".to_owned(), 1900);
    let world = Arc::new(world);
    // Copies of two builds: the winner's whole set stands.
    world.hold("slow", key(1), 1);
    world.hold("fast", key(1), 2);
    let scatter = station(&world, 1 << 20, 1 << 20);
    let started = Instant::now();
    let engine = run(&scatter, &order(vec![(1, fetch(&["slow", "fast"]))])).await;
    assert_eq!(engine.ends[&0], End::Whole(AgentId::from("fast"), SegmentOutcome::Fetched));
    assert!(!engine.layers[&0].is_empty() && started.elapsed() < scatter.limits.fetch);
    assert_quiet(&scatter, &world).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_worker_is_overtaken_by_another() {
    let mut world = World::new(5, Faults::default());
    world.slow.insert("slow".to_owned(), 30_000);
    let world = Arc::new(world);
    let scatter = station(&world, 1 << 20, 1 << 20);
    let engine = run(&scatter, &order(vec![(1, build("slow")), (2, build("fast"))])).await;
    for piece in [0, 1] {
        let built = SegmentOutcome::Built { cold: ColdReason::Unknown };
        assert_eq!(engine.ends[&piece], End::Whole(AgentId::from("fast"), built));
    }
    assert_quiet(&scatter, &world).await;
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_copy_is_told_and_the_next_holder_is_asked() {
    let world = World::new(6, Faults { corrupt: 1000, ..Faults::default() });
    let world = Arc::new(world);
    world.hold("a", key(1), 1);
    world.hold("b", key(1), 1);
    let scatter = station(&world, 1 << 20, 1 << 20);
    let engine = run(&scatter, &order(vec![(1, fetch(&["a", "b"]))])).await;
    let corrupt = |by: &str| (0, ColdReason::Corrupt, AgentId::from(by));
    assert_eq!(engine.failed, [corrupt("a"), corrupt("b")]);
    assert_eq!(engine.ends[&0], End::Lost(ColdReason::Corrupt, Some(AgentId::from("b"))));
    assert!(engine.layers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn layers_of_an_equal_copy_are_not_pulled_again() {
    let world = Arc::new(World::new(7, Faults::default()));
    world.hold("a", key(1), 1);
    world.hold("b", key(1), 1);
    let scatter = station(&world, 1 << 20, 1 << 20);
    let order = order(vec![(1, fetch(&["a", "b"]))]);
    let mut gathered = scatter.gather(&order);
    let mut engine = Engine::default();
    for layer in 0..3 {
        let event = gathered.events.next().await.unwrap();
        assert!(matches!(&event, GatherEvent::Layer { layer: l, .. } if l.layer == layer));
        engine.take(&order, event);
    }
    // The holder loses it in the middle.
    world.holds.lock().unwrap().remove(&(AgentId::from("a"), key(1)));
    while let Some(event) = gathered.events.next().await {
        engine.take(&order, event);
    }
    assert_eq!(engine.ends[&0], End::Whole(AgentId::from("b"), SegmentOutcome::Fetched));
    let whole = parts_of(key(1), 1).len() as i64;
    assert!(world.pulled.load(Ordering::SeqCst) < 2 * whole);
}

#[tokio::test(start_paused = true)]
async fn an_index_that_is_away_costs_single_flight_and_nothing_else() {
    struct Away;
    impl Index for Away {
        fn grant(
            &self,
            _: Vec<(SegmentKey, AgentId)>,
            _: Duration,
        ) -> futures::future::BoxFuture<'static, Vec<Option<AgentId>>> {
            Box::pin(std::future::pending())
        }
    }
    let world = Arc::new(World::new(8, Faults::default()));
    let mut scatter = Arc::into_inner(station(&world, 1 << 20, 1 << 20)).unwrap();
    scatter.index = Arc::new(Away);
    let engine = run(&Arc::new(scatter), &order(vec![(1, build("w")), (2, Source::BuildHere)])).await;
    assert!(matches!(engine.ends[&0], End::Whole(..)));
    assert_eq!(engine.ends[&1], End::Lost(ColdReason::Unknown, None));
}
