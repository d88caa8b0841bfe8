//! Programs run on a device by hand, so that states can be looked at between and after rows.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use hypic_compose::{Ablation, Build, Program};
use hypic_domain::flow::{Mode, Piece};
use hypic_domain::model::LayerSpec;
use hypic_domain::tuple::TupleFormat;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::op::{Device, Export};
use hypic_kernels::plan::{BodyLayers, Context, PlacedBody, Plan, Record, Run};
use hypic_models::model::Memory;

use crate::harness::Fixture;

const PAGE: usize = 32;

type States = <CpuDevice as Device>::States;
type Pages = <CpuDevice as Device>::Pages;
type Recording = <CpuDevice as Device>::Recording;

/// One slot, its pages, and a sequence in them.
pub(crate) struct Direct<'a> {
    fixture: &'a Fixture,
    states: States,
    pages: Pages,
    context: Context<CpuDevice>,
}

/// What is recorded: where, and which rows of the program.
pub(crate) type Recorded = (Arc<Mutex<Recording>>, Range<usize>);

impl<'a> Direct<'a> {
    /// A sequence of at most `tokens` live tokens.
    pub(crate) fn new(fixture: &'a Fixture, tokens: usize) -> Self {
        let pages = tokens.div_ceil(PAGE);
        let spec = fixture.spec();
        let mut states = fixture.device.states(spec, 1).unwrap();
        fixture.device.reset_slot(&mut states, 0).unwrap();
        Self {
            fixture,
            states,
            pages: fixture.device.pages(spec, pages, PAGE).unwrap(),
            context: Context { pages: (0..pages).collect(), live: Vec::new(), bodies: Vec::new() },
        }
    }

    /// Computes rows of a program; returns the logits of the last one.
    pub(crate) fn compute(
        &mut self,
        program: &Program,
        bodies: &[PlacedBody<CpuDevice>],
        rows: Range<usize>,
        record: Option<&Recorded>,
    ) -> Vec<f32> {
        let Fixture { device, model } = self.fixture;
        let slice = program.slice(rows.start, rows.len(), &[], 0);
        assert_eq!(slice.rows, rows);
        self.context.live.extend_from_slice(&program.positions[rows.clone()]);
        self.context.bodies = bodies[..slice.bodies].to_vec();
        let pages = self.context.live.len().div_ceil(PAGE);
        let context = Context {
            pages: self.context.pages[..pages].to_vec(),
            live: self.context.live.clone(),
            bodies: self.context.bodies.clone(),
        };
        let record = record.map(|(recording, range)| Record {
            whole: None,
            recording: Arc::clone(recording),
            body: range.start.max(rows.start) - rows.start..range.end.min(rows.end) - rows.start,
        });
        let plan = Plan {
            ids: program.ids[rows.clone()].to_vec(),
            runs: vec![Run { rows: 0..rows.len(), slot: 0, context, ops: slice.ops, record }],
        };
        let mut x = model.embed(device, &plan).unwrap();
        for layer in 0..self.fixture.spec().layers.len() {
            let memory = Memory { states: &mut self.states, pages: &mut self.pages };
            x = model.layer(device, layer, &plan, memory, x).unwrap();
        }
        model.all_logits(device, &x, &[rows.len() - 1]).unwrap()
    }

    pub(crate) fn recording(&self) -> Arc<Mutex<Recording>> {
        Arc::new(Mutex::new(self.fixture.device.recording(self.fixture.spec()).unwrap()))
    }

    /// What was recorded, as a body of the last `len` live tokens.
    pub(crate) fn export(&mut self, recording: &Mutex<Recording>, len: usize) -> Arc<BodyLayers<CpuDevice>> {
        let (device, spec) = (&self.fixture.device, self.fixture.spec());
        let body = Arc::new(BodyLayers::empty(spec.layers.len()));
        let recording = recording.lock().unwrap();
        let pages = self.context.live.len().div_ceil(PAGE);
        let context = Context {
            pages: self.context.pages[..pages].to_vec(),
            live: self.context.live.clone(),
            bodies: Vec::new(),
        };
        for layer in 0..spec.layers.len() {
            let host = device.export(&Export {
                layer,
                spec,
                recording: &recording,
                states: &self.states,
                slot: 0,
                pages: &self.pages,
                context: &context,
                body: len,
                format: TupleFormat::EXACT,
            });
            body.arrive(layer, device.import(layer, spec, &mut self.pages, &host.unwrap()).unwrap());
        }
        body
    }

