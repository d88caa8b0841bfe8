//! The gated delta net mixer of Qwen3-Next and Qwen3.5.

use hypic_domain::model::LinearShape;
use hypic_kernels::op::{Device, Gates, HeadGate, LinearInput, Norm, OpError, Split};
use hypic_kernels::plan::Plan;

use crate::config::{Config, Naming};
use crate::error::LoadError;
use crate::weights::Weights;

pub(crate) struct LinearLayer<D: Device> {
    shape: LinearShape,
    eps: f32,
    /// Queries, keys, values: `[channels, hidden]`.
    raw: D::Weight,
    /// Gate of the output: `[heads * value, hidden]`.
    gate: D::Weight,
    /// Write strengths and decays: `[heads, hidden]`.
    write: D::Weight,
    decay: D::Weight,
    conv: D::Weight,
    a_log: D::Weight,
    dt_bias: D::Weight,
    norm: D::Weight,
    out: D::Weight,
}

impl<D: Device> LinearLayer<D> {
    pub(crate) fn load(
        weights: &mut Weights<'_, D>,
        layer: usize,
        config: &Config,
        shape: LinearShape,
    ) -> Result<Self, LoadError> {
        let hidden = config.spec.hidden;
        let name = |part: &str| format!("layers.{layer}.linear_attn.{part}");
        let (keys, values) = (shape.key_heads * shape.key, shape.heads * shape.value);
        let (channels, heads) = (shape.conv_channels(), shape.heads);
        let by_channels = || Split::Rows(vec![keys, keys, values]);
        let by_heads = |rows: usize| Split::Rows(vec![rows]);
        let (raw, gate, write, decay) = match config.naming {
            Naming::Qwen35 => (
                weights.weight(&name("in_proj_qkv.weight"), &[channels, hidden], by_channels())?,
                weights.weight(&name("in_proj_z.weight"), &[values, hidden], by_heads(values))?,
                weights.weight(&name("in_proj_b.weight"), &[heads, hidden], by_heads(heads))?,
                weights.weight(&name("in_proj_a.weight"), &[heads, hidden], by_heads(heads))?,
            ),
            Naming::Qwen3Next => {
                // Per key head: its query, its key, the values and the gates of its value heads.
                let group = shape.heads / shape.key_heads;
                let wide = group * shape.value;
                let stride = 2 * shape.key + 2 * wide;
                let of = |first: usize, count: usize| {
                    (0..shape.key_heads)
                        .flat_map(move |head| (0..count).map(move |i| head * stride + first + i))
                };
                let all = weights.read(&name("in_proj_qkvz.weight"), &[2 * keys + 2 * values, hidden])?;
                let raw = of(0, shape.key).chain(of(shape.key, shape.key)).chain(of(2 * shape.key, wide));
                // Per key head: the strengths of its value heads, then their decays.
                let both = weights.read(&name("in_proj_ba.weight"), &[2 * shape.heads, hidden])?;
                let gates = |first: usize| {
                    (0..shape.key_heads)
                        .flat_map(move |head| (0..group).map(move |i| head * 2 * group + first + i))
                };
                (
                    weights.place(&all.rows(raw), by_channels())?,
                    weights.place(&all.rows(of(2 * shape.key + wide, wide)), by_heads(values))?,
                    weights.place(&both.rows(gates(0)), by_heads(heads))?,
                    weights.place(&both.rows(gates(group)), by_heads(heads))?,
                )
            }
        };
        Ok(Self {
            shape,
            eps: config.eps,
            raw,
            gate,
            write,
            decay,
            conv: weights.exact(&name("conv1d.weight"), &[channels, shape.conv_kernel], by_channels())?,
            a_log: weights.exact(&name("A_log"), &[heads], by_heads(heads))?,
            dt_bias: weights.exact(&name("dt_bias"), &[heads], by_heads(heads))?,
            norm: weights.exact(&name("norm.weight"), &[shape.value], Split::Whole)?,
            out: weights.weight(&name("out_proj.weight"), &[hidden, values], Split::Columns)?,
        })
    }

    /// What it says of the norm of `x`.
    pub(crate) fn forward(
        &self,
        device: &D,
        layer: usize,
        plan: &Plan<D>,
        states: &mut D::States,
        (x, norm): (&D::Tensor, &Norm<'_, D>),
    ) -> Result<D::Tensor, OpError> {
        let weights = [&self.raw, &self.gate, &self.decay, &self.write];
        let [raw, gate, a, b] = device.norm_linears(x, norm, weights)?;
        let gates = Gates::Gdn { a: &a, b: &b, a_log: &self.a_log, dt_bias: &self.dt_bias };
        let input = LinearInput { layer, shape: &self.shape, raw: &raw, conv: Some(&self.conv), gates };
        let gate = HeadGate { gate: &gate, weight: &self.norm, eps: self.eps };
        let normed = device.linear_mixer_norm(&input, &gate, plan, states)?;
        device.linear(&normed, &self.out)
    }
}
