//! Between the codec's parts and what devices compute with.

use hypic_domain::model::LayerSpec;
use hypic_domain::tuple::PartKind;
use hypic_kernels::op::HostLayer;
use hypic_store::StoreError;
use hypic_store::codec::{LayerValues, Part, TupleHead};

/// One layer of a tuple from its parts.
///
/// # Errors
/// A part that is missing or does not have the head's shape.
pub(super) fn decode_layer(head: &TupleHead, layer: usize, parts: &[Part]) -> Result<HostLayer, StoreError> {
    let place = layer as u16;
    let find = |kind| parts.iter().find(|part| part.spec().layer == place && part.spec().kind == kind);
    let values = |kind| {
        let mut values = Vec::new();
        if let Some(part) = find(kind) {
            head.decode_into(part, &mut values)?;
        }
        Ok(values)
    };
    Ok(match head.layers.get(layer) {
        Some(LayerSpec::Linear(_)) => HostLayer::Linear {
            live: head.live_heads(place, find(PartKind::Transition))?,
            transition: values(PartKind::Transition)?,
            state: values(PartKind::State)?,
            tail: values(PartKind::Tail)?,
        },
        _ => HostLayer::Full { key: values(PartKind::Key)?, value: values(PartKind::Value)? },
    })
}

/// A layer as the codec takes it.
pub(super) fn layer_values(layer: &HostLayer) -> LayerValues<'_> {
    match layer {
        HostLayer::Linear { live, transition, state, tail } => {
            LayerValues::Linear { live, transition, state, tail }
        }
        HostLayer::Full { key, value } => LayerValues::Full { key, value },
    }
}
