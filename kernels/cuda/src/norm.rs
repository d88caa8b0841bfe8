use std::ops::Range;

use half::bf16;

use crate::launch::Launch;
use crate::memory::{Float, Table};
use crate::{Buffer, Device, Error, Result};

fn rows(len: usize, width: usize) -> Result<usize> {
    Error::unless(width > 0 && len.is_multiple_of(width), "values", format!("rows of {width}"), len)?;
    Ok(len / width)
}

/// Rows up to this wide take a warp each.
const NARROW: usize = 256;

/// Which kernel norms rows of a width, and how many blocks it takes.
fn form(rows: usize, width: usize) -> (&'static str, usize) {
    if width <= NARROW { ("narrow_", rows.div_ceil(4)) } else { ("", rows) }
}

/// What rows are normed with: `x / sqrt(mean(x^2) + eps) * (offset + weight)`.
#[derive(Clone, Copy)]
pub struct RmsNorm<'a> {
    /// As long as a row.
    pub weight: &'a Buffer<f32>,
    /// 1 for zero-centred weights, else 0.
    pub offset: f32,
    /// What is added to the mean of squares.
    pub eps: f32,
}

/// `y = norm(x)`, row by row.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn rms_norm<E: Float>(
    device: &Device,
    x: &Buffer<E>,
    norm: RmsNorm<'_>,
    y: &mut Buffer<E>,
) -> Result<()> {
    let RmsNorm { weight, offset, eps } = norm;
    let width = weight.len();
    Error::unless(y.len() == x.len(), "y", x.len(), y.len())?;
    let rows = rows(x.len(), width)?;
    let (form, blocks) = form(rows, width);
    Launch::new(device, format!("rms_norm_{form}{}", E::NAME), [blocks, 1, 1], 128)
        .overlapping()
        .read(x)
        .read(weight)
        .write(y)
        .int(rows)
        .int(width)
        .float(offset)
        .float(eps)
        .run()
}

/// `x += r`, then `y = norm(x)`, row by row: [`add_rows`](crate::add_rows) and [`rms_norm`] of rows that are wider than
/// heads, bit for bit.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn add_norm<E: Float>(
    device: &Device,
    [x, y]: [&mut Buffer<E>; 2],
    r: &Buffer<E>,
    norm: RmsNorm<'_>,
) -> Result<()> {
    let RmsNorm { weight, offset, eps } = norm;
    let width = weight.len();
    Error::unless(r.len() == x.len() && y.len() == x.len(), "r and y", x.len(), r.len().min(y.len()))?;
    let rows = rows(x.len(), width)?;
    Launch::new(device, format!("add_norm_{}", E::NAME), [rows, 1, 1], 128)
        .overlapping()
        .write(x)
        .read(r)
        .read(weight)
        .write(y)
        .int(width)
        .float(offset)
        .float(eps)
        .run()
}

/// `y = x / rms(x) * weight * silu(z)` over rows of `weight.len()`: the norm behind a linear layer's heads.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn gated_norm<E: Float>(
    device: &Device,
    x: &Buffer<E>,
    z: &Buffer<E>,
    weight: &Buffer<f32>,
    y: &mut Buffer<E>,
    eps: f32,
) -> Result<()> {
    let width = weight.len();
    Error::unless(z.len() == x.len() && y.len() == x.len(), "z and y", x.len(), y.len())?;
    let rows = rows(x.len(), width)?;
    let (form, blocks) = form(rows, width);
    Launch::new(device, format!("gated_norm_{form}{}", E::NAME), [blocks, 1, 1], 128)
        .overlapping()
        .read(x)
        .read(z)
        .read(weight)
        .write(y)
        .int(rows)
        .int(width)
        .float(eps)
        .run()
}

/// `y = x / |x| * scale` over rows of `width`: queries and keys of the delta rule.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn unit_norm(
    device: &Device,
    x: &Buffer<bf16>,
    y: &mut Buffer<bf16>,
    width: usize,
    scale: f32,
    eps: f32,
) -> Result<()> {
    Error::unless(y.len() == x.len(), "y", x.len(), y.len())?;
    Launch::new(device, "unit_norm", [rows(x.len(), width)?, 1, 1], 128)
        .read(x)
        .write(y)
        .int(width)
        .float(scale)
        .float(eps)
        .run()
}

/// Gates of a gated delta layer: `gate = -exp(a_log) softplus(a + dt_bias)` and `beta = sigmoid(b)`.
/// `ab` is `[a, b]`, each `[rows, heads]` as the outputs; `decay` is `[a_log, dt_bias]`, each `[heads]`.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn gates<E: Float>(
    device: &Device,
    ab: [&Buffer<E>; 2],
    decay: [&Buffer<f32>; 2],
    gate: &mut Buffer<f32>,
    beta: &mut Buffer<f32>,
) -> Result<()> {
    let (count, heads) = (gate.len(), decay[0].len());
    rows(count, heads)?;
    Error::unless(decay[1].len() == heads, "dt_bias", heads, decay[1].len())?;
    for len in [ab[0].len(), ab[1].len(), beta.len()] {
        Error::unless(len == count, "a, b and beta", count, len)?;
    }
    Launch::new(device, format!("gates_{}", E::NAME), [count.div_ceil(128), 1, 1], 128)
        .read(ab[0])
        .read(ab[1])
        .read(decay[0])
        .read(decay[1])
        .write(gate)
        .write(beta)
        .int(count)
        .int(heads)
        .run()
}

/// Adds the gates of each body's rows, of `gate` `[rows, heads]`, to `bound` `[bodies, heads]`: the logarithms of the
/// gate-only bounds on the norms of `T` (DESIGN §3).
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub(crate) fn add_gates(
    device: &Device,
    gate: &Buffer<f32>,
    bound: &mut Buffer<f32>,
    bodies: &[Range<usize>],
) -> Result<()> {
    let heads = bound.len().checked_div(bodies.len()).unwrap_or(0);
    for rows in bodies {
        let fits = rows.start <= rows.end && rows.end * heads <= gate.len();
        Error::unless(fits, "the rows of gates", format!("within {} values", gate.len()), rows.end)?;
    }
    Error::unless(bound.len() == bodies.len() * heads, "the bounds", bodies.len() * heads, bound.len())?;
    let table = |row: fn(&Range<usize>) -> usize| {
        Table::new(device, &bodies.iter().map(|rows| row(rows) as u32).collect::<Vec<_>>())
    };
    let (first, end) = (table(|rows| rows.start)?, table(|rows| rows.end)?);
    Launch::new(device, "add_gates", [heads, bodies.len(), 1], 128)
        .read(gate)
        .write(bound)
        .read(&first)
        .read(&end)
        .int(heads)
        .run()
}
