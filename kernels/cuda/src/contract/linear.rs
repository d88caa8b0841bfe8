//! The linear mixer: convolution, gates, and every run's program of rows and bodies.
//!
//! Runs that record, and long ones, are launched in the form of prefill, and runs with bodies one by one in that of
//! composition; all others, decode among them, go through one launch. What a run gets does not depend on the others; a
//! step of one row for each has a form of its own with the same bits (`step.rs`).

use std::sync::PoisonError;

use hypic_domain::family::Family;
use hypic_domain::model::LinearShape;
use hypic_kernels::check::{self, equal};
use hypic_kernels::op::{Device as _, Gates, HeadGate, LinearInput, OpError};
use hypic_kernels::plan::{Plan, Record, Rule, Run, RunOp};

use super::memory::{SlotLayer, States, Tensor, gdn_only};
use super::prefill::{SHORT, advance_all};
use super::record::LayerRecord;
use super::step::linear_step;
use super::step_tables::is_step;
use super::tuple::{LayerParts, LinearParts, await_bodies};
use super::{CudaDevice, failed};
use crate::choice::norms_in_step;
use crate::conv_warm::Tails;
use crate::memory::Float;
use crate::pack::{pack_tiles, set_identity};
use crate::programs::{
    Pool, PoolBody, PoolRequest, PoolStep, Transition, run_composition, run_programs, stored_for,
};
use crate::{Buffer, ConvWarm, Places, RawRow, Rows, Shape, Span, TAPS, conv_warm, gates};

const OP: &str = "linear_mixer";

type Left<'a, E> = [RawRow<'a, E>; TAPS - 1];

pub(super) fn linear_mixer<E: Float>(
    device: &CudaDevice<E>,
    input: &LinearInput<'_, CudaDevice<E>>,
    plan: &Plan<CudaDevice<E>>,
    states: &mut States<E>,
) -> Result<Tensor<E>, OpError> {
    let place = placed(input, plan, states)?;
    if is_step(plan) {
        return linear_step(device, (input, None), plan, states, place);
    }
    await_bodies(&device.device, input.layer, plan).map_err(failed(OP))?;
    let Gates::Gdn { a, b, a_log, dt_bias } = &input.gates;
    let heads = input.shape.heads;
    let decays = [a_log.vector(OP, heads)?, dt_bias.vector(OP, heads)?];
    let rows = Prepared::new(device, input, plan, states, place)?;
    let gated = || {
        let count = plan.ids.len() * heads;
        let (mut gate, mut write) = (device.output(count)?, device.output(count)?);
        gates(&device.device, [&a.values, &b.values], decays, &mut gate, &mut write)?;
        Ok((gate, write))
    };
    let (gate, write) = gated().map_err(failed(OP))?;
    let rows = Rows {
        family: Family::Gdn,
        shape: Shape::from(input.shape),
        q: &rows.q,
        k: &rows.k,
        v: &rows.v,
        gate: &gate,
        beta: &write,
    };
    let identity = identity_tile(device, plan, input.shape)?;
    let requests: Vec<PoolRequest<'_>> =
        plan.runs.iter().map(|run| request_of(run, input.layer, &identity)).collect::<Result<_, _>>()?;
    device.written(OP, (plan.ids.len(), heads * input.shape.value), |device, out| {
        let prefills: Vec<_> = plan.runs.iter().filter(|run| is_prefill(run)).collect();
        let pool = Pool { state: &mut states.state, first: place.state, stride: states.state_stride };
        advance_all(device, rows, (&prefills, input.layer), pool, out)?;
        for (run, (_, steps)) in plan.runs.iter().zip(&requests) {
            if has_bodies(run) {
                let pool = Pool { state: &mut states.state, first: place.state, stride: states.state_stride };
                run_composition(device, rows, (run.slot, steps, run.rows.start), pool, out)?;
            }
        }
        if requests.iter().any(|(slot, _)| slot.is_some()) {
            let pool = Pool { state: &mut states.state, first: place.state, stride: states.state_stride };
            run_programs(device, rows, &requests, pool, out)?;
        }
        Ok(())
    })
}

/// The same, and the gated norm behind it.
pub(super) fn linear_mixer_norm<E: Float>(
    device: &CudaDevice<E>,
    input: &LinearInput<'_, CudaDevice<E>>,
    behind: &HeadGate<'_, CudaDevice<E>>,
    plan: &Plan<CudaDevice<E>>,
    states: &mut States<E>,
) -> Result<Tensor<E>, OpError> {
    if is_step(plan) && norms_in_step(plan.ids.len()) {
        let place = placed(input, plan, states)?;
        return linear_step(device, (input, Some(behind)), plan, states, place);
    }
    let mixed = linear_mixer(device, input, plan, states)?;
    device.gated_norm(&mixed, behind.gate, behind.weight, input.shape.value, behind.eps)
}

