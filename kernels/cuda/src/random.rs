//! Random matrices, made where they lie.

use hypic_kernels::random::RandomMatrix;

use crate::launch::Launch;
use crate::memory::Float;
use crate::{Buffer, Device, Error, Result};

const THREADS: usize = 128;
/// Enough to fill any card.
const BLOCKS: usize = 4096;

/// Writes all values of `matrix`, row-major: those of [`RandomMatrix::value`], rounded to `E`.
///
/// # Errors
/// [`Error::CheckShape`] for a buffer of another length, [`Error::CallDriver`] when the launch fails.
pub fn random_values<E: Float>(device: &Device, matrix: &RandomMatrix, y: &mut Buffer<E>) -> Result<()> {
    let count = matrix.shape[0] * matrix.shape[1];
    Error::unless(y.len() == count, "the matrix", count, y.len())?;
    let (seed, factor) = matrix.parts();
    Launch::new(device, format!("random_{}", E::NAME), [count.div_ceil(THREADS).min(BLOCKS), 1, 1], THREADS)
        .write(y)
        .long(count as u64)
        .long(seed)
        .float(factor)
        .run()
}
