//! Builds: whole segments from a zero state, their layers given out as they are done.
//!
//! Where the device keeps what it has finished with the bits of what is stored, a layer is there for prompts at once,
//! and goes to the host for all others as soon as nothing is more urgent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hypic_compose::Build as Program;
use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::unit::Millis;
use hypic_kernels::op::{Device, Export, HostLayer, OpError};
use hypic_kernels::plan::{BodyLayers, Context, Record, Run};
use hypic_store::codec::{Part, TupleHead, TupleWriter};
use hypic_store::{StoreError, StoredTuple};

use super::edge::{Age, BuildEvent};
use super::memory::{Hold, empty_context};
use super::pool::Lease;
use super::run::{Core, tuple_head};
use super::scatter::{Delivery, Job, Listener, Site};
use super::step::Step;
use super::tuple::host_layer;
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
    pub(super) body: Arc<BodyLayers<D>>,
    listeners: Vec<Listener<D>>,
    /// `None` once the tuple is whole.
    writer: Option<TupleWriter>,
    /// Layers that were given out, for those who ask late.
    told: Vec<BuildEvent>,
    running: Option<Running<D>>,
    /// Layers that are finished and not yet on the host.
    unlanded: VecDeque<Arc<D::BuiltLayer>>,
    /// Layers on the host.
    landed: usize,
    /// How long its rows took, once all are computed.
    took: Option<Duration>,
    /// Where it is done.
    pub(super) site: Site,
    /// When a worker had it.
    pub(super) since: Instant,
    /// Dropped with it, so that a worker knows.
    _wanted: Arc<()>,
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
        match (&self.took, &self.running) {
            (Some(_), _) => 0,
            (None, running) => {
                self.program.program.rows() - running.as_ref().map_or(0, |running| running.computed)
            }
        }
    }

    /// Whether all rows are computed.
    pub(super) fn is_computed(&self) -> bool {
        self.took.is_some()
    }

    /// Whether anybody here or elsewhere still waits for it.
    pub(super) fn is_wanted(&mut self) -> bool {
        self.listeners.retain(|listener| !listener.is_closed());
        // What is whole on the device, nobody here waits for; once it is computed it is kept for those who ask later.
        let is_whole = self.body.ready() == self.head.layers.len();
        let is_done = self.is_computed() || (is_whole && matches!(self.site, Site::Away(_)));
        !self.listeners.is_empty()
            || (!is_whole && Arc::strong_count(&self.body) > 1)
            || (is_done && self.publish)
    }

    fn tell(&mut self, event: BuildEvent) {
        self.listeners.iter().for_each(|listener| listener.tell(&event));
        self.told.push(event);
    }

    /// Packs its next rows; its context is in the step until [`Build::take_back`].
    pub(super) fn take_part(&mut self, step: &mut Step<D>, rows: usize, skip_below: f32) {
        let Some(running) = &mut self.running else { return };
        let offset = step.rows();
        let program = &self.program.program;
        let slice = program.slice(running.computed, rows, &[], offset);
        running.hold.context.live.extend_from_slice(&program.positions[slice.rows.clone()]);
        let record = Record {
            recording: Arc::clone(&running.recording),
            body: self.program.recorded(&slice, offset),
            whole: (slice.rows.len() == program.rows()).then_some(skip_below),
        };
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

    /// Joins the build of a segment, or queues one.
    ///
    /// # Errors
    /// A segment that has no tuple, or that the pages cannot hold.
    pub(super) fn want_build(
        &mut self,
        age: Age,
        segment: &Segment,
        listener: Option<Listener<D>>,
    ) -> Result<(), EngineError> {
        let Segment { key, scope, ref ids, publish } = *segment;
        if let Some(build) = self.builds.iter_mut().find(|build| build.key == key) {
            build.age = build.age.min(age);
            if let Some(listener) = listener {
                build.told.iter().for_each(|event| listener.tell(event));
                build.listeners.push(listener);
            }
        } else {
            self.check_ids(ids)?;
            let program = Program::of_segment(ids, self.config.seam, self.config.ablation)
                .map_err(|source| EngineError::ComposeOrder { source })?;
            self.check_pages(ids.len())?;
            let head = tuple_head(&self.config, &self.layers, key, ids);
            let writer = Some(TupleWriter::new(head.clone()).map_err(write_failed)?);
            let body = self.bodies.place(key);
            let listeners: Vec<_> = listener.into_iter().collect();
            let wanted = Arc::new(());
            let is_read = listeners.iter().any(Listener::is_reading);
            let job = Job { age, segment: segment.clone(), is_read, wanted: Arc::downgrade(&wanted) };
            let site = self.offer(job);
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
                unlanded: VecDeque::new(),
                landed: 0,
                took: None,
                site,
                since: Instant::now(),
                _wanted: wanted,
            });
        }
        self.builds.sort_by_key(|build| build.age);
        Ok(())
    }

    /// Gives slots and pages to builds, oldest first. Whoever waits for a build gives way to it: only then can
    /// it go on.
    pub(super) fn begin_builds(&mut self) {
        self.bound_unlanded();
        self.take_share();
        for place in 0..self.builds.len() {
            let build = &self.builds[place];
            if build.is_running() || build.is_computed() || build.site != Site::Here {
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

    /// Finishes one layer of a build that ends in this step of `rows` of its rows.
    pub(super) fn finish_layer(
        &mut self,
        key: &SegmentKey,
        rows: usize,
        layer: usize,
        context: &Context<D>,
    ) -> Result<(), EngineError> {
        let combines = self.combines();
        let Some(place) = self.builds.iter().position(|build| build.key == *key) else { return Ok(()) };
        let build = &mut self.builds[place];
        let Some(running) = &build.running else { return Ok(()) };
        if running.computed + rows < build.program.program.rows() {
            return Ok(());
        }
        let recording = running.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let finished = self.device.finish(&Export {
            layer,
            spec: self.model.spec(),
            recording: &recording,
            states: &self.memory.states,
            slot: running.hold.slot(),
            pages: &self.memory.pages,
            context,
            body: build.program.body,
            format: self.config.format,
        });
        drop(recording);
        let built = Arc::new(finished.map_err(EngineError::run_step)?);
        let keeps = self.device.keeps(&self.config.format);
        if keeps && combines {
            let body = Arc::clone(&build.body);
            self.take_built(key, &body, (layer, &built)).map_err(EngineError::run_step)?;
        }
        let build = &mut self.builds[place];
        if keeps {
            for listener in &build.listeners {
                listener.deliver(Delivery::Layer { key: *key, layer, built: Arc::clone(&built) });
            }
        }
        build.unlanded.push_back(built);
        let is_read = build.listeners.iter().any(Listener::is_reading);
        if keeps && !is_read { Ok(()) } else { self.land_layer(place) }
    }

    /// Brings the next layer of a build to the host, in the format that is stored, and gives it out.
    fn land_layer(&mut self, place: usize) -> Result<(), EngineError> {
        let build = &mut self.builds[place];
        let layer = build.landed;
        let (Some(built), Some(writer)) = (build.unlanded.pop_front(), &mut build.writer) else {
            return Err(EngineError::ReadOrder {
                reason: format!("layer {layer} of a build was not finished"),
            });
        };
        let landed = self.device.land(layer, self.model.spec(), &built).map_err(EngineError::run_step)?;
        self.counters.count_heads(landed.live_heads(&self.layers[layer]));
        let parts = writer.push_layer(landed.parts.iter().cloned()).map_err(write_failed)?.to_vec();
        build.landed += 1;
        let key = build.key;
        self.use_layer(place, layer, &landed)?;
        let build = &mut self.builds[place];
        // A worker that had it before may have told it already: the same layer.
        if build.told.len() == layer {
            build.tell(BuildEvent::Layer { key, layer, parts });
        }
        Ok(())
    }

    /// Puts a layer in place for prompts here, if it is not there. What is used went through the stored format: a hit
    /// gives the same bits.
    fn use_layer(&mut self, place: usize, layer: usize, host: &HostLayer) -> Result<(), EngineError> {
        if !self.combines() {
            return Ok(());
        }
        let build = &self.builds[place];
        let (key, body) = (build.key, Arc::clone(&build.body));
        self.take_over(&key, &body, (layer, host)).map_err(EngineError::run_step)
    }

    /// A worker has encoded a layer.
    pub(super) fn layer_of_worker(
        &mut self,
        key: SegmentKey,
        layer: usize,
        parts: Vec<Part>,
    ) -> Result<(), EngineError> {
        let Some(place) = self.builds.iter().position(|build| build.key == key) else { return Ok(()) };
        let host = host_layer(&self.builds[place].head, layer, &parts).map_err(write_failed)?;
        self.use_layer(place, layer, &host)?;
        self.counters.count_heads(host.live_heads(&self.layers[layer]));
        self.builds[place].tell(BuildEvent::Layer { key, layer, parts });
        Ok(())
    }

    /// A worker has built a whole tuple.
    pub(super) fn built_by_worker(
        &mut self,
        key: &SegmentKey,
        tuple: StoredTuple,
    ) -> Result<(), EngineError> {
        let layers = self.layers.len();
        let Some(place) = self.builds.iter().position(|build| build.key == *key) else { return Ok(()) };
        if self.builds[place].told.len() != layers || self.builds[place].body.ready() != layers {
            return Err(EngineError::ReadOrder {
                reason: "a layer of a worker's tuple is missing".to_owned(),
            });
        }
        let mut build = self.builds.remove(place);
        build.took = Some(build.since.elapsed());
        self.counters.built_by_workers += 1;
        self.publish_tuple(&mut build, tuple);
        Ok(())
    }

    /// Brings one layer of the oldest build that is computed to the host. False when all are there.
    pub(super) fn land(&mut self) -> bool {
        let Some(place) = self.builds.iter().position(Build::is_computed) else { return false };
        if let Err(error) = self.land_layer(place) {
            let key = self.builds[place].key;
            self.fail_build(&key, &error);
        }
        self.publish_builds();
        true
    }

    /// Tuples that wait for the host take the memory of recordings, which are at least twice as large.
    fn bound_unlanded(&mut self) {
        while self.builds.iter().filter(|build| build.is_computed()).count() >= 2 * self.config.builds {
            self.land();
        }
    }

    /// Frees what builds held whose rows are computed, and publishes those that are on the host.
    pub(super) fn finish_builds(&mut self) {
        for build in &mut self.builds {
            if build.rows_left() == 0
                && let Some(running) = build.running.take()
            {
                build.took = Some(running.begun.elapsed());
            }
        }
        self.publish_builds();
    }

    /// Publishes the tuples that are on the host.
    fn publish_builds(&mut self) {
        let layers = self.layers.len();
        let is_done = |build: &Build<D>| build.is_computed() && build.landed == layers;
        let (done, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.builds).into_iter().partition(is_done);
        self.builds = rest;
        if !done.is_empty() {
            self.settle();
        }
        for mut build in done {
            match build.writer.take().map(TupleWriter::finish) {
                Some(Ok(tuple)) => self.publish_tuple(&mut build, tuple),
                Some(Err(source)) => {
                    let (key, error) = (build.key, write_failed(source));
                    build.tell(BuildEvent::Failed { key, error: error.clone() });
                    self.fail_users(&key, &error);
                }
                None => {}
            }
        }
    }

    fn publish_tuple(&mut self, build: &mut Build<D>, tuple: StoredTuple) {
        self.forget_taken(&build.key);
        if build.publish {
            self.counters.built += 1;
            let took = Millis(build.took.unwrap_or_default().as_secs_f64() * 1e3);
            // Kept before anybody is told: who is told may ask for it.
            (self.publish)(BuiltTuple { tuple: tuple.clone(), scope: build.scope, took });
        }
        build.tell(BuildEvent::Built { tuple });
    }

    /// Ends a build, and every request that waits for it, with an error.
    pub(super) fn fail_build(&mut self, key: &SegmentKey, error: &EngineError) {
        if let Some(place) = self.builds.iter().position(|build| build.key == *key) {
            let mut build = self.builds.remove(place);
            self.forget_taken(key);
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
