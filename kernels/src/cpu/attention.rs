//! The full mixer: causal attention by global position over cached bodies and live pages, tile by tile with a
//! running softmax. Keys are rotated on the way into a tile.

use std::ops::Range;

use hypic_domain::model::FullShape;
use pulp::{Arch, NullaryFnOnce};

use super::CpuDevice;
use super::math::exp;
use super::matrix::{Into, Left, PANEL, Right, Size, pack_transposed, product};
use super::memory::{LayerPages, LayerParts, Pages, Tensor, Weight};
use crate::check::{Room, contexts, equal};
use crate::op::{FullInput, OpError};
use crate::plan::{Plan, Run};

/// Tokens of a tile.
const TILE: usize = 64;
/// Query rows of a job, over all heads that share a key head.
const QUERIES: usize = 96;
/// Up to this many query rows, dot products need no panels.
const FEW: usize = 5;

fn check(input: &FullInput<'_, CpuDevice>, plan: &Plan<CpuDevice>, pages: &Pages) -> Result<(), OpError> {
    let shape = input.shape;
    let expect = |what, expected, found| equal("full_mixer", what, expected, found);
    if shape.value == 0 || !shape.value.is_multiple_of(PANEL) || !shape.heads.is_multiple_of(shape.kv_heads) {
        let what = format!("{shape:?} (values in multiples of {PANEL}, no latent cache)");
        return Err(OpError::Unsupported { op: "full_mixer", what });
    }
    let rows = plan.ids.len();
    expect("query values", rows * shape.heads * shape.key, input.query.values.len())?;
    expect("key values", rows * shape.kv_heads * shape.key, input.key.values.len())?;
    expect("value values", rows * shape.kv_heads * shape.value, input.value.values.len())?;
    expect("angles", shape.rotary, input.rope.columns)?;
    if pages.layers.get(input.layer).is_none_or(Option::is_none) {
        return Err(OpError::shape("full_mixer", "pages for the layer", input.layer));
    }
    let room = Room { pages: pages.pages, page_tokens: pages.page_tokens, positions: input.rope.rows };
    contexts(input.layer, plan, room)?;
    for body in plan.runs.iter().flat_map(|run| &run.context.bodies) {
        match body.layers.layer(input.layer) {
            Some(LayerParts::Full { key, .. }) => {
                expect("keys of the body", body.len as usize * shape.kv_heads * shape.key, key.len())?;
            }
            _ => return Err(OpError::shape("full_mixer", "parts of a full layer", input.layer)),
        }
    }
    Ok(())
}

pub(crate) fn full_mixer(
    device: &CpuDevice,
    input: &FullInput<'_, CpuDevice>,
    plan: &Plan<CpuDevice>,
    pages: &mut Pages,
) -> Result<Tensor, OpError> {
    check(input, plan, pages)?;
    let shape = input.shape;
    let page_tokens = pages.page_tokens;
    let Some(layer) = &mut pages.layers[input.layer] else {
        return Err(OpError::shape("full_mixer", "pages for the layer", input.layer));
    };
    plan.runs.iter().for_each(|run| store(input, run, layer, page_tokens));

    let rows = plan.ids.len();
    let group = shape.heads / shape.kv_heads;
    let width = group * shape.value;
    let mut by_head = device.output(rows * shape.kv_heads * shape.value * group);
    let mut jobs = Vec::new();
    let mut work = 0;
    for (kv_head, mut out) in by_head.chunks_exact_mut((rows * width).max(1)).enumerate() {
        for run in &plan.runs {
            let tokens =
                run.context.live.len() + run.context.bodies.iter().map(|b| b.len as usize).sum::<usize>();
            work += run.rows.len() * group * tokens * (shape.key + shape.value);
            for first in run.rows.clone().step_by((QUERIES / group).max(1)) {
                let rows = first..run.rows.end.min(first + (QUERIES / group).max(1));
                let out = out.split_off_mut(..rows.len() * width).unwrap_or_default();
                jobs.push(Job { input, run, layer, page_tokens, kv_head, rows, out });
            }
        }
    }
    // The last blocks of a causal run are the longest: they go first.
    jobs.reverse();
    let arch = device.arch;
    device.each(work, jobs, |scratch: &mut Scratch, job| job.run(arch, scratch));
    let mut values = device.output(rows * shape.heads * shape.value);
    for (kv_head, source) in by_head.chunks_exact((rows * width).max(1)).enumerate() {
        for (out, source) in
            values.chunks_exact_mut(shape.heads * shape.value).zip(source.chunks_exact(width))
        {
            out[kv_head * width..][..width].copy_from_slice(source);
        }
    }
    Ok(Tensor { values, width: shape.heads * shape.value })
}

