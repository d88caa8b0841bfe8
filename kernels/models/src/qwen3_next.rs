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

    fn normed(&self, device: &D, x: &D::Tensor, weight: &D::Weight) -> Result<D::Tensor, OpError> {
        let Norm { weight, width, style, eps } = self.norm(weight);
        device.rms_norm(x, weight, width, style, eps)
    }

    fn part(&self, layer: usize) -> Result<&Layer<D>, OpError> {
        self.layers.get(layer).ok_or_else(|| OpError::Shape {
            op: "layer",
            expected: format!("a layer below {}", self.layers.len()),
            found: layer.to_string(),
        })
    }

    /// One layer over `x`, whose norm is `normed`: what it leaves in `x`; the norm of that before the next layer, unless one
    /// stops here.
    fn advance(
        &self,
        device: &D,
        (layer, stops): (usize, bool),
        plan: &Plan<D>,
        memory: Memory<'_, D>,
        (x, normed): (&mut D::Tensor, &D::Tensor),
    ) -> Result<Option<D::Tensor>, OpError> {
        let parts = self.part(layer)?;
        let mixed = match &parts.mixer {
            Mixer::Linear(mixer) => mixer.forward(device, layer, plan, memory.states, normed)?,
            Mixer::Full(mixer) => mixer.forward(device, (layer, &self.rope), plan, memory.pages, normed)?,
        };
        let next = self.layers.get(layer + 1).filter(|_| !stops).map(|next| self.norm(&next.before));
        parts.mlp.add_to(device, x, &mixed, (&self.norm(&parts.between), next.as_ref()))
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
        let normed = self.normed(device, &x, &self.part(layer)?.before)?;
        self.advance(device, (layer, true), plan, memory, (&mut x, &normed))?;
        Ok(x)
    }

    // Without a stop between layers, the sums of one and the norm of the next are asked for together.
    fn step(&self, device: &D, plan: &Plan<D>, memory: Memory<'_, D>) -> Result<D::Tensor, OpError> {
        device.step(plan, memory.states, memory.pages, &mut |states, pages| {
            let mut x = self.embed(device, plan)?;
            let mut normed = match self.layers.first() {
                Some(first) => Some(self.normed(device, &x, &first.before)?),
                None => None,
            };
            let mut layer = 0;
            while let Some(rows) = normed {
                let memory = Memory { states: &mut *states, pages: &mut *pages };
                normed = self.advance(device, (layer, false), plan, memory, (&mut x, &rows))?;
                layer += 1;
            }
            Ok(x)
        })
    }

    fn logits(&self, device: &D, x: &D::Tensor, rows: &[(usize, Need)]) -> Result<Vec<Logits>, OpError> {
        let (rows, needs): (Vec<_>, Vec<_>) = rows.iter().copied().unzip();
        let normed = self.normed(device, &device.select(x, &rows)?, &self.norm)?;
        device.scores(&normed, self.head.as_ref().unwrap_or(&self.embedding), &needs)
    }
}
