//! Writing a tuple layer by layer, while later layers are still being computed.

use bytes::Bytes;
use hypic_domain::part::live_set_bytes;
use hypic_domain::tuple::PartKind;

use crate::codec::manifest::{Manifest, TupleHead};
use crate::codec::part::Part;
use crate::error::StoreError;
use crate::tuple::StoredTuple;

/// Puts a tuple together, first layer first. Parts can be sent as soon as their layer is pushed.
#[derive(Debug)]
pub struct TupleWriter {
    head: TupleHead,
    next: u16,
    end: u64,
    parts: Vec<Part>,
}

impl TupleWriter {
    /// Begins a tuple.
    ///
    /// # Errors
    /// The head contradicts itself.
    pub fn new(head: TupleHead) -> Result<Self, StoreError> {
        head.check()?;
        Ok(Self { head, next: 0, end: 0, parts: Vec::new() })
    }

    /// Takes the next layer, in the head's formats, and returns its parts.
    ///
    /// # Errors
    /// A part is missing, of another layer or of another shape than the head's, or one of its values is not finite.
    /// The writer is of no use after that.
    pub fn push_layer(
        &mut self,
        layer: impl IntoIterator<Item = (PartKind, Bytes)>,
    ) -> Result<&[Part], StoreError> {
        let (first, layer_number) = (self.parts.len(), self.next);
        if usize::from(layer_number) >= self.head.layers.len() {
            let what = "the model has no such layer";
            return Err(StoreError::PushLayer { layer: layer_number, what });
        }
        let mut layer: Vec<(PartKind, Bytes)> = layer.into_iter().collect();
        layer.sort_unstable_by_key(|(kind, _)| *kind);
        self.head.check_layer(layer_number, layer.iter().map(|(kind, bytes)| (*kind, bytes)))?;
        for (kind, bytes) in layer {
            self.check_values(kind, &bytes)?;
            let part = Part::written(layer_number, kind, self.end, bytes);
            self.end += part.spec().len;
            self.parts.push(part);
        }
        self.next += 1;
        Ok(&self.parts[first..])
    }

    /// The tuple, once every layer is there.
    ///
    /// # Errors
    /// [`StoreError::PushLayer`] if a layer is missing.
    pub fn finish(self) -> Result<StoredTuple, StoreError> {
        if usize::from(self.next) != self.head.layers.len() {
            return Err(StoreError::PushLayer { layer: self.next, what: "it is missing" });
        }
        let parts = self.parts.iter().map(|part| part.spec().clone()).collect();
        StoredTuple::assemble(Manifest { head: self.head, parts }, self.parts)
    }

    /// A value that is not finite would spread to whoever uses the tuple.
    fn check_values(&self, kind: PartKind, bytes: &Bytes) -> Result<(), StoreError> {
        let layer = self.next;
        let Some(shape) = self.head.shape(layer, kind) else { return Ok(()) };
        let set = if kind == PartKind::Transition { live_set_bytes(shape.heads as usize) } else { 0 };
        match self.head.format.is_finite(kind, &shape, &bytes[set..]) {
            true => Ok(()),
            false => Err(StoreError::StoreValues { layer, kind }),
        }
    }
}
