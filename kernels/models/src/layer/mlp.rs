//! The dense feed-forward part: `down(silu(gate(x)) * up(x))`.

use hypic_kernels::op::{Device, OpError};

use crate::error::LoadError;
use crate::load::Weights;

pub(crate) struct Mlp<D: Device> {
    /// `[gate; up]`, `[2 intermediate, hidden]`.
    gate_up: D::Weight,
    /// `[hidden, intermediate]`.
    down: D::Weight,
}

impl<D: Device> Mlp<D> {
    pub(crate) fn load(
        weights: &mut Weights<'_, D>,
        layer: usize,
        hidden: usize,
        intermediate: usize,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("layers.{layer}.mlp.{part}.weight");
        let gate = weights.read(&name("gate_proj"), &[intermediate, hidden])?;
        let up = weights.read(&name("up_proj"), &[intermediate, hidden])?;
        Ok(Self {
            gate_up: weights.place(&gate.under(up))?,
            down: weights.weight(&name("down_proj"), &[hidden, intermediate])?,
        })
    }

    pub(crate) fn forward(&self, device: &D, x: &D::Tensor) -> Result<D::Tensor, OpError> {
        device.linear(&device.swiglu(&device.linear(x, &self.gate_up)?)?, &self.down)
    }
}
