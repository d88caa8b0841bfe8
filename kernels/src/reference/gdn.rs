use std::ops::Range;

use hypic_algebra::{Token as _, gdn};
use hypic_domain::model::LinearShape;

use crate::plan::Rule;

/// A gated delta net layer behind its projections.
pub struct Gdn<'a> {
    /// Its shape.
    pub shape: LinearShape,
    /// Taps, `[channels, K]`.
    pub taps: &'a [f32],
    /// `[heads]`.
    pub a_log: &'a [f32],
    /// `[heads]`.
    pub dt_bias: &'a [f32],
}

/// Rows of inputs.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// `[rows, channels]`.
    pub raw: &'a [f32],
    /// Decays before the gate, `[rows, heads]`.
    pub a: &'a [f32],
    /// Write strengths before the sigmoid, `[rows, heads]`.
    pub b: &'a [f32],
}

/// The running state of a layer.
#[derive(Clone)]
pub struct Running {
    /// `[heads, key, value]`.
    pub state: Vec<f64>,
    /// `[K-1, channels]`, oldest first.
    pub tail: Vec<f64>,
}

/// What a body does to a state.
#[derive(Clone)]
pub struct Summary {
    /// `T`, `[heads, key, key]`.
    pub transition: Vec<f64>,
    /// `S`, `[heads, key, value]`.
    pub state: Vec<f64>,
    /// `Σ g` per head: the logarithm of the bound on the norm of `T`.
    pub log_bound: Vec<f64>,
    /// The tail at the segment's end.
    pub tail: Vec<f64>,
    /// Tokens.
    pub len: usize,
}

/// One step of a program.
pub enum Part<'a> {
    /// Compute these rows.
    Rows(Range<usize>),
    /// Apply a body.
    Body(&'a Summary, Rule),
    /// Zero the tail.
    ClearTail,
}

impl Gdn<'_> {
    /// A state of zeros.
    pub fn start(&self) -> Running {
        let LinearShape { heads, key, value, .. } = self.shape;
        Running {
            state: vec![0.0; heads * key * value],
            tail: vec![0.0; self.shape.tail_rows() * self.shape.conv_channels()],
        }
    }

    /// Runs a program and returns the outputs of its rows, `[rows, heads * value]`.
    pub fn run(&self, inputs: Inputs<'_>, program: &[Part<'_>], running: &mut Running) -> Vec<f64> {
        let mut out = Vec::new();
        for part in program {
            match part {
                Part::Rows(rows) => {
                    rows.clone().for_each(|row| out.extend(self.token(inputs, row, running, None)));
                }
                Part::Body(body, rule) => self.apply(body, *rule, running),
                Part::ClearTail => running.tail.fill(0.0),
            }
        }
        out
    }

    /// Prefills a whole segment alone and records its body, the rows from `seam` on.
    pub fn build(&self, inputs: Inputs<'_>, len: usize, seam: usize) -> Summary {
        let LinearShape { heads, key, .. } = self.shape;
        let mut summary = Summary {
            transition: vec![0.0; heads * key * key],
            state: self.start().state,
            log_bound: vec![0.0; heads],
            tail: Vec::new(),
            len: len - seam,
        };
        for at in 0..heads * key {
            summary.transition[at * key + at % key] = 1.0;
        }
        let mut running = self.start();
        for row in 0..len {
            let record = if row >= seam { Some(&mut summary) } else { None };
            self.token(inputs, row, &mut running, record);
        }
        summary.tail = running.tail;
        summary
    }

    /// One token: convolution and SiLU, unit queries and keys, gates, the delta rule of every head.
    fn token(
        &self,
        inputs: Inputs<'_>,
        row: usize,
        running: &mut Running,
        mut record: Option<&mut Summary>,
    ) -> Vec<f64> {
        let LinearShape { key_heads, heads, key, value, conv_kernel, .. } = self.shape;
        let channels = self.shape.conv_channels();
        running.tail.extend(inputs.raw[row * channels..(row + 1) * channels].iter().map(|&x| f64::from(x)));
        let conv = |channel: usize| {
            let tap = |tap: usize| {
                f64::from(self.taps[channel * conv_kernel + tap]) * running.tail[tap * channels + channel]
            };
            let sum: f64 = (0..conv_kernel).map(tap).sum();
            sum / (1.0 + (-sum).exp())
        };
        let x: Vec<f64> = (0..channels).map(conv).collect();
        running.tail.drain(..channels);
        let unit = |x: &[f64], scale: f64| {
            let scale = scale / (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x * scale).collect::<Vec<_>>()
        };
        let mut out = Vec::with_capacity(heads * value);
        for head in 0..heads {
            let at = head / (heads / key_heads) * key;
            let q = unit(&x[at..at + key], (key as f64).powf(-0.5));
            let k = unit(&x[key_heads * key + at..][..key], 1.0);
            let v = &x[2 * key_heads * key + head * value..][..value];
            let a = f64::from(inputs.a[row * heads + head]) + f64::from(self.dt_bias[head]);
            let g = -f64::from(self.a_log[head]).exp() * (a.max(0.0) + (-a.abs()).exp().ln_1p());
            let b = 1.0 / (1.0 + (-f64::from(inputs.b[row * heads + head])).exp());
            let token = gdn::Token { key: &k, value: v, beta: b, gate: g };
            let state = &mut running.state[head * key * value..][..key * value];
            token.advance(state, value);
            token.write(state);
            out.extend((0..value).map(|j| (0..key).map(|i| state[i * value + j] * q[i]).sum::<f64>()));
            if let Some(record) = record.as_deref_mut() {
                let state = &mut record.state[head * key * value..][..key * value];
                token.advance(state, value);
                token.write(state);
                token.advance(&mut record.transition[head * key * key..][..key * key], key);
                record.log_bound[head] += g;
            }
        }
        out
    }

    fn apply(&self, body: &Summary, rule: Rule, running: &mut Running) {
        let LinearShape { heads, key, value, .. } = self.shape;
        let before = running.state.clone();
        for head in 0..heads {
            for i in 0..key {
                for j in 0..value {
                    let at = (head * key + i) * value + j;
                    let kept = match rule {
                        Rule::Compose => (0..key)
                            .map(|m| {
                                body.transition[(head * key + i) * key + m]
                                    * before[(head * key + m) * value + j]
                            })
                            .sum(),
                        Rule::Add => before[at],
                        Rule::Replace => 0.0,
                    };
                    running.state[at] = kept + body.state[at];
                }
            }
        }
        let channels = self.shape.conv_channels();
        let own = (body.len * channels).min(body.tail.len());
        running.tail.extend(&body.tail[body.tail.len() - own..]);
        running.tail.drain(..own);
    }
}
