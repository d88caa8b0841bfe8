//! Products and experts of few rows: where decode spends its time.

use half::bf16;
use hypic_kernels::check::equal;
use hypic_kernels::op::{self, ExpertShape, Experts, Norm, OpError, SharedExpert};

use super::experts::weights_of;
use super::memory::Tensor;
use super::weight::{Weight, product_of};
use super::{CudaDevice, failed, offset_of, same_shape};
use crate::choice::{
    adds_in_place, chooses_in_place, is_few_experts, is_few_product, norms_in_place, norms_in_product,
};
use crate::codes::Matrix;
use crate::memory::Float;
use crate::{
    Buffer, Choice, Device, ExpertWeights, ExpertsFew, FewPart, MOST_WEIGHTS, ProductSize, RmsNorm, Routed,
    Router, SumAndNorm, add_norm_scores_few, choose_experts, experts_few, norm_product_few, product_few,
};

/// One product, in the form for its number of rows.
pub(super) fn product<E: Float, O: Float>(
    device: &Device,
    x: &Buffer<E>,
    weight: Matrix<'_, E>,
    y: &mut Buffer<O>,
    size: ProductSize,
) -> crate::Result<()> {
    if is_few(weight, size) {
        let part = FewPart { weight, outer: size.outer, y };
        return product_few(device, x, [size.rows, size.inner], vec![part]);
    }
    crate::product(device, x, &*weight.widened(device)?, y, size)
}

fn is_few<E: Float>(weight: Matrix<'_, E>, ProductSize { rows, inner, outer }: ProductSize) -> bool {
    E::NAME == bf16::NAME && is_few_product(rows, inner, outer, weight.is_coded())
}

