//! Builds: whole segments from a zero state, their layers given out as they are done.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hypic_compose::Build as Program;
use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::unit::Millis;
use hypic_kernels::op::{Device, Export, HostLayer, OpError};
use hypic_kernels::plan::{BodyLayers, Context, Record, Run};
use hypic_store::StoreError;
use hypic_store::codec::{TupleHead, TupleWriter};

use super::edge::{Age, BuildEvent, BuildEvents};
use super::memory::{Hold, empty_context};
use super::pool::Lease;
use super::run::{Core, tuple_head};
use super::step::Step;
use super::tuple::{decode_layer, layer_values};
use super::{BuiltTuple, EngineError, Segment};

/// One segment to be built, for whoever asked.
pub(super) struct Build<D: Device> {
    /// That of the oldest request that waits for it.
    pub(super) age: Age,
    pub(super) key: SegmentKey,
    scope: Scope,
    publish: bool,
    program: Program,
    head: TupleHead,
    /// Where its layers go for sequences of this engine.
    body: Arc<BodyLayers<D>>,
    listeners: Vec<BuildEvents>,
    /// `None` once the tuple is whole.
    writer: Option<TupleWriter>,
    /// What was given out, for those who ask late.
    told: Vec<BuildEvent>,
    running: Option<Running<D>>,
}

struct Running<D: Device> {
    hold: Hold<D>,
    recording: Arc<Mutex<D::Recording>>,
    computed: usize,
    begun: Instant,
}

impl<D: Device> Build<D> {
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn rows_left(&self) -> usize {
        self.program.program.rows() - self.running.as_ref().map_or(0, |running| running.computed)
    }

    /// Whether anybody here or elsewhere still waits for it.
    pub(super) fn is_wanted(&mut self) -> bool {
        self.listeners.retain(|listener| !listener.is_closed());
        !self.listeners.is_empty() || Arc::strong_count(&self.body) > 1
    }

    fn tell(&mut self, event: BuildEvent) {
        for listener in &self.listeners {
            // One that is gone is noticed at the next turn.
            let _ = listener.send(event.clone());
        }
        self.told.push(event);
    }

    /// Packs its next rows; its context is in the step until [`Build::take_back`].
    pub(super) fn take_part(&mut self, step: &mut Step<D>, rows: usize) {
        let Some(running) = &mut self.running else { return };
        let offset = step.rows();
        let program = &self.program.program;
        let slice = program.slice(running.computed, rows, &[], offset);
        running.hold.context.live.extend_from_slice(&program.positions[slice.rows.clone()]);
        let record =
            Record { recording: Arc::clone(&running.recording), body: self.program.recorded(&slice, offset) };
        let run = Run {
            rows: offset..offset + slice.rows.len(),
            slot: running.hold.slot(),
            context: std::mem::replace(&mut running.hold.context, empty_context()),
            ops: slice.ops,
            record: Some(record),
        };
        step.push(&program.ids[slice.rows], run);
    }

    pub(super) fn take_back(&mut self, run: Option<Run<D>>, rows: usize) {
        if let (Some(run), Some(running)) = (run, &mut self.running) {
            running.hold.context = run.context;
            running.computed += rows;
        }
    }
}

impl<D: Device> Core<D> {
    pub(super) fn build(&self, key: &SegmentKey) -> Option<&Build<D>> {
        self.builds.iter().find(|build| build.key == *key)
    }

    /// The place of a tuple's layers on the device, shared by all who use it now.
    pub(super) fn body(&mut self, key: SegmentKey) -> Arc<BodyLayers<D>> {
        if let Some(body) = self.bodies.get(&key).and_then(std::sync::Weak::upgrade) {
            return body;
        }
        let body = Arc::new(BodyLayers::empty(self.layers.len()));
        self.bodies.insert(key, Arc::downgrade(&body));
        body
    }

    /// Joins the build of a segment, or queues one.
    ///
    /// # Errors
    /// A segment that has no tuple, or that the pages cannot hold.
    pub(super) fn want_build(
        &mut self,
        age: Age,
        segment: &Segment,
        listener: Option<BuildEvents>,
    ) -> Result<(), EngineError> {
        let Segment { key, scope, ref ids, publish } = *segment;
        if let Some(build) = self.builds.iter_mut().find(|build| build.key == key) {
            build.age = build.age.min(age);
            if let Some(listener) = listener {
                for event in &build.told {
                    // One that is gone is noticed at the next turn.
                    let _ = listener.send(event.clone());
                }
                build.listeners.push(listener);
            }
        } else {
            self.check_ids(ids)?;
            let program = Program::of_segment(ids, self.config.seam, self.config.ablation)
                .map_err(|source| EngineError::ComposeOrder { source })?;
            self.check_pages(ids.len())?;
            let head = tuple_head(&self.config, &self.layers, key, ids);
            let writer = Some(TupleWriter::new(head.clone()).map_err(write_failed)?);
            let body = self.body(key);
            let listeners = listener.into_iter().collect();
            self.builds.push(Build {
                age,
                key,
                scope,
                publish,
                program,
                head,
                body,
                listeners,
                writer,
                told: Vec::new(),
                running: None,
            });
        }
        self.builds.sort_by_key(|build| build.age);
        Ok(())
    }

