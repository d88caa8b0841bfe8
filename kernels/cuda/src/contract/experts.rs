//! The mixture of experts: scores, the choice, and the products of each expert's rows.

use hypic_kernels::check::equal;
use hypic_kernels::op::{Experts, OpError};

use super::CudaDevice;
use super::memory::Tensor;
use crate::memory::Float;
use crate::{
    Buffer, ExpertWeights, ExpertsForm, ProductSize, Sent, choose_experts, experts_form, product, route,
    swiglu,
};

const OP: &str = "experts";

pub(super) fn experts<E: Float>(
    device: &CudaDevice<E>,
    x: &Tensor<E>,
    experts: &Experts<'_, CudaDevice<E>>,
) -> Result<Tensor<E>, OpError> {
    let shape = experts.shape;
    let (count, width, hidden) = (shape.experts, shape.intermediate, x.width);
    let (router, ExpertWeights { gate_up, down, .. }) = weights_of(OP, x, experts)?;
    let scores = ProductSize { rows: x.rows(), inner: hidden, outer: count };
    device.written(OP, (x.rows(), hidden), |gpu, out| {
        let mut logits: Buffer<f32> = device.output(scores.rows * count)?;
        product(gpu, &x.values, router, &mut logits, scores)?;
        let chosen = choose_experts(gpu, &logits, count, shape.top, shape.renormalise)?;
        let routes = route(gpu, chosen, count, shape.top)?;
        let assigned = routes.assignments();
        let mut inner: Buffer<E> = device.output(assigned * width)?;
        let mut said: Buffer<E> = device.output(assigned * hidden)?;
        let is_exact = E::NAME == f32::NAME;
        // Codes are widened for all experts, gates and ups before downs: each scratch goes before the next is taken.
        match experts_form(assigned, count, gpu.capability().filter(|_| !is_exact)) {
            ExpertsForm::Hopper => {
                let gate_up = gate_up.widened(gpu)?;
                routes.gate_hopper(gpu, &x.values, &gate_up, &mut inner, [width, hidden])?;
                drop(gate_up);
                let sent = (&inner, Sent::Assigned);
                let down = down.widened(gpu)?;
                routes.multiply_hopper(gpu, sent, &down, &mut said, [hidden, width])?;
            }
            ExpertsForm::Portable => {
                let mut both: Buffer<E> = device.output(assigned * 2 * width)?;
                let gate_up = gate_up.widened(gpu)?;
                routes.multiply(gpu, (&x.values, Sent::Rows), &gate_up, &mut both, [2 * width, hidden])?;
                drop(gate_up);
                swiglu(gpu, &both, width, &mut inner)?;
                let down = down.widened(gpu)?;
                routes.multiply(gpu, (&inner, Sent::Assigned), &down, &mut said, [hidden, width])?;
            }
        }
        routes.combine(gpu, &said, out, hidden)
    })
}

/// The router's matrix and those of the experts, after a check of their shapes.
pub(super) fn weights_of<'a, E: Float>(
    op: &'static str,
    x: &Tensor<E>,
    experts: &Experts<'a, CudaDevice<E>>,
) -> Result<(&'a Buffer<E>, ExpertWeights<'a, E>), OpError> {
    let (count, width, hidden) = (experts.shape.experts, experts.shape.intermediate, x.width);
    let (router, [scores, scored]) = experts.router.matrix(op)?;
    let (gate_up, [rows_in, columns_in]) = experts.gate_up.product(op)?;
    let (down, [rows_out, columns_out]) = experts.down.product(op)?;
    equal(op, "experts of the router", count, scores)?;
    equal(op, "columns of the router", hidden, scored)?;
    equal(op, "rows of gate and up", count * 2 * width, rows_in)?;
    equal(op, "columns of gate and up", hidden, columns_in)?;
    equal(op, "rows of down", count * hidden, rows_out)?;
    equal(op, "columns of down", width, columns_out)?;
    Ok((router, ExpertWeights { width, gate_up, down }))
}
