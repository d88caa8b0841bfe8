//! Random matrices, made where they lie.

use hypic_kernels::random::RandomMatrix;

use crate::launch::Launch;
use crate::memory::{Element, Float};
use crate::{Buffer, Device, Error, Result};

pub(crate) const THREADS: usize = 128;
/// Enough to fill any card.
const BLOCKS: usize = 4096;

/// Blocks of kernels that count their `count` units in 64 bits.
pub(crate) fn blocks_of(count: usize) -> [usize; 3] {
    [count.div_ceil(THREADS).min(BLOCKS), 1, 1]
}

/// Writes all values of `blocks`, row-major, one behind the other: those of [`RandomMatrix::value`], rounded to `E`.
///
/// # Errors
/// [`Error::CheckShape`] for a buffer of another length, [`Error::CallDriver`] when a launch fails.
pub fn random_values<E: Float>(device: &Device, blocks: &[RandomMatrix], y: &mut Buffer<E>) -> Result<()> {
    draw(device, &format!("random_{}", E::NAME), blocks, y, |block| block.parts().1)
}

/// Writes all codes of `blocks`, row-major, one behind the other: those of [`RandomMatrix::code`].
///
/// # Errors
/// As [`random_values`].
pub(crate) fn random_codes(device: &Device, blocks: &[RandomMatrix], y: &mut Buffer<u8>) -> Result<()> {
    draw(device, "random_codes", blocks, y, |_| RandomMatrix::OF_CODES)
}

fn draw<T: Element>(
    device: &Device,
    kernel: &str,
    blocks: &[RandomMatrix],
    y: &mut Buffer<T>,
    factor: impl Fn(&RandomMatrix) -> f32,
) -> Result<()> {
    let size = |block: &RandomMatrix| block.shape[0] * block.shape[1];
    let count = blocks.iter().map(size).sum::<usize>();
    Error::unless(y.len() == count, "the matrix", count, y.len())?;
    let mut first = 0;
    for block in blocks {
        let (seed, count) = (block.seed, size(block));
        Launch::new(device, kernel, blocks_of(count), THREADS)
            .write_at(y, first)
            .long(count as u64)
            .long(seed)
            .float(factor(block))
            .int(block.shape[1])
            .int(block.stride)
            .run()?;
        first += count;
    }
    Ok(())
}
