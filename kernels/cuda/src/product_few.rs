use half::bf16;

use crate::choice::{Shares, norms_in_product, reads_deep, shares_of};
use crate::codes::Matrix;
use crate::launch::Launch;
use crate::memory::Float;
use crate::{Buffer, Device, Error, Result, RmsNorm};

// Sizes of device/stream.cuh.
pub(crate) const TILE_OUTER: usize = 16;
pub(crate) const TILE_ROWS: usize = 8;
pub(crate) const CHUNK: usize = 32;
/// Values between rows in shared memory: a size of device/product_few.cu.
const SHARED_GAP: usize = 8;
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
    Error::unless(x.len() == rows * inner, "the rows", rows * inner, x.len())?;
    let grid = Grid::new([rows, inner], &parts)?;
    let warps = grid.blocks[0] * grid.blocks[1] * grid.threads / 32;
    let form = if reads_deep(warps, device.multiprocessors()) { "_deep" } else { "" };
    let codes = if is_coded(&parts) { "codes_" } else { "" };
    let kernel = format!("product_few_{codes}{}{form}", O::NAME);
    let launch = Launch::new(device, kernel, grid.blocks, grid.threads).overlapping().read(x);
    with_parts(launch, parts).int(rows).int(inner).int(grid.split).run()
}

/// [`product_few`] of the [`rms_norm`](crate::rms_norm) of rows, in one launch and with the same bits: of at most two rows,
/// 257 to 8192 wide.
///
/// # Errors
/// As [`product_few`], and for more rows.
pub fn norm_product_few<E: Float>(
    device: &Device,
    (x, norm): (&Buffer<E>, RmsNorm<'_>),
    [rows, inner]: [usize; 2],
    parts: Vec<FewPart<'_, E, E>>,
) -> Result<()> {
    let RmsNorm { weight, offset, eps } = norm;
    Error::unless(
        norms_in_product(rows, inner),
        "rows",
        "so few, and so wide, that each block norms them",
        rows,
    )?;
    Error::unless(x.len() == rows * inner, "the rows", rows * inner, x.len())?;
    Error::unless(weight.len() == inner, "the norm's weight", inner, weight.len())?;
    let grid = Grid::new([rows, inner], &parts)?;
    let kernel = if is_coded(&parts) { "norm_product_few_codes" } else { "norm_product_few" };
    let launch = Launch::new(device, kernel, grid.blocks, grid.threads).overlapping();
    let launch = launch.shared(room_of::<E>([rows, inner])).read(x).read(weight);
    with_parts(launch, parts).int(rows).int(inner).int(grid.split).float(offset).float(eps).run()
}

/// Bytes of shared memory for rows and the weight of their norm.
pub(crate) fn room_of<E: Float>([rows, inner]: [usize; 2]) -> usize {
    rows * (inner + SHARED_GAP) * size_of::<E>() + inner * size_of::<f32>()
}

/// Blocks of a launch, after a check of its sizes.
pub(crate) struct Grid {
    pub(crate) blocks: [usize; 3],
    pub(crate) threads: usize,
    pub(crate) split: usize,
}

impl Grid {
    fn new<E: Float, O: Float>([rows, inner]: [usize; 2], parts: &[FewPart<'_, E, O>]) -> Result<Self> {
        Error::unless(E::NAME == bf16::NAME, "the format", bf16::NAME, E::NAME)?;
        let whole = inner.is_multiple_of(CHUNK) && inner > 0;
        Error::unless(whole, "terms of a sum", "a multiple of 32", inner)?;
        let fits = (1..=MOST_WEIGHTS).contains(&parts.len());
        Error::unless(fits, "weights", format!("1 to {MOST_WEIGHTS}"), parts.len())?;
        for FewPart { weight, outer, y } in parts {
            weight.check("the weight", [*outer, inner])?;
            Error::unless(y.len() == rows * outer, "the products", rows * outer, y.len())?;
        }
        Ok(Self::of([rows, inner], parts.iter().map(|part| part.outer)))
    }

    /// For products of so many sums each, whose sizes fit.
    pub(crate) fn of([rows, inner]: [usize; 2], outers: impl Iterator<Item = usize>) -> Self {
        let Shares { split, tiles: each } = shares_of(inner);
        let tiles: usize = outers.map(|outer| outer.div_ceil(TILE_OUTER)).sum();
        let blocks = [tiles.div_ceil(each), rows.div_ceil(TILE_ROWS), 1];
        Self { blocks, threads: 32 * split * each, split }
    }
}

/// Whether the kernel reads codes.
fn is_coded<E: Float, O: Float>(parts: &[FewPart<'_, E, O>]) -> bool {
    parts.iter().any(|part| part.weight.is_coded())
}

/// Weights, factors where the kernel reads codes, products and their widths, as the kernels take them.
fn with_parts<'a, E: Float, O: Float>(launch: Launch<'a>, parts: Vec<FewPart<'a, E, O>>) -> Launch<'a> {
    let missing = MOST_WEIGHTS - parts.len();
    let unused = |launch| (0..missing).fold(launch, |launch: Launch<'a>, _| launch.unused());
    let outers: Vec<usize> = parts.iter().map(|part| part.outer).collect();
    let mut launch = unused(parts.iter().fold(launch, |launch, part| launch.matrix(part.weight)));
    if is_coded(&parts) {
        launch = unused(parts.iter().fold(launch, |launch, part| launch.factors(part.weight)));
    }
    let launch = unused(parts.into_iter().fold(launch, |launch, part| launch.write(part.y)));
    (0..MOST_WEIGHTS).fold(launch, |launch, number| launch.int(outers.get(number).copied().unwrap_or(0)))
}