    /// Gives slots and pages to builds, oldest first. Whoever waits for a build gives way to it: only then can
    /// it go on.
    pub(super) fn begin_builds(&mut self) {
        for place in 0..self.builds.len() {
            let build = &self.builds[place];
            if build.is_running() {
                continue;
            }
            let (age, rows) = (build.age, build.program.program.rows());
            let missing = self.memory.pages_for(rows).saturating_sub(self.memory.page_pool.free());
            if self.memory.build_slots.free() == 0
                || (missing > 0 && !self.free_pages(missing, |victim| victim >= age))
            {
                return;
            }
            let Some(slot) = self.memory.build_slots.take() else { return };
            match self.prepare(slot, rows) {
                Ok(Some(running)) => self.builds[place].running = Some(running),
                Ok(None) => return,
                Err(source) => {
                    let key = self.builds[place].key;
                    self.fail_build(&key, &EngineError::run_step(source));
                    return;
                }
            }
        }
    }

    /// Memory of a build of `rows` rows; none while pages are missing.
    fn prepare(&mut self, slot: Lease, rows: usize) -> Result<Option<Running<D>>, OpError> {
        let mut hold = self.memory.hold(&self.device, slot)?;
        if !self.memory.reserve(&self.device, &mut hold, rows)? {
            return Ok(None);
        }
        let recording = Arc::new(Mutex::new(self.device.recording(self.model.spec())?));
        Ok(Some(Running { hold, recording, computed: 0, begun: Instant::now() }))
    }

    /// Gives out one layer of a build that ends in this step of `rows` of its rows.
    pub(super) fn export_layer(
        &mut self,
        key: &SegmentKey,
        rows: usize,
        layer: usize,
        context: &Context<D>,
    ) -> Result<(), EngineError> {
        let Some(build) = self.builds.iter_mut().find(|build| build.key == *key) else { return Ok(()) };
        let Some(running) = &build.running else { return Ok(()) };
        if running.computed + rows < build.program.program.rows() {
            return Ok(());
        }
        let recording = running.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let exported = self.device.export(&Export {
            layer,
            spec: self.model.spec(),
            recording: &recording,
            states: &self.memory.states,
            slot: running.hold.slot(),
            pages: &self.memory.pages,
            context,
            body: build.program.body,
            skip_below: self.config.format.skip_below,
        });
        drop(recording);
        let exported = exported.map_err(EngineError::run_step)?;
        if let HostLayer::Linear { live, .. } = &exported {
            self.counters.heads += live.len() as u64;
            self.counters.heads_live += live.iter().filter(|live| **live).count() as u64;
        }
        let Some(writer) = &mut build.writer else { return Ok(()) };
        let parts = writer.push_layer(layer_values(&exported)).map_err(write_failed)?.to_vec();
        // What is used here went through the stored format too: a hit gives the same bits.
        let stored = decode_layer(&build.head, layer, &parts).map_err(write_failed)?;
        let placed = self.device.import(layer, self.model.spec(), &mut self.memory.pages, stored);
        build.body.arrive(layer, placed.map_err(EngineError::run_step)?);
        build.tell(BuildEvent::Layer { key: *key, layer, parts });
        Ok(())
    }

    /// Publishes the tuples of builds that are complete, and frees what these held.
    pub(super) fn finish_builds(&mut self) {
        let (done, rest) =
            std::mem::take(&mut self.builds).into_iter().partition(|build| build.rows_left() == 0);
        self.builds = rest;
        let done: Vec<Build<D>> = done;
        for mut build in done {
            match build.writer.take().map(TupleWriter::finish) {
                Some(Ok(tuple)) => {
                    if build.publish {
                        self.counters.built += 1;
                        let begun = build.running.as_ref().map_or_else(Instant::now, |running| running.begun);
                        let took = Millis(begun.elapsed().as_secs_f64() * 1e3);
                        // Kept before anybody is told: who is told may ask for it.
                        (self.publish)(BuiltTuple { tuple: tuple.clone(), scope: build.scope, took });
                    }
                    build.tell(BuildEvent::Built { tuple });
                }
                Some(Err(source)) => {
                    let (key, error) = (build.key, write_failed(source));
                    build.tell(BuildEvent::Failed { key, error: error.clone() });
                    self.fail_users(&key, &error);
                }
                None => {}
            }
        }
    }

    /// Ends a build, and every request that waits for it, with an error.
    pub(super) fn fail_build(&mut self, key: &SegmentKey, error: &EngineError) {
        if let Some(place) = self.builds.iter().position(|build| build.key == *key) {
            let mut build = self.builds.remove(place);
            build.tell(BuildEvent::Failed { key: *key, error: error.clone() });
            self.fail_users(key, error);
        }
    }

    /// Ends every request whose prompt waits for a tuple.
    fn fail_users(&mut self, key: &SegmentKey, error: &EngineError) {
        let requests: Vec<Age> = self
            .running
            .values()
            .chain(self.waiting.iter())
            .filter(|sequence| sequence.lead.is_some() && sequence.prompt.keys.contains(key))
            .map(|sequence| sequence.prompt.request)
            .collect();
        for request in requests {
            self.fail_request(request, error);
        }
    }
}

fn write_failed(source: StoreError) -> EngineError {
    EngineError::WriteTuple { source: Arc::new(source) }
}
