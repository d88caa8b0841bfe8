//! A tuple in memory.

use std::sync::Arc;

use bytes::Bytes;
use hypic_domain::key::SegmentKey;
use hypic_domain::tuple::PartKind;

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
            manifest.head.live_heads(part.spec().layer, Some(part.bytes()))?;
        }
        let encoded = manifest.encode().into();
        Ok(Self(Arc::new(Inner { manifest, encoded, parts })))
    }

    /// The same tuple with the bytes of its layers where `place` puts them; nothing where all stay.
    pub(crate) fn placed(&self, place: impl Fn(&[Bytes]) -> Option<Vec<Bytes>>) -> Option<Self> {
        let mut parts = Vec::with_capacity(self.0.parts.len());
        let mut moved = false;
        for layer in self.0.parts.chunk_by(|a, b| a.spec().layer == b.spec().layer) {
            let bytes: Vec<Bytes> = layer.iter().map(|part| part.bytes().clone()).collect();
            let lens = |bytes: &[Bytes]| bytes.iter().map(Bytes::len).collect::<Vec<_>>();
            let placed = place(&bytes).filter(|placed| lens(placed) == lens(&bytes));
            moved |= placed.is_some();
            let placed = placed.unwrap_or(bytes);
            parts.extend(layer.iter().zip(placed).map(|(part, bytes)| part.moved(bytes)));
        }
        let Inner { manifest, encoded, .. } = &*self.0;
        let inner = Inner { manifest: manifest.clone(), encoded: encoded.clone(), parts };
        moved.then(|| Self(Arc::new(inner)))
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
        self.layer(layer).iter().find(|part| part.spec().kind == kind).map(Part::bytes)
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

    /// The parts of one layer.
    pub fn layer(&self, layer: u16) -> &[Part] {
        let from = self.0.parts.partition_point(|part| part.spec().layer < layer);
        let len = self.0.parts[from..].partition_point(|part| part.spec().layer == layer);
        &self.0.parts[from..from + len]
    }

    /// Somebody outside the store holds it. Only meaningful under the lock of the tier that holds the one
    /// stored clone: a first clone is only made there.
    pub(crate) fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
