//! Ops that a device may do at once, one by one.

use hypic_domain::tuple::Dtype;

use super::{Device, Experts, FullInput, HeadNorms, HostTensor, Norm, OpError, SharedExpert, Split};
use crate::coded::Coded;
use crate::plan::Plan;

/// [`Device::linears`] one by one.
///
/// # Errors
/// As [`Device::linear`].
pub fn linears_apart<D: Device, const N: usize>(
    device: &D,
    x: &D::Tensor,
    weights: [&D::Weight; N],
) -> Result<[D::Tensor; N], OpError> {
    let all = weights.into_iter().map(|weight| device.linear(x, weight)).collect::<Result<Vec<_>, _>>()?;
    let found = all.len();
    all.try_into().map_err(|_| OpError::shape("linears", N, found))
}

/// [`Device::norm_linears`] op by op.
///
/// # Errors
/// As the ops.
pub fn norm_linears_apart<D: Device, const N: usize>(
    device: &D,
    x: &D::Tensor,
    norm: &Norm<'_, D>,
    weights: [&D::Weight; N],
) -> Result<[D::Tensor; N], OpError> {
    let normed = device.rms_norm(x, norm.weight, norm.width, norm.style, norm.eps)?;
    device.linears(&normed, weights)
}

/// [`Device::add_experts`] op by op.
///
/// # Errors
/// As the ops.
pub fn add_experts_apart<D: Device>(
    device: &D,
    into: &mut D::Tensor,
    x: &D::Tensor,
    experts: &Experts<'_, D>,
    shared: Option<&SharedExpert<'_, D>>,
) -> Result<(), OpError> {
    let mut out = device.experts(x, experts)?;
    if let Some(SharedExpert { gate_up, down, gate }) = shared {
        let mut said = device.linear(&device.swiglu(&device.linear(x, gate_up)?)?, down)?;
        device.sigmoid_gate(&mut said, &device.linear(x, gate)?)?;
        device.add(&mut out, &said)?;
    }
    device.add(into, &out)
}

/// [`Device::add_mixture`] op by op.
///
/// # Errors
/// As the ops.
pub fn add_mixture_apart<D: Device>(
    device: &D,
    x: &mut D::Tensor,
    mixed: &D::Tensor,
    norm: &Norm<'_, D>,
    (experts, shared): (&Experts<'_, D>, Option<&SharedExpert<'_, D>>),
) -> Result<(), OpError> {
    let normed = device.add_norm(x, mixed, (norm.weight, norm.width), norm.style, norm.eps)?;
    device.add_experts(x, &normed, experts, shared)
}

/// [`Device::full_mixer_gated`] op by op.
///
/// # Errors
/// As the ops.
pub fn full_mixer_apart<D: Device>(
    device: &D,
    input: &FullInput<'_, D>,
    (norms, gate): (&HeadNorms<'_, D>, &D::Tensor),
    plan: &Plan<D>,
    pages: &mut D::Pages,
) -> Result<D::Tensor, OpError> {
    let norm = |x, weight| device.rms_norm(x, weight, input.shape.key, norms.style, norms.eps);
    let (query, key) = (norm(input.query, norms.query)?, norm(input.key, norms.key)?);
    let normed = FullInput { query: &query, key: &key, ..*input };
    let mut mixed = device.full_mixer(&normed, plan, pages)?;
    device.sigmoid_gate(&mut mixed, gate)?;
    Ok(mixed)
}

/// [`Device::weight`] of the values of a matrix in codes.
///
/// # Errors
/// As [`Device::weight`].
pub fn widened<D: Device>(
    device: &D,
    name: &str,
    matrix: &Coded,
    split: &Split,
) -> Result<D::Weight, OpError> {
    let bytes: Vec<u8> = matrix.values().flat_map(f32::to_le_bytes).collect();
    let (shape, split) = (matrix.shape().to_vec(), split.clone());
    device.weight(&HostTensor { name, shape, dtype: Dtype::F32, bytes: &bytes, split })
}
