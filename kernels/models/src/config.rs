//! `config.json`: what is built of it, and everything else refused by name.

use domain::family::Family;
use domain::id::ModelId;
use domain::model::{FullShape, LayerSpec, LinearShape, ModelSpec};
use domain::unit::Tokens;
use hypic_domain as domain;
use hypic_kernels::coded::Blocks;
use hypic_kernels::op::ExpertShape;
use serde_json::{Map, Value};

use crate::error::LoadError;
use crate::fp8::blocks_of;
use crate::keys::{flag, key, number, size};
use crate::rope::Rope;

/// How a checkpoint names and orders its projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Qwen3-Next: one projection for queries, keys, values and gate, interleaved by key head.
    Qwen3Next,
    /// Qwen3.5: one projection each.
    Qwen35,
}

/// One layer's feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// One for every row, of this width.
    Dense(usize),
    /// A mixture of experts.
    Mixture {
        /// The experts that rows choose.
        shape: ExpertShape,
        /// Width of the expert that every row has; 0 for none.
        shared: usize,
    },
}

/// A checked config.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How projections lie.
    pub naming: Naming,
    /// Sizes and shapes.
    pub spec: ModelSpec,
    /// Feed-forward parts, first layer first.
    pub feed_forward: Vec<FeedForward>,
    /// Of every norm.
    pub eps: f32,
    /// Angles of positions.
    pub rope: Rope,
    /// The head is the embedding table; a stored head is then not read, as in transformers.
    pub tied: bool,
    /// Of weights that are stored in 8-bit floats.
    pub blocks: Option<Blocks>,
}

impl Config {
    /// Reads a config.
    ///
    /// # Errors
    /// [`LoadError::ReadKey`] for a missing or senseless key, [`LoadError::ChooseModel`] for what is not built.
    pub fn parse(root: &Value, id: ModelId) -> Result<Self, LoadError> {
        let root = root.as_object().ok_or_else(|| key("config.json", "not an object"))?;
        // Multi-modal checkpoints keep the language model's config inside; the innermost one decides.
        let text = match root.get("text_config") {
            None | Some(Value::Null) => root,
            Some(text) => text.as_object().ok_or_else(|| key("text_config", "not an object"))?,
        };
        let blocks = blocks_of(root)?.or(blocks_of(text)?);
        let naming = naming(text)?;
        refuse_variants(text)?;
        let layers = size(text, "num_hidden_layers")?;
        let linear = LinearShape {
            family: Family::Gdn,
            key_heads: size(text, "linear_num_key_heads")?,
            heads: size(text, "linear_num_value_heads")?,
            key: size(text, "linear_key_head_dim")?,
            value: size(text, "linear_value_head_dim")?,
            conv_kernel: size(text, "linear_conv_kernel_dim")?,
        };
        let hidden = size(text, "hidden_size")?;
        let head = match text.get("head_dim") {
            None | Some(Value::Null) => hidden / size(text, "num_attention_heads")?,
            Some(_) => size(text, "head_dim")?,
        };
        let context = size(text, "max_position_embeddings")?;
        let rope = Rope::parse(text, head, context)?;
        let full = FullShape {
            heads: size(text, "num_attention_heads")?,
            kv_heads: size(text, "num_key_value_heads")?,
            key: head,
            value: head,
            rotary: rope.rotary,
        };
        for (what, many, few) in [
            ("linear_num_value_heads", linear.heads, linear.key_heads),
            ("num_attention_heads", full.heads, full.kv_heads),
        ] {
            if !many.is_multiple_of(few) {
                return Err(key(what, format!("{many} is no multiple of {few}")));
            }
        }
        let feed_forward = feed_forward(text, layers)?;
        let kinds = layer_kinds(text, layers)?;
        let layers = kinds
            .into_iter()
            .map(|is_full| if is_full { LayerSpec::Full(full) } else { LayerSpec::Linear(linear) });
        let context =
            u32::try_from(context).map_err(|error| key("max_position_embeddings", error.to_string()))?;
        Ok(Self {
            naming,
            spec: ModelSpec {
                id,
                layers: layers.collect(),
                hidden,
                vocab: size(text, "vocab_size")?,
                context: Tokens(context),
            },
            feed_forward,
            eps: number(text, "rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope,
            tied: flag(text, "tie_word_embeddings")?.or(flag(root, "tie_word_embeddings")?).unwrap_or(false),
            blocks,
        })
    }

    /// Everything of the architecture that changes a result, as one line: a part of the identity.
    pub fn canonical(&self) -> String {
        let layers: Vec<String> = self
            .spec
            .layers
            .iter()
            .map(|layer| match layer {
                LayerSpec::Linear(s) => {
                    format!("gdn:{}:{}:{}:{}:{}", s.key_heads, s.heads, s.key, s.value, s.conv_kernel)
                }
                LayerSpec::Full(s) => format!("full:{}:{}:{}:{}", s.heads, s.kv_heads, s.key, s.rotary),
            })
            .collect();
        let family = match self.naming {
            Naming::Qwen3Next => "qwen3_next",
            Naming::Qwen35 => "qwen3_5",
        };
        let blocks = self.blocks.map_or_else(String::new, |of| format!(";fp8={}x{}", of.rows, of.columns));
        format!(
            "{family};hidden={};vocab={};mlp={};eps={:e};tied={};rope={};layers={}{blocks}",
            self.spec.hidden,
            self.spec.vocab,
            self.mlp(),
            self.eps,
            self.tied,
            self.rope.canonical(),
            layers.join(",")
        )
    }
}

impl Config {
    /// One description where all layers have the same feed-forward part, else one for each.
    fn mlp(&self) -> String {
        let one = |part: &FeedForward| match part {
            FeedForward::Dense(width) => width.to_string(),
            FeedForward::Mixture { shape, shared } => {
                let ExpertShape { experts, top, intermediate, renormalise } = shape;
                format!("moe:{experts}:{top}:{intermediate}:{shared}:{renormalise}")
            }
        };
        let mut parts: Vec<String> = self.feed_forward.iter().map(one).collect();
        parts.dedup();
        parts.join(",")
    }
}

fn naming(text: &Map<String, Value>) -> Result<Naming, LoadError> {
    match text.get("model_type").and_then(Value::as_str) {
        Some("qwen3_next") => Ok(Naming::Qwen3Next),
        Some("qwen3_5" | "qwen3_5_text" | "qwen3_5_moe" | "qwen3_5_moe_text") => Ok(Naming::Qwen35),
        Some(other) => Err(LoadError::ChooseModel {
            what: format!("model_type \"{other}\""),
            reason: "built are qwen3_next, qwen3_5 and qwen3_5_moe".to_owned(),
        }),
        None => Err(key("model_type", "missing")),
    }
}

fn refuse_variants(text: &Map<String, Value>) -> Result<(), LoadError> {
    let act = text.get("hidden_act").and_then(Value::as_str).unwrap_or("silu");
    if act != "silu" {
        return Err(LoadError::ChooseModel {
            what: format!("hidden_act \"{act}\""),
            reason: "only silu".to_owned(),
        });
    }
    if flag(text, "attention_bias")? == Some(true) {
        return Err(LoadError::ChooseModel {
            what: "attention_bias".to_owned(),
            reason: "only false".to_owned(),
        });
    }
    Ok(())
}

/// A layer is a mixture of experts as transformers decides it.
fn feed_forward(text: &Map<String, Value>, layers: usize) -> Result<Vec<FeedForward>, LoadError> {
    let experts = text.get("num_experts").and_then(Value::as_u64).unwrap_or(0);
    let step = text.get("decoder_sparse_step").and_then(Value::as_u64).unwrap_or(1).max(1);
    let dense: Vec<u64> = text
        .get("mlp_only_layers")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_u64).collect())
        .unwrap_or_default();
    let part = |layer: u64| {
        if experts > 0 && !dense.contains(&layer) && (layer + 1).is_multiple_of(step) {
            mixture(text)
        } else {
            size(text, "intermediate_size").map(FeedForward::Dense)
        }
    };
    (0..layers as u64).map(part).collect()
}

