//! Scores: the product stays on the device, and of each row lands what is needed.

use hypic_domain::logits::{self as domain, Logits, MOST_LARGEST, Need, Portion, nucleus_of};
use hypic_kernels::check::equal;
use hypic_kernels::op::OpError;

use super::memory::Tensor;
use super::weight::{Weight, product_of};
use super::{CudaDevice, failed, few};
use crate::memory::Float;
use crate::{Buffer, Change, Device, Draw, TopLogits, TopOfRow, change_logits, draw_logits, top_logits};

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
        landed(&device.device, &mut rows, size.outer, needs)
    };
    make().map_err(failed(OP))
}

/// What `needs` asks of each of the rows, `[needs.len(), width]`.
fn landed(
    device: &Device,
    rows: &mut Buffer<f32>,
    width: usize,
    needs: &[Need],
) -> crate::Result<Vec<Logits>> {
    let most = needs.iter().filter_map(|need| match need.portion {
        Portion::Largest(largest) | Portion::Draw { largest, .. } => Some(largest),
        Portion::Nucleus { largest, .. } => Some(largest.max(MOST_LARGEST)),
        Portion::All => None,
    });
    let whole = |rows: &Buffer<f32>, row: usize| rows.read_part(row * width, width);
    let Some(most) = most.max().map(|most| most.clamp(1, width.max(1))) else {
        return (0..needs.len()).map(|row| whole(rows, row).map(Logits::All)).collect();
    };
    change_logits(device, rows, width, &changes(needs))?;
    let top = top_logits(device, rows, width, most)?;
    let mut drawn = drawn(device, rows, width, (&top, needs))?.into_iter();
    let top = top.read()?;
    let logits = |(row, need): (usize, &Need)| {
        let TopOfRow { largest: most, log_sum } = &top[row];
        let log_sum = f64::from(*log_sum);
        let largest = |wanted: usize| most.iter().copied().take(wanted).collect();
        Ok(match need.portion {
            Portion::Largest(most) => Logits::Largest { largest: largest(most), log_sum },
            Portion::Draw { largest: most, .. } => {
                let drawn = drawn.next().filter(|_| log_sum.is_finite()).map(|drawn| (drawn.id, drawn.logit));
                Logits::Drawn { drawn, largest: largest(most), log_sum }
            }
            Portion::Nucleus { temperature, top_p, largest: least } => {
                let weight = drawn.next().map_or(f64::NAN, |drawn| drawn.weight);
                let largest = match nucleus_of(most, temperature, weight, top_p) {
                    Some(count) => largest(count.max(least)),
                    None => domain::largest(&whole(rows, row)?, width),
                };
                Logits::Nucleus { largest, log_sum, weight }
            }
            Portion::All => Logits::All(whole(rows, row)?),
        })
    };
    needs.iter().enumerate().map(logits).collect()
}

/// The changes of all rows.
fn changes(needs: &[Need]) -> Vec<Change> {
    let of_row = |(row, need): (u32, &'_ Need)| {
        need.changes().iter().map(move |&(token, addend)| Change { row, token, addend }).collect::<Vec<_>>()
    };
    (0..).zip(needs).flat_map(of_row).collect()
}

/// A draw that was made.
struct Drawn {
    id: u32,
    logit: f32,
    weight: f64,
}

/// Of each draw that is among `needs`, and of each nucleus, of which the weight counts alone; in their order.
fn drawn(
    device: &Device,
    rows: &Buffer<f32>,
    width: usize,
    (top, needs): (&TopLogits, &[Need]),
) -> crate::Result<Vec<Drawn>> {
    let draw = |(row, need): (usize, &Need)| match need.portion {
        Portion::Draw { temperature, uniform, .. } => Some(Draw { row, temperature, uniform }),
        Portion::Nucleus { temperature, .. } => Some(Draw { row, temperature, uniform: 0.0 }),
        Portion::Largest(_) | Portion::All => None,
    };
    let draws: Vec<Draw> = needs.iter().enumerate().filter_map(draw).collect();
    if draws.is_empty() {
        return Ok(Vec::new());
    }
    let found = draw_logits(device, rows, width, top, &draws)?;
    let (ids, logits) = (found.tokens.read()?, found.values.read()?);
    let found = ids.into_iter().zip(logits).zip(found.weights.read()?);
    Ok(found.map(|((id, logit), weight)| Drawn { id, logit, weight }).collect())
}
