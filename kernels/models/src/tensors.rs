//! Tensors by name: of a checkpoint, or drawn.

use hypic_kernels::random::RandomMatrix;

use crate::error::LoadError;
use crate::stored::Stored;

/// Where a model's tensors come from.
pub(crate) trait Tensors {
    /// Whether there is such a tensor.
    fn has(&self, name: &str) -> bool;
    /// A tensor of that shape.
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Stored, LoadError>;
    /// What the tensor is, as the matrix of its last axis, if its values are random: then nothing need be read.
    fn random(&mut self, _: &str, _: &[usize]) -> Option<RandomMatrix> {
        None
    }
    /// Whether a random matrix of products is one of codes.
    fn is_coded(&self, _: &str) -> bool {
        false
    }
    /// Digest of all that was read.
    fn digest(&self) -> [u8; 32];
}