fn mixture(text: &Map<String, Value>) -> Result<FeedForward, LoadError> {
    let shape = ExpertShape {
        experts: size(text, "num_experts")?,
        top: size(text, "num_experts_per_tok")?,
        intermediate: size(text, "moe_intermediate_size")?,
        // Qwen3.5 always does, and has no such key.
        renormalise: flag(text, "norm_topk_prob")?.unwrap_or(true),
    };
    if shape.top > shape.experts {
        return Err(key("num_experts_per_tok", format!("{} of {} experts", shape.top, shape.experts)));
    }
    let shared = match text.get("shared_expert_intermediate_size") {
        None | Some(Value::Null) => 0,
        Some(width) if width.as_u64() == Some(0) => 0,
        Some(_) => size(text, "shared_expert_intermediate_size")?,
    };
    Ok(FeedForward::Mixture { shape, shared })
}

/// Which layers are full attention.
fn layer_kinds(text: &Map<String, Value>, layers: usize) -> Result<Vec<bool>, LoadError> {
    match text.get("layer_types") {
        None | Some(Value::Null) => {
            let interval = match text.get("full_attention_interval") {
                None | Some(Value::Null) => 4,
                Some(_) => size(text, "full_attention_interval")?,
            };
            Ok((1..=layers).map(|layer| layer.is_multiple_of(interval)).collect())
        }
        Some(list) => {
            let list = list.as_array().ok_or_else(|| key("layer_types", "not a list"))?;
            if list.len() != layers {
                return Err(key("layer_types", format!("{} entries for {layers} layers", list.len())));
            }
            let kind = |entry: &Value| match entry.as_str() {
                Some("linear_attention") => Ok(false),
                Some("full_attention") => Ok(true),
                _ => Err(LoadError::ChooseModel {
                    what: format!("layer type {entry}"),
                    reason: "linear_attention or full_attention".to_owned(),
                }),
            };
            list.iter().map(kind).collect()
        }
    }
}

#[cfg(test)]
mod tests;
