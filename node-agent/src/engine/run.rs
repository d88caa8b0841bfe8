//! The engine's loop, top to bottom: listen, sweep, begin, compose, step.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hypic_decode::FairQueue;
use hypic_domain::model::LayerSpec;
use hypic_domain::unit::Bytes;
use hypic_kernels::op::Device;
use hypic_models::model::Model;
use hypic_store::SnapshotCache;

use super::bodies::Bodies;
use super::core::Core;
use super::edge::Command;
use super::load::{Counters, Load};
use super::memory::{Memory, pages_under_cap};
use super::pace::Pace;
use super::pool::Pool;
use super::scatter::{Crew, Farewell};
use super::sequence::Sequence;
use super::{EngineConfig, EngineError, Outlets};

/// Sights of snapshots after which one counts half.
const HALF_LIFE: f64 = 256.0;

/// What an engine is made of.
pub(super) struct Parts<D: Device> {
    pub(super) device: Arc<D>,
    pub(super) model: Arc<dyn Model<D>>,
    pub(super) config: Arc<EngineConfig>,
    pub(super) layers: Arc<[LayerSpec]>,
    pub(super) outlets: Outlets,
    pub(super) load: Arc<Mutex<Load>>,
    pub(super) pace: Arc<Mutex<Pace>>,
    pub(super) hungry: Arc<AtomicBool>,
    pub(super) crew: Crew<D>,
}

/// The device's pools.
struct Allocated<D: Device> {
    states: D::States,
    pages: D::Pages,
    count: usize,
}

impl<D: Device> Parts<D> {
    /// Allocates all memory and starts a thread of that name.
    pub(super) fn start(self, name: &str, inbox: Receiver<Command>) -> Result<(), EngineError> {
        let allocated = self.allocate()?;
        let farewell = match &self.crew {
            Crew::Working { doorbell, .. } => Some(Farewell(doorbell.clone())),
            Crew::Alone | Crew::Combining { .. } => None,
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Dropped last: whoever hears it finds the worker gone.
                let _farewell = farewell;
                run(self, allocated, &inbox);
            })
            .map_err(|source| EngineError::StartThread { source: Arc::new(source) })?;
        Ok(())
    }

    /// All memory that the engine will ever hold, at once.
    fn allocate(&self) -> Result<Allocated<D>, EngineError> {
        let (spec, config) = (self.model.spec(), &self.config);
        let fixed = self.device.body_bytes(spec) + self.device.recording_bytes(spec) * config.builds as u64;
        let count = pages_under_cap(spec, config, fixed)?;
        let refused = |source| EngineError::AllocateMemory { source: Arc::new(source) };
        let idle = Load {
            slots_free: config.slots,
            slots_total: config.slots,
            build_slots_free: config.builds,
            pages_free: count,
            pages_total: count,
            ..Load::default()
        };
        // A lock poisoned by a panic still holds plain numbers.
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = idle;
        Ok(Allocated {
            states: self.device.states(spec, config.slots + config.builds).map_err(refused)?,
            pages: self.device.pages(spec, count, config.page_tokens).map_err(refused)?,
            count,
        })
    }
}

/// Runs until every handle is gone.
fn run<D: Device>(parts: Parts<D>, allocated: Allocated<D>, inbox: &Receiver<Command>) {
    let Parts { device, model, config, layers, outlets, load, pace, hungry, crew } = parts;
    let Outlets { publish, snapshots, bodies } = outlets;
    let bodies = Bodies::new(layers.len(), config.bodies, bodies);
    let memory = Memory {
        states: allocated.states,
        pages: allocated.pages,
        slots: Pool::new(0..config.slots),
        build_slots: Pool::new(config.slots..config.slots + config.builds),
        page_pool: Pool::new(0..allocated.count),
        page_tokens: config.page_tokens,
        snapshots: SnapshotCache::new(config.snapshots, 1.0, HALF_LIFE, snapshots),
    };
    let mut core = Core {
        device,
        model,
        config,
        layers,
        publish,
        memory,
        bodies,
        waiting: FairQueue::default(),
        running: BTreeMap::new(),
        builds: Vec::new(),
        counters: Counters::default(),
        pace,
        crew,
    };
    loop {
        core.show(&load);
        if !core.listen(inbox) || core.is_dismissed() {
            return;
        }
        if !core.work() {
            // A reader that makes room from here on rings; one that did so just before is seen by `work`.
            hungry.store(true, Ordering::SeqCst);
            let slept = core.work() || {
                core.show(&load);
                core.sleep(inbox)
            };
            hungry.store(false, Ordering::SeqCst);
            if !slept {
                return;
            }
        }
    }
}

impl<D: Device> Core<D> {
    /// Hears all that was said so far. False when every handle is gone.
    fn listen(&mut self, inbox: &Receiver<Command>) -> bool {
        loop {
            match inbox.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Waits for somebody to say something, or for the next deadline. False when every handle is gone.
    fn sleep(&mut self, inbox: &Receiver<Command>) -> bool {
        self.pace().rest();
        let sequences = self.running.values().chain(self.waiting.iter());
        let deadlines = sequences.filter_map(|sequence| sequence.prompt.deadline).chain(self.next_silence());
        let heard = match deadlines.min() {
            Some(deadline) => inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match heard {
            Ok(command) => self.obey(command),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    /// Says that rows are given to the device, before they are counted.
    pub(super) fn give(&self) {
        self.pace().give(Instant::now(), &self.counters);
    }

    /// Says that the results of all rows that were counted are there.
    pub(super) fn settle(&self) {
        self.pace().settle(Instant::now(), &self.counters);
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        // A lock poisoned by a panic still holds plain numbers.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One turn. False when there was nothing to compute.
    fn work(&mut self) -> bool {
        self.receive();
        self.sweep();
        self.begin_sequences();
        self.begin_builds();
        let flown = self.fly();
        let busy = self.step() || flown;
        // What is built goes to the host when no prompt waits.
        let waits = self.running.values().any(Sequence::is_composing);
        let landed = !(busy && waits) && self.land();
        busy || landed
    }

    /// Publishes gauges and counters.
    fn show(&self, load: &Mutex<Load>) {
        let rows = |sequence: &Sequence<D>| sequence.rows().saturating_sub(sequence.computed) as u64;
        let sequences = self.running.values().chain(self.waiting.iter()).map(rows).sum::<u64>();
        let builds = self.builds.iter().map(|build| build.rows_left() as u64).sum::<u64>();
        let shown = Load {
            running: self.running.len(),
            queued: self.waiting.len(),
            builds: self.builds.len(),
            rows_ahead: sequences + builds,
            slots_free: self.memory.slots.free(),
            slots_total: self.memory.slots.size(),
            build_slots_free: self.memory.build_slots.free(),
            pages_free: self.memory.page_pool.free(),
            pages_total: self.memory.page_pool.size(),
            snapshots: self.memory.snapshots.usage().entries,
            bodies: self.bodies.usage().0,
            body_bytes: Bytes(self.bodies.usage().1),
            counters: self.counters,
        };
        // A lock poisoned by a panic still holds plain numbers.
        *load.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }
}