/// Writes a run's keys and values of this step to its pages.
fn store(input: &FullInput<'_, CpuDevice>, run: &Run<CpuDevice>, layer: &mut LayerPages, page_tokens: usize) {
    let FullShape { kv_heads, key, value, .. } = *input.shape;
    let first = run.context.live.len() - run.rows.len();
    for (row, token) in run.rows.clone().zip(first..) {
        for head in 0..kv_heads {
            let at = (run.context.pages[token / page_tokens] * kv_heads + head) * page_tokens
                + token % page_tokens;
            layer.key[at * key..][..key].copy_from_slice(&input.key.row(row)[head * key..][..key]);
            layer.value[at * value..][..value]
                .copy_from_slice(&input.value.row(row)[head * value..][..value]);
        }
    }
}

/// Rotates the leading channels of `x` to `position`: pairs `(i, i + rotary / 2)`.
fn rotate(x: &mut [f32], rope: &Weight, position: u32) {
    let half = rope.columns / 2;
    let (first, rest) = x.split_at_mut(half);
    for (i, (a, b)) in first.iter_mut().zip(rest).enumerate() {
        let (cos, sin) = (rope.at(position as usize, i), rope.at(position as usize, half + i));
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Some rows of one run, all query heads of one key head.
struct Job<'a> {
    input: &'a FullInput<'a, CpuDevice>,
    run: &'a Run<CpuDevice>,
    layer: &'a LayerPages,
    page_tokens: usize,
    kv_head: usize,
    rows: Range<usize>,
    out: &'a mut [f32],
}

#[derive(Default)]
struct Scratch {
    /// Rotated, scaled queries `[rows * group, key]`.
    query: Vec<f32>,
    /// Position of each query row.
    places: Vec<u32>,
    /// A tile's positions, rotated keys `[tile, key]` and values `[tile, value]`.
    positions: Vec<u32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    panels: Vec<f32>,
    /// `[rows * group, TILE]`.
    scores: Vec<f32>,
    /// Running maxima and sums.
    best: Vec<f32>,
    total: Vec<f32>,
}

/// Tokens that lie together: positions from `start` (bodies) or as listed (live), keys and values.
struct Piece<'a> {
    positions: Positions<'a>,
    key: &'a [f32],
    value: &'a [f32],
}

enum Positions<'a> {
    From(u32, usize),
    Listed(&'a [u32]),
}

impl Positions<'_> {
    fn len(&self) -> usize {
        match self {
            Self::From(_, len) => *len,
            Self::Listed(list) => list.len(),
        }
    }

    fn at(&self, i: usize) -> u32 {
        match self {
            Self::From(start, _) => start + i as u32,
            Self::Listed(list) => list[i],
        }
    }
}

impl Job<'_> {
    fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let FullShape { kv_heads, key, value, .. } = *self.input.shape;
        let bodies = self.run.context.bodies.iter().filter_map(move |body| {
            // Arrival was checked before.
            let Some(LayerParts::Full { key: keys, value: values }) = body.layers.layer(self.input.layer)
            else {
                return None;
            };
            let len = body.len as usize;
            let at = self.kv_head * len;
            Some(Piece {
                positions: Positions::From(body.start, len),
                key: &keys[at * key..][..len * key],
                value: &values[at * value..][..len * value],
            })
        });
        let live = self.run.context.live.chunks(self.page_tokens).zip(&self.run.context.pages);
        bodies.chain(live.map(move |(positions, page)| {
            let at = (page * kv_heads + self.kv_head) * self.page_tokens;
            Piece {
                positions: Positions::Listed(positions),
                key: &self.layer.key[at * key..][..positions.len() * key],
                value: &self.layer.value[at * value..][..positions.len() * value],
            }
        }))
    }

    fn run(mut self, arch: Arch, scratch: &mut Scratch) {
        let FullShape { heads, kv_heads, key, value, .. } = *self.input.shape;
        let group = heads / kv_heads;
        let first_live = self.run.context.live.len() - self.run.rows.len();
        scratch.query.clear();
        scratch.places.clear();
        for row in self.rows.clone() {
            let place = self.run.context.live[first_live + row - self.run.rows.start];
            for head in self.kv_head * group..(self.kv_head + 1) * group {
                let at = scratch.query.len();
                scratch.query.extend_from_slice(&self.input.query.row(row)[head * key..][..key]);
                rotate(&mut scratch.query[at..], self.input.rope, place);
                scratch.query[at..].iter_mut().for_each(|x| *x *= self.input.scale);
                scratch.places.push(place);
            }
        }
        let queries = scratch.places.len();
        let newest = scratch.places.last().copied().unwrap_or(0);
        scratch.best.clear();
        scratch.best.resize(queries, f32::MIN);
        scratch.total.clear();
        scratch.total.resize(queries, 0.0);
        scratch.scores.resize(queries * TILE, 0.0);
        let out = std::mem::take(&mut self.out);
        out.fill(0.0);
        scratch.clear_tile();
        for piece in self.pieces() {
            let mut i = 0;
            while i < piece.positions.len() && piece.positions.at(i) <= newest {
                let room = (TILE - scratch.positions.len()).min(piece.positions.len() - i);
                for token in i..i + room {
                    scratch.positions.push(piece.positions.at(token));
                    let at = scratch.keys.len();
                    scratch.keys.extend_from_slice(&piece.key[token * key..][..key]);
                    rotate(&mut scratch.keys[at..], self.input.rope, piece.positions.at(token));
                }
                scratch.values.extend_from_slice(&piece.value[i * value..(i + room) * value]);
                i += room;
                if scratch.positions.len() == TILE {
                    scratch.attend(arch, key, value, out);
                    scratch.clear_tile();
                }
            }
        }
        if !scratch.positions.is_empty() {
            scratch.attend(arch, key, value, out);
        }
        for (out, total) in out.chunks_exact_mut(value).zip(&scratch.total) {
            out.iter_mut().for_each(|x| *x /= total);
        }
    }
}