/// The layer's place in the pools, after all checks.
fn placed<E: Float>(
    input: &LinearInput<'_, CudaDevice<E>>,
    plan: &Plan<CudaDevice<E>>,
    states: &States<E>,
) -> Result<SlotLayer, OpError> {
    check(input, plan, states.slots)?;
    let place = states.layer(input.layer).map_err(failed(OP))?;
    match place.shape == *input.shape {
        true => Ok(place),
        false => Err(OpError::shape(OP, format!("{:?}", place.shape), format!("{:?}", input.shape))),
    }
}

/// Checks everything that can be wrong, so that later no state is left half advanced.
fn check<E: Float>(
    input: &LinearInput<'_, CudaDevice<E>>,
    plan: &Plan<CudaDevice<E>>,
    slots: usize,
) -> Result<(), OpError> {
    let shape = input.shape;
    gdn_only(OP, shape)?;
    let rows = plan.ids.len();
    equal(OP, "channels", shape.conv_channels(), input.raw.width)?;
    equal(OP, "rows", rows, input.raw.rows())?;
    let Gates::Gdn { a, b, .. } = &input.gates;
    for gates in [a, b] {
        equal(OP, "gates", rows * shape.heads, gates.values.len())?;
    }
    check::programs(input.layer, plan, slots)?;
    for run in &plan.runs {
        for op in &run.ops {
            if let RunOp::Apply { body, .. } = op {
                parts_of(run, *body, input.layer)?;
            }
        }
        if let Some(Record { recording, body, whole }) = &run.record {
            let is_applied = has_bodies(run);
            let is_last = body.is_empty() || (body.end == run.rows.end && body.start >= run.rows.start);
            if is_applied || !is_last {
                let what =
                    format!("a recording of rows {body:?} of {:?}, with bodies: {is_applied}", run.rows);
                return Err(OpError::Unsupported { op: OP, what });
            }
            let recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(Some(record)) = recording.layers.get(input.layer) else {
                return Err(OpError::shape(OP, "a recording of the layer", input.layer));
            };
            if whole.is_some() && !matches!(record, LayerRecord::Empty) {
                return Err(OpError::shape(OP, "a recording that has not begun", input.layer));
            }
        }
    }
    Ok(())
}

fn parts_of<E: Float>(
    run: &Run<CudaDevice<E>>,
    body: usize,
    layer: usize,
) -> Result<(&LinearParts<E>, usize), OpError> {
    match check::body_of(OP, run, body, layer)? {
        (LayerParts::Linear(parts), len) => Ok((parts, len)),
        (LayerParts::Full(_), _) => Err(OpError::shape(OP, "parts of a linear layer", layer)),
    }
}

/// Queries, keys and values of a step, behind convolution and norms.
struct Prepared<E: Float> {
    q: Buffer<E>,
    k: Buffer<E>,
    v: Buffer<E>,
}

impl<E: Float> Prepared<E> {
    /// Walks every run's program over the tail alone, which needs inputs only: every seam input of a layer is known
    /// before any of its states. The slots' tails move on.
    fn new(
        device: &CudaDevice<E>,
        input: &LinearInput<'_, CudaDevice<E>>,
        plan: &Plan<CudaDevice<E>>,
        states: &mut States<E>,
        place: SlotLayer,
    ) -> Result<Self, OpError> {
        let shape = input.shape;
        let channels = shape.conv_channels();
        let Some(taps) = input.conv else {
            let what = "a layer without a convolution".to_owned();
            return Err(OpError::Unsupported { op: OP, what });
        };
        let (taps, found) = taps.table(OP, TAPS)?;
        equal(OP, "tap channels", channels, found)?;
        let (mut spans, mut tails, mut places) = (Vec::new(), Tails::new(channels), Vec::new());
        for run in &plan.runs {
            let at = run.slot * states.tail_stride + place.tail;
            let mut left = std::array::from_fn(|row| RawRow::At(&states.tails, at + row * channels));
            spans_of(run, input, &mut left, &mut spans)?;
            tails.push(left).map_err(failed(OP))?;
            places.push(at as u64);
        }
        let rows = plan.ids.len();
        let prepare = || {
            let mut q = device.output(rows * shape.key_heads * shape.key)?;
            let mut k = device.output(rows * shape.key_heads * shape.key)?;
            let mut v = device.output(rows * shape.heads * shape.value)?;
            let x = &input.raw.values;
            let shape = Shape::from(shape);
            let conv = ConvWarm { shape, x, taps, spans: &spans, q: &mut q, k: &mut k, v: &mut v };
            conv_warm(&device.device, conv)?;
            Ok(Self { q, k, v })
        };
        let prepared = prepare().map_err(failed(OP))?;
        tails.write(&device.device, &mut states.tails, &places).map_err(failed(OP))?;
        Ok(prepared)
    }
}

