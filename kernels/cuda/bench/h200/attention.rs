//! Attention at one full layer of Qwen3.5-35B-A3B: 16 heads, 2 key heads of 256, 64 channels rotated. Seams and a query over 64 cached
//! segments, a cold prefill, and decode.

use half::bf16;
use hypic_cuda::{
    Attention, AttentionForm, Buffer, Context, Contexts, Device, FullShape, Result, Token, attention,
    attention_as,
};
use rand::RngExt;
use rand::seq::SliceRandom;

use crate::data::{SEGMENTS, fill, normal};
use crate::{Figures, note, time};

const SHAPE: FullShape = FullShape { heads: 16, kv_heads: 2, key: 256, value: 256, rotary: 64 };
const PAGE: usize = 64;
const SEAM: usize = 8;
const LENGTH: usize = 512;
const QUERY: usize = 24;
/// Decoding requests, and tokens of each.
const DECODING: usize = 32;
const DECODED: usize = 4096;
/// Rows compared with f64.
const COMPARED: usize = 6;

fn angle(position: usize, pair: usize) -> f64 {
    position as f64 * 1e7f64.powf(-2.0 * pair as f64 / SHAPE.rotary as f64)
}

/// Keys and values of one layer, and the rows of one step.
struct Set {
    key: Buffer<bf16>,
    value: Buffer<bf16>,
    q: Buffer<bf16>,
    out: Buffer<bf16>,
}

impl Set {
    fn new(device: &Device, slots: usize, rows: usize) -> Result<Self> {
        let draw = |len: usize| Buffer::from_slice(device, &fill(len, |rng| bf16::from_f32(normal(rng))));
        let size = slots.next_multiple_of(PAGE) * SHAPE.kv_heads * SHAPE.key;
        Ok(Self {
            key: draw(size)?,
            value: draw(size)?,
            q: draw(rows * SHAPE.heads * SHAPE.key)?,
            out: Buffer::from_slice(device, &vec![bf16::NAN; rows * SHAPE.heads * SHAPE.key])?,
        })
    }

    /// In the form that is chosen for the contexts, or another.
    fn run(
        &mut self,
        device: &Device,
        contexts: &mut Contexts,
        rope: &Buffer<f32>,
        form: Option<AttentionForm>,
    ) -> Result<()> {
        let run = Attention {
            q: &self.q,
            key: &self.key,
            value: &self.value,
            contexts,
            rope,
            scale: (SHAPE.key as f32).powf(-0.5),
            gate: None,
            out: &mut self.out,
        };
        match form {
            Some(form) => attention_as(device, run, form),
            None => attention(device, run),
        }
    }

