//! Writing a tuple layer by layer, while later layers are still being computed.

use hypic_domain::tuple::PartKind;

use crate::codec::manifest::{Manifest, TupleHead};
use crate::codec::part::Part;
use crate::codec::shape::live_set_bytes;
use crate::codec::values;
use crate::error::StoreError;
use crate::tuple::StoredTuple;

/// What one layer contributes, in fp32.
#[derive(Clone, Copy, Debug)]
pub enum LayerValues<'a> {
    /// A linear layer.
    Linear {
        /// Which heads have a `T`, `[heads]`; not read in families whose `T` is the identity.
        live: &'a [bool],
        /// `T` of the live heads, `[live heads, form]`.
        transition: &'a [f32],
        /// `S`, `[heads, key, value]`.
        state: &'a [f32],
        /// Raw convolution inputs, oldest first, `[K-1, channels]`.
        tail: &'a [f32],
    },
    /// A full layer.
    Full {
        /// Keys before rotation, `[kv heads, body, key]`.
        key: &'a [f32],
        /// Values, `[kv heads, body, value]`.
        value: &'a [f32],
    },
}

/// Encodes a tuple, first layer first. Parts can be sent as soon as their layer is pushed.
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
    /// The head contradicts itself, or its layout is not plain rows.
    pub fn new(head: TupleHead) -> Result<Self, StoreError> {
        if head.format.layout != 0 {
            return Err(StoreError::UseLayout { layout: head.format.layout });
        }
        head.check()?;
        Ok(Self { head, next: 0, end: 0, parts: Vec::new() })
    }

    /// Encodes the next layer and returns its parts.
    ///
    /// # Errors
    /// The layer is of the other kind or its values do not have the head's shape, or one is not finite. The
    /// writer is of no use after that.
    pub fn push_layer(&mut self, values: LayerValues<'_>) -> Result<&[Part], StoreError> {
        let first = self.parts.len();
        match values {
            LayerValues::Linear { live, transition, state, tail } => {
                self.push_transition(live, transition)?;
                self.push(PartKind::State, state)?;
                self.push(PartKind::Tail, tail)?;
            }
            LayerValues::Full { key, value } => {
                self.push(PartKind::Key, key)?;
                self.push(PartKind::Value, value)?;
            }
        }
        if usize::from(self.next) >= self.head.layers.len() || self.parts.len() == first {
            return Err(StoreError::PushLayer { layer: self.next, what: "the model has no such layer here" });
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

    fn push_transition(&mut self, live: &[bool], values: &[f32]) -> Result<(), StoreError> {
        let Some(shape) = self.head.shape(self.next, PartKind::Transition) else {
            return self.push(PartKind::Transition, values);
        };
        if live.len() as u64 != shape.heads {
            return Err(StoreError::PushLayer {
                layer: self.next,
                what: "the set of live heads is too short",
            });
        }
        let heads = live.iter().filter(|live| **live).count() as u64;
        if heads == 0 && values.is_empty() {
            return Ok(());
        }
        let mut bytes = vec![0; live_set_bytes(shape.heads) as usize];
        for (head, _) in live.iter().enumerate().filter(|(_, live)| **live) {
            bytes[head / 8] |= 1 << (head % 8);
        }
        self.encode(PartKind::Transition, heads, values, bytes)
    }

    fn push(&mut self, kind: PartKind, values: &[f32]) -> Result<(), StoreError> {
        match self.head.shape(self.next, kind) {
            Some(shape) => self.encode(kind, shape.heads, values, Vec::new()),
            None if values.is_empty() => Ok(()),
            None => {
                let (layer, found) = (self.next, values.len() as u64);
                Err(StoreError::CountValues { layer, kind, expected: 0, found })
            }
        }
    }

    fn encode(
        &mut self,
        kind: PartKind,
        heads: u64,
        values: &[f32],
        mut bytes: Vec<u8>,
    ) -> Result<(), StoreError> {
        let layer = self.next;
        let wrong = StoreError::PushLayer { layer, what: "its shape overflows" };
        let shape = self.head.shape(layer, kind).ok_or(wrong)?;
        let expected = shape.head_values().and_then(|n| n.checked_mul(heads)).unwrap_or(u64::MAX);
        let found = values.len() as u64;
        if expected != found {
            return Err(StoreError::CountValues { layer, kind, expected, found });
        }
        let len = shape.head_bytes().and_then(|n| n.checked_mul(heads)).unwrap_or(0);
        bytes.reserve_exact(len as usize);
        values::encode(values, shape.width as usize, shape.dtype, &mut bytes)
            .ok_or(StoreError::EncodeValues { layer, kind })?;
        let part = Part::written(layer, kind, self.end, bytes);
        self.end += part.spec().len;
        self.parts.push(part);
        Ok(())
    }
}
