//! Fresh random layers, and what f64 says about them.

use half::bf16;
use hypic_cuda::{Buffer, Device, Family, Rows, Shape};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A fresh generator; its seed is printed when the test fails.
pub(crate) fn fresh() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

pub(crate) fn normal(rng: &mut StdRng) -> f32 {
    let (a, b): (f32, f32) = (rng.random_range(1e-7..1.0), rng.random_range(0.0..std::f32::consts::TAU));
    (-2.0 * a.ln()).sqrt() * b.cos()
}

/// Inputs of one layer's rows.
pub(crate) struct Layer {
    pub(crate) family: Family,
    pub(crate) shape: Shape,
    pub(crate) rows: usize,
    pub(crate) q: Vec<bf16>,
    pub(crate) k: Vec<bf16>,
    pub(crate) v: Vec<bf16>,
    pub(crate) gate: Vec<f32>,
    pub(crate) beta: Vec<f32>,
}

pub(crate) fn channels(family: Family) -> bool {
    matches!(family, Family::Gla | Family::Kda)
}

pub(crate) fn delta(family: Family) -> bool {
    matches!(family, Family::DeltaNet | Family::Gdn | Family::Kda)
}

impl Layer {
    /// Unit keys with a common part, as trained ones have, and half lives from 8 to 8192 tokens, so that `T`
    /// does not vanish.
    pub(crate) fn random(rng: &mut StdRng, family: Family, shape: Shape, rows: usize) -> Self {
        let Shape { heads, key_heads, width } = shape;
        let unit = |rng: &mut StdRng, offset: f32, scale: f32| -> Vec<bf16> {
            let mut out = Vec::with_capacity(rows * key_heads * width);
            for _ in 0..rows * key_heads {
                let row: Vec<f32> = (0..width).map(|_| normal(rng) + offset).collect();
                let size = row.iter().map(|x| x * x).sum::<f32>().sqrt();
                out.extend(row.iter().map(|x| bf16::from_f32(x / size * scale)));
            }
            out
        };
        let (k, q) = (unit(rng, 0.3, 1.0), unit(rng, 0.0, (width as f32).powf(-0.5)));
        let v = (0..rows * heads * width).map(|_| bf16::from_f32(normal(rng))).collect();
        let lanes = if channels(family) { heads * width } else { heads };
        let slowest: Vec<f32> = (0..lanes)
            .map(|_| std::f32::consts::LN_2 / rng.random_range(8f32.ln()..8192f32.ln()).exp())
            .collect();
        let gate = (0..rows * lanes)
            .map(|i| match family {
                Family::Linear | Family::DeltaNet => 0.0,
                Family::Retention => -slowest[i % lanes],
                _ => -slowest[i % lanes] * rng.random_range(0.0..2.0),
            })
            .collect();
        let beta = (0..rows * heads).map(|_| rng.random_range(0.0..1.0)).collect();
        Self { family, shape, rows, q, k, v, gate, beta }
    }

    pub(crate) fn upload(&self, device: &Device) -> OnDevice {
        OnDevice {
            family: self.family,
            shape: self.shape,
            q: Buffer::from_slice(device, &self.q).unwrap(),
            k: Buffer::from_slice(device, &self.k).unwrap(),
            v: Buffer::from_slice(device, &self.v).unwrap(),
            gate: Buffer::from_slice(device, &self.gate).unwrap(),
            beta: Buffer::from_slice(device, &self.beta).unwrap(),
        }
    }

    fn decay(&self, row: usize, head: usize, i: usize) -> f64 {
        let Shape { heads, width, .. } = self.shape;
        let at = if channels(self.family) { (row * heads + head) * width + i } else { row * heads + head };
        f64::from(self.gate[at]).exp()
    }

