//! The gated delta rule of one head, 64 tokens at a time.
//!
//! With in-chunk log decays `G_i`, unit keys `k`, write strengths `b`, and the state `S` before the chunk:
//!
//! - `A_ij = b_i e^(G_i - G_j) k_i·k_j` for `j < i`,
//! - writes `(I + A) W = b v - b e^G k S`,
//! - outputs `o = e^G q S + tril(e^(G_i - G_j) q_i·k_j) W`,
//! - `S <- e^(G_n) S + Σ_i e^(G_n - G_i) k_i W_i`.
//!
//! The same products with `S` started at `I` and `v = 0` give `T` (DESIGN §3).

use pulp::{Arch, NullaryFnOnce};

use super::math::{exp, zip};
use super::matrix::{Into, Left, PANEL, Right, Size, pack_transposed, product};

/// Tokens of a chunk.
pub(crate) const CHUNK: usize = 64;

/// Rows of one head: queries and keys normalised, queries scaled; rows `step` apart.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows<'a> {
    pub(crate) query: &'a [f32],
    pub(crate) key: &'a [f32],
    pub(crate) value: &'a [f32],
    pub(crate) step: usize,
    /// Log decays and write strengths, rows `gate_step` apart.
    pub(crate) decay: &'a [f32],
    pub(crate) write: &'a [f32],
    pub(crate) gate_step: usize,
}

impl<'a> HeadRows<'a> {
    /// The rows from `row` on.
    pub(crate) fn from(&self, row: usize) -> Self {
        let (at, gate) = (row * self.step, row * self.gate_step);
        Self {
            query: &self.query[at..],
            key: &self.key[at..],
            value: &self.value[at..],
            decay: &self.decay[gate..],
            write: &self.write[gate..],
            ..*self
        }
    }

    pub(crate) fn query_row(&self, row: usize, width: usize) -> &'a [f32] {
        &self.query[row * self.step..][..width]
    }

    pub(crate) fn key_row(&self, row: usize, width: usize) -> &'a [f32] {
        &self.key[row * self.step..][..width]
    }

    pub(crate) fn value_row(&self, row: usize, width: usize) -> &'a [f32] {
        &self.value[row * self.step..][..width]
    }
}

/// What of a chunk does not depend on a state. Kept between chunks so that nothing is allocated twice.
#[derive(Default)]
pub(crate) struct Chunk {
    rows: usize,
    key: usize,
    /// `b_i e^(G_i - G_j) k_i·k_j`, `[rows, CHUNK]`.
    lower: Vec<f32>,
    /// `e^(G_i - G_j) q_i·k_j`, `[rows, CHUNK]`.
    inside: Vec<f32>,
    /// `e^(G_i) q_i`, `[rows, key]`.
    query: Vec<f32>,
    /// `-b_i e^(G_i) k_i`, `[rows, key]`.
    read: Vec<f32>,
    /// `e^(G_n - G_i) k_i`, `[rows, key]`.
    keep: Vec<f32>,
    /// `e^(G_n)`.
    last: f32,
    /// Keys as panels.
    panels: Vec<f32>,
    /// Writes, `[rows, value]`.
    writes: Vec<f32>,
    sums: Vec<f64>,
}

impl Chunk {
    /// Sum of the chunk's log decays.
    pub(crate) fn log_decay(&self) -> f64 {
        self.sums.last().copied().unwrap_or(0.0)
    }

    /// Makes the chunk of the first `rows` rows (at most [`CHUNK`]).
    pub(crate) fn prepare(&mut self, arch: Arch, x: HeadRows<'_>, rows: usize, key: usize) {
        (self.rows, self.key) = (rows, key);
        // Log decays are summed in f64: differences of large sums lose digits in f32.
        self.sums.clear();
        let mut sum = 0.0;
        for row in 0..rows {
            sum += f64::from(x.decay[row * x.gate_step]);
            self.sums.push(sum);
        }
        self.last = exp(sum as f32);
        let columns = rows.next_multiple_of(PANEL);
        self.panels.resize(columns * key, 0.0);
        pack_transposed(x.key, x.step, rows, key, &mut self.panels);
        for square in [&mut self.lower, &mut self.inside] {
            square.resize(rows * CHUNK, 0.0);
        }
        let size = Size { rows, inner: key, columns };
        let panels = Right::panels(&self.panels, key);
        let left = |values| Left { values, row_step: x.step, inner_step: 1 };
        product(arch, size, left(x.key), panels, &mut self.lower, (CHUNK, Into::Set));
        product(arch, size, left(x.query), panels, &mut self.inside, (CHUNK, Into::Set));
        for rows_of in [&mut self.query, &mut self.read, &mut self.keep] {
            rows_of.resize(rows * key, 0.0);
        }
        let mut decays = [0.0_f32; CHUNK];
        for row in 0..rows {
            let (now, write) = (self.sums[row], x.write[row * x.gate_step]);
            for (decay, &then) in decays.iter_mut().zip(&self.sums[..=row]) {
                *decay = (now - then) as f32;
            }
            zip(arch, &mut decays[..row], &[0.0; CHUNK], |decay, _| exp(decay));
            decays[row] = 1.0;
            let at = row * CHUNK;
            zip(arch, &mut self.lower[at..at + row], &decays, |product, decay| write * decay * product);
            zip(arch, &mut self.inside[at..at + row + 1], &decays, |product, decay| decay * product);
            self.inside[at + row + 1..at + CHUNK].fill(0.0);
            let (since, until) = (exp(now as f32), exp((sum - now) as f32));
            let at = row * key;
            for ((query, read), (keep, i)) in self.query[at..at + key]
                .iter_mut()
                .zip(&mut self.read[at..at + key])
                .zip(self.keep[at..at + key].iter_mut().zip(0..))
            {
                let k = x.key[row * x.step + i];
                *query = since * x.query[row * x.step + i];
                *read = -write * since * k;
                *keep = until * k;
            }
        }
    }

