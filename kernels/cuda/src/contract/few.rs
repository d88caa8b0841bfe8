//! Products and experts of few rows: where decode spends its time.

use half::bf16;
use hypic_kernels::check::equal;
use hypic_kernels::op::{self, Experts, OpError, SharedExpert};

use super::experts::weights_of;
use super::memory::{Tensor, Weight};
use super::{CudaDevice, failed, product_of, same_shape};
use crate::choice::{is_few_experts, is_few_product};
use crate::codes::Matrix;
use crate::memory::Float;
use crate::{
    Buffer, Device, ExpertWeights, ExpertsFew, FewPart, MOST_WEIGHTS, ProductSize, choose_experts,
    experts_few, product_few,
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
    const OP: &str = "add_experts";
    let shape = experts.shape;
    same_shape(OP, into, x)?;
    let apart = shared.map(|shared| shared_of(OP, x.width, shared)).transpose()?;
    let widths =
        [x.width, shape.intermediate, apart.map_or(shape.intermediate, |(weights, _)| weights.width)];
    if E::NAME != bf16::NAME || !is_few_experts(x.rows(), shape.top, shape.experts, &widths) {
        return op::add_experts_apart(device, into, x, experts, shared);
    }
    let (router, routed) = weights_of(OP, x, experts)?;
    let gpu = &device.device;
    let mut run = || {
        let rows = x.rows();
        let (mut logits, mut gates): (Buffer<f32>, Buffer<f32>) =
            (device.output(rows * shape.experts)?, device.output(rows)?);
        let mut parts = vec![FewPart { weight: router.into(), outer: shape.experts, y: &mut logits }];
        parts.extend(apart.map(|(_, gate)| FewPart { weight: gate.into(), outer: 1, y: &mut gates }));
        product_few(gpu, &x.values, [rows, x.width], parts)?;
        let chosen = choose_experts(gpu, &logits, shape.experts, shape.top, shape.renormalise)?;
        let shared = apart.map(|(weights, _)| (weights, &gates));
        let (experts, hidden, out) = (shape.experts, x.width, &mut into.values);
        let run = ExpertsFew { x: &x.values, hidden, experts, chosen: &chosen, routed, shared, out };
        experts_few(gpu, run)
    };
    run().map_err(failed(OP))
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
