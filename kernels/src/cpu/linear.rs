//! The linear mixer: convolution, gates, and every run's program of rows and bodies.

use std::ops::Range;

use domain::model::LinearShape;
use hypic_domain as domain;
use pulp::{Arch, NullaryFnOnce};

use super::CpuDevice;
use super::chunk::{CHUNK, Chunk, HeadRows, Step};
use super::math::{silu, squares};
use super::matrix::{Into, Left, PANEL, Right, Size, product};
use super::memory::{HeadRecord, LayerParts, LayerState, States, Tensor, Weight, gdn_only};
use crate::check::{self, equal, programs};
use crate::op::{Gates, LinearInput, OpError};
use crate::plan::{Plan, Rule, Run, RunOp};

/// A `T` under this bound is nothing beside `S` in fp32; its columns are no longer computed.
const NOTHING: f64 = -18.0;
/// Runs of up to this many rows go token by token: a chunk's preparation would cost more.
const SHORT: usize = 3;
/// Rows of one convolution job.
const BLOCK: usize = 64;

/// Checks everything that can be wrong, so that later no state is left half advanced.
fn check(input: &LinearInput<'_, CpuDevice>, plan: &Plan<CpuDevice>, states: &States) -> Result<(), OpError> {
    let shape = input.shape;
    gdn_only("linear_mixer", shape)?;
    if !shape.key.is_multiple_of(PANEL) || !shape.value.is_multiple_of(PANEL) || shape.value > 512 {
        let what = format!("heads of {} by {} (multiples of {PANEL} up to 512)", shape.key, shape.value);
        return Err(OpError::Unsupported { op: "linear_mixer", what });
    }
    let expect = |what, expected, found| equal("linear_mixer", what, expected, found);
    let rows = plan.ids.len();
    expect("channels", shape.conv_channels(), input.raw.width)?;
    expect("rows", rows, input.raw.rows())?;
    let Gates::Gdn { a, b, a_log, dt_bias } = &input.gates;
    for gates in [a, b] {
        expect("gates", rows * shape.heads, gates.values.len())?;
    }
    for vector in [a_log, dt_bias] {
        expect("gate parameters", shape.heads, vector.columns)?;
    }
    if let Some(conv) = input.conv {
        expect("taps", shape.conv_kernel, conv.columns)?;
        expect("tap channels", shape.conv_channels(), conv.rows)?;
    }
    programs(input.layer, plan, states.slots.len())?;
    // What has arrived must be of the right kind.
    for run in &plan.runs {
        for op in &run.ops {
            if let RunOp::Apply { body, .. } = op {
                body_of(run, *body, input.layer)?;
            }
        }
    }
    Ok(())
}

struct Body<'a> {
    len: usize,
    place: &'a [Option<usize>],
    transition: &'a [f32],
    state: &'a [f32],
    tail: &'a [f32],
}

fn body_of<'a>(run: &'a Run<CpuDevice>, body: usize, layer: usize) -> Result<Body<'a>, OpError> {
    match check::body_of("linear_mixer", run, body, layer)? {
        (LayerParts::Linear { place, transition, state, tail }, len) => {
            Ok(Body { len, place, transition, state, tail })
        }
        (LayerParts::Full { .. }, _) => Err(OpError::shape("linear_mixer", "parts of a linear layer", layer)),
    }
}

/// Appends raw inputs to a tail and keeps its length.
fn push_tail(tail: &mut Vec<f32>, inputs: &[f32]) {
    let len = tail.len();
    if inputs.len() >= len {
        tail.copy_from_slice(&inputs[inputs.len() - len..]);
    } else {
        tail.drain(..inputs.len());
        tail.extend_from_slice(inputs);
    }
}

/// A span of rows of one program, and what stands to the left of its first row.
struct Span {
    rows: Range<usize>,
    left: Vec<f32>,
}