/// Room for products.
fn outputs<E: Float>(
    device: &CudaDevice<E>,
    products: &[(Matrix<'_, E>, ProductSize)],
) -> crate::Result<Vec<Tensor<E>>> {
    let room = |(_, ProductSize { rows, outer, .. }): &(_, ProductSize)| {
        Ok(Tensor { values: device.output(rows * outer)?, width: *outer })
    };
    products.iter().map(room).collect()
}

fn all<T, const N: usize>(op: &'static str, made: Vec<T>) -> Result<[T; N], OpError> {
    let found = made.len();
    made.try_into().map_err(|_| OpError::shape(op, N, found))
}

pub(super) fn linears<E: Float, const N: usize>(
    device: &CudaDevice<E>,
    x: &Tensor<E>,
    weights: [&Weight<E>; N],
) -> Result<[Tensor<E>; N], OpError> {
    const OP: &str = "linear";
    let found = weights.into_iter().map(|weight| product_of(OP, x, weight)).collect::<Result<Vec<_>, _>>()?;
    let gpu = &device.device;
    let make = || {
        let mut out = outputs(device, &found)?;
        let mut few = Vec::with_capacity(N);
        for ((weight, size), y) in found.iter().zip(&mut out) {
            if is_few(*weight, *size) {
                few.push(FewPart { weight: *weight, outer: size.outer, y: &mut y.values });
            } else {
                product(gpu, &x.values, *weight, &mut y.values, *size)?;
            }
        }
        let mut few = few.into_iter();
        while few.len() > 0 {
            let parts = few.by_ref().take(MOST_WEIGHTS).collect();
            product_few(gpu, &x.values, [x.rows(), x.width], parts)?;
        }
        Ok(out)
    };
    all(OP, make().map_err(failed(OP))?)
}

/// The same of the norm of rows, which every block makes of one or two.
pub(super) fn norm_linears<E: Float, const N: usize>(
    device: &CudaDevice<E>,
    x: &Tensor<E>,
    norm: &Norm<'_, CudaDevice<E>>,
    weights: [&Weight<E>; N],
) -> Result<[Tensor<E>; N], OpError> {
    const OP: &str = "norm_linears";
    let (rows, width) = (x.rows(), x.width);
    let found = weights.into_iter().map(|weight| product_of(OP, x, weight)).collect::<Result<Vec<_>, _>>()?;
    let are_few = found.iter().all(|(weight, size)| is_few(*weight, *size));
    if !(are_few && norms_in_product(rows, width) && (1..=MOST_WEIGHTS).contains(&N)) {
        return op::norm_linears_apart(device, x, norm, weights);
    }
    let rms = rms_norm_of(OP, norm, width)?;
    let make = || {
        let mut out = outputs(device, &found)?;
        let parts = found.iter().zip(&mut out).map(|((weight, size), y)| FewPart {
            weight: *weight,
            outer: size.outer,
            y: &mut y.values,
        });
        norm_product_few(&device.device, (&x.values, rms), [rows, width], parts.collect())?;
        Ok(out)
    };
    all(OP, make().map_err(failed(OP))?)
}

pub(super) fn add_experts<E: Float>(
    device: &CudaDevice<E>,
    into: &mut Tensor<E>,
    x: &Tensor<E>,
    experts: &Experts<'_, CudaDevice<E>>,
    shared: Option<&SharedExpert<'_, CudaDevice<E>>>,
) -> Result<(), OpError> {
    const OP: &str = "add_experts";
    same_shape(OP, into, x)?;
    let Some(mixture) = Mixture::new(OP, x, experts, shared)? else {
        return op::add_experts_apart(device, into, x, experts, shared);
    };
    let mut run =
        || mixture.add_to(device, &mut into.values, (&x.values, &mut mixture.routed(device, &x.values)?));
    run().map_err(failed(OP))
}

type Mixed<'a, E> = (&'a Experts<'a, CudaDevice<E>>, Option<&'a SharedExpert<'a, CudaDevice<E>>>);

pub(super) fn add_mixture<E: Float>(
    device: &CudaDevice<E>,
    x: &mut Tensor<E>,
    mixed: &Tensor<E>,
    norm: &Norm<'_, CudaDevice<E>>,
    (experts, shared): Mixed<'_, E>,
) -> Result<(), OpError> {
    const OP: &str = "add_mixture";
    same_shape(OP, x, mixed)?;
    let (rows, width) = (x.rows(), x.width);
    let mixture = if norms_in_place(rows) { Mixture::new(OP, x, experts, shared)? } else { None };
    let Some(mixture) = mixture else {
        return op::add_mixture_apart(device, x, mixed, norm, (experts, shared));
    };
    let rms = rms_norm_of(OP, norm, width)?;
    let mut run = || {
        let mut normed = device.output(rows * width)?;
        let mut routed = if adds_in_place(rows, width) {
            // Other blocks still read the terms while one writes the sums.
            let mut sums = device.output(rows * width)?;
            let out = [&mut sums, &mut normed];
            let sum = SumAndNorm { terms: [&x.values, &mixed.values], norm: rms, out };
            let routed = add_norm_scores_few(&device.device, sum, [rows, width], mixture.route())?;
            x.values = sums;
            mixture.chosen(device, routed)?
        } else {
            crate::add_norm(&device.device, [&mut x.values, &mut normed], &mixed.values, rms)?;
            mixture.routed(device, &normed)?
        };
        mixture.add_to(device, &mut x.values, (&normed, &mut routed))
    };
    run().map_err(failed(OP))
}

/// A norm over rows of `width`.
fn rms_norm_of<'a, E: Float>(
    op: &'static str,
    norm: &Norm<'a, CudaDevice<E>>,
    width: usize,
) -> Result<RmsNorm<'a>, OpError> {
    equal(op, "the width of rows", norm.width, width)?;
    Ok(RmsNorm { weight: norm.weight.vector(op, width)?, offset: offset_of(norm.style), eps: norm.eps })
}

/// A mixture in the form for few rows, after a check of its shapes.
struct Mixture<'a, E: Float> {
    rows: usize,
    hidden: usize,
    shape: ExpertShape,
    router: &'a Buffer<E>,
    weights: ExpertWeights<'a, E>,
    /// The shared expert and its gate.
    apart: Option<(ExpertWeights<'a, E>, &'a Buffer<E>)>,
}

