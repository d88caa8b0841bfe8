//! Matrix products over panels of 16 columns, in safe code.
//!
//! [`pulp::Arch::dispatch`] compiles the tile loop for the widest vectors of the machine. Not a library's: that of the
//! `gemm` crate is unsafe to call, and a weight that is packed once, at load, saves the packing of every product.
//! Every element is summed in the order of the inner dimension, whatever else is computed beside it, so that a row's
//! result does not depend on its neighbours.

use std::cell::RefCell;

use pulp::{Arch, Simd, WithSimd};

/// Columns of a panel: two AVX registers.
pub(crate) const PANEL: usize = 16;
/// Rows of a full tile: 6 rows of two registers leave three for the operands.
const ROWS: usize = 6;
/// Inner steps of one pass: a panel's share (16 KiB) and a tile's rows stay in the first cache.
const DEPTH: usize = 256;
/// Rows whose interleaved copy (96 KiB) stays in the second cache.
const BLOCK: usize = 96;

thread_local! {
    /// A block of the left operand, interleaved. One per thread: clearing it anew would cost as much as a small product.
    static INTERLEAVED: RefCell<Vec<f32>> = RefCell::new(vec![0.0; BLOCK * DEPTH]);
}

/// The left operand: element `(row, inner)` is `values[row * row_step + inner * inner_step]`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) row_step: usize,
    pub(crate) inner_step: usize,
}

/// The right operand: element `(inner, 16 p + j)` is `values[p * panel_step + inner * inner_step + j]`.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) panel_step: usize,
    pub(crate) inner_step: usize,
}

impl<'a> Right<'a> {
    /// A row-major `[inner, columns]` matrix; `columns` is a multiple of [`PANEL`].
    pub(crate) fn rows(values: &'a [f32], columns: usize) -> Self {
        Self { values, panel_step: PANEL, inner_step: columns }
    }

    /// Panels as [`pack_transposed`] writes them, for `inner` inner steps.
    pub(crate) fn panels(values: &'a [f32], inner: usize) -> Self {
        Self { values, panel_step: inner * PANEL, inner_step: PANEL }
    }
}

/// Sizes of a product.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
}

/// Whether a product replaces its output or is added to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Into {
    Set,
    Add,
}

/// Writes the rows of `values` (`[rows, inner]`, rows `row_step` apart) as panels of 16 columns, zero padded:
/// `[rows / 16, inner, 16]`.
pub(crate) fn pack_transposed(values: &[f32], row_step: usize, rows: usize, inner: usize, out: &mut [f32]) {
    for (panel, out) in out.chunks_exact_mut((inner * PANEL).max(1)).take(rows.div_ceil(PANEL)).enumerate() {
        for j in 0..PANEL {
            let row = panel * PANEL + j;
            if row < rows {
                let source = &values[row * row_step..row * row_step + inner];
                for (cell, &value) in out.chunks_exact_mut(PANEL).zip(source) {
                    cell[j] = value;
                }
            } else {
                out.chunks_exact_mut(PANEL).for_each(|cell| cell[j] = 0.0);
            }
        }
    }
}

/// `out (+)= left right`; `out` has rows `out_step` apart.
pub(crate) fn product(
    arch: Arch,
    size: Size,
    left: Left<'_>,
    right: Right<'_>,
    out: &mut [f32],
    (out_step, into): (usize, Into),
) {
    INTERLEAVED.with_borrow_mut(|interleaved| {
        arch.dispatch(Product { size, left, right, out, out_step, into, interleaved });
    });
}

struct Product<'a> {
    size: Size,
    left: Left<'a>,
    right: Right<'a>,
    out: &'a mut [f32],
    out_step: usize,
    into: Into,
    interleaved: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Vectors of a panel: AVX-512, AVX2, 128 bits, none.
        match PANEL / S::F32_LANES {
            1 => self.run::<S, 1>(simd),
            2 => self.run::<S, 2>(simd),
            4 => self.run::<S, 4>(simd),
            _ => self.run::<S, PANEL>(simd),
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(self, simd: S) {
        let Self { size, left, right, out, out_step, into, interleaved } = self;
        for first in (0..size.inner.max(1)).step_by(DEPTH) {
            let depth = DEPTH.min(size.inner - first);
            let into = if first == 0 { into } else { Into::Add };
            for block in (0..size.rows).step_by(BLOCK) {
                let rows = BLOCK.min(size.rows - block);
                interleave(left, block, rows, first, depth, interleaved);
                for column in (0..size.columns).step_by(PANEL) {
                    let at = column / PANEL * right.panel_step + first * right.inner_step;
                    let panel = &right.values[at.min(right.values.len())..];
                    let width = PANEL.min(size.columns - column);
                    for row in (0..rows).step_by(ROWS) {
                        let tile = Tile {
                            depth,
                            left: &interleaved[row * depth..],
                            panel,
                            step: right.inner_step,
                            out: &mut out[(block + row) * out_step + column..],
                            out_step,
                            width,
                            into,
                        };
                        match rows - row {
                            1 => tile.run::<S, 1, V>(simd),
                            2 => tile.run::<S, 2, V>(simd),
                            3 => tile.run::<S, 3, V>(simd),
                            4 => tile.run::<S, 4, V>(simd),
                            5 => tile.run::<S, 5, V>(simd),
                            _ => tile.run::<S, ROWS, V>(simd),
                        }
                    }
                }
            }
        }
    }
}

