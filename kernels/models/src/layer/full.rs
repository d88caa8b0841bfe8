//! The gated full-attention mixer of Qwen3-Next and Qwen3.5.

use hypic_domain::model::FullShape;
use hypic_kernels::op::{Device, FullInput, HeadNorms, Norm, NormWeight, OpError, Split};
use hypic_kernels::plan::Plan;

use crate::config::Config;
use crate::error::LoadError;
use crate::weights::Weights;

pub(crate) struct FullLayer<D: Device> {
    shape: FullShape,
    eps: f32,
    query: D::Weight,
    gate: D::Weight,
    key: D::Weight,
    value: D::Weight,
    query_norm: D::Weight,
    key_norm: D::Weight,
    out: D::Weight,
}

impl<D: Device> FullLayer<D> {
    pub(crate) fn load(
        weights: &mut Weights<'_, D>,
        layer: usize,
        config: &Config,
        shape: FullShape,
    ) -> Result<Self, LoadError> {
        let hidden = config.spec.hidden;
        let name = |part: &str| format!("layers.{layer}.self_attn.{part}.weight");
        // Per head: its query, then its gate.
        let both = weights.read(&name("q_proj"), &[2 * shape.heads * shape.key, hidden])?;
        let half = |first: usize| {
            (0..shape.heads)
                .flat_map(move |head| (0..shape.key).map(move |i| (2 * head + first) * shape.key + i))
        };
        let (queries, mixed) = (shape.heads * shape.key, shape.heads * shape.value);
        let (keys, values) = (shape.kv_heads * shape.key, shape.kv_heads * shape.value);
        let by_heads = |rows: usize| Split::Rows(vec![rows]);
        Ok(Self {
            shape,
            eps: config.eps,
            query: weights.place(&both.rows(half(0)), by_heads(queries))?,
            gate: weights.place(&both.rows(half(1)), by_heads(queries))?,
            key: weights.weight(&name("k_proj"), &[keys, hidden], by_heads(keys))?,
            value: weights.weight(&name("v_proj"), &[values, hidden], by_heads(values))?,
            query_norm: weights.exact(&name("q_norm"), &[shape.key], Split::Whole)?,
            key_norm: weights.exact(&name("k_norm"), &[shape.key], Split::Whole)?,
            out: weights.weight(&name("o_proj"), &[hidden, mixed], Split::Columns)?,
        })
    }

    /// What it says of the norm of `x`.
    pub(crate) fn forward(
        &self,
        device: &D,
        (layer, rope): (usize, &D::Weight),
        plan: &Plan<D>,
        pages: &mut D::Pages,
        (x, norm): (&D::Tensor, &Norm<'_, D>),
    ) -> Result<D::Tensor, OpError> {
        let weights = [&self.query, &self.gate, &self.key, &self.value];
        let [query, gate, key, value] = device.norm_linears(x, norm, weights)?;
        let input = FullInput {
            layer,
            shape: &self.shape,
            query: &query,
            key: &key,
            value: &value,
            rope,
            scale: (self.shape.key as f32).powf(-0.5),
        };
        let (query, key) = (&self.query_norm, &self.key_norm);
        let norms = HeadNorms { query, key, style: NormWeight::ZeroCentred, eps: self.eps };
        let mixed = device.full_mixer_gated(&input, (&norms, &gate), plan, pages)?;
        device.linear(&mixed, &self.out)
    }
}
