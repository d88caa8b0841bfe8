//! A tuple in memory.

use std::sync::Arc;

use bytes::Bytes;
use hypic_domain::key::SegmentKey;
use hypic_domain::tuple::{PartKind, PartSpec};

use crate::codec::{Manifest, Part, TupleHead};
use crate::error::StoreError;

/// A whole, checked tuple. Cloning is cheap, and a clone is the pin: while one is held outside the store, no
/// tier evicts the tuple.
#[derive(Clone, Debug)]
pub struct StoredTuple(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    manifest: Manifest,
    encoded: Bytes,
    parts: Vec<Part>,
}

impl StoredTuple {
    /// Puts parts and manifest together: all parts or none.
    ///
    /// # Errors
    /// The manifest contradicts itself, or a part is missing, too many or not the manifest's.
    pub fn assemble(manifest: Manifest, mut parts: Vec<Part>) -> Result<Self, StoreError> {
        manifest.check()?;
        parts.sort_unstable_by_key(|part| part.spec().offset);
        if !parts.iter().map(Part::spec).eq(&manifest.parts) {
            return Err(StoreError::Assemble { what: "a part is missing, too many or another one" });
        }
        for part in parts.iter().filter(|part| part.spec().kind == PartKind::Transition) {
            manifest.head.live_heads(part.spec().layer, Some(part))?;
        }
        let encoded = manifest.encode().into();
        Ok(Self(Arc::new(Inner { manifest, encoded, parts })))
    }

    /// The key under which it is stored.
    pub fn key(&self) -> &SegmentKey {
        &self.0.manifest.head.key
    }

    /// What it is.
    pub fn head(&self) -> &TupleHead {
        &self.0.manifest.head
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// Its manifest as bytes.
    pub fn encoded_manifest(&self) -> &Bytes {
        &self.0.encoded
    }

    /// Its parts, layer-major.
    pub fn parts(&self) -> &[Part] {
        &self.0.parts
    }

    /// Bytes of manifest and parts: what it counts in every tier.
    pub fn bytes(&self) -> u64 {
        self.0.encoded.len() as u64 + self.0.manifest.part_bytes().0
    }

    /// The bytes of one part; `None` where the layer has none of that kind.
    pub fn part(&self, layer: u16, kind: PartKind) -> Option<&Bytes> {
        self.find(layer, kind).map(Part::bytes)
    }

    /// `len` bytes from `offset`, counted from the start of the first part, for a sender; `None` where they do
    /// not lie inside one part. They share the tuple's memory.
    pub fn range(&self, offset: u64, len: u64) -> Option<Bytes> {
        let at = self.0.parts.partition_point(|part| part.spec().offset <= offset).checked_sub(1)?;
        let part = &self.0.parts[at];
        let start = offset - part.spec().offset;
        let end = start.checked_add(len).filter(|end| *end <= part.spec().len)?;
        Some(part.bytes().slice(start as usize..end as usize))
    }

    /// Replaces `out` by the values of one part; by nothing where the layer has none of that kind.
    ///
    /// # Errors
    /// [`StoreError::UseLayout`] if the values are in a device's own order.
    pub fn decode_into(&self, layer: u16, kind: PartKind, out: &mut Vec<f32>) -> Result<(), StoreError> {
        match self.find(layer, kind) {
            Some(part) => self.head().decode_into(part, out),
            None => {
                out.clear();
                Ok(())
            }
        }
    }

    /// Which heads of a linear layer have a `T`, `[heads]`; empty for full layers. In a family whose `T` is the
    /// identity, all of them.
    ///
    /// # Errors
    /// None for an assembled tuple; the set was checked.
    pub fn live_heads(&self, layer: u16) -> Result<Vec<bool>, StoreError> {
        self.head().live_heads(layer, self.find(layer, PartKind::Transition))
    }

    /// Somebody outside the store holds it. Only meaningful under the lock of the tier that holds the one
    /// stored clone: a first clone is only made there.
    pub(crate) fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn find(&self, layer: u16, kind: PartKind) -> Option<&Part> {
        let place = |part: &Part| {
            let PartSpec { layer, kind, .. } = *part.spec();
            (layer, kind)
        };
        let found = self.0.parts.binary_search_by_key(&(layer, kind), place);
        found.ok().map(|at| &self.0.parts[at])
    }
}
