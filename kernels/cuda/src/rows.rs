use half::bf16;

use crate::choice::part_of_logits;
use crate::experts::MOST_EXPERTS;
use crate::launch::Launch;
use crate::memory::{Float, Fresh};
use crate::{Buffer, Device, Error, Result};

pub(crate) const THREADS: usize = 128;
/// Enough to hide the latency of memory.
const BLOCKS_PER_MULTIPROCESSOR: usize = 32;

/// `table[ids]`: rows of `width` values of an embedding or of activations.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, rows are no whole units of 16 bytes or an id is outside the
/// table; [`Error::CallDriver`] when the launch fails.
pub fn gather_rows<E: Float>(
    device: &Device,
    table: &Buffer<E>,
    ids: &[u32],
    width: usize,
    y: &mut Buffer<E>,
) -> Result<()> {
    let units = width * size_of::<E>() / 16;
    let fits = width > 0 && units * 16 == width * size_of::<E>() && table.len().is_multiple_of(width);
    Error::unless(fits, "the width of rows", "whole units of 16 bytes, a divisor of the table", width)?;
    Error::unless(y.len() == ids.len() * width, "y", ids.len() * width, y.len())?;
    check_ids(ids, table.len() / width)?;
    gather_placed(device, table, &Buffer::from_slice(device, ids)?, width, y)
}

/// An error for an id that is not under `rows`.
pub(crate) fn check_ids(ids: &[u32], rows: usize) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= rows) {
        Some(id) => Error::unless(false, "an id", format!("under {rows}"), id),
        None => Ok(()),
    }
}

/// [`gather_rows`] for ids on the device, which were checked.
pub(crate) fn gather_placed<E: Float>(
    device: &Device,
    table: &Buffer<E>,
    ids: &Buffer<u32>,
    width: usize,
    y: &mut Buffer<E>,
) -> Result<()> {
    let units = width * size_of::<E>() / 16;
    Error::unless(y.len() == ids.len() * width, "y", ids.len() * width, y.len())?;
    Launch::new(device, "gather_rows", [ids.len(), 1, 1], THREADS)
        .read(table)
        .read(ids)
        .write(y)
        .int(units)
        .run()
}

/// `x += y`.
///
/// # Errors
/// [`Error::CheckShape`] for other lengths, [`Error::CallDriver`] when the launch fails.
pub fn add_rows<E: Float>(device: &Device, x: &mut Buffer<E>, y: &Buffer<E>) -> Result<()> {
    Error::unless(x.len() == y.len(), "the other rows", x.len(), y.len())?;
    let count = x.len();
    Launch::new(device, format!("add_rows_{}", E::NAME), [blocks(device, count)?, 1, 1], THREADS)
        .write(x)
        .read(y)
        .int(count)
        .run()
}

/// `x *= sigmoid(gate)`: one gate for each value, or for as many as there are more of them.
///
/// # Errors
/// [`Error::CheckShape`] for lengths that do not fit, [`Error::CallDriver`] when the launch fails.
pub fn sigmoid_gate<E: Float>(device: &Device, x: &mut Buffer<E>, gate: &Buffer<E>) -> Result<()> {
    let count = x.len();
    let fits = count == gate.len() || (!gate.is_empty() && count.is_multiple_of(gate.len()));
    Error::unless(fits, "the gates", format!("a divisor of {count}"), gate.len())?;
    let each = count.checked_div(gate.len()).unwrap_or(1);
    Launch::new(device, format!("sigmoid_gate_{}", E::NAME), [blocks(device, count)?, 1, 1], THREADS)
        .write(x)
        .read(gate)
        .int(count)
        .int(each)
        .run()
}

/// Blocks that pass over `count` elements: no more than fill the device.
pub(crate) fn blocks(device: &Device, count: usize) -> Result<usize> {
    // An index and one more pass of all threads fit 32 bits.
    Error::unless(count <= 1 << 31, "elements", "at most 2^31", count)?;
    Ok(count.div_ceil(THREADS).min(BLOCKS_PER_MULTIPROCESSOR * device.multiprocessors()))
}

/// `y[i] = x[i]` for the elements of `range`, rounded to bf16: `y` must be of that format.
///
/// # Errors
/// [`Error::CheckShape`] for elements outside or another format, [`Error::CallDriver`] when the launch fails.
pub(crate) fn narrow_rows<E: Float>(
    device: &Device,
    x: &Buffer<f32>,
    y: &mut Buffer<E>,
    range: std::ops::Range<usize>,
) -> Result<()> {
    let fits = range.start <= range.end && range.end <= x.len().min(y.len());
    Error::unless(fits, "the elements", format!("within {}", x.len().min(y.len())), range.end)?;
    Error::unless(E::NAME == bf16::NAME, "the format", bf16::NAME, E::NAME)?;
    Launch::new(device, "narrow_rows", [blocks(device, range.len())?, 1, 1], THREADS)
        .read(x)
        .write(y)
        .int(range.start)
        .int(range.end)
        .run()
}

