//! Builds in their order, from whoever asks to the tuple that is published or the error that ends them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use hypic_compose::Build as Program;
use hypic_domain::key::SegmentKey;
use hypic_domain::unit::Millis;
use hypic_kernels::op::{Device, OpError};
use hypic_store::StoredTuple;
use hypic_store::codec::TupleWriter;

use super::{Build, Running, write_failed};
use crate::engine::core::Core;
use crate::engine::edge::{Age, BuildEvent};
use crate::engine::pool::Lease;
use crate::engine::scatter::{Job, Listener, Site};
use crate::engine::tuple::tuple_head;
use crate::engine::{BuiltTuple, EngineError, Segment};

impl<D: Device> Core<D> {
    pub(in crate::engine) fn build(&self, key: &SegmentKey) -> Option<&Build<D>> {
        self.builds.iter().find(|build| build.key == *key)
    }

    /// Joins the build of a segment, or queues one.
    ///
    /// # Errors
    /// A segment that has no tuple, or that the pages cannot hold.
    pub(in crate::engine) fn want_build(
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
    pub(in crate::engine) fn begin_builds(&mut self) {
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

    /// Frees what builds held whose rows are computed, and publishes those that are on the host.
    pub(in crate::engine) fn finish_builds(&mut self) {
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
    pub(super) fn publish_builds(&mut self) {
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

    pub(super) fn publish_tuple(&mut self, build: &mut Build<D>, tuple: StoredTuple) {
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
    pub(in crate::engine) fn fail_build(&mut self, key: &SegmentKey, error: &EngineError) {
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
