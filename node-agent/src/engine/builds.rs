//! Builds: whole segments from a zero state, their layers given out as they are done.

mod land;
mod queue;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hypic_compose::Build as Program;
use hypic_domain::key::{Scope, SegmentKey};
use hypic_kernels::op::Device;
use hypic_kernels::plan::{BodyLayers, Record, Run};
use hypic_store::StoreError;
use hypic_store::codec::{TupleHead, TupleWriter};

use super::EngineError;
use super::edge::{Age, BuildEvent};
use super::memory::{Hold, empty_context};
use super::scatter::{Listener, Site};
use super::step::Step;

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

fn write_failed(source: StoreError) -> EngineError {
    EngineError::WriteTuple { source: Arc::new(source) }
}