/// `silu(x[.., :width]) * x[.., width:]`, `[rows, width]` from `[rows, 2 width]`.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn swiglu<E: Float>(device: &Device, x: &Buffer<E>, width: usize, y: &mut Buffer<E>) -> Result<()> {
    let count = y.len();
    Error::unless(width.is_multiple_of(4), "the width", "a multiple of 4", width)?;
    let fits = width > 0 && count.is_multiple_of(width) && x.len() == 2 * count;
    Error::unless(fits, "x", format!("{} values in rows of {}", 2 * count, 2 * width), x.len())?;
    Launch::new(device, format!("swiglu_{}", E::NAME), [blocks(device, count)?, 1, 1], THREADS)
        .read(x)
        .write(y)
        .int(count)
        .int(width)
        .run()
}

/// The experts of each row: of `experts` logits the `most` largest, equal ones by number.
pub struct Experts {
    /// Their numbers, largest logit first, `[rows, most]`.
    pub chosen: Buffer<u32>,
    /// Their share of the softmax over all experts, `[rows, most]`.
    pub weights: Buffer<f32>,
}

/// Chooses the experts of every row of `logits`, `[rows, experts]`. With `renormalise` the weights of a row
/// sum to 1.
///
/// # Errors
/// [`Error::CheckShape`] when there are fewer experts than are to be chosen, [`Error::CallDriver`] when the
/// launch fails.
pub fn choose_experts(
    device: &Device,
    logits: &Buffer<f32>,
    experts: usize,
    most: usize,
    renormalise: bool,
) -> Result<Experts> {
    let rows = table_rows(logits, experts, most)?;
    let mut chosen = Buffer::fresh(device, rows * most, Fresh::Anything)?;
    let mut weights = Buffer::fresh(device, rows * most, Fresh::Anything)?;
    Error::unless(experts <= MOST_EXPERTS, "experts", format!("at most {MOST_EXPERTS}"), experts)?;
    Launch::new(device, "choose_experts", [rows, 1, 1], 32)
        .overlapping()
        .read(logits)
        .write(&mut chosen)
        .write(&mut weights)
        .int(experts)
        .int(most)
        .int(usize::from(renormalise))
        .run()?;
    Ok(Experts { chosen, weights })
}

/// What a sampler needs of each row of logits.
pub struct TopLogits {
    /// `[rows, 2 most + 1]`.
    pub(crate) found: Buffer<u32>,
    pub(crate) most: usize,
}

/// What a sampler needs of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct TopOfRow {
    /// The largest logits and their numbers, largest first, equal ones by number.
    pub largest: Vec<(u32, f32)>,
    /// Logarithm of the sum of all exponentials; NaN where a logit is not finite.
    pub log_sum: f32,
}

impl TopLogits {
    pub(crate) fn rows(&self) -> usize {
        self.found.len() / (2 * self.most + 1)
    }

    /// Waits for it, and lands it.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the copy or an earlier kernel failed.
    pub fn read(&self) -> Result<Vec<TopOfRow>> {
        let found = self.found.read()?;
        let row = |row: &[u32]| {
            let (ids, rest) = row.split_at(self.most);
            let mut floats = rest.iter().map(|bits| f32::from_bits(*bits));
            let largest = ids.iter().copied().zip(floats.by_ref()).collect();
            TopOfRow { largest, log_sum: floats.next().unwrap_or(f32::NAN) }
        };
        Ok(found.chunks_exact(2 * self.most + 1).map(row).collect())
    }
}

/// The `most` largest of every row of `logits`, `[rows, width]`; at most 2^24 wide.
///
/// # Errors
/// [`Error::CheckShape`] when rows are shorter than `most` or too wide, [`Error::CallDriver`] when a launch fails.
pub fn top_logits(device: &Device, logits: &Buffer<f32>, width: usize, most: usize) -> Result<TopLogits> {
    let rows = table_rows(logits, width, most)?;
    Error::unless(width <= 1 << 24, "the width of logits", "at most 2^24", width)?;
    let each = part_of_logits(width, most);
    let parts = width.div_ceil(each);
    let mut ids: Buffer<u32> = Buffer::fresh(device, rows * parts * most, Fresh::Anything)?;
    let mut values: Buffer<f32> = Buffer::fresh(device, rows * parts * most, Fresh::Anything)?;
    let mut log_sums: Buffer<f32> = Buffer::fresh(device, rows * parts, Fresh::Anything)?;
    let mut found = Buffer::fresh(device, rows * (2 * most + 1), Fresh::Anything)?;
    Launch::new(device, "top_of_parts", [rows, parts, 1], 512)
        .read(logits)
        .write(&mut ids)
        .write(&mut values)
        .write(&mut log_sums)
        .int(width)
        .int(most)
        .int(each)
        .run()?;
    Launch::new(device, "top_of_rows", [rows, 1, 1], 32)
        .read(&ids)
        .read(&values)
        .read(&log_sums)
        .write(&mut found)
        .int(width)
        .int(most)
        .int(parts)
        .run()?;
    Ok(TopLogits { found, most })
}

pub(crate) fn table_rows(logits: &Buffer<f32>, width: usize, most: usize) -> Result<usize> {
    let whole = width > 0 && logits.len().is_multiple_of(width);
    Error::unless(whole, "the logits", format!("rows of {width}"), logits.len())?;
    Error::unless((1..=width).contains(&most), "how many are chosen", format!("1 to {width}"), most)?;
    Ok(logits.len() / width)
}
