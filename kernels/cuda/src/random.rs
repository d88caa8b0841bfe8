//! Random matrices, made where they lie.

use hypic_kernels::random::RandomMatrix;

use crate::launch::Launch;
use crate::memory::Float;
use crate::{Buffer, Device, Error, Result};

const THREADS: usize = 128;
/// Enough to fill any card.
const BLOCKS: usize = 4096;

/// Writes all values of `blocks`, row-major, one behind the other: those of [`RandomMatrix::value`], rounded to `E`.
///
/// # Errors
/// [`Error::CheckShape`] for a buffer of another length, [`Error::CallDriver`] when a launch fails.
pub fn random_values<E: Float>(device: &Device, blocks: &[RandomMatrix], y: &mut Buffer<E>) -> Result<()> {
    let size = |block: &RandomMatrix| block.shape[0] * block.shape[1];
    let count = blocks.iter().map(size).sum::<usize>();
    Error::unless(y.len() == count, "the matrix", count, y.len())?;
    let mut first = 0;
    for block in blocks {
        let ((seed, factor), count) = (block.parts(), size(block));
        let grid = [count.div_ceil(THREADS).min(BLOCKS), 1, 1];
        Launch::new(device, format!("random_{}", E::NAME), grid, THREADS)
            .write_at(y, first)
            .long(count as u64)
            .long(seed)
            .float(factor)
            .int(block.shape[1])
            .int(block.stride)
            .run()?;
        first += count;
    }
    Ok(())
}
