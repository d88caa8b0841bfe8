//! Between the codec's parts and what devices take over.

use hypic_domain::tuple::PartKind;
use hypic_kernels::op::HostLayer;
use hypic_store::StoreError;
use hypic_store::codec::{Part, TupleHead};

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
