//! Qwen3-Next and Qwen3.5: the two differ in how projections are stored only.

use hypic_domain::logits::{Logits, Need};
use hypic_domain::model::{LayerSpec, ModelSpec};
use hypic_kernels::op::{Device, Norm, NormWeight, OpError, Split};
use hypic_kernels::plan::Plan;

use crate::config::Config;
use crate::error::LoadError;
use crate::layer::full::FullLayer;
use crate::layer::linear::LinearLayer;
use crate::layer::mlp::Mlp;
use crate::model::{Memory, Model};
use crate::weights::Weights;

pub(crate) struct Qwen3Next<D: Device> {
    spec: ModelSpec,
    eps: f32,
    embedding: D::Weight,
    /// `[context, rotary]`.
    rope: D::Weight,
    layers: Vec<Layer<D>>,
    norm: D::Weight,
    /// None: the embedding table.
    head: Option<D::Weight>,
}

struct Layer<D: Device> {
    before: D::Weight,
    mixer: Mixer<D>,
    between: D::Weight,
    mlp: Mlp<D>,
}

enum Mixer<D: Device> {
    Linear(LinearLayer<D>),
    Full(FullLayer<D>),
}

impl<D: Device> Qwen3Next<D> {
    pub(crate) fn load(config: &Config, weights: &mut Weights<'_, D>) -> Result<Self, LoadError> {
        let spec = config.spec.clone();
        let table = [spec.vocab, spec.hidden];
        let embedding = weights.wide("embed_tokens.weight", &table)?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (layer, kind) in spec.layers.iter().enumerate() {
            let norm = |part: &str| format!("layers.{layer}.{part}_layernorm.weight");
            layers.push(Layer {
                before: weights.exact(&norm("input"), &[spec.hidden], Split::Whole)?,
                mixer: match kind {
                    LayerSpec::Linear(shape) => {
                        Mixer::Linear(LinearLayer::load(weights, layer, config, *shape)?)
                    }
                    LayerSpec::Full(shape) => Mixer::Full(FullLayer::load(weights, layer, config, *shape)?),
                },
                between: weights.exact(&norm("post_attention"), &[spec.hidden], Split::Whole)?,
                mlp: Mlp::load(weights, layer, spec.hidden, config.feed_forward[layer])?,
            });
        }
        let norm = weights.exact("norm.weight", &[spec.hidden], Split::Whole)?;
        let head = match config.tied {
            true => None,
            false => Some(weights.root_wide("lm_head.weight", &table)?),
        };
        let rope = weights.table("rope", &config.rope.table(spec.context.0 as usize), config.rope.rotary)?;
        Ok(Self { spec, eps: config.eps, embedding, rope, layers, norm, head })
    }

    fn norm<'a>(&self, weight: &'a D::Weight) -> Norm<'a, D> {
        Norm { weight, width: self.spec.hidden, style: NormWeight::ZeroCentred, eps: self.eps }
    }

    fn part(&self, layer: usize) -> Result<&Layer<D>, OpError> {
        self.layers.get(layer).ok_or_else(|| OpError::Shape {
            op: "layer",
            expected: format!("a layer below {}", self.layers.len()),
            found: layer.to_string(),
        })
    }
}

impl<D: Device> Model<D> for Qwen3Next<D> {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn embed(&self, device: &D, plan: &Plan<D>) -> Result<D::Tensor, OpError> {
        device.embed(&self.embedding, &plan.ids)
    }

    fn layer(
        &self,
        device: &D,
        layer: usize,
        plan: &Plan<D>,
        memory: Memory<'_, D>,
        mut x: D::Tensor,
    ) -> Result<D::Tensor, OpError> {
        let parts = self.part(layer)?;
        let before = (&x, &self.norm(&parts.before));
        let mixed = match &parts.mixer {
            Mixer::Linear(mixer) => mixer.forward(device, layer, plan, memory.states, before)?,
            Mixer::Full(mixer) => mixer.forward(device, (layer, &self.rope), plan, memory.pages, before)?,
        };
        parts.mlp.add_to(device, &mut x, &mixed, &self.norm(&parts.between))?;
        Ok(x)
    }

    fn logits(&self, device: &D, x: &D::Tensor, rows: &[(usize, Need)]) -> Result<Vec<Logits>, OpError> {
        let (rows, needs): (Vec<_>, Vec<_>) = rows.iter().cloned().unzip();
        let Norm { weight, width, style, eps } = self.norm(&self.norm);
        let normed = device.rms_norm(&device.select(x, &rows)?, weight, width, style, eps)?;
        device.scores(&normed, self.head.as_ref().unwrap_or(&self.embedding), &needs)
    }
}
