//! The feed-forward parts: dense, `down(silu(gate(x)) * up(x))`, and a mixture of experts of that form.

use hypic_kernels::op::{Device, ExpertShape, Experts, Norm, OpError, SharedExpert, Split};

use crate::config::FeedForward;
use crate::error::LoadError;
use crate::stored::Stored;
use crate::weights::Weights;

pub(crate) enum Mlp<D: Device> {
    Dense(Dense<D>),
    Mixture(Mixture<D>),
}

pub(crate) struct Dense<D: Device> {
    /// `[gate; up]`, `[2 intermediate, hidden]`.
    gate_up: D::Weight,
    /// `[hidden, intermediate]`.
    down: D::Weight,
}

pub(crate) struct Mixture<D: Device> {
    shape: ExpertShape,
    /// `[experts, hidden]`.
    router: D::Weight,
    /// `[gate; up]` of every expert, `[experts * 2 intermediate, hidden]`.
    gate_up: D::Weight,
    /// `[experts * hidden, intermediate]`.
    down: D::Weight,
    /// The expert that every row has, and its gate `[1, hidden]`.
    shared: Option<(Dense<D>, D::Weight)>,
}

impl<D: Device> Mlp<D> {
    pub(crate) fn load(
        weights: &mut Weights<'_, D>,
        layer: usize,
        hidden: usize,
        part: FeedForward,
    ) -> Result<Self, LoadError> {
        let name = format!("layers.{layer}.mlp");
        match part {
            FeedForward::Dense(width) => Dense::load(weights, &name, hidden, width).map(Self::Dense),
            FeedForward::Mixture { shape, shared } => {
                Mixture::load(weights, &name, hidden, (shape, shared)).map(Self::Mixture)
            }
        }
    }

    /// Adds what the mixer said to `x`, then what this part says of the norm of that.
    pub(crate) fn add_to(
        &self,
        device: &D,
        x: &mut D::Tensor,
        mixed: &D::Tensor,
        norm: &Norm<'_, D>,
    ) -> Result<(), OpError> {
        match self {
            Self::Dense(dense) => {
                let normed = device.add_norm(x, mixed, (norm.weight, norm.width), norm.style, norm.eps)?;
                device.add(x, &dense.forward(device, &normed)?)
            }
            Self::Mixture(Mixture { shape, router, gate_up, down, shared }) => {
                let experts = Experts { shape: *shape, router, gate_up, down };
                let shared = shared.as_ref();
                let shared =
                    shared.map(|(Dense { gate_up, down }, gate)| SharedExpert { gate_up, down, gate });
                device.add_mixture(x, mixed, norm, (&experts, shared.as_ref()))
            }
        }
    }
}

impl<D: Device> Dense<D> {
    fn load(
        weights: &mut Weights<'_, D>,
        name: &str,
        hidden: usize,
        width: usize,
    ) -> Result<Self, LoadError> {
        let gate = weights.read(&format!("{name}.gate_proj.weight"), &[width, hidden])?;
        let up = weights.read(&format!("{name}.up_proj.weight"), &[width, hidden])?;
        Ok(Self {
            gate_up: weights.place(&gate.under(up), Split::Rows(vec![width]))?,
            down: weights.weight(&format!("{name}.down_proj.weight"), &[hidden, width], Split::Columns)?,
        })
    }

    fn forward(&self, device: &D, x: &D::Tensor) -> Result<D::Tensor, OpError> {
        device.linear(&device.swiglu(&device.linear(x, &self.gate_up)?)?, &self.down)
    }
}

impl<D: Device> Mixture<D> {
    fn load(
        weights: &mut Weights<'_, D>,
        name: &str,
        hidden: usize,
        (shape, shared): (ExpertShape, usize),
    ) -> Result<Self, LoadError> {
        let ExpertShape { experts, intermediate: width, .. } = shape;
        let part = |part: &str| format!("{name}.experts.{part}");
        let by_width = || Split::Rows(vec![width]);
        // Qwen3.5 keeps the experts in one tensor, Qwen3-Next each in its own.
        let (gate_up, down) = if weights.has(&part("gate_up_proj")) {
            (
                weights.weight(&part("gate_up_proj"), &[experts, 2 * width, hidden], by_width())?,
                weights.weight(&part("down_proj"), &[experts, hidden, width], Split::Columns)?,
            )
        } else {
            let mut parts = (Vec::with_capacity(2 * experts), Vec::with_capacity(experts));
            for expert in 0..experts {
                let part = |kind: &str| part(&format!("{expert}.{kind}_proj.weight"));
                parts.0.push(weights.read(&part("gate"), &[width, hidden])?);
                parts.0.push(weights.read(&part("up"), &[width, hidden])?);
                parts.1.push(weights.read(&part("down"), &[hidden, width])?);
            }
            (
                weights.place(&Stored::stacked(&part("gate_up"), parts.0), by_width())?,
                weights.place(&Stored::stacked(&part("down"), parts.1), Split::Columns)?,
            )
        };
        let shared = match shared {
            0 => None,
            shared => Some((
                Dense::load(weights, &format!("{name}.shared_expert"), hidden, shared)?,
                weights.wide(&format!("{name}.shared_expert_gate.weight"), &[1, hidden])?,
            )),
        };
        Ok(Self {
            shape,
            router: weights.wide(&format!("{name}.gate.weight"), &[experts, hidden])?,
            gate_up,
            down,
            shared,
        })
    }
}