impl Scratch {
    fn clear_tile(&mut self) {
        self.positions.clear();
        self.keys.clear();
        self.values.clear();
    }

    /// One tile: scores, the running softmax, and its share of the outputs `[queries, value]`.
    fn attend(&mut self, arch: Arch, key: usize, value: usize, out: &mut [f32]) {
        let (queries, tokens) = (self.places.len(), self.positions.len());
        if queries <= FEW {
            arch.dispatch(Dots { query: &self.query, keys: &self.keys, key, scores: &mut self.scores });
        } else {
            let columns = tokens.next_multiple_of(PANEL);
            self.panels.resize(columns * key, 0.0);
            pack_transposed(&self.keys, key, tokens, key, &mut self.panels);
            let left = Left { values: &self.query, row_step: key, inner_step: 1 };
            let size = Size { rows: queries, inner: key, columns };
            product(arch, size, left, Right::panels(&self.panels, key), &mut self.scores, (TILE, Into::Set));
        }
        let oldest = self.places.first().copied().unwrap_or(0);
        let masked = self.positions.iter().any(|&position| position > oldest);
        arch.dispatch(Softmax {
            scores: &mut self.scores,
            positions: &self.positions,
            places: masked.then_some(&self.places),
            best: &mut self.best,
            total: &mut self.total,
            out,
            value,
        });
        let left = Left { values: &self.scores, row_step: TILE, inner_step: 1 };
        let size = Size { rows: queries, inner: tokens, columns: value };
        product(arch, size, left, Right::rows(&self.values, value), out, (value, Into::Add));
    }
}

/// Scores of few queries, straight from the keys.
struct Dots<'a> {
    query: &'a [f32],
    keys: &'a [f32],
    key: usize,
    scores: &'a mut [f32],
}

impl NullaryFnOnce for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (query, scores) in self.query.chunks_exact(self.key).zip(self.scores.chunks_exact_mut(TILE)) {
            for (key, score) in self.keys.chunks_exact(self.key).zip(scores) {
                let mut sums = [0.0_f32; 16];
                let (keys, rest) = key.as_chunks::<16>();
                let (queries, others) = query.as_chunks::<16>();
                for (key, query) in keys.iter().zip(queries) {
                    for i in 0..16 {
                        sums[i] = key[i].mul_add(query[i], sums[i]);
                    }
                }
                *score = sums.iter().sum::<f32>() + rest.iter().zip(others).map(|(a, b)| a * b).sum::<f32>();
            }
        }
    }
}

/// Turns a tile's scores into weights, and rescales what was summed before.
struct Softmax<'a> {
    scores: &'a mut [f32],
    positions: &'a [u32],
    /// Positions of the query rows, where some may not see some tokens.
    places: Option<&'a Vec<u32>>,
    best: &'a mut [f32],
    total: &'a mut [f32],
    out: &'a mut [f32],
    value: usize,
}

impl NullaryFnOnce for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (query, scores) in self.scores.chunks_exact_mut(TILE).enumerate().take(self.best.len()) {
            let scores = &mut scores[..self.positions.len()];
            if let Some(places) = self.places {
                for (score, &position) in scores.iter_mut().zip(self.positions) {
                    *score = if position > places[query] { f32::NEG_INFINITY } else { *score };
                }
            }
            let mut best = self.best[query];
            for &score in scores.iter() {
                best = if score > best { score } else { best };
            }
            let mut sum = 0.0;
            for score in scores.iter_mut() {
                let weight = exp(*score - best);
                *score = if *score == f32::NEG_INFINITY { 0.0 } else { weight };
            }
            for &weight in scores.iter() {
                sum += weight;
            }
            let kept = if self.best[query] == best { 1.0 } else { exp(self.best[query] - best) };
            self.total[query] = self.total[query] * kept + sum;
            self.best[query] = best;
            self.out[query * self.value..][..self.value].iter_mut().for_each(|x| *x *= kept);
        }
    }
}
