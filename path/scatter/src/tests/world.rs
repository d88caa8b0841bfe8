//! A fleet in one process under virtual time: holders, workers, an index and a transport, with seeded faults.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use futures::StreamExt;
use futures::future::BoxFuture;
use hypic_domain::tuple::PartKind;
use hypic_wire::bulk::{Lease, OnPart, PartError, PullFrom, Transfer};
use hypic_wire::convert::tuple::{BuildEvent, LeasedTuple};
use hypic_wire::status::Refusal;
use tokio_stream::wrappers::UnboundedReceiverStream;
use xxhash_rust::xxh3::xxh3_64;

use super::*;

pub(super) const LAYERS: u16 = 6;
const KINDS: [PartKind; 2] = [PartKind::State, PartKind::Tail];
const PART: u64 = 3000;

/// What may go wrong, each with a chance in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) corrupt: u64,
    pub(super) stall: u64,
    pub(super) gone: u64,
    pub(super) refuse: u64,
    pub(super) hang: u64,
    pub(super) die: u64,
}

impl Faults {
    pub(super) const ALL: Self = Self { corrupt: 20, stall: 20, gone: 20, refuse: 100, hang: 30, die: 30 };
}

pub(super) struct World {
    random: AtomicU64,
    pub(super) faults: Faults,
    /// Milliseconds that a part, an answer or a built layer takes at most.
    pub(super) slow: HashMap<String, u64>,
    /// Who has which key, and which copy: copies of different builds differ in their bytes.
    pub(super) holds: Mutex<HashMap<(AgentId, SegmentKey), u8>>,
    granted: Mutex<HashMap<SegmentKey, AgentId>>,
    begun: Mutex<HashSet<(AgentId, SegmentKey)>>,
    pub(super) builds: AtomicI64,
    pub(super) building: AtomicI64,
    pub(super) leases: AtomicI64,
    pub(super) pulled: AtomicI64,
    /// A worker builds the next layer only when it takes one of these.
    pub(super) steps: Option<Semaphore>,
}

/// Counts a thing for as long as it lives.
struct Counted<'a>(&'a AtomicI64);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicI64) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            random: AtomicU64::new(seed),
            faults,
            slow: HashMap::new(),
            holds: Mutex::default(),
            granted: Mutex::default(),
            begun: Mutex::default(),
            builds: AtomicI64::new(0),
            building: AtomicI64::new(0),
            leases: AtomicI64::new(0),
            pulled: AtomicI64::new(0),
            steps: None,
        }
    }

    /// Splitmix64.
    fn draw(&self) -> u64 {
        let mut z = self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn happens(&self, per_mille: u64) -> bool {
        self.draw() % 1000 < per_mille
    }

    async fn pause(&self, agent: &str) {
        let most = self.slow.get(agent).copied().unwrap_or(20);
        tokio::time::sleep(Duration::from_millis(self.draw() % most + most / 2)).await;
    }

    pub(super) fn hold(&self, agent: &str, key: SegmentKey, copy: u8) {
        self.holds.lock().unwrap().insert((AgentId::from(agent), key), copy);
    }

    fn copy_of(&self, agent: &str, key: SegmentKey) -> Option<u8> {
        self.holds.lock().unwrap().get(&(AgentId::from(agent), key)).copied()
    }
}

/// Bytes of one part of one copy.
fn bytes_of(key: SegmentKey, copy: u8, offset: u64) -> Bytes {
    let mut bytes = vec![key.0[0] ^ copy.wrapping_mul(37); PART as usize];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes.into()
}

/// The parts of one copy, layer-major.
pub(super) fn parts_of(key: SegmentKey, copy: u8) -> Vec<PartSpec> {
    let part = |(index, (layer, kind))| {
        let offset = index as u64 * PART;
        PartSpec { layer, kind, offset, len: PART, sum: xxh3_64(&bytes_of(key, copy, offset)) }
    };
    (0..LAYERS).flat_map(|layer| KINDS.map(|kind| (layer, kind))).enumerate().map(part).collect()
}

/// The manifest names the copy.
pub(super) fn manifest_of(copy: u8) -> Bytes {
    vec![copy].into()
}

pub(super) struct Fleet(pub(super) Arc<World>);

impl Peers for Fleet {
    fn endpoint(&self, agent: &AgentId) -> Option<String> {
        Some(agent.0.clone())
    }