impl<'a, E: Float> Mixture<'a, E> {
    /// For rows as those of `x`; none where they are not few.
    fn new(
        op: &'static str,
        x: &Tensor<E>,
        experts: &Experts<'a, CudaDevice<E>>,
        shared: Option<&SharedExpert<'a, CudaDevice<E>>>,
    ) -> Result<Option<Self>, OpError> {
        let (shape, rows, hidden) = (experts.shape, x.rows(), x.width);
        let apart = shared.map(|shared| shared_of(op, hidden, shared)).transpose()?;
        let apart_width = apart.map_or(shape.intermediate, |(weights, _)| weights.width);
        let widths = [hidden, shape.intermediate, apart_width];
        if E::NAME != bf16::NAME || !is_few_experts(rows, shape.top, shape.experts, &widths) {
            return Ok(None);
        }
        let (router, weights) = weights_of(op, x, experts)?;
        Ok(Some(Self { rows, hidden, shape, router, weights, apart }))
    }

    fn route(&self) -> Router<'a, E> {
        let ExpertShape { experts, top, renormalise, .. } = self.shape;
        let gate = self.apart.map(|(_, gate)| gate);
        Router { weight: self.router, experts, gate, top, renormalise }
    }

    fn routed(&self, device: &CudaDevice<E>, x: &Buffer<E>) -> crate::Result<Routed> {
        let (gpu, rows) = (&device.device, [self.rows, self.hidden]);
        let Router { weight, experts: outer, gate, top, renormalise } = self.route();
        let (mut logits, mut gates) = (device.output(self.rows * outer)?, device.output(self.rows)?);
        let mut parts = vec![FewPart { weight: weight.into(), outer, y: &mut logits }];
        parts.extend(gate.map(|gate| FewPart { weight: gate.into(), outer: 1, y: &mut gates }));
        product_few(gpu, x, rows, parts)?;
        let choice = Choice::Made(choose_experts(gpu, &logits, outer, top, renormalise)?);
        Ok(Routed { choice, gates })
    }

    /// The choice of more than one row is a launch of its own.
    fn chosen(&self, device: &CudaDevice<E>, routed: Routed) -> crate::Result<Routed> {
        let ExpertShape { experts, top, .. } = self.shape;
        match routed {
            Routed { choice: Choice::ToMake { logits, renormalise, .. }, gates }
                if !chooses_in_place(self.rows, top) =>
            {
                let choice = choose_experts(&device.device, &logits, experts, top, renormalise)?;
                Ok(Routed { choice: Choice::Made(choice), gates })
            }
            routed => Ok(routed),
        }
    }

    fn add_to(
        &self,
        device: &CudaDevice<E>,
        out: &mut Buffer<E>,
        (x, Routed { choice, gates }): (&Buffer<E>, &mut Routed),
    ) -> crate::Result<()> {
        let (hidden, experts, routed) = (self.hidden, self.shape.experts, self.weights);
        let shared = self.apart.map(|(weights, _)| (weights, &*gates));
        experts_few(&device.device, ExpertsFew { x, hidden, experts, choice, routed, shared, out })
    }
}

/// The matrices of the shared expert, and its gate.
fn shared_of<'a, E: Float>(
    op: &'static str,
    hidden: usize,
    shared: &SharedExpert<'a, CudaDevice<E>>,
) -> Result<(ExpertWeights<'a, E>, &'a Buffer<E>), OpError> {
    let (gate_up, [both, columns]) = shared.gate_up.product(op)?;
    let (down, [outer, width]) = shared.down.product(op)?;
    let (gate, [one, gated]) = shared.gate.matrix(op)?;
    equal(op, "columns of the shared gate and up", hidden, columns)?;
    equal(op, "rows of the shared gate and up", 2 * width, both)?;
    equal(op, "rows of the shared down", hidden, outer)?;
    equal(op, "rows of the shared gate", 1, one)?;
    equal(op, "columns of the shared gate", hidden, gated)?;
    Ok((ExpertWeights { width, gate_up, down }, gate))
}
