//! Sums over ranks, by plain loops: the reference for those of other devices.

use super::CpuDevice;
use super::memory::Tensor;
use crate::check::equal;
use crate::op::OpError;
use crate::parallel::Rank;

impl Rank for CpuDevice {
    fn sum(ranks: &[Self], base: Option<&[Tensor]>, parts: &[Tensor]) -> Result<Vec<Tensor>, OpError> {
        const OP: &str = "sum";
        equal(OP, "parts", ranks.len(), parts.len())?;
        base.map_or(Ok(()), |base| equal(OP, "bases", ranks.len(), base.len()))?;
        let (width, len) = parts.first().map_or((0, 0), |part| (part.width, part.values.len()));
        parts.iter().try_for_each(|part| equal(OP, "values of a part", len, part.values.len()))?;
        let sum = |rank: usize| {
            let base = base.map(|base| &base[rank].values);
            base.map_or(Ok(()), |base| equal(OP, "values of the base", len, base.len()))?;
            let value = |i: usize| {
                let start = base.map_or(0.0, |base| base[i]);
                parts.iter().fold(start, |sum, part| sum + part.values[i])
            };
            Ok(Tensor { values: (0..len).map(value).collect(), width })
        };
        (0..ranks.len()).map(sum).collect()
    }
}
