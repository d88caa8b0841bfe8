//! What a tuple is before it exists, and between the codec's parts and what devices take over.

use std::sync::Arc;

use hypic_domain::key::SegmentKey;
use hypic_domain::model::LayerSpec;
use hypic_domain::tuple::PartKind;
use hypic_domain::unit::Tokens;
use hypic_kernels::op::HostLayer;
use hypic_store::StoreError;
use hypic_store::codec::{Part, TupleHead};

use super::EngineConfig;

/// One layer of a tuple from its parts, whose bytes it shares.
///
/// # Errors
/// A part that is missing or does not have the head's shape.
pub(super) fn host_layer(head: &TupleHead, layer: usize, parts: &[Part]) -> Result<HostLayer, StoreError> {
    let place = layer as u16;
    let parts: Vec<(PartKind, _)> = parts
        .iter()
        .filter(|part| part.spec().layer == place)
        .map(|part| (part.spec().kind, part.bytes().clone()))
        .collect();
    head.check_layer(place, parts.iter().map(|(kind, bytes)| (*kind, bytes)))?;
    Ok(HostLayer { format: head.format, body: head.body.0 as usize, parts })
}

/// What the tuple of a segment is, before it exists.
pub(super) fn tuple_head(
    config: &EngineConfig,
    layers: &Arc<[LayerSpec]>,
    key: SegmentKey,
    ids: &[u32],
) -> TupleHead {
    TupleHead {
        identity: config.identity,
        key,
        generation: 0,
        ids: ids.into(),
        body: Tokens((ids.len() as u32).saturating_sub(config.seam)),
        layers: Arc::clone(layers),
        format: config.format,
    }
}
