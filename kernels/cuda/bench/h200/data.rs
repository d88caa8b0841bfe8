//! Fresh random layers on the device.

use std::thread;

use half::bf16;
use hypic_cuda::{
    Buffer, Device, Family, Recurrence, Result, Rows, Sequence, Sequences, Shape, Summaries, recurrence,
    unit_norm,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub(crate) const SEGMENTS: usize = 64;
pub(crate) const SHAPE: Shape = Shape { heads: 32, key_heads: 16, width: 128 };

/// `len` values of `make`, drawn by all cores.
pub(crate) fn fill<T: Send + Copy>(len: usize, make: impl Fn(&mut StdRng) -> T + Sync) -> Vec<T> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|i| {
                let make = &make;
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(rand::random());
                    let share = (i + 1) * len / workers - i * len / workers;
                    (0..share).map(|_| make(&mut rng)).collect::<Vec<T>>()
                })
            })
            .collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("the worker draws numbers")).collect()
    })
}

/// Roughly normal: a sum of uniform numbers, centred, of variance 1.
pub(crate) fn normal(rng: &mut StdRng) -> f32 {
    let bits: u64 = rng.random();
    let sum = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as f32 / 65536.0).sum::<f32>();
    (sum - 2.0) * 3f32.sqrt()
}

/// Inputs of a layer's rows, with half lives of 2,000 to 30,000 tokens, so that `T` of a body of 512 tokens
/// does not vanish.
pub(crate) struct Layer {
    family: Family,
    shape: Shape,
    pub(crate) q: Buffer<bf16>,
    pub(crate) k: Buffer<bf16>,
    pub(crate) v: Buffer<bf16>,
    pub(crate) gate: Buffer<f32>,
    pub(crate) beta: Buffer<f32>,
}

impl Layer {
    /// A gated delta layer of `SHAPE`.
    pub(crate) fn random(device: &Device, rows: usize) -> Result<Self> {
        Self::of(device, Family::Gdn, SHAPE, rows)
    }

    pub(crate) fn of(device: &Device, family: Family, shape: Shape, rows: usize) -> Result<Self> {
        let Shape { heads, key_heads, width } = shape;
        let lanes = if matches!(family, Family::Kda | Family::Gla) { heads * width } else { heads };
        let mut rng = StdRng::seed_from_u64(rand::random());
        let slowest: Vec<f32> = (0..lanes)
            .map(|_| std::f32::consts::LN_2 / rng.random_range(2e3f32.ln()..3e4f32.ln()).exp())
            .collect();
        let unit = |offset: f32, scale: f32| -> Result<Buffer<bf16>> {
            let raw = fill(rows * key_heads * width, |rng| bf16::from_f32(normal(rng) + offset));
            let raw = Buffer::from_slice(device, &raw)?;
            let mut unit = Buffer::zeros(device, raw.len())?;
            unit_norm(device, &raw, &mut unit, width, scale, 1e-6)?;
            device.wait()?;
            Ok(unit)
        };
        let gate: Vec<f32> =
            (0..rows * lanes).map(|i| -slowest[i % lanes] * rng.random_range(0.0..2.0)).collect();
        let beta: Vec<f32> = (0..rows * heads).map(|_| rng.random_range(0.0..0.6)).collect();
        Ok(Self {
            family,
            shape,
            q: unit(0.0, (width as f32).powf(-0.5))?,
            k: unit(0.3, 1.0)?,
            v: Buffer::from_slice(device, &fill(rows * heads * width, |rng| bf16::from_f32(normal(rng))))?,
            gate: Buffer::from_slice(device, &gate)?,
            beta: Buffer::from_slice(device, &beta)?,
        })
    }

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

/// What a form of the recurrence makes of `SEGMENTS` segments.
pub(crate) struct Built {
    pub(crate) transition: Buffer<f32>,
    pub(crate) state: Buffer<f32>,
    pub(crate) out: Buffer<f32>,
    running: Buffer<f32>,
    live: Buffer<u8>,
}

impl Built {
    pub(crate) fn empty(device: &Device, shape: Shape, length: usize) -> Result<Self> {
        let (pairs, size) = (SEGMENTS * shape.heads, SEGMENTS * shape.heads * shape.square());
        let nan = |len: usize| Buffer::from_slice(device, &vec![f32::NAN; len]);
        Ok(Self {
            transition: nan(size)?,
            state: nan(size)?,
            out: nan(SEGMENTS * length * shape.heads * shape.width)?,
            running: nan(size)?,
            live: Buffer::from_slice(device, &vec![1u8; pairs])?,
        })
    }

    pub(crate) fn run(
        &mut self,
        device: &Device,
        form: Form,
        layer: &Layer,
        sequences: &Sequences,
    ) -> Result<()> {
        let summaries =
            Summaries { state: &mut self.state, transition: &mut self.transition, live: &self.live };
        let run = Recurrence {
            rows: layer.rows(),
            sequences,
            state: &mut self.running,
            summaries: Some(summaries),
            out: &mut self.out,
        };
        form(device, run)
    }
}

/// A form of the recurrence.
pub(crate) type Form = fn(&Device, Recurrence<'_>) -> Result<()>;

/// What the token recurrence (the plain form) makes of `SEGMENTS` segments of `length` tokens.
pub(crate) fn build(device: &Device, layer: &Layer, length: usize, before_body: usize) -> Result<Built> {
    let sequences = Sequences::new(device, &[Sequence { rows: length, before_body, fresh: true }; SEGMENTS])?;
    let mut built = Built::empty(device, layer.shape, length)?;
    built.run(device, recurrence, layer, &sequences)?;
    device.wait()?;
    Ok(built)
}

/// `|found - expected| / |expected|`; NaN if anything is.
pub(crate) fn error(found: &[f32], expected: impl IntoIterator<Item = f64>) -> f64 {
    let (mut difference, mut size) = (0.0, 0.0);
    for (&x, y) in found.iter().zip(expected) {
        difference += (f64::from(x) - y).powi(2);
        size += y * y;
    }
    (difference / size).sqrt()
}