    /// One token of one head on a state `[width, columns]`; the output of every column. Without `writes`, `v`
    /// counts as zero.
    fn token(&self, row: usize, head: usize, state: &mut [f64], writes: bool) -> Vec<f64> {
        let Shape { heads, key_heads, width } = self.shape;
        let key = (row * key_heads + head / (heads / key_heads)) * width;
        let (k, q) = (&self.k[key..key + width], &self.q[key..key + width]);
        let columns = state.len() / width;
        let mut out = vec![0.0; columns];
        for i in 0..width {
            let decay = self.decay(row, head, i);
            state[i * columns..(i + 1) * columns].iter_mut().for_each(|x| *x *= decay);
        }
        let mut u = vec![0.0; columns];
        if writes {
            let v = &self.v[(row * heads + head) * width..];
            u.iter_mut().zip(v).for_each(|(u, v)| *u = f64::from(v.to_f32()));
        }
        if delta(self.family) {
            for i in 0..width {
                let k = f64::from(k[i].to_f32());
                u.iter_mut().zip(&state[i * columns..]).for_each(|(u, s)| *u -= k * s);
            }
            u.iter_mut().for_each(|u| *u *= f64::from(self.beta[row * heads + head]));
        }
        for i in 0..width {
            let (k, q) = (f64::from(k[i].to_f32()), f64::from(q[i].to_f32()));
            for c in 0..columns {
                state[i * columns + c] += k * u[c];
                out[c] += q * state[i * columns + c];
            }
        }
        out
    }

    /// Advances `state` over `rows` and writes their outputs into `out` `[rows, heads, width]`.
    pub(crate) fn scan(&self, rows: std::ops::Range<usize>, head: usize, state: &mut [f64], out: &mut [f64]) {
        let Shape { heads, width, .. } = self.shape;
        for row in rows {
            let o = self.token(row, head, state, true);
            out[(row * heads + head) * width..][..width].copy_from_slice(&o);
        }
    }

    /// `(T, S)` of `rows` for one head; `T` dense `[width, width]` whatever the family.
    pub(crate) fn summary(&self, rows: std::ops::Range<usize>, head: usize) -> (Vec<f64>, Vec<f64>) {
        let width = self.shape.width;
        let (mut t, mut s) = (identity(width), vec![0.0; width * width]);
        for row in rows {
            self.token(row, head, &mut t, false);
            self.token(row, head, &mut s, true);
        }
        (t, s)
    }
}

pub(crate) fn identity(width: usize) -> Vec<f64> {
    (0..width * width).map(|i| f64::from(u8::from(i % (width + 1) == 0))).collect()
}

/// `t s + c`, all `[width, width]`.
pub(crate) fn apply(width: usize, t: &[f64], s: &[f64], c: &[f64]) -> Vec<f64> {
    let mut out = c.to_vec();
    for i in 0..width {
        for j in 0..width {
            let x = t[i * width + j];
            for c in 0..width {
                out[i * width + c] += x * s[j * width + c];
            }
        }
    }
    out
}

pub(crate) struct OnDevice {
    family: Family,
    shape: Shape,
    q: Buffer<bf16>,
    k: Buffer<bf16>,
    v: Buffer<bf16>,
    gate: Buffer<f32>,
    beta: Buffer<f32>,
}

impl OnDevice {
    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows {
            family: self.family,
            shape: self.shape,
            q: &self.q,
            k: &self.k,
            v: &self.v,
            gate: &self.gate,
            beta: &self.beta,
        }
    }
}

/// `len` NaNs: whoever forgets to write a value is found out.
pub(crate) fn nan(device: &Device, len: usize) -> Buffer<f32> {
    Buffer::from_slice(device, &vec![f32::NAN; len]).unwrap()
}

/// Values of bf16, spread as `scale` times a normal one.
pub(crate) fn random(len: usize, scale: f32) -> Vec<bf16> {
    let mut rng = fresh();
    (0..len).map(|_| bf16::from_f32(scale * normal(&mut rng))).collect()
}
