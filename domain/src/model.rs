//! The light facts of a model: what router, scheduler and store need to know of sizes.

use serde::{Deserialize, Serialize};

use crate::family::Family;
use crate::id::ModelId;
use crate::tuple::{Dtype, TupleFormat};
use crate::unit::{Bytes, Tokens};

/// Shape of one linear-attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinearShape {
    /// How the state advances.
    pub family: Family,
    /// Heads of keys and queries.
    pub key_heads: usize,
    /// Value heads; each has its own `T`, even where key heads are shared.
    pub heads: usize,
    /// Width of a key, `d_k`.
    pub key: usize,
    /// Width of a value, `d_v`.
    pub value: usize,
    /// Taps of the short convolution, `K`; 0 or 1 where there is none.
    pub conv_kernel: usize,
}

impl LinearShape {
    /// Channels that pass the short convolution: queries, keys, values.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_heads * self.key + self.heads * self.value
    }

    /// Rows of raw convolution inputs that a segment leaves behind.
    pub fn tail_rows(&self) -> usize {
        self.conv_kernel.saturating_sub(1)
    }
}

/// Shape of one full-attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FullShape {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a cached key (MLA: latent and rope key together, with one head).
    pub key: usize,
    /// Width of a cached value (MLA: 0, since the latent serves as both).
    pub value: usize,
    /// Channels of a key that are rotated by position: its first ones, and of MLA those behind the latent.
    pub rotary: usize,
}

/// One layer's token mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LayerSpec {
    /// Linear attention with a running state.
    Linear(LinearShape),
    /// Full attention with a KV cache.
    Full(FullShape),
}

/// What of a model is known without its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The served name.
    pub id: ModelId,
    /// Token mixers, first layer first.
    pub layers: Vec<LayerSpec>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Longest prompt and answer together.
    pub context: Tokens,
}

impl ModelSpec {
    /// Bytes of a tuple whose body has `body` tokens, when a share `live` (0 to 1) of heads stores `T`.
    pub fn tuple_bytes(&self, body: Tokens, live: f64, format: &TupleFormat) -> Bytes {
        let body = body.0 as usize;
        let one = |count: usize, dtype: Dtype| (count * dtype.size()) as u64;
        let bytes = self.layers.iter().map(|layer| match layer {
            LayerSpec::Linear(shape) => {
                let live_heads = (shape.heads as f64 * live).round() as usize;
                one(live_heads * shape.family.transition().len(shape.key), format.transition)
                    + one(shape.heads * shape.key * shape.value, format.state)
                    + one(shape.tail_rows() * shape.conv_channels(), format.tail)
            }
            LayerSpec::Full(shape) => one(body * shape.kv_heads * (shape.key + shape.value), format.kv),
        });
        Bytes(bytes.sum())
    }

    /// Bytes of one running state over all layers, fp32: a state slot.
    pub fn slot_bytes(&self) -> Bytes {
        let floats = self.layers.iter().map(|layer| match layer {
            LayerSpec::Linear(shape) => {
                shape.heads * shape.key * shape.value + shape.tail_rows() * shape.conv_channels()
            }
            LayerSpec::Full(_) => 0,
        });
        Bytes(4 * floats.sum::<usize>() as u64)
    }
}