/// Appends a run's spans, and leaves in `left` what its slot's tail becomes.
fn spans_of<'a, E: Float>(
    run: &'a Run<CudaDevice<E>>,
    input: &LinearInput<'a, CudaDevice<E>>,
    left: &mut Left<'a, E>,
    spans: &mut Vec<Span<'a, E>>,
) -> Result<(), OpError> {
    let channels = input.raw.width;
    for op in &run.ops {
        match op {
            RunOp::Rows(rows) => {
                spans.push(Span { rows: rows.len(), left: *left });
                let last = rows.clone().skip(rows.len().saturating_sub(left.len()));
                push(left, last.map(|row| RawRow::At(&input.raw.values, row * channels)));
            }
            RunOp::Apply { body, .. } => {
                // A body shorter than the tail brings only its own rows: what stood before stays to their left.
                let (parts, len) = parts_of(run, *body, input.layer)?;
                let first = left.len() - len.min(left.len());
                push(left, (first..TAPS - 1).map(|row| parts.tail_row(row, channels)));
            }
            RunOp::ClearTail => *left = [RawRow::Zeros; TAPS - 1],
        }
    }
    Ok(())
}

/// Appends at most as many rows as there are, and drops the oldest.
fn push<'a, E: Float>(left: &mut Left<'a, E>, rows: impl ExactSizeIterator<Item = RawRow<'a, E>>) {
    let kept = left.len() - rows.len();
    left.rotate_left(rows.len());
    for (place, row) in left[kept..].iter_mut().zip(rows) {
        *place = row;
    }
}

fn has_bodies<E: Float>(run: &Run<CudaDevice<E>>) -> bool {
    run.ops.iter().any(|op| matches!(op, RunOp::Apply { .. }))
}

/// Whether a run is launched in the form of prefill.
fn is_prefill<E: Float>(run: &Run<CudaDevice<E>>) -> bool {
    run.record.is_some() || (!has_bodies(run) && run.rows.len() > SHORT)
}

/// A run's program; its slot only if it shares a launch with others.
fn request_of<'a, E: Float>(
    run: &'a Run<CudaDevice<E>>,
    layer: usize,
    identity: &'a Option<Buffer<u8>>,
) -> Result<PoolRequest<'a>, OpError> {
    let mut steps = Vec::new();
    let mut rows = 0;
    for op in &run.ops {
        match op {
            RunOp::Rows(range) => rows += range.len(),
            RunOp::ClearTail => {}
            RunOp::Apply { body, rule } => {
                let (parts, _) = parts_of(run, *body, layer)?;
                let transition = match (rule, identity) {
                    (Rule::Compose, _) => Transition::Stored(&parts.tiles.transition),
                    (Rule::Add, Some(tile)) => Transition::Shared(tile),
                    (Rule::Add, None) | (Rule::Replace, _) => Transition::Zero,
                };
                let tiles = &parts.tiles;
                let body = PoolBody { tiles: &tiles.bytes, state: &tiles.state, transition };
                steps.push(PoolStep { rows, body: Some(body) });
                rows = 0;
            }
        }
    }
    if rows > 0 {
        steps.push(PoolStep { rows, body: None });
    }
    Ok(((!is_prefill(run) && !has_bodies(run)).then_some(run.slot), steps))
}

/// One identity as a tile, where a body is to be added naively.
fn identity_tile<E: Float>(
    device: &CudaDevice<E>,
    plan: &Plan<CudaDevice<E>>,
    shape: &LinearShape,
) -> Result<Option<Buffer<u8>>, OpError> {
    let mut ops = plan.runs.iter().flat_map(|run| &run.ops);
    if !ops.any(|op| matches!(op, RunOp::Apply { rule: Rule::Add, .. })) {
        return Ok(None);
    }
    let make = || {
        let (device, stored, square) = (&device.device, stored_for::<E>(), shape.key * shape.key);
        let mut identity = Buffer::zeros(device, square)?;
        set_identity(device, &mut identity, shape.key)?;
        let mut tile = Buffer::zeros(device, square * stored.size())?;
        let places = Places::new(device, shape.key, stored, &[(Some(0), None)])?;
        pack_tiles(device, &places, [&identity, &Buffer::zeros(device, square)?], &mut tile)?;
        Ok(tile)
    };
    make().map(Some).map_err(failed(OP))
}
