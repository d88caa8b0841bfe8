//! One sequence on a device: a whole prompt, one composed of cached bodies, and what follows.

use std::sync::{Arc, Mutex};

use hypic_domain::tuple::TupleFormat;
use hypic_kernels::op::{Device, Export, HostLayer};
use hypic_kernels::plan::{BodyLayers, Context, PlacedBody, Plan, Record, Rule, Run, RunOp};
use hypic_models::Loaded;
use hypic_models::model::Memory;

use crate::{SEAM, SEGMENT};

/// Plain rows in fp32, without the `T` of heads that have forgotten.
pub(crate) const EXACT: TupleFormat = TupleFormat { skip_below: 1e-3, ..TupleFormat::EXACT };
const PAGE: usize = 16;
const PAGES: usize = 32;
/// The sequence's slot, and that of builds.
const SLOT: usize = 1;
const BUILD: usize = 0;

pub(crate) struct Session<'a, D: Device> {
    device: &'a D,
    loaded: &'a Loaded<D>,
    states: D::States,
    pages: D::Pages,
    context: Context<D>,
}

impl<'a, D: Device> Session<'a, D> {
    pub(crate) fn new(device: &'a D, loaded: &'a Loaded<D>) -> Self {
        let mut states = device.states(&loaded.spec, 2).unwrap();
        device.reset_slot(&mut states, SLOT).unwrap();
        // The first half is the sequence's, not in order, so that a page table is needed.
        let context = Context { pages: (0..PAGES).rev().collect(), live: Vec::new(), bodies: Vec::new() };
        let pages = device.pages(&loaded.spec, 2 * PAGES, PAGE).unwrap();
        Self { device, loaded, states, pages, context }
    }

    /// Runs rows of a program as one step; logits of all of them.
    fn step(
        &mut self,
        ids: &[u32],
        (slot, context): (usize, Context<D>),
        ops: Vec<RunOp>,
        record: Option<Record<D>>,
    ) -> (Vec<f32>, Context<D>) {
        let rows = 0..ids.len();
        let run = Run { rows: rows.clone(), slot, context, ops, record };
        let mut plan = Plan { ids: ids.to_vec(), runs: vec![run] };
        let model = &self.loaded.model;
        let memory = Memory { states: &mut self.states, pages: &mut self.pages };
        let x = model.step(self.device, &plan, memory).unwrap();
        let logits = model.all_logits(self.device, &x, &rows.collect::<Vec<_>>()).unwrap();
        (logits, plan.runs.remove(0).context)
    }

    /// The next tokens, at the positions behind all others; logits of all of them.
    fn go_on(&mut self, ids: &[u32]) -> Vec<f32> {
        let mut context = self.take_context();
        let first = context.live.last().map_or(0, |last| last + 1);
        context.live.extend(first..first + ids.len() as u32);
        let (logits, context) = self.step(ids, (SLOT, context), vec![RunOp::Rows(0..ids.len())], None);
        self.context = context;
        logits
    }

    fn take_context(&mut self) -> Context<D> {
        let empty = Context { pages: Vec::new(), live: Vec::new(), bodies: Vec::new() };
        std::mem::replace(&mut self.context, empty)
    }

    /// A whole prompt in steps of at most `step` rows.
    pub(crate) fn prefill(&mut self, ids: &[u32], step: usize) -> Vec<f32> {
        ids.chunks(step).flat_map(|ids| self.go_on(ids)).collect()
    }

    /// The same prompt, cut into segments that are built alone and composed; the last one stays live. Logits of the
    /// live rows.
    pub(crate) fn compose(&mut self, ids: &[u32]) -> Vec<f32> {
        let cached = ids.len().div_ceil(SEGMENT) - 1;
        let format = self.device.format(&EXACT);
        let tuples: Vec<_> = ids.chunks(SEGMENT).take(cached).map(|ids| self.build(ids, format)).collect();
        self.compose_of(ids, tuples)
    }

    /// The same with tuples from wherever they are, one for each segment but the last.
    pub(crate) fn compose_of(&mut self, ids: &[u32], tuples: Vec<Vec<HostLayer>>) -> Vec<f32> {
        let (mut live, mut ops, mut first) = (Vec::new(), Vec::new(), 0);
        let mut context = self.take_context();
        let mut tuples = tuples.into_iter();
        for segment in ids.chunks(SEGMENT) {
            let tuple = tuples.next();
            let seam = if tuple.is_some() { SEAM.min(segment.len()) } else { segment.len() };
            ops.push(RunOp::Rows(live.len()..live.len() + seam));
            live.extend_from_slice(&segment[..seam]);
            context.live.extend(first..first + seam as u32);
            if let Some(tuple) = tuple {
                ops.push(RunOp::Apply { body: context.bodies.len(), rule: Rule::Compose });
                let layers = self.import(tuple);
                let (start, len) = (first + seam as u32, (segment.len() - seam) as u32);
                context.bodies.push(PlacedBody { layers, start, len });
            }
            first += segment.len() as u32;
        }
        let (logits, context) = self.step(&live, (SLOT, context), ops, None);
        self.context = context;
        logits
    }

    /// A segment from a zero state at position 0; what is recorded behind its seam, in `format`.
    pub(crate) fn build(&mut self, ids: &[u32], format: TupleFormat) -> Vec<HostLayer> {
        let spec = &self.loaded.spec;
        self.device.reset_slot(&mut self.states, BUILD).unwrap();
        let recording = Arc::new(Mutex::new(self.device.recording(spec).unwrap()));
        let record = Record {
            recording: Arc::clone(&recording),
            body: SEAM..ids.len(),
            whole: Some(format.skip_below),
        };
        let context = Context {
            pages: (PAGES..2 * PAGES).collect(),
            live: (0..ids.len() as u32).collect(),
            bodies: Vec::new(),
        };
        let (_, context) = self.step(ids, (BUILD, context), vec![RunOp::Rows(0..ids.len())], Some(record));
        let recording = recording.lock().unwrap();
        let export = |layer| {
            let export = Export {
                layer,
                spec,
                recording: &*recording,
                states: &self.states,
                slot: BUILD,
                pages: &self.pages,
                context: &context,
                body: ids.len() - SEAM,
                format,
            };
            self.device.export(&export).unwrap()
        };
        (0..spec.layers.len()).map(export).collect()
    }

    fn import(&mut self, tuple: Vec<HostLayer>) -> Arc<BodyLayers<D>> {
        let spec = &self.loaded.spec;
        let layers = BodyLayers::empty(spec.layers.len());
        for (layer, host) in tuple.into_iter().enumerate() {
            layers.arrive(layer, self.device.import(layer, spec, &mut self.pages, &host).unwrap());
        }
        Arc::new(layers)
    }

    /// The states of a linear layer behind all tokens so far.
    pub(crate) fn state(&self, layer: usize) -> Vec<f32> {
        self.device.slot_state(&self.states, SLOT, layer).unwrap()
    }

    /// The likeliest tokens behind `logits`, whose last row is the prompt's.
    pub(crate) fn greedy(&mut self, logits: &[f32], count: usize) -> Vec<u32> {
        let vocab = self.loaded.spec.vocab;
        let likeliest = |logits: &[f32]| {
            let row = &logits[logits.len() - vocab..];
            (0..).zip(row).max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id).unwrap()
        };
        let mut next = likeliest(logits);
        let mut drawn = vec![next];
        while drawn.len() < count {
            next = likeliest(&self.go_on(&[next]));
            drawn.push(next);
        }
        drawn
    }
}
