//! A CUDA device as a rank of tensor parallel.

use hypic_kernels::check::equal;
use hypic_kernels::op::OpError;
use hypic_kernels::parallel::Rank;

use super::memory::Tensor;
use super::{CudaDevice, failed};
use crate::memory::{Float, Fresh};
use crate::{Buffer, Device, sum_ranks};

impl<E: Float> Rank for CudaDevice<E> {
    fn link(ranks: &[Self]) -> Result<(), OpError> {
        let devices: Vec<&Device> = ranks.iter().map(|rank| &rank.device).collect();
        Device::link(&devices).map_err(failed("link"))
    }

    fn sum(
        ranks: &[Self],
        base: Option<&[Tensor<E>]>,
        parts: &[Tensor<E>],
    ) -> Result<Vec<Tensor<E>>, OpError> {
        const OP: &str = "sum";
        equal(OP, "parts", ranks.len(), parts.len())?;
        let width = parts.first().map_or(0, |part| part.width);
        let widths = |tensor: &Tensor<E>| equal(OP, "columns", width, tensor.width);
        parts.iter().chain(base.into_iter().flatten()).try_for_each(widths)?;
        let base: Option<Vec<&Buffer<E>>> =
            base.map(|base| base.iter().map(|tensor| &tensor.values).collect());
        let summed: Vec<&Buffer<E>> = parts.iter().map(|tensor| &tensor.values).collect();
        let fresh = ranks.first().map_or(Fresh::Anything, |rank| rank.fresh);
        let sums = sum_ranks(base.as_deref(), &summed, fresh).map_err(failed(OP))?;
        Ok(sums.into_iter().map(|values| Tensor { values, width }).collect())
    }
}