/// Walks a run's program over the tail alone, which needs inputs only: every seam input of a layer is known
/// before any of its states.
fn spans(
    run: &Run<CpuDevice>,
    input: &LinearInput<'_, CpuDevice>,
    tail: &mut Vec<f32>,
    spans: &mut Vec<Span>,
) -> Result<(), OpError> {
    let channels = input.raw.width;
    for op in &run.ops {
        match op {
            RunOp::Rows(rows) => {
                spans.push(Span { rows: rows.clone(), left: tail.clone() });
                push_tail(tail, &input.raw.values[rows.start * channels..rows.end * channels]);
            }
            RunOp::Apply { body, .. } => {
                // A body shorter than the tail brings only its own rows: what stood before stays to their left.
                let body = body_of(run, *body, input.layer)?;
                let known = (body.len * channels).min(body.tail.len());
                push_tail(tail, &body.tail[body.tail.len() - known..]);
            }
            RunOp::ClearTail => tail.fill(0.0),
        }
    }
    Ok(())
}

/// Convolution, SiLU, and unit queries and keys (queries times `key^-0.5`) of some rows of a span.
struct Convolve<'a> {
    shape: &'a LinearShape,
    taps: Option<&'a Weight>,
    raw: &'a [f32],
    span: &'a Span,
    first: usize,
    out: &'a mut [f32],
}

