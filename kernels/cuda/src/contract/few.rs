//! Products and experts of few rows: where decode spends its time.

use half::bf16;
use hypic_kernels::check::equal;
use hypic_kernels::op::{self, Device as _, ExpertShape, Experts, Norm, OpError, SharedExpert};

use super::experts::weights_of;
use super::memory::{Tensor, Weight};
use super::{CudaDevice, failed, offset_of, product_of, same_shape};
use crate::choice::{chooses_in_place, is_few_experts, is_few_product, norms_in_place};
use crate::memory::Float;
use crate::{
    Buffer, Choice, Device, ExpertWeights, ExpertsFew, FewPart, MOST_WEIGHTS, NormOfSums, ProductSize,
    Scores, choose_experts, experts_few, product_few,
};

/// One product, in the form for its number of rows.
pub(super) fn product<E: Float, O: Float>(
    device: &Device,
    x: &Buffer<E>,
    weight: &Buffer<E>,
    y: &mut Buffer<O>,
    size: ProductSize,
) -> crate::Result<()> {
    if is_few::<E>(size) {
        let part = FewPart { weight, outer: size.outer, y };
        return product_few(device, x, [size.rows, size.inner], vec![part]);
    }
    crate::product(device, x, weight, y, size)
}

fn is_few<E: Float>(size: ProductSize) -> bool {
    E::NAME == bf16::NAME && is_few_product(size.rows, size.inner, size.outer)
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
        let mut out = Vec::with_capacity(N);
        for (_, size) in &found {
            out.push(Tensor { values: device.output(size.rows * size.outer)?, width: size.outer });
        }
        let mut few = Vec::with_capacity(N);
        for ((weight, size), y) in found.iter().zip(&mut out) {
            if is_few::<E>(*size) {
                few.push(FewPart { weight, outer: size.outer, y: &mut y.values });
            } else {
                crate::product(gpu, &x.values, weight, &mut y.values, *size)?;
            }
        }
        let mut few = few.into_iter();
        while few.len() > 0 {
            let parts = few.by_ref().take(MOST_WEIGHTS).collect();
            product_few(gpu, &x.values, [x.rows(), x.width], parts)?;
        }
        Ok(out)
    };
    let out: Vec<Tensor<E>> = make().map_err(failed(OP))?;
    let made = out.len();
    out.try_into().map_err(|_| OpError::shape(OP, N, made))
}

pub(super) fn add_experts<E: Float>(
    device: &CudaDevice<E>,
    into: &mut Tensor<E>,
    x: &Tensor<E>,
    experts: &Experts<'_, CudaDevice<E>>,
    shared: Option<&SharedExpert<'_, CudaDevice<E>>>,
) -> Result<(), OpError> {
    match Mixture::new("add_experts", into, x, experts, shared)? {
        Some(mixture) => mixture.add_to(device, into, None),
        None => op::add_experts_apart(device, into, x, experts, shared),
    }
}

pub(super) fn add_experts_norm<E: Float>(
    device: &CudaDevice<E>,
    into: &mut Tensor<E>,
    x: &Tensor<E>,
    (experts, shared): (&Experts<'_, CudaDevice<E>>, Option<&SharedExpert<'_, CudaDevice<E>>>),
    norm: &Norm<'_, CudaDevice<E>>,
) -> Result<Tensor<E>, OpError> {
    const OP: &str = "add_experts_norm";
    let mixture = if norms_in_place(x.rows()) { Mixture::new(OP, into, x, experts, shared)? } else { None };
    let Some(mixture) = mixture else {
        device.add_experts(into, x, experts, shared)?;
        return device.rms_norm(into, norm.weight, norm.width, norm.style, norm.eps);
    };
    equal(OP, "the width of rows", norm.width, x.width)?;
    let weight = norm.weight.vector(OP, norm.width)?;
    let mut y = device.output(x.rows() * x.width).map_err(failed(OP))?;
    let norm = NormOfSums { weight, offset: offset_of(norm.style), eps: norm.eps, y: &mut y };
    mixture.add_to(device, into, Some(norm))?;
    Ok(Tensor { values: y, width: x.width })
}

