//! Composed against recomputed logits: whether a prompt of cached bodies says what the whole prompt says.
//!
//! With bodies taken from the true context the two are equal but for rounding, at every layer; what rounding alone does
//! shows in the same prompt recomputed in steps of another size. Bodies that were built alone are what is cached; a
//! random model has learned nothing, so theirs is not a figure of quality.

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use hypic_domain::logits::{Logits, Need};
use hypic_domain::tuple::TupleFormat;
use hypic_kernels::op::{Device as _, Export};
use hypic_kernels::plan::{BodyLayers, Context, PlacedBody, Plan, Record, Rule, Run, RunOp};

use super::runs;
use super::{Bench, Body, Gpu, PAGE, QUERY, SEAM, SEGMENT};

/// Segments of the prompt.
const SEGMENTS: usize = 16;
/// Slots: of what reads the prompt in order, and of builds alone.
const READ: usize = 0;
const ALONE: usize = 1;

/// How far logits are from those of the recomputed prompt, over the rows of the query.
pub(crate) struct Distance {
    /// Largest difference.
    pub(crate) most: f64,
    /// Mean KL divergence from the recomputed, in nats.
    pub(crate) kl: f64,
    /// Rows with the same largest logit, of [`QUERY`].
    pub(crate) same: usize,
}

impl Bench {
    /// The distances of: other steps, bodies from the true context composed, the same added naively, and bodies that
    /// were built alone composed.
    pub(crate) fn composed(&mut self) -> Result<[(&'static str, Distance); 4]> {
        let vocab = self.loaded.spec.vocab as u64;
        let ids: Vec<u32> = (0..(SEGMENTS * SEGMENT + QUERY) as u64)
            .map(|place| ((place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % vocab) as u32)
            .collect();
        let (segments, query) = ids.split_at(SEGMENTS * SEGMENT);
        let mut read = Reader { bench: &mut *self, slot: READ, live: 0 };
        read.reset()?;
        let mut true_bodies = Vec::new();
        for segment in segments.chunks(SEGMENT) {
            true_bodies.push(read.segment(segment)?);
        }
        let truth = read.rows(query)?;
        read.reset()?;
        for part in segments.chunks(4 * SEGMENT) {
            read.rows(part)?;
        }
        let other_steps = read.rows(query)?;
        let mut bodies = Vec::new();
        for segment in segments.chunks(SEGMENT) {
            let mut alone = Reader { bench: &mut *self, slot: ALONE, live: 0 };
            alone.reset()?;
            bodies.push(alone.segment(segment)?);
        }
        let composed = self.prompt(&ids, &true_bodies, Rule::Compose)?;
        let added = self.prompt(&ids, &true_bodies, Rule::Add)?;
        let cached = self.prompt(&ids, &bodies, Rule::Compose)?;
        Ok([
            ("recomputed in other steps", distance(&truth, &other_steps)),
            ("composed, true bodies", distance(&truth, &composed)),
            ("added, true bodies", distance(&truth, &added)),
            ("composed, built alone", distance(&truth, &cached)),
        ])
    }

    /// Seams and query live, bodies from the cache: logits of the query's rows.
    fn prompt(&mut self, ids: &[u32], bodies: &[Body], rule: Rule) -> Result<Vec<Vec<f32>>> {
        self.device.reset_slot(&mut self.states, READ)?;
        let mut context = Context { pages: Vec::new(), live: Vec::new(), bodies: Vec::new() };
        let (mut ops, mut live) = (Vec::new(), Vec::new());
        for (number, (layers, len)) in bodies.iter().enumerate() {
            let first = number * SEGMENT;
            ops.push(RunOp::Rows(live.len()..live.len() + SEAM));
            ops.push(RunOp::Apply { body: number, rule });
            live.extend(first..first + SEAM);
            let start = (first + SEAM) as u32;
            context.bodies.push(PlacedBody { layers: Arc::clone(layers), start, len: *len as u32 });
        }
        ops.push(RunOp::Rows(live.len()..live.len() + QUERY));
        live.extend(bodies.len() * SEGMENT..bodies.len() * SEGMENT + QUERY);
        context.pages = (0..live.len().div_ceil(PAGE)).collect();
        context.live = live.iter().map(|&place| place as u32).collect();
        let rows = live.len();
        let run = Run { rows: 0..rows, slot: READ, context, ops, record: None };
        let ids = live.iter().map(|&place| ids[place]).collect();
        let needs: Vec<_> = (rows - QUERY..rows).map(|row| (row, Need::all())).collect();
        whole(self.forward(&Plan { ids, runs: vec![run] }, &needs)?)
    }
}

/// Reads a prompt in order, step by step.
struct Reader<'a> {
    bench: &'a mut Bench,
    slot: usize,
    live: usize,
}

impl Reader<'_> {
    fn reset(&mut self) -> Result<()> {
        self.live = 0;
        Ok(self.bench.device.reset_slot(&mut self.bench.states, self.slot)?)
    }