    /// The running state of a linear layer.
    pub(crate) fn state(&self, layer: usize) -> Vec<f32> {
        self.fixture.device.slot_state(&self.states, 0, layer).unwrap()
    }
}

/// A prompt's end: logits of its last row, and the states.
pub(crate) struct End {
    pub(crate) logits: Vec<f32>,
    /// By layer; empty for full layers.
    pub(crate) states: Vec<Vec<f32>>,
}

fn end_of(direct: &Direct<'_>, logits: Vec<f32>) -> End {
    let layers = direct.fixture.spec().layers.iter().enumerate();
    let state = |(layer, spec): (usize, &LayerSpec)| match spec {
        LayerSpec::Linear(_) => direct.state(layer),
        LayerSpec::Full(_) => Vec::new(),
    };
    End { logits, states: layers.map(state).collect() }
}

/// The whole prompt in context.
pub(crate) fn recompute(fixture: &Fixture, pieces: &[Piece]) -> End {
    let program = Program::of_prompt(pieces, Mode::Recompute, 0, Ablation::None).unwrap();
    let mut direct = Direct::new(fixture, program.rows());
    let logits = direct.compute(&program, &[], 0..program.rows(), None);
    end_of(&direct, logits)
}

/// The prompt composed of the given bodies.
pub(crate) fn compose(
    fixture: &Fixture,
    pieces: &[Piece],
    seam: u32,
    bodies: &[Arc<BodyLayers<CpuDevice>>],
) -> End {
    let program = Program::of_prompt(pieces, Mode::Pic, seam, Ablation::None).unwrap();
    let placed: Vec<_> = program
        .bodies
        .iter()
        .zip(bodies)
        .map(|(body, layers)| PlacedBody { layers: Arc::clone(layers), start: body.start, len: body.len })
        .collect();
    let mut direct = Direct::new(fixture, program.rows());
    let logits = direct.compute(&program, &placed, 0..program.rows(), None);
    end_of(&direct, logits)
}

/// Every segment built alone.
pub(crate) fn build_alone(fixture: &Fixture, pieces: &[Piece], seam: u32) -> Vec<Arc<BodyLayers<CpuDevice>>> {
    let segments = pieces.iter().filter(|piece| piece.key.is_some());
    segments
        .map(|piece| {
            let build = Build::of_segment(&piece.ids, seam, Ablation::None).unwrap();
            let mut direct = Direct::new(fixture, piece.ids.len());
            let recorded = (direct.recording(), build.record.clone());
            direct.compute(&build.program, &[], 0..piece.ids.len(), Some(&recorded));
            direct.export(&recorded.0, build.body)
        })
        .collect()
}

/// Every segment recorded behind its true prefix.
pub(crate) fn build_in_context(
    fixture: &Fixture,
    pieces: &[Piece],
    seam: u32,
) -> Vec<Arc<BodyLayers<CpuDevice>>> {
    let program = Program::of_prompt(pieces, Mode::Recompute, 0, Ablation::None).unwrap();
    let mut direct = Direct::new(fixture, program.rows());
    let (mut start, mut bodies) = (0, Vec::new());
    for piece in pieces {
        let end = start + piece.ids.len();
        let body = start + seam as usize..end;
        let recorded = piece.key.map(|_| (direct.recording(), body.clone()));
        direct.compute(&program, &[], start..end, recorded.as_ref());
        if let Some((recording, body)) = recorded {
            bodies.push(direct.export(&recording, body.len()));
        }
        start = end;
    }
    bodies
}

/// `‖a − b‖ / ‖b‖`.
pub(crate) fn relative(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = a.iter().zip(b).map(|(x, y)| square(x - y)).sum();
    (difference / b.iter().map(|y| square(*y)).sum::<f64>()).sqrt()
}