    /// Advances `state` `[key, width]` over the chunk. `written` are the rows that supply values (none: zeros, for
    /// `T`); with `out` `[rows, width]`, its outputs.
    pub(crate) fn advance(
        &mut self,
        arch: Arch,
        state: &mut [f32],
        width: usize,
        written: Option<HeadRows<'_>>,
        out: Option<&mut [f32]>,
    ) {
        let (rows, key) = (self.rows, self.key);
        self.writes.resize(rows * width, 0.0);
        match written {
            Some(x) => {
                for (row, writes) in self.writes.chunks_exact_mut(width).enumerate() {
                    let strength = x.write[row * x.gate_step];
                    for (write, value) in writes.iter_mut().zip(x.value_row(row, width)) {
                        *write = strength * value;
                    }
                }
            }
            None => self.writes.fill(0.0),
        }
        let size = Size { rows, inner: key, columns: width };
        let left = |values| Left { values, row_step: key, inner_step: 1 };
        product(
            arch,
            size,
            left(&self.read),
            Right::rows(state, width),
            &mut self.writes,
            (width, Into::Add),
        );
        arch.dispatch(Solve { lower: &self.lower, writes: &mut self.writes, width });
        let writes = Right::rows(&self.writes, width);
        if let Some(out) = out {
            product(arch, size, left(&self.query), Right::rows(state, width), out, (width, Into::Set));
            let inside = Left { values: &self.inside, row_step: CHUNK, inner_step: 1 };
            let size = Size { rows, inner: rows, columns: width };
            product(arch, size, inside, writes, out, (width, Into::Add));
        }
        let last = self.last;
        state.iter_mut().for_each(|value| *value *= last);
        let keep = Left { values: &self.keep, row_step: 1, inner_step: key };
        product(
            arch,
            Size { rows: key, inner: rows, columns: width },
            keep,
            writes,
            state,
            (width, Into::Add),
        );
    }
}

/// Forward substitution of `(I + A) W = R`, in place.
struct Solve<'a> {
    lower: &'a [f32],
    writes: &'a mut [f32],
    width: usize,
}

impl NullaryFnOnce for Solve<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for row in 1..self.writes.len() / self.width {
            let (done, rest) = self.writes.split_at_mut(row * self.width);
            let target = &mut rest[..self.width];
            for (&factor, source) in self.lower[row * CHUNK..].iter().zip(done.chunks_exact(self.width)) {
                for (target, &source) in target.iter_mut().zip(source) {
                    *target = (-factor).mul_add(source, *target);
                }
            }
        }
    }
}

/// One token, for short runs: `S <- e^g S`, then `S += k (b (v - S^T k))^T`, `o = S^T q`.
pub(crate) struct Step<'a> {
    pub(crate) x: HeadRows<'a>,
    pub(crate) key: usize,
    pub(crate) state: &'a mut [f32],
    pub(crate) out: &'a mut [f32],
}

impl NullaryFnOnce for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { x, key, state, out } = self;
        let width = out.len();
        let decay = exp(x.decay[0]);
        let (k, q, v) = (x.key_row(0, key), x.query_row(0, key), x.value_row(0, width));
        out.fill(0.0);
        for (row, &k) in state.chunks_exact_mut(width).zip(k) {
            for (value, read) in row.iter_mut().zip(out.iter_mut()) {
                *value *= decay;
                *read = k.mul_add(*value, *read);
            }
        }
        // `out` holds what the state answers to the key; it becomes the write, then the output.
        let mut write = [0.0_f32; 512];
        let write = &mut write[..width];
        for ((write, read), v) in write.iter_mut().zip(out.iter()).zip(v) {
            *write = x.write[0] * (v - read);
        }
        out.fill(0.0);
        for ((row, &k), &q) in state.chunks_exact_mut(width).zip(k).zip(q) {
            for ((value, out), &write) in row.iter_mut().zip(out.iter_mut()).zip(write.iter()) {
                *value = k.mul_add(write, *value);
                *out = q.mul_add(*value, *out);
            }
        }
    }
}
