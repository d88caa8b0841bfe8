//! Compose + seam of one layer: preparation, chain and the seam's outputs, at several shares of live heads.

use std::thread;

use half::f16;
use hypic_cuda::layout::{state_at, tile_at};
use hypic_cuda::{
    Buffer, ComposeSeam, Device, Family, Places, Program, Result, Scratch, Step, StoredAs, Summary,
    compose_seam, pack_tiles,
};
use rand::seq::SliceRandom;

use crate::data::{Layer, SEGMENTS, SHAPE, build, error, fill, normal};
use crate::{Figures, note, time};

const SEAM: usize = 8;
const LENGTH: usize = 512;

/// One set of inputs: bodies stored in one format, and the live rows.
struct Set {
    layer: Layer,
    arena: Buffer<u8>,
    start: Vec<f32>,
    state: Buffer<f32>,
    out: Buffer<f32>,
    scratch: Scratch,
}

impl Set {
    fn new(device: &Device, stored: StoredAs) -> Result<Self> {
        let bodies = Layer::random(device, SEGMENTS * LENGTH)?;
        let built = build(device, &bodies, LENGTH, 0)?;
        let (pairs, size) = (SEGMENTS * SHAPE.heads, (SHAPE.square() * stored.size()) as u64);
        let places: Vec<_> =
            (0..pairs as u64).map(|i| (Some(2 * i * size), Some((2 * i + 1) * size))).collect();
        let mut arena = Buffer::zeros(device, pairs * 2 * size as usize)?;
        let places = Places::new(device, SHAPE.width, stored, &places)?;
        pack_tiles(device, &places, [&built.transition, &built.state], &mut arena)?;
        let layer = Layer::random(device, SEGMENTS * SEAM)?;
        let start = fill(SHAPE.heads * SHAPE.square(), |rng| 0.1 * normal(rng));
        device.wait()?;
        Ok(Self {
            arena,
            state: Buffer::from_slice(device, &start)?,
            out: Buffer::from_slice(device, &vec![f32::NAN; layer.v.len()])?,
            scratch: Scratch::new(device, SEGMENTS, SHAPE.heads)?,
            layer,
            start,
        })
    }

    fn run(&mut self, device: &Device, program: &Program) -> Result<()> {
        let layer = ComposeSeam {
            rows: self.layer.rows(),
            program,
            arena: &self.arena,
            state: &mut self.state,
            out: &mut self.out,
            scratch: &mut self.scratch,
        };
        compose_seam(device, layer)
    }
}

/// A program in which the heads of `live` have a `T`; one request of all segments.
fn program(device: &Device, stored: StoredAs, live: &[bool]) -> Result<Program> {
    let size = (SHAPE.square() * stored.size()) as u64;
    let steps = (0..SEGMENTS)
        .map(|n| {
            let place = |head: usize| 2 * (n * SHAPE.heads + head) as u64 * size;
            let transition = (0..SHAPE.heads).map(|head| live[head].then_some(place(head))).collect();
            let state = (0..SHAPE.heads).map(|head| place(head) + size).collect();
            Step { rows: SEAM, body: Some(Summary { transition, state, factors: vec![] }) }
        })
        .collect();
    Program::new(device, Family::Gdn, SHAPE, stored, &[steps])
}