/// Copies rows of the left operand so that a tile reads them in order: `[rows / 6, depth, 6]`, the last tile narrower.
#[inline(always)]
fn interleave(left: Left<'_>, block: usize, rows: usize, first: usize, depth: usize, out: &mut [f32]) {
    let mut row = 0;
    while row < rows {
        let height = ROWS.min(rows - row);
        let out = &mut out[row * depth..(row + height) * depth];
        for i in 0..height {
            let at = (block + row + i) * left.row_step + first * left.inner_step;
            let source = &left.values[at..];
            if left.inner_step == 1 {
                for (cell, &value) in out.chunks_exact_mut(height).zip(&source[..depth]) {
                    cell[i] = value;
                }
            } else {
                for (cell, &value) in out.chunks_exact_mut(height).zip(source.iter().step_by(left.inner_step))
                {
                    cell[i] = value;
                }
            }
        }
        row += height;
    }
}

/// Some rows of one panel of the output.
struct Tile<'a> {
    depth: usize,
    left: &'a [f32],
    panel: &'a [f32],
    step: usize,
    out: &'a mut [f32],
    out_step: usize,
    width: usize,
    into: Into,
}

impl Tile<'_> {
    /// `R` rows; a panel has `V` vectors.
    #[inline(always)]
    fn run<S: Simd, const R: usize, const V: usize>(self, simd: S) {
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        if self.into == Into::Add {
            for (sum, row) in sums.iter_mut().zip(self.out.chunks(self.out_step)) {
                let mut cells = [0.0_f32; PANEL];
                cells[..self.width].copy_from_slice(&row[..self.width]);
                *sum = vectors::<S, V>(&cells);
            }
        }
        let (left, _) = self.left.as_chunks::<R>();
        for (a, b) in left[..self.depth].iter().zip(self.panel.chunks(self.step)) {
            let b = vectors::<S, V>(&b[..PANEL]);
            for i in 0..R {
                let a = simd.splat_f32s(a[i]);
                for j in 0..V {
                    sums[i][j] = simd.mul_add_f32s(a, b[j], sums[i][j]);
                }
            }
        }
        for (sum, row) in sums.iter().zip(self.out.chunks_mut(self.out_step)) {
            let mut cells = [0.0_f32; PANEL];
            for (j, vector) in S::as_mut_simd_f32s(&mut cells).0.iter_mut().enumerate() {
                *vector = sum[j];
            }
            row[..self.width].copy_from_slice(&cells[..self.width]);
        }
    }
}

/// 16 values as vectors.
#[inline(always)]
fn vectors<S: Simd, const V: usize>(cells: &[f32]) -> [S::f32s; V] {
    let (vectors, _) = S::as_simd_f32s(cells);
    std::array::from_fn(|j| vectors[j])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..n)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                x as f32 / u32::MAX as f32 - 0.5
            })
            .collect()
    }

    #[test]
    fn a_product_equals_the_plain_loop_and_a_row_does_not_depend_on_its_neighbours() {
        let arch = Arch::new();
        for (rows, inner, columns) in [(1, 7, 16), (5, 64, 40), (6, 300, 17), (13, 256, 48), (200, 513, 33)] {
            let (a, b) = (noise(rows * inner, 1), noise(columns * inner, 2));
            let mut panels = vec![f32::NAN; columns.div_ceil(PANEL) * inner * PANEL];
            pack_transposed(&b, inner, columns, inner, &mut panels);
            let left = |row: usize| Left { values: &a[row * inner..], row_step: inner, inner_step: 1 };
            let mut out = vec![f32::NAN; rows * columns];
            let right = Right::panels(&panels, inner);
            product(arch, Size { rows, inner, columns }, left(0), right, &mut out, (columns, Into::Set));
            let mut alone = vec![f32::NAN; columns];
            for row in 0..rows {
                for column in 0..columns {
                    let plain: f64 = (0..inner)
                        .map(|k| f64::from(a[row * inner + k]) * f64::from(b[column * inner + k]))
                        .sum();
                    assert!((f64::from(out[row * columns + column]) - plain).abs() < 1e-5, "{row} {column}");
                }
                product(
                    arch,
                    Size { rows: 1, inner, columns },
                    left(row),
                    right,
                    &mut alone,
                    (columns, Into::Set),
                );
                assert_eq!(alone, out[row * columns..][..columns]);
            }
        }
    }
}
