//! One part whose bytes are known to be right.

use bytes::Bytes;
use hypic_domain::model::LayerSpec;
use hypic_domain::tuple::{PartKind, PartSpec};
use xxhash_rust::xxh3::xxh3_64;

use crate::codec::manifest::TupleHead;
use crate::codec::shape::live_set_bytes;
use crate::codec::values;
use crate::error::StoreError;

/// A part with the bytes that its sum names. It can only be made by checking or by writing.
#[derive(Clone, Debug)]
pub struct Part {
    spec: PartSpec,
    bytes: Bytes,
}

impl Part {
    /// Compares `bytes` with the length and the sum of `spec`.
    ///
    /// # Errors
    /// [`StoreError::CheckLength`] or [`StoreError::CheckSum`].
    pub fn check(spec: PartSpec, bytes: Bytes) -> Result<Self, StoreError> {
        let part = Self::checked_in_transit(spec, bytes)?;
        if xxh3_64(&part.bytes) != part.spec.sum {
            return Err(StoreError::CheckSum { layer: part.spec.layer, kind: part.spec.kind });
        }
        Ok(part)
    }

    /// For bytes whose sum the transport has compared: a part is summed once, not twice.
    ///
    /// # Errors
    /// [`StoreError::CheckLength`].
    pub fn checked_in_transit(spec: PartSpec, bytes: Bytes) -> Result<Self, StoreError> {
        if bytes.len() as u64 == spec.len {
            Ok(Self { spec, bytes })
        } else {
            Err(StoreError::CheckLength { layer: spec.layer, kind: spec.kind, found: bytes.len() as u64 })
        }
    }

    /// A part that was just written, at `offset`.
    pub(crate) fn written(layer: u16, kind: PartKind, offset: u64, bytes: Vec<u8>) -> Self {
        let spec = PartSpec { layer, kind, offset, len: bytes.len() as u64, sum: xxh3_64(&bytes) };
        Self { spec, bytes: bytes.into() }
    }

    /// Where it lies and what sum it has.
    pub fn spec(&self) -> &PartSpec {
        &self.spec
    }

    /// Its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl TupleHead {
    /// Replaces `out` by the values of a part: `[live heads, form]` of a transition, else the shape of
    /// [`PartKind`].
    ///
    /// # Errors
    /// The part does not have the length that the head asks for, or the layout is a device's own.
    pub fn decode_into(&self, part: &Part, out: &mut Vec<f32>) -> Result<(), StoreError> {
        if self.format.layout != 0 {
            return Err(StoreError::UseLayout { layout: self.format.layout });
        }
        let PartSpec { layer, kind, len, .. } = part.spec;
        let shape = self.shape(layer, kind).filter(|_| self.fits(layer, kind, len));
        let shape = shape.ok_or(StoreError::CheckLength { layer, kind, found: len })?;
        let skipped = if kind == PartKind::Transition { live_set_bytes(shape.heads) } else { 0 };
        let bytes = &part.bytes[skipped as usize..];
        // The length was found to be a whole number of heads.
        let rows = bytes.len() / shape.row_bytes().unwrap_or(u64::MAX) as usize;
        // Every value is overwritten, so an `out` of the right length is not cleared first.
        out.resize(rows * shape.width as usize, 0.0);
        values::decode(bytes, shape.width as usize, shape.dtype, out);
        Ok(())
    }

    /// Which heads of a linear layer have a `T`, `[heads]`, from the layer's transition part; `None` where it
    /// has no such part: then no head has one, or, in a family whose `T` is the identity, every head.
    ///
    /// # Errors
    /// The set contradicts the part's length.
    pub fn live_heads(&self, layer: u16, transition: Option<&Part>) -> Result<Vec<bool>, StoreError> {
        let heads = match self.layers.get(usize::from(layer)) {
            Some(LayerSpec::Linear(shape)) => shape.heads,
            _ => return Ok(Vec::new()),
        };
        let (Some(shape), Some(part)) = (self.shape(layer, PartKind::Transition), transition) else {
            return Ok(vec![self.shape(layer, PartKind::Transition).is_none(); heads]);
        };
        let wrong = StoreError::CheckLength { layer, kind: PartKind::Transition, found: part.spec.len };
        let set = part.bytes.get(..live_set_bytes(shape.heads) as usize).ok_or(wrong)?;
        let live: Vec<bool> = (0..heads).map(|head| set[head / 8] >> (head % 8) & 1 == 1).collect();
        let count = live.iter().filter(|live| **live).count() as u64;
        let stray = set.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>() != count;
        let len =
            shape.head_bytes().and_then(|head| head.checked_mul(count)).map(|len| len + set.len() as u64);
        if stray || len != Some(part.spec.len) {
            return Err(StoreError::CheckLength { layer, kind: PartKind::Transition, found: part.spec.len });
        }
        Ok(live)
    }
}