/// f64, token by token, on the operands as stored: states and outputs.
fn truth(set: &Set, stored: StoredAs, live: &[bool]) -> Result<(Vec<f64>, Vec<f64>)> {
    let (heads, width, square) = (SHAPE.heads, SHAPE.width, SHAPE.square());
    let rows = set.layer.rows();
    let wide = |values: Vec<half::bf16>| values.iter().map(|x| f64::from(x.to_f32())).collect::<Vec<f64>>();
    let (q, k, v) = (wide(rows.q.read()?), wide(rows.k.read()?), wide(rows.v.read()?));
    let (gate, beta, arena) = (rows.gate.read()?, rows.beta.read()?, set.arena.read()?);
    let half_at = |at: usize| f64::from(f16::from_le_bytes([arena[at], arena[at + 1]]).to_f32());
    let head_run = |head: usize| {
        let mut state: Vec<f64> =
            set.start[head * square..][..square].iter().map(|&x| f64::from(x)).collect();
        let mut out = Vec::with_capacity(SEGMENTS * SEAM * width);
        for n in 0..SEGMENTS {
            for t in n * SEAM..(n + 1) * SEAM {
                let key = (t * SHAPE.key_heads + head / (heads / SHAPE.key_heads)) * width;
                let decay = f64::from(gate[t * heads + head]).exp();
                state.iter_mut().for_each(|x| *x *= decay);
                let mut u: Vec<f64> = v[(t * heads + head) * width..][..width].to_vec();
                for i in 0..width {
                    for (u, s) in u.iter_mut().zip(&state[i * width..]) {
                        *u -= k[key + i] * s;
                    }
                }
                let mut o = vec![0.0; width];
                for i in 0..width {
                    let write = k[key + i] * f64::from(beta[t * heads + head]);
                    for c in 0..width {
                        state[i * width + c] += write * u[c];
                        o[c] += q[key + i] * state[i * width + c];
                    }
                }
                out.extend(o);
            }
            let tile = 2 * (n * heads + head) * square * stored.size();
            let mut next = vec![0.0; square];
            for i in 0..width {
                for j in 0..width {
                    let at = tile + 2 * tile_at(width, i, j);
                    let t = match (live[head], stored) {
                        (false, _) => 0.0,
                        (_, StoredAs::F16) => half_at(at),
                        (_, StoredAs::F32) => half_at(at) + half_at(at + 2 * square),
                    };
                    for c in 0..width {
                        next[i * width + c] += t * state[j * width + c];
                    }
                }
                for c in 0..width {
                    let at = tile + square * stored.size() + state_at(width, i, c) * stored.size();
                    next[i * width + c] += match stored {
                        StoredAs::F16 => half_at(at),
                        StoredAs::F32 => f64::from(f32::from_le_bytes([
                            arena[at],
                            arena[at + 1],
                            arena[at + 2],
                            arena[at + 3],
                        ])),
                    };
                }
            }
            state = next;
        }
        (state, out)
    };
    let per_head: Vec<_> = thread::scope(|scope| {
        let handles: Vec<_> = (0..heads).map(|head| scope.spawn(move || head_run(head))).collect();
        handles.into_iter().map(|handle| handle.join().expect("the worker only computes")).collect()
    });
    let mut out = vec![0.0; SEGMENTS * SEAM * heads * width];
    for (head, (_, o)) in per_head.iter().enumerate() {
        for (t, row) in o.chunks(width).enumerate() {
            out[(t * heads + head) * width..][..width].copy_from_slice(row);
        }
    }
    Ok((per_head.into_iter().flat_map(|(state, _)| state).collect(), out))
}

/// `share` of the heads, drawn at random, at least one.
pub(crate) fn live_heads(share: f64) -> Vec<bool> {
    let live = ((share * SHAPE.heads as f64).round() as usize).max(1);
    let mut heads: Vec<bool> = (0..SHAPE.heads).map(|i| i < live).collect();
    heads.shuffle(&mut rand::rng());
    heads
}

pub(crate) fn run(device: &Device, figures: &mut Figures) -> Result<()> {
    for (stored, key) in [(StoredAs::F16, "compose_seam"), (StoredAs::F32, "compose_seam_fp32")] {
        let mut sets = [Set::new(device, stored)?, Set::new(device, stored)?];
        for share in [0.05, 0.2, 0.6, 1.0] {
            let live = live_heads(share);
            let program = program(device, stored, &live)?;
            let percent = (100.0 * share) as u32;
            if share == 0.2 || share == 1.0 {
                let set = &mut sets[0];
                set.state.write(&set.start.clone())?;
                set.out.write(&vec![f32::NAN; set.out.len()])?;
                set.run(device, &program)?;
                let (state, out) = truth(set, stored, &live)?;
                note(figures, format!("{key}_state_error_live{percent}"), error(&set.state.read()?, state));
                note(figures, format!("{key}_output_error_live{percent}"), error(&set.out.read()?, out));
            }
            let [a, b] = &mut sets;
            let ms =
                time(device, 4, &mut [&mut || a.run(device, &program), &mut || b.run(device, &program)])?;
            note(figures, format!("{key}_ms_live{percent}"), ms);
            if share == 1.0 {
                figures.insert(format!("{key}_ms"), ms);
            }
        }
    }
    Ok(())
}
