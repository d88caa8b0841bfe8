//! The engine's loop, top to bottom: listen, sweep, begin, compose, step.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use hypic_decode::FairQueue;
use hypic_domain::key::SegmentKey;
use hypic_domain::model::LayerSpec;
use hypic_domain::unit::Tokens;
use hypic_kernels::op::Device;
use hypic_kernels::plan::{BodyLayers, Run};
use hypic_models::model::Model;
use hypic_store::codec::TupleHead;
use hypic_store::{Observer, SnapshotCache};

use super::build::Build;
use super::edge::{Age, Command};
use super::load::{Counters, Load};
use super::memory::{Memory, empty_context, pages_under_cap};
use super::pool::Pool;
use super::sequence::Sequence;
use super::step::Step;
use super::{EngineConfig, EngineError, Publish};

/// Sights of snapshots after which one counts half.
const HALF_LIFE: f64 = 256.0;

/// What an engine is made of.
pub(super) struct Parts<D: Device> {
    pub(super) device: Arc<D>,
    pub(super) model: Arc<dyn Model<D>>,
    pub(super) config: Arc<EngineConfig>,
    pub(super) layers: Arc<[LayerSpec]>,
    pub(super) publish: Publish,
    pub(super) snapshots: Observer,
    pub(super) load: Arc<Mutex<Load>>,
    pub(super) hungry: Arc<AtomicBool>,
}

/// The device's pools.
pub(super) struct Allocated<D: Device> {
    states: D::States,
    pages: D::Pages,
    count: usize,
}

