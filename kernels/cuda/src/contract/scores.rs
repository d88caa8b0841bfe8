//! Scores: the product stays on the device, and of each row lands what is needed.

use hypic_domain::logits::{Logits, Need};
use hypic_kernels::check::equal;
use hypic_kernels::op::OpError;

use super::memory::{Tensor, Weight};
use super::{CudaDevice, failed, product_of};
use crate::memory::Float;
use crate::{Buffer, Device, product, top_logits};

const OP: &str = "scores";

pub(super) fn scores<E: Float>(
    device: &CudaDevice<E>,
    x: &Tensor<E>,
    weight: &Weight<E>,
    needs: &[Need],
) -> Result<Vec<Logits>, OpError> {
    let (values, size) = product_of(OP, x, weight)?;
    equal(OP, "needs", size.rows, needs.len())?;
    let make = || {
        let mut rows: Buffer<f32> = device.output(size.rows * size.outer)?;
        product(&device.device, &x.values, values, &mut rows, size)?;
        landed(&device.device, &rows, size.outer, needs)
    };
    make().map_err(failed(OP))
}

/// What `needs` asks of each of the rows, `[needs.len(), width]`.
fn landed(device: &Device, rows: &Buffer<f32>, width: usize, needs: &[Need]) -> crate::Result<Vec<Logits>> {
    let most = needs.iter().filter_map(|need| match need {
        Need::Largest(most) => Some((*most).clamp(1, width.max(1))),
        Need::All => None,
    });
    let top = match most.max() {
        None => None,
        Some(most) => {
            let top = top_logits(device, rows, width, most)?;
            Some((most, top.ids.read()?, top.values.read()?, top.log_sum.read()?))
        }
    };
    let row = |(row, need): (usize, &Need)| match (need, &top) {
        (Need::Largest(wanted), Some((most, ids, values, log_sum))) => {
            let part = row * most..row * most + (*most).min(*wanted);
            let largest = ids[part.clone()].iter().copied().zip(values[part].iter().copied()).collect();
            Ok(Logits::Largest { largest, log_sum: f64::from(log_sum[row]) })
        }
        _ => rows.read_part(row * width, width).map(Logits::All),
    };
    needs.iter().enumerate().map(row).collect()
}