/// A mixture in the form for few rows, after a check of its shapes.
struct Mixture<'a, E: Float> {
    op: &'static str,
    x: &'a Tensor<E>,
    shape: ExpertShape,
    router: &'a Buffer<E>,
    routed: ExpertWeights<'a, E>,
    /// The shared expert and its gate.
    apart: Option<(ExpertWeights<'a, E>, &'a Buffer<E>)>,
}

impl<'a, E: Float> Mixture<'a, E> {
    /// None where the rows are not few.
    fn new(
        op: &'static str,
        into: &Tensor<E>,
        x: &'a Tensor<E>,
        experts: &Experts<'a, CudaDevice<E>>,
        shared: Option<&SharedExpert<'a, CudaDevice<E>>>,
    ) -> Result<Option<Self>, OpError> {
        let shape = experts.shape;
        same_shape(op, into, x)?;
        let apart = shared.map(|shared| shared_of(op, x.width, shared)).transpose()?;
        let apart_width = apart.map_or(shape.intermediate, |(weights, _)| weights.width);
        let widths = [x.width, shape.intermediate, apart_width];
        if E::NAME != bf16::NAME || !is_few_experts(x.rows(), shape.top, shape.experts, &widths) {
            return Ok(None);
        }
        let (router, routed) = weights_of(op, x, experts)?;
        Ok(Some(Self { op, x, shape, router, routed, apart }))
    }

    fn add_to(
        &self,
        device: &CudaDevice<E>,
        into: &mut Tensor<E>,
        norm: Option<NormOfSums<'_, E>>,
    ) -> Result<(), OpError> {
        let Self { x, shape: ExpertShape { experts, top, renormalise, .. }, router, routed, apart, .. } =
            *self;
        let gpu = &device.device;
        let run = || {
            let (rows, hidden) = (x.rows(), x.width);
            let (mut logits, mut gates): (Buffer<f32>, Buffer<f32>) =
                (device.output(rows * experts)?, device.output(rows)?);
            let mut parts = vec![FewPart { weight: router, outer: experts, y: &mut logits }];
            parts.extend(apart.map(|(_, gate)| FewPart { weight: gate, outer: 1, y: &mut gates }));
            product_few(gpu, &x.values, [rows, hidden], parts)?;
            let made;
            let choice = if chooses_in_place(rows, top) {
                Choice::By(Scores { logits: &logits, top, renormalise })
            } else {
                made = choose_experts(gpu, &logits, experts, top, renormalise)?;
                Choice::Made(&made)
            };
            let shared = apart.map(|(weights, _)| (weights, &gates));
            let out = &mut into.values;
            experts_few(gpu, ExpertsFew { x: &x.values, hidden, experts, choice, routed, shared, out, norm })
        };
        run().map_err(failed(self.op))
    }
}

/// The matrices of the shared expert, and its gate.
fn shared_of<'a, E: Float>(
    op: &'static str,
    hidden: usize,
    shared: &SharedExpert<'a, CudaDevice<E>>,
) -> Result<(ExpertWeights<'a, E>, &'a Buffer<E>), OpError> {
    let (gate_up, [both, columns]) = shared.gate_up.matrix(op)?;
    let (down, [outer, width]) = shared.down.matrix(op)?;
    let (gate, [one, gated]) = shared.gate.matrix(op)?;
    equal(op, "columns of the shared gate and up", hidden, columns)?;
    equal(op, "rows of the shared gate and up", 2 * width, both)?;
    equal(op, "rows of the shared down", hidden, outer)?;
    equal(op, "rows of the shared gate", 1, one)?;
    equal(op, "columns of the shared gate", hidden, gated)?;
    Ok((ExpertWeights { width, gate_up, down }, gate))
}