    fn step(
        &mut self,
        ids: &[u32],
        record: Option<Record<Gpu>>,
        needs: &[(usize, Need)],
    ) -> Result<Vec<Logits>> {
        self.live += ids.len();
        let rows = 0..ids.len();
        let ops = vec![RunOp::Rows(rows.clone())];
        let run = Run { rows, slot: self.slot, context: runs::live(0, self.live), ops, record };
        self.bench.forward(&Plan { ids: ids.to_vec(), runs: vec![run] }, needs)
    }

    /// The next tokens, and the logits of the last of them.
    fn rows(&mut self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        let last = ids.len().saturating_sub(QUERY)..ids.len();
        whole(self.step(ids, None, &last.map(|row| (row, Need::all())).collect::<Vec<_>>())?)
    }

    /// The next tokens as a segment: its body, behind whatever was read before.
    fn segment(&mut self, ids: &[u32]) -> Result<Body> {
        let spec = self.bench.loaded.spec.clone();
        let recording = Arc::new(Mutex::new(self.bench.device.recording(&spec)?));
        let record = Record { recording: Arc::clone(&recording), body: SEAM..ids.len(), whole: Some(0.0) };
        self.step(ids, Some(record), &[])?;
        let body = BodyLayers::empty(spec.layers.len());
        let recording = recording.lock().map_err(|_| anyhow::anyhow!("a step died"))?;
        let Bench { device, states, pages, .. } = &mut *self.bench;
        let context = runs::live(0, self.live);
        let format = device.format(&TupleFormat { skip_below: 0.0, ..TupleFormat::default() });
        for layer in 0..spec.layers.len() {
            let host = device.export(&Export {
                layer,
                spec: &spec,
                recording: &*recording,
                states,
                slot: self.slot,
                pages,
                context: &context,
                body: ids.len() - SEAM,
                format,
            })?;
            body.arrive(layer, device.import(layer, &spec, pages, &host)?);
        }
        Ok((Arc::new(body), ids.len() - SEAM))
    }
}

fn whole(logits: Vec<Logits>) -> Result<Vec<Vec<f32>>> {
    logits.into_iter().map(|row| row.into_all().context("a whole row was asked for")).collect()
}

fn distance(truth: &[Vec<f32>], found: &[Vec<f32>]) -> Distance {
    let (mut most, mut kl, mut same) = (0.0_f64, 0.0, 0);
    for (truth, found) in truth.iter().zip(found) {
        let (p, q) = (log_softmax(truth), log_softmax(found));
        kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        let apart = truth.iter().zip(found).map(|(a, b)| f64::from((a - b).abs()));
        most = apart.fold(most, f64::max);
        let largest =
            |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|best| best.0);
        same += usize::from(largest(truth) == largest(found));
    }
    Distance { most, kl: kl / truth.len() as f64, same }
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let sum = hypic_domain::logits::log_sum(row.iter().map(|&logit| f64::from(logit)));
    row.iter().map(|&logit| f64::from(logit) - sum).collect()
}