impl NullaryFnOnce for Convolve<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { shape, taps, raw, span, first, out } = self;
        let channels = shape.conv_channels();
        let left = shape.tail_rows();
        for (row, out) in (first..).zip(out.chunks_exact_mut(channels)) {
            match taps {
                Some(taps) => {
                    for (panel, out) in out.chunks_mut(PANEL).enumerate() {
                        let mut sums = [0.0_f32; PANEL];
                        for tap in 0..taps.columns {
                            let at = panel * PANEL;
                            let before = left - tap;
                            let source = if row >= span.rows.start + before {
                                &raw[(row - before) * channels + at..]
                            } else {
                                &span.left[(row - span.rows.start + tap) * channels + at..]
                            };
                            let weights = &taps.values[(panel * taps.columns + tap) * PANEL..][..PANEL];
                            for ((sum, &x), &weight) in sums.iter_mut().zip(&source[..out.len()]).zip(weights)
                            {
                                *sum = x.mul_add(weight, *sum);
                            }
                        }
                        for (out, sum) in out.iter_mut().zip(sums) {
                            *out = silu(sum);
                        }
                    }
                }
                None => out.copy_from_slice(&raw[row * channels..(row + 1) * channels]),
            }
            let queries = shape.key_heads * shape.key;
            for (head, x) in out[..2 * queries].chunks_exact_mut(shape.key).enumerate() {
                let scale = if head < shape.key_heads { (shape.key as f32).powf(-0.5) } else { 1.0 };
                let scale = scale / (squares(x) + 1e-6).sqrt();
                x.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

/// `(g, b)`, each `[rows, heads]`.
fn gates(input: &LinearInput<'_, CpuDevice>) -> (Vec<f32>, Vec<f32>) {
    let Gates::Gdn { a, b, a_log, dt_bias } = &input.gates;
    let heads = input.shape.heads;
    let rate: Vec<f64> = a_log.values.iter().map(|&a_log| -f64::from(a_log).exp()).collect();
    let decay = a.values.iter().enumerate().map(|(i, &a)| {
        let x = f64::from(a) + f64::from(dt_bias.values[i % heads]);
        // softplus, exact at both ends.
        (rate[i % heads] * (x.max(0.0) + (-x.abs()).exp().ln_1p())) as f32
    });
    let write = b.values.iter().map(|&b| (1.0 / (1.0 + (-f64::from(b)).exp())) as f32);
    (decay.collect(), write.collect())
}

pub(crate) fn linear_mixer(
    device: &CpuDevice,
    input: &LinearInput<'_, CpuDevice>,
    plan: &Plan<CpuDevice>,
    states: &mut States,
) -> Result<Tensor, OpError> {
    check(input, plan, states)?;
    let shape = input.shape;
    let (rows, channels) = (plan.ids.len(), shape.conv_channels());
    let mut owned: Vec<LayerState> =
        plan.runs.iter().map(|run| std::mem::take(&mut states.slots[run.slot].layers[input.layer])).collect();

    let mut all = Vec::new();
    for (run, state) in plan.runs.iter().zip(&mut owned) {
        spans(run, input, &mut state.tail, &mut all)?;
    }
    let mut mixed = device.output(rows * channels);
    let mut jobs = Vec::new();
    let mut rest = mixed.as_mut_slice();
    for span in &all {
        for first in span.rows.clone().step_by(BLOCK) {
            let count = BLOCK.min(span.rows.end - first);
            let out = rest.split_off_mut(..count * channels).unwrap_or_default();
            jobs.push(Convolve { shape, taps: input.conv, raw: &input.raw.values, span, first, out });
        }
    }
    let arch = device.arch;
    device.each(rows * channels * 16, jobs, |_: &mut (), job| arch.dispatch(job));
    let (decay, write) = gates(input);

    // Head-major, so that every (run, head) writes its own place.
    let mut out = device.output(rows * shape.heads * shape.value);
    let mut records: Vec<Vec<HeadRecord>> =
        plan.runs.iter().map(|run| take_records(run, input.layer)).collect();
    let mut jobs = Vec::new();
    let mut rest = out.as_mut_slice();
    let mut places: Vec<&mut [f32]> =
        (0..shape.heads).map(|_| rest.split_off_mut(..rows * shape.value).unwrap_or_default()).collect();
    for ((run, state), records) in plan.runs.iter().zip(&mut owned).zip(&mut records) {
        let mut records = records.iter_mut();
        for (head, state) in state.state.chunks_exact_mut(shape.key * shape.value).enumerate() {
            let out = places[head].split_off_mut(..run.rows.len() * shape.value).unwrap_or_default();
            jobs.push(Head { run, head, state, record: records.next(), out });
        }
    }
    // A step may consist of bodies alone; then there is nothing to point at.
    fn from(values: &[f32], at: usize) -> &[f32] {
        values.get(at..).unwrap_or_default()
    }
    let rows_of = |head: usize| {
        let queries = shape.key_heads * shape.key;
        let key_head = head / (shape.heads / shape.key_heads) * shape.key;
        HeadRows {
            query: from(&mixed, key_head),
            key: from(&mixed, queries + key_head),
            value: from(&mixed, 2 * queries + head * shape.value),
            step: channels,
            decay: from(&decay, head),
            write: from(&write, head),
            gate_step: shape.heads,
        }
    };
    let applied =
        plan.runs.iter().flat_map(|run| &run.ops).filter(|op| matches!(op, RunOp::Apply { .. })).count();
    let work = (4 * rows + shape.key * applied) * shape.heads * shape.key * shape.value;
    if rows > 0 {
        device.each(work, jobs, |scratch: &mut Scratch, job| {
            job.run(arch, shape, input.layer, &rows_of, scratch)
        });
    }
    for ((run, state), records) in plan.runs.iter().zip(owned).zip(records) {
        states.slots[run.slot].layers[input.layer] = state;
        put_records(run, input.layer, records);
    }
    Ok(Tensor { values: interleave_heads(device, &out, rows, shape), width: shape.heads * shape.value })
}

/// `[rows, heads * value]` from `[heads, rows, value]`.
fn interleave_heads(device: &CpuDevice, by_head: &[f32], rows: usize, shape: &LinearShape) -> Vec<f32> {
    let width = shape.heads * shape.value;
    let mut out = device.output(rows * width);
    for (head, source) in by_head.chunks_exact((rows * shape.value).max(1)).enumerate() {
        for (out, source) in out.chunks_exact_mut(width).zip(source.chunks_exact(shape.value)) {
            out[head * shape.value..][..shape.value].copy_from_slice(source);
        }
    }
    out
}

/// The recording is shared only with the engine, which reads it between steps; a poisoned lock means that a
/// step died, and its build is thrown away by the engine.
fn take_records(run: &Run<CpuDevice>, layer: usize) -> Vec<HeadRecord> {
    run.record.as_ref().map_or_else(Vec::new, |record| {
        let mut recording = record.recording.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        recording.layers.get_mut(layer).map(std::mem::take).unwrap_or_default()
    })
}

fn put_records(run: &Run<CpuDevice>, layer: usize, records: Vec<HeadRecord>) {
    if let Some(record) = &run.record {
        let mut recording = record.recording.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(place) = recording.layers.get_mut(layer) {
            *place = records;
        }
    }
}

/// One head of one run.
struct Head<'a> {
    run: &'a Run<CpuDevice>,
    head: usize,
    state: &'a mut [f32],
    record: Option<&'a mut HeadRecord>,
    out: &'a mut [f32],
}

#[derive(Default)]
struct Scratch {
    chunk: Chunk,
    product: Vec<f32>,
}

impl Head<'_> {
    fn run<'r>(
        mut self,
        arch: Arch,
        shape: &LinearShape,
        layer: usize,
        rows_of: &(impl Fn(usize) -> HeadRows<'r> + Sync),
        scratch: &mut Scratch,
    ) {
        let x = rows_of(self.head);
        for op in &self.run.ops {
            match op {
                RunOp::Rows(rows) => self.rows(arch, shape, x, rows.clone(), &mut scratch.chunk),
                RunOp::Apply { body, rule } => {
                    // Checked before any state moved.
                    if let Ok(body) = body_of(self.run, *body, layer) {
                        self.apply(arch, shape, &body, *rule, &mut scratch.product);
                    }
                }
                RunOp::ClearTail => {}
            }
        }
    }

    fn rows(
        &mut self,
        arch: Arch,
        shape: &LinearShape,
        x: HeadRows<'_>,
        rows: Range<usize>,
        chunk: &mut Chunk,
    ) {
        // Chunks do not cross the body's edges: only its rows enter the summary.
        let body = self.run.record.as_ref().map_or(0..0, |record| record.body.clone());
        let mut first = rows.start;
        while first < rows.end {
            let recorded = body.contains(&first);
            let edge = if recorded {
                body.end
            } else if first < body.start {
                body.start
            } else {
                rows.end
            };
            let count = (edge.min(rows.end) - first).min(CHUNK);
            let at = (first - self.run.rows.start) * shape.value;
            let out = &mut self.out[at..at + count * shape.value];
            let x = x.from(first);
            if !recorded && rows.len() <= SHORT {
                for (row, out) in out.chunks_exact_mut(shape.value).enumerate() {
                    arch.dispatch(Step { x: x.from(row), key: shape.key, state: self.state, out });
                }
            } else {
                chunk.prepare(arch, x, count, shape.key);
                chunk.advance(arch, self.state, shape.value, Some(x), Some(out));
                if let (true, Some(record)) = (recorded, self.record.as_deref_mut()) {
                    chunk.advance(arch, &mut record.state, shape.value, Some(x), None);
                    if record.log_bound >= NOTHING {
                        chunk.advance(arch, &mut record.transition, shape.key, None, None);
                    }
                    record.log_bound += chunk.log_decay();
                    if record.log_bound < NOTHING {
                        record.transition.fill(0.0);
                    }
                }
            }
            first += count;
        }
    }

    fn apply(
        &mut self,
        arch: Arch,
        shape: &LinearShape,
        body: &Body<'_>,
        rule: Rule,
        product_of: &mut Vec<f32>,
    ) {
        let size = shape.key * shape.value;
        let added = &body.state[self.head * size..][..size];
        let transition = body.place[self.head].map(|place| &body.transition[place * shape.key * shape.key..]);
        match (rule, transition) {
            (Rule::Add, _) => self.state.iter_mut().zip(added).for_each(|(state, added)| *state += added),
            (Rule::Compose, Some(values)) => {
                product_of.resize(size, 0.0);
                let left = Left { values, row_step: shape.key, inner_step: 1 };
                let sizes = Size { rows: shape.key, inner: shape.key, columns: shape.value };
                let right = Right::rows(self.state, shape.value);
                product_of.copy_from_slice(added);
                product(arch, sizes, left, right, product_of, (shape.value, Into::Add));
                self.state.copy_from_slice(product_of);
            }
            (Rule::Compose, None) | (Rule::Replace, _) => self.state.copy_from_slice(added),
        }
    }
}