impl<D: Device> Parts<D> {
    /// All memory that the engine will ever hold, at once.
    pub(super) fn allocate(&self) -> Result<Allocated<D>, EngineError> {
        let (spec, config) = (self.model.spec(), &self.config);
        let count = pages_under_cap(spec, config)?;
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

/// What the tuple of a segment is, before it exists.
pub(super) fn tuple_head(
    config: &EngineConfig,
    layers: &Arc<[LayerSpec]>,
    key: SegmentKey,
    ids: &[u32],
) -> TupleHead {
    TupleHead {
        identity: config.identity,
        key,
        generation: 0,
        ids: ids.into(),
        body: Tokens((ids.len() as u32).saturating_sub(config.seam)),
        layers: Arc::clone(layers),
        format: config.format,
    }
}

/// The engine's state. Only its own thread sees it.
pub(super) struct Core<D: Device> {
    pub(super) device: Arc<D>,
    pub(super) model: Arc<dyn Model<D>>,
    pub(super) config: Arc<EngineConfig>,
    pub(super) layers: Arc<[LayerSpec]>,
    pub(super) publish: Publish,
    pub(super) memory: Memory<D>,
    /// Tuples on the device that somebody uses or will use.
    pub(super) bodies: HashMap<SegmentKey, Weak<BodyLayers<D>>>,
    pub(super) waiting: FairQueue<Sequence<D>>,
    /// Sequences that hold a slot, oldest first.
    pub(super) running: BTreeMap<Age, Sequence<D>>,
    /// Oldest first.
    pub(super) builds: Vec<Build<D>>,
    pub(super) counters: Counters,
}

/// Runs until every handle is gone.
pub(super) fn run<D: Device>(parts: Parts<D>, allocated: Allocated<D>, inbox: &Receiver<Command>) {
    let Parts { device, model, config, layers, publish, snapshots, load, hungry } = parts;
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
        bodies: HashMap::new(),
        waiting: FairQueue::default(),
        running: BTreeMap::new(),
        builds: Vec::new(),
        counters: Counters::default(),
    };
    loop {
        core.show(&load);
        if !core.listen(inbox) {
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
        let sequences = self.running.values().chain(self.waiting.iter());
        let heard = match sequences.filter_map(|sequence| sequence.prompt.deadline).min() {
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

    /// One turn. False when there was nothing to compute.
    fn work(&mut self) -> bool {
        self.sweep();
        self.begin_sequences();
        self.begin_builds();
        let flown = self.fly();
        let stepped = self.step();
        flown || stepped
    }

    /// Computes one step: a row of every answer, then prompts and builds up to the budget, oldest first.
    fn step(&mut self) -> bool {
        let mut budget = self.config.rows;
        let decoding = |sequence: &Sequence<D>| sequence.is_decoding() && sequence.has_room();
        let mut shares: Vec<(Age, usize)> = Vec::new();
        for (age, _) in self.running.iter().filter(|(_, sequence)| decoding(sequence)) {
            shares.push((*age, 1));
            budget = budget.saturating_sub(1);
        }
        let mut prefills: Vec<(Age, Option<SegmentKey>)> = self
            .running
            .iter()
            .filter(|(_, sequence)| {
                !sequence.is_decoding() && !sequence.is_composing() && sequence.has_room()
            })
            .map(|(age, _)| (*age, None))
            .chain(
                self.builds
                    .iter()
                    .filter(|build| build.is_running())
                    .map(|build| (build.age, Some(build.key))),
            )
            .collect();
        prefills.sort_by_key(|(age, _)| *age);
        let mut building: Vec<(SegmentKey, usize)> = Vec::new();
        for (age, key) in prefills {
            if budget == 0 {
                break;
            }
            let rows = match key {
                None => self.running.get(&age).map_or(0, |sequence| sequence.share(budget, 0).ids.len()),
                Some(key) => self.build(&key).map_or(0, |build| build.rows_left().min(budget)),
            };
            budget -= rows;
            match key {
                None => shares.push((age, rows)),
                Some(key) => building.push((key, rows)),
            }
        }
        // Memory goes to the oldest first; only the younger lose it, and none of those is in the step yet.
        shares.sort_unstable();
        shares.retain(|(age, rows)| self.make_room_for(*age, *rows));
        shares.retain(|(age, _)| self.running.contains_key(age));
        self.compute(&shares, &building)
    }

    /// Packs and computes the rows of `shares` and `building`.
    fn compute(&mut self, shares: &[(Age, usize)], building: &[(SegmentKey, usize)]) -> bool {
        let mut step = Step::new();
        for (age, rows) in shares {
            let Some(sequence) = self.running.get_mut(age) else { continue };
            let share = sequence.share(*rows, step.rows());
            let counter = if sequence.is_decoding() {
                &mut self.counters.rows_decoded
            } else {
                &mut self.counters.rows_live
            };
            *counter += share.ids.len() as u64;
            sequence.take_part(&mut step, share);
        }
        let recording = step.plan.runs.len();
        for (key, rows) in building {
            if let Some(build) = self.builds.iter_mut().find(|build| build.key == *key) {
                build.take_part(&mut step, *rows);
                self.counters.rows_built += *rows as u64;
            }
        }
        if step.rows() == 0 {
            return false;
        }
        self.counters.steps += 1;
        let computed = self.compute_layers(&mut step, building, recording);
        let mut runs = std::mem::take(&mut step.plan.runs).into_iter();
        let mut ends = Vec::with_capacity(shares.len());
        for (age, _) in shares {
            let sequence = self.running.get_mut(age);
            ends.extend(sequence.and_then(|sequence| sequence.take_back(runs.next())));
        }
        for (key, rows) in building {
            if let Some(build) = self.builds.iter_mut().find(|build| build.key == *key) {
                build.take_back(runs.next(), *rows);
            }
        }
        let finished = computed.and_then(|()| self.logits_of(&step, shares, &ends));
        match finished {
            Ok(logits) => {
                for ((age, _), logits) in shares.iter().zip(logits) {
                    self.computed(*age, logits);
                }
                self.finish_builds();
            }
            Err(error) => self.fail_step(shares, building, &error),
        }
        true
    }

    /// Every layer of a step; layers of builds that end in it are given out as they are done.
    fn compute_layers(
        &mut self,
        step: &mut Step<D>,
        building: &[(SegmentKey, usize)],
        recording: usize,
    ) -> Result<(), EngineError> {
        let failed = |source| EngineError::RunStep { source: Arc::new(source) };
        for layer in 0..self.layers.len() {
            step.advance(&self.device, &*self.model, &mut self.memory).map_err(failed)?;
            for ((key, rows), run) in building.iter().zip(&step.plan.runs[recording..]) {
                self.export_layer(key, *rows, layer, &run.context)?;
            }
        }
        Ok(())
    }

    /// Logits for those sequences that have no row left; `ends` are their last rows in the step.
    fn logits_of(
        &self,
        step: &Step<D>,
        shares: &[(Age, usize)],
        ends: &[usize],
    ) -> Result<Vec<Option<Vec<f32>>>, EngineError> {
        let is_complete: Vec<bool> = shares
            .iter()
            .map(|(age, _)| {
                self.running.get(age).is_some_and(|sequence| sequence.computed == sequence.rows())
            })
            .collect();
        let rows: Vec<usize> =
            ends.iter().zip(&is_complete).filter(|(_, complete)| **complete).map(|(end, _)| *end).collect();
        let mut logits = step
            .logits(&self.device, &*self.model, &rows)
            .map_err(|source| EngineError::RunStep { source: Arc::new(source) })?
            .into_iter();
        Ok(is_complete.into_iter().map(|complete| complete.then(|| logits.next()).flatten()).collect())
    }

    /// Everybody in a step that failed ends with its error.
    fn fail_step(&mut self, shares: &[(Age, usize)], building: &[(SegmentKey, usize)], error: &EngineError) {
        for (age, _) in shares {
            if let Some(sequence) = self.running.get(age) {
                let request = sequence.prompt.request;
                self.fail_request(request, error);
            }
        }
        for (key, _) in building {
            self.fail_build(key, error);
        }
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
            counters: self.counters,
        };
        // A lock poisoned by a panic still holds plain numbers.
        *load.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }
}

impl<D: Device> Sequence<D> {
    /// Packs its rows; its context is in the step until [`Sequence::take_back`]. Room was made before.
    pub(super) fn take_part(&mut self, step: &mut Step<D>, share: super::sequence::Share) {
        let Some(hold) = &mut self.hold else { return };
        let placed = hold.context.bodies.len();
        hold.context
            .bodies
            .extend(self.prompt.bodies[placed.min(share.bodies)..share.bodies].iter().cloned());
        hold.context.live.extend(share.positions);
        let rows = step.rows()..step.rows() + share.ids.len();
        let context = std::mem::replace(&mut hold.context, empty_context());
        step.push(&share.ids, Run { rows, slot: hold.slot(), context, ops: share.ops, record: None });
    }

    /// Takes its context back; returns the step's row that was its last.
    pub(super) fn take_back(&mut self, run: Option<Run<D>>) -> Option<usize> {
        let (run, hold) = (run?, self.hold.as_mut()?);
        hold.context = run.context;
        self.computed += run.rows.len();
        Some(run.rows.end - 1)
    }
}
