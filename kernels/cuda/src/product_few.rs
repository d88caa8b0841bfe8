use half::bf16;

use crate::choice::{Shares, reads_deep, shares_of};
use crate::codes::Matrix;
use crate::launch::Launch;
use crate::memory::Float;
use crate::{Buffer, Device, Error, Result};

// Sizes of device/stream.cuh.
pub(crate) const TILE_OUTER: usize = 16;
pub(crate) const TILE_ROWS: usize = 8;
pub(crate) const CHUNK: usize = 32;
/// Weights that one launch takes.
pub const MOST_WEIGHTS: usize = 4;

/// One of several products of the same rows.
pub struct FewPart<'a, E: Float, O: Float> {
    /// `[outer, inner]`.
    pub weight: Matrix<'a, E>,
    /// Rows of the weight.
    pub outer: usize,
    /// Results, `[rows, outer]`.
    pub y: &'a mut Buffer<O>,
}

/// Products of the same rows of bf16, `x [rows, inner]`, with up to four weights in one launch, sums in fp32: every weight
/// streams once for each eight rows. Of codes the factors act on sums of 64 terms, in fp32. A row's results do not depend
/// on how many there are.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, for other formats, or when `inner` is no multiple of 32;
/// [`Error::CallDriver`] when the launch fails.
pub fn product_few<E: Float, O: Float>(
    device: &Device,
    x: &Buffer<E>,
    [rows, inner]: [usize; 2],
    parts: Vec<FewPart<'_, E, O>>,
) -> Result<()> {
    Error::unless(E::NAME == bf16::NAME, "the format", bf16::NAME, E::NAME)?;
    Error::unless(inner.is_multiple_of(CHUNK) && inner > 0, "terms of a sum", "a multiple of 32", inner)?;
    Error::unless(x.len() == rows * inner, "the rows", rows * inner, x.len())?;
    let count = parts.len();
    Error::unless((1..=MOST_WEIGHTS).contains(&count), "weights", format!("1 to {MOST_WEIGHTS}"), count)?;
    let Shares { split, tiles: each } = shares_of(inner);
    let tiles: usize = parts.iter().map(|part| part.outer.div_ceil(TILE_OUTER)).sum();
    let grid = [tiles.div_ceil(each), rows.div_ceil(TILE_ROWS), 1];
    let warps = grid[0] * grid[1] * each * split;
    let form = if reads_deep(warps, device.multiprocessors()) { "_deep" } else { "" };
    let is_coded = parts.iter().any(|part| part.weight.is_coded());
    let codes = if is_coded { "codes_" } else { "" };
    let kernel = format!("product_few_{codes}{}{form}", O::NAME);
    let mut launch = Launch::new(device, kernel, grid, 32 * split * each).overlapping().read(x);
    for part in &parts {
        part.weight.check("the weight", [part.outer, inner])?;
        Error::unless(part.y.len() == rows * part.outer, "the products", rows * part.outer, part.y.len())?;
        launch = launch.matrix(part.weight);
    }
    launch = (count..MOST_WEIGHTS).fold(launch, |launch, _| launch.unused());
    if is_coded {
        launch = parts.iter().fold(launch, |launch, part| launch.factors(part.weight));
        launch = (count..MOST_WEIGHTS).fold(launch, |launch, _| launch.unused());
    }
    let outers: Vec<usize> = parts.iter().map(|part| part.outer).collect();
    for part in parts {
        launch = launch.write(part.y);
    }
    launch = (count..MOST_WEIGHTS).fold(launch, |launch, _| launch.unused());
    for number in 0..MOST_WEIGHTS {
        launch = launch.int(outers.get(number).copied().unwrap_or(0));
    }
    launch.int(rows).int(inner).int(split).run()
}