    /// Largest relative error of a few rows of `tokens` and `rows` (whose outputs begin at row 0).
    fn error(&self, tokens: &[Token], rows: &[u32]) -> Result<f64> {
        let (key, value, q, out) = (self.key.read()?, self.value.read()?, self.q.read()?, self.out.read()?);
        let width = SHAPE.key;
        let at = |slot: u32, head: usize| {
            let slot = slot as usize;
            ((slot / PAGE * SHAPE.kv_heads + head) * PAGE + slot % PAGE) * width
        };
        let rotated = |x: &[bf16], position: u32| -> Vec<f64> {
            let mut x: Vec<f64> = x.iter().map(|x| f64::from(x.to_f32())).collect();
            for i in 0..SHAPE.rotary / 2 {
                let (sin, cos) = angle(position as usize, i).sin_cos();
                let j = i + SHAPE.rotary / 2;
                (x[i], x[j]) = (x[i] * cos - x[j] * sin, x[j] * cos + x[i] * sin);
            }
            x
        };
        let mut worst = 0.0f64;
        for _ in 0..COMPARED {
            let (row, head) =
                (rand::rng().random_range(0..rows.len()), rand::rng().random_range(0..SHAPE.heads));
            let from = (row * SHAPE.heads + head) * width;
            let query = rotated(&q[from..from + width], rows[row]);
            let shared = head / (SHAPE.heads / SHAPE.kv_heads);
            let seen: Vec<&Token> = tokens.iter().filter(|token| token.position <= rows[row]).collect();
            let weights: Vec<f64> = seen
                .iter()
                .map(|token| {
                    let k = rotated(&key[at(token.slot, shared)..][..width], token.position);
                    (k.iter().zip(&query).map(|(k, q)| k * q).sum::<f64>() / 16.0).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            let mut expected = vec![0.0; width];
            for (token, weight) in seen.iter().zip(&weights) {
                let v = &value[at(token.slot, shared)..][..width];
                expected.iter_mut().zip(v).for_each(|(x, v)| *x += weight / total * f64::from(v.to_f32()));
            }
            let found: Vec<f32> = out[from..from + width].iter().map(|x| x.to_f32()).collect();
            worst = worst.max(crate::data::error(&found, expected));
        }
        Ok(worst)
    }
}

/// A prompt of cached segments: seams and the query are live, bodies lie in pages drawn at random.
fn prompt(slots: usize) -> (Vec<Token>, Vec<u32>) {
    let mut pages: Vec<usize> = (0..slots.div_ceil(PAGE)).collect();
    pages.shuffle(&mut rand::rng());
    let tokens: Vec<Token> = (0..slots)
        .map(|i| Token { slot: (pages[i / PAGE] * PAGE + i % PAGE) as u32, position: i as u32 })
        .collect();
    let live = |i: &u32| *i as usize % LENGTH < SEAM || *i as usize >= SEGMENTS * LENGTH;
    (tokens, (0..slots as u32).filter(live).collect())
}

pub(crate) fn run(device: &Device, figures: &mut Figures) -> Result<()> {
    let positions = SEGMENTS * LENGTH + QUERY;
    let half = SHAPE.rotary / 2;
    let table: Vec<f32> = (0..positions)
        .flat_map(|p| {
            (0..half).map(move |i| angle(p, i).cos()).chain((0..half).map(move |i| angle(p, i).sin()))
        })
        .map(|x| x as f32)
        .collect();
    let rope = Buffer::from_slice(device, &table)?;

    let (tokens, rows) = prompt(positions);
    let all: Vec<u32> = (0..(SEGMENTS * LENGTH) as u32).collect();
    // Decoding requests have pages of their own.
    let apart = |n: usize| -> Vec<Token> {
        let slot = |i: usize| (n * DECODED + i) as u32;
        (0..DECODED).map(|i| Token { slot: slot(i), position: i as u32 }).collect()
    };
    let decoding: Vec<Vec<Token>> = (0..DECODING).map(apart).collect();
    let last = [DECODED as u32 - 1];
    let seams = vec![Context { tokens: &tokens, rows: &rows }];
    let prefill = vec![Context { tokens: &tokens[..all.len()], rows: &all }];
    let decode = decoding.iter().map(|tokens| Context { tokens, rows: &last }).collect();
    for (key, contexts, rounds) in [
        ("seam_attention", seams, 4),
        ("prefill_attention_32k", prefill, 1),
        ("decode_attention_b32_4k", decode, 4),
    ] {
        let count: usize = contexts.iter().map(|context| context.rows.len()).sum();
        let listed = contexts.iter().flat_map(|context| context.tokens);
        let slots = listed.map(|token| token.slot as usize + 1).max().unwrap_or(0);
        let mut sets = [Set::new(device, slots, count)?, Set::new(device, slots, count)?];
        let seen = |context: &Context<'_>| -> usize {
            let of = |&row: &u32| context.tokens.partition_point(|token| token.position <= row);
            context.rows.iter().map(of).sum()
        };
        let flops = (4 * SHAPE.heads * SHAPE.key * contexts.iter().map(seen).sum::<usize>()) as f64;
        let forms = [
            (None, ""),
            (Some(AttentionForm::Hopper), "_direct"),
            (Some(AttentionForm::Portable), "_portable"),
        ];
        for (form, suffix) in forms {
            let mut table = match form {
                None => Contexts::new(device, SHAPE, PAGE, &contexts)?,
                Some(_) => Contexts::cut(device, (SHAPE, PAGE), &contexts, (None, false))?,
            };
            sets[0].out.write(&vec![bf16::NAN; sets[0].out.len()])?;
            sets[0].run(device, &mut table, &rope, form)?;
            let error = sets[0].error(contexts[0].tokens, contexts[0].rows)?;
            note(figures, format!("{key}_error{suffix}"), error);
            let [a, b] = &mut sets;
            let table = std::cell::RefCell::new(&mut table);
            let calls: &mut [&mut dyn FnMut() -> Result<()>] =
                &mut [&mut || a.run(device, &mut table.borrow_mut(), &rope, form), &mut || {
                    b.run(device, &mut table.borrow_mut(), &rope, form)
                }];
            let ms = time(device, rounds, calls)?;
            note(figures, format!("{key}{suffix}_ms"), ms);
            note(figures, format!("{key}{suffix}_tflops"), flops / ms / 1e9);
        }
    }
    Ok(())
}