    fn lease(
        &self,
        holder: &AgentId,
        key: SegmentKey,
        _: Duration,
    ) -> BoxFuture<'static, Result<Option<LeasedTuple>, Refusal>> {
        let (world, holder) = (Arc::clone(&self.0), holder.clone());
        Box::pin(async move {
            world.pause(&holder.0).await;
            if world.happens(world.faults.hang) {
                std::future::pending::<()>().await;
            }
            if world.happens(world.faults.refuse) {
                return Err(Refusal::NotServing { why: "seeded".to_owned() });
            }
            let Some(copy) = world.copy_of(&holder.0, key) else { return Ok(None) };
            world.leases.fetch_add(1, Ordering::SeqCst);
            let (manifest, parts) = (manifest_of(copy), parts_of(key, copy));
            Ok(Some(LeasedTuple { key, manifest, lease: 1, ticket: Bytes::new(), parts }))
        })
    }

    fn release(&self, _: &AgentId, lease: u64) {
        assert_eq!(lease, 1);
        self.0.leases.fetch_sub(1, Ordering::SeqCst);
    }

    fn build(
        &self,
        worker: &AgentId,
        _: RequestId,
        segments: Vec<BuildSegment>,
        _: Duration,
        (credit, mut more): (unit::Bytes, mpsc::UnboundedReceiver<unit::Bytes>),
    ) -> BoxFuture<'static, Result<Builds, Refusal>> {
        let (world, worker) = (Arc::clone(&self.0), worker.clone());
        Box::pin(async move {
            world.pause(&worker.0).await;
            if world.happens(world.faults.refuse) {
                return Err(Refusal::NotServing { why: "seeded".to_owned() });
            }
            // Each worker's builds are copies of their own.
            let copy = xxh3_64(worker.0.as_bytes()) as u8;
            for segment in &segments {
                world.hold(&worker.0, segment.key, copy);
                if world.begun.lock().unwrap().insert((worker.clone(), segment.key)) {
                    world.builds.fetch_add(1, Ordering::SeqCst);
                }
            }
            let (tell, told) = mpsc::unbounded_channel();
            let work = async move {
                let _building = Counted::new(&world.building);
                let mut credit = credit.0 as i64;
                let all: Vec<_> = segments.iter().map(|segment| parts_of(segment.key, copy)).collect();
                for layer in 0..LAYERS {
                    if let Some(steps) = &world.steps {
                        steps.acquire().await.unwrap().forget();
                    }
                    for (segment, parts) in segments.iter().zip(&all) {
                        world.pause(&worker.0).await;
                        if world.happens(world.faults.die) {
                            return;
                        }
                        if world.happens(world.faults.hang) {
                            std::future::pending::<()>().await;
                        }
                        for spec in parts.iter().filter(|spec| spec.layer == layer) {
                            while credit < spec.len as i64 {
                                let Some(back) = more.recv().await else { return };
                                credit += back.0 as i64;
                            }
                            credit -= spec.len as i64;
                            let (key, ticket) = (segment.key, Bytes::new());
                            let layer_parts = KINDS.len() as u32;
                            drop(tell.send(Ok(BuildEvent::Part {
                                key,
                                spec: spec.clone(),
                                ticket,
                                layer_parts,
                            })));
                        }
                    }
                }
                for segment in &segments {
                    let parts = u32::from(LAYERS) * KINDS.len() as u32;
                    drop(tell.send(Ok(BuildEvent::Built {
                        key: segment.key,
                        manifest: manifest_of(copy),
                        parts,
                    })));
                }
            };
            // The worker works as long as somebody reads: as a dropped stream cancels over gRPC.
            let mut task = JoinSet::new();
            task.spawn(work);
            let events = UnboundedReceiverStream::new(told);
            Ok(events.inspect(move |_| assert!(task.len() <= 1)).boxed())
        })
    }
}

impl Index for Fleet {
    fn grant(
        &self,
        wishes: Vec<(SegmentKey, AgentId)>,
        _: Duration,
    ) -> BoxFuture<'static, Vec<Option<AgentId>>> {
        let world = Arc::clone(&self.0);
        Box::pin(async move {
            world.pause("index").await;
            if world.happens(world.faults.hang) {
                std::future::pending::<()>().await;
            }
            let mut granted = world.granted.lock().unwrap();
            wishes.into_iter().map(|(key, wish)| Some(granted.entry(key).or_insert(wish).clone())).collect()
        })
    }
}

impl Transport for Fleet {
    fn name(&self) -> &'static str {
        "virtual"
    }

    fn fetch(
        &self,
        from: PullFrom,
        parts: Vec<PartSpec>,
        lease: Lease,
        stall: Duration,
        on_part: OnPart,
    ) -> Box<dyn Transfer> {
        let world = Arc::clone(&self.0);
        let mut work = JoinSet::new();
        work.spawn(async move {
            let mut first = Ok(());
            for (index, spec) in parts.iter().enumerate() {
                world.pause(&from.endpoint).await;
                world.pulled.fetch_add(1, Ordering::SeqCst);
                let outcome = match world.copy_of(&from.endpoint, from.key) {
                    _ if world.happens(world.faults.stall) => {
                        tokio::time::sleep(stall).await;
                        Err(PartError::Stalled)
                    }
                    _ if world.happens(world.faults.corrupt) => Err(PartError::Checksum),
                    Some(copy) if !world.happens(world.faults.gone) => {
                        Ok(bytes_of(from.key, copy, spec.offset))
                    }
                    _ => Err(PartError::Gone),
                };
                if let (Err(error), Ok(())) = (&outcome, &first) {
                    first = Err(error.clone());
                }
                on_part(index, outcome);
            }
            (lease, first)
        });
        Box::new(Moving(work))
    }
}

/// Dropping it aborts the work, which holds the lease: nothing writes any more when that is dropped.
struct Moving(JoinSet<(Lease, Result<(), PartError>)>);

impl Transfer for Moving {
    fn cancel(&self) {}

    fn quiesce(mut self: Box<Self>) -> BoxFuture<'static, (Option<Lease>, Result<(), PartError>)> {
        Box::pin(async move {
            match self.0.join_next().await {
                Some(Ok((lease, outcome))) => (Some(lease), outcome),
                _ => (None, Err(PartError::Cancelled)),
            }
        })
    }
}
