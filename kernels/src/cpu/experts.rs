//! The mixture of experts: every expert takes the rows that chose it, and a row sums what its experts say in the order
//! of their scores.

use super::CpuDevice;
use super::math::silu;
use super::matrix::{Into, Left, PANEL, Right, Size, product};
use super::memory::{Tensor, Weight};
use crate::check::equal;
use crate::op::{Device, ExpertShape, Experts, OpError};

const OP: &str = "experts";

/// What one expert computes.
struct Job<'a> {
    /// The rows that chose it, and their shares.
    rows: Vec<(usize, f32)>,
    gate_up: &'a [f32],
    down: &'a [f32],
    /// `[rows, hidden]`.
    out: Vec<f32>,
}

pub(crate) fn experts(
    device: &CpuDevice,
    x: &Tensor,
    experts: &Experts<'_, CpuDevice>,
) -> Result<Tensor, OpError> {
    let ExpertShape { experts: count, top, intermediate, renormalise } = experts.shape;
    let hidden = x.width;
    check(experts, hidden)?;
    let scores = device.linear(x, experts.router)?;
    let choices: Vec<Vec<(usize, f32)>> =
        scores.values.chunks_exact(count).map(|scores| choose(scores, top, renormalise)).collect();
    let mut jobs: Vec<Job<'_>> = (0..count)
        .map(|expert| Job {
            rows: Vec::new(),
            gate_up: part(experts.gate_up, expert, 2 * intermediate),
            down: part(experts.down, expert, hidden),
            out: Vec::new(),
        })
        .collect();
    // Where a row's expert puts what it says.
    let mut places = Vec::with_capacity(choices.len() * top);
    for (row, chosen) in choices.iter().enumerate() {
        for &(expert, share) in chosen {
            places.push((expert, jobs[expert].rows.len()));
            jobs[expert].rows.push((row, share));
        }
    }
    let work = x.rows() * top * 3 * intermediate * hidden;
    let busy: Vec<&mut Job<'_>> = jobs.iter_mut().filter(|job| !job.rows.is_empty()).collect();
    device.each(work, busy, |_: &mut (), job| job.run(device, x, intermediate));
    let mut values = vec![0.0; x.values.len()];
    for (sum, places) in values.chunks_exact_mut(hidden.max(1)).zip(places.chunks_exact(top.max(1))) {
        for &(expert, place) in places {
            let said = &jobs[expert].out[place * hidden..][..hidden];
            sum.iter_mut().zip(said).for_each(|(sum, said)| *sum += said);
        }
    }
    Ok(Tensor { values, width: hidden })
}

fn check(experts: &Experts<'_, CpuDevice>, hidden: usize) -> Result<(), OpError> {
    let ExpertShape { experts: count, top, intermediate, .. } = experts.shape;
    if !(2 * intermediate).is_multiple_of(PANEL) || !hidden.is_multiple_of(PANEL) {
        let what = format!("experts of {intermediate} by {hidden} (multiples of {PANEL})");
        return Err(OpError::Unsupported { op: OP, what });
    }
    if !(1..=count).contains(&top) {
        return Err(OpError::shape(OP, format!("1 to {count} experts a row"), top));
    }
    equal(OP, "experts of the router", count, experts.router.rows)?;
    equal(OP, "rows of gate and up", count * 2 * intermediate, experts.gate_up.rows)?;
    equal(OP, "columns of gate and up", hidden, experts.gate_up.columns)?;
    equal(OP, "rows of down", count * hidden, experts.down.rows)?;
    equal(OP, "columns of down", intermediate, experts.down.columns)
}

/// The panels of one expert's `rows` rows.
fn part(weight: &Weight, expert: usize, rows: usize) -> &[f32] {
    let size = rows * weight.columns;
    &weight.values[expert * size..][..size]
}

/// The experts of one row, largest score first, equal ones by number, with their shares.
fn choose(scores: &[f32], top: usize, renormalise: bool) -> Vec<(usize, f32)> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order.truncate(top);
    let largest = order.first().map_or(0.0, |&expert| scores[expert]);
    let share = |expert: usize| f64::from(scores[expert] - largest).exp();
    let all: f64 = if renormalise {
        order.iter().map(|&expert| share(expert)).sum()
    } else {
        (0..scores.len()).map(share).sum()
    };
    order.into_iter().map(|expert| (expert, (share(expert) / all) as f32)).collect()
}

impl Job<'_> {
    fn run(&mut self, device: &CpuDevice, x: &Tensor, intermediate: usize) {
        let (rows, hidden, arch) = (self.rows.len(), x.width, device.arch);
        let input: Vec<f32> = self.rows.iter().flat_map(|&(row, _)| x.row(row)).copied().collect();
        let multiply = |left: &[f32], inner: usize, panels: &[f32], columns: usize| {
            let mut out = device.output(rows * columns);
            let left = Left { values: left, row_step: inner, inner_step: 1 };
            let size = Size { rows, inner, columns };
            product(arch, size, left, Right::panels(panels, inner), &mut out, (columns, Into::Set));
            out
        };
        let both = multiply(&input, hidden, self.gate_up, 2 * intermediate);
        let gated: Vec<f32> = both
            .chunks_exact(2 * intermediate)
            .flat_map(|row| {
                let (gate, up) = row.split_at(intermediate);
                gate.iter().zip(up).map(|(&gate, up)| silu(gate) * up)
            })
            .collect();
        self.out = multiply(&gated, intermediate, self.down, hidden);
        for (out, &(_, share)) in self.out.chunks_exact_mut(hidden).zip(&self.rows) {
            out.iter_mut().for_each(|out| *out *= share);
        }
    }
}
