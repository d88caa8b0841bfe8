//! What a rank sees of a model's shapes: its part of the heads.

use hypic_domain::model::{FullShape, LayerSpec, LinearShape, ModelSpec};

use crate::op::OpError;

fn part(what: &str, count: usize, ranks: usize) -> Result<usize, OpError> {
    if count.is_multiple_of(ranks) {
        return Ok(count / ranks);
    }
    Err(OpError::Unsupported { op: "tensor parallel", what: format!("{count} {what} over {ranks} ranks") })
}

/// A linear layer's.
///
/// # Errors
/// [`OpError::Unsupported`] names what cannot be divided, here and below.
pub(super) fn linear(shape: &LinearShape, ranks: usize) -> Result<LinearShape, OpError> {
    Ok(LinearShape {
        key_heads: part("key heads of a linear layer", shape.key_heads, ranks)?,
        heads: part("value heads of a linear layer", shape.heads, ranks)?,
        ..*shape
    })
}

/// A full layer's.
pub(super) fn full(shape: &FullShape, ranks: usize) -> Result<FullShape, OpError> {
    Ok(FullShape {
        heads: part("query heads of a full layer", shape.heads, ranks)?,
        kv_heads: part("key heads of a full layer", shape.kv_heads, ranks)?,
        ..*shape
    })
}

/// The width of a feed-forward part.
pub(super) fn width(width: usize, ranks: usize) -> Result<usize, OpError> {
    part("columns of a feed-forward part", width, ranks)
}

/// A model's.
pub(super) fn spec(spec: &ModelSpec, ranks: usize) -> Result<ModelSpec, OpError> {
    let layers = spec.layers.iter().map(|layer| match layer {
        LayerSpec::Linear(shape) => linear(shape, ranks).map(LayerSpec::Linear),
        LayerSpec::Full(shape) => full(shape, ranks).map(LayerSpec::Full),
    });
    Ok(ModelSpec { layers: layers.collect::<Result<_, _>>()?, ..spec.clone() })
}
