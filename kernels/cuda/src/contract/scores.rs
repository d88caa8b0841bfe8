//! Scores: the product stays on the device, and of each row lands what is needed.

use hypic_domain::logits::{Logits, Need};
use hypic_kernels::check::equal;
use hypic_kernels::op::OpError;

use super::memory::Tensor;
use super::weight::{Weight, product_of};
use super::{CudaDevice, failed, few};
use crate::memory::Float;
use crate::{Buffer, Device, Draw, TopLogits, draw_logits, top_logits};

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
        few::product(&device.device, &x.values, values, &mut rows, size)?;
        landed(&device.device, &rows, size.outer, needs)
    };
    make().map_err(failed(OP))
}

/// What `needs` asks of each of the rows, `[needs.len(), width]`.
fn landed(device: &Device, rows: &Buffer<f32>, width: usize, needs: &[Need]) -> crate::Result<Vec<Logits>> {
    let most = needs.iter().filter_map(|need| match need {
        Need::Largest(most) | Need::Draw { largest: most, .. } => Some((*most).clamp(1, width.max(1))),
        Need::All => None,
    });
    let whole = |row: usize| rows.read_part(row * width, width).map(Logits::All);
    let Some(most) = most.max() else { return (0..needs.len()).map(whole).collect() };
    let top = top_logits(device, rows, width, most)?;
    let mut drawn = drawn(device, rows, width, (&top, needs))?.into_iter();
    let top = top.read()?;
    let largest = |row: usize, wanted: usize| top[row].largest.iter().copied().take(wanted).collect();
    let logits = |(row, need): (usize, &Need)| {
        let log_sum = f64::from(top[row].log_sum);
        match *need {
            Need::Largest(most) => Ok(Logits::Largest { largest: largest(row, most), log_sum }),
            Need::Draw { largest: most, .. } => {
                let drawn = drawn.next().filter(|_| log_sum.is_finite());
                Ok(Logits::Drawn { drawn, largest: largest(row, most), log_sum })
            }
            Need::All => whole(row),
        }
    };
    needs.iter().enumerate().map(logits).collect()
}

/// `(token, logit)` of each draw that is among `needs`, in their order.
fn drawn(
    device: &Device,
    rows: &Buffer<f32>,
    width: usize,
    (top, needs): (&TopLogits, &[Need]),
) -> crate::Result<Vec<(u32, f32)>> {
    let draw = |(row, need): (usize, &Need)| match *need {
        Need::Draw { temperature, uniform, .. } => Some(Draw { row, temperature, uniform }),
        Need::Largest(_) | Need::All => None,
    };
    let draws: Vec<Draw> = needs.iter().enumerate().filter_map(draw).collect();
    if draws.is_empty() {
        return Ok(Vec::new());
    }
    let found = draw_logits(device, rows, width, top, &draws)?;
    Ok(found.tokens.read()?.into_iter().zip(found.values.read()?).collect())
}
