//! One part whose bytes are known to be right.

use bytes::Bytes;
use hypic_domain::model::LayerSpec;
use hypic_domain::part::{live_set_bytes, read_live_set};
use hypic_domain::tuple::{PartKind, PartSpec};
use xxhash_rust::xxh3::xxh3_64;

use crate::codec::manifest::TupleHead;
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
    pub(crate) fn written(layer: u16, kind: PartKind, offset: u64, bytes: Bytes) -> Self {
        let spec = PartSpec { layer, kind, offset, len: bytes.len() as u64, sum: xxh3_64(&bytes) };
        Self { spec, bytes }
    }

    /// The same part, whose bytes were copied to `bytes`.
    pub(crate) fn moved(&self, bytes: Bytes) -> Self {
        Self { spec: self.spec.clone(), bytes }
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
    /// Checks that `parts` are those of one layer: each that it has, once, of a length that fits.
    ///
    /// # Errors
    /// [`StoreError::PushLayer`] or [`StoreError::CheckLength`].
    pub fn check_layer<'a>(
        &self,
        layer: u16,
        parts: impl IntoIterator<Item = (PartKind, &'a Bytes)>,
    ) -> Result<(), StoreError> {
        let mut given: Vec<(PartKind, &Bytes)> = parts.into_iter().collect();
        given.sort_unstable_by_key(|(kind, _)| *kind);
        let mut given = given.into_iter().peekable();
        let wrong = |what| Err(StoreError::PushLayer { layer, what });
        for kind in PartKind::ALL {
            match given.next_if(|(given, _)| *given == kind) {
                Some((_, bytes)) => {
                    if !self.fits(layer, kind, bytes.len() as u64) {
                        return Err(StoreError::CheckLength { layer, kind, found: bytes.len() as u64 });
                    }
                    if kind == PartKind::Transition {
                        self.live_heads(layer, Some(bytes))?;
                    }
                }
                // No head of the layer has a `T`.
                None if kind == PartKind::Transition || self.shape(layer, kind).is_none() => {}
                None => return wrong("a part is missing"),
            }
        }
        if given.next().is_some() { wrong("a part comes twice") } else { Ok(()) }
    }

    /// Which heads of a linear layer have a `T`, `[heads]`, from the bytes of the layer's transition part; `None` where
    /// it has no such part: then no head has one, or, in a family whose `T` is the identity, every head.
    ///
    /// # Errors
    /// The set contradicts the part's length.
    pub fn live_heads(&self, layer: u16, transition: Option<&Bytes>) -> Result<Vec<bool>, StoreError> {
        let heads = match self.layers.get(usize::from(layer)) {
            Some(LayerSpec::Linear(shape)) => shape.heads,
            _ => return Ok(Vec::new()),
        };
        let (Some(shape), Some(bytes)) = (self.shape(layer, PartKind::Transition), transition) else {
            return Ok(vec![self.shape(layer, PartKind::Transition).is_none(); heads]);
        };
        let found = bytes.len() as u64;
        let wrong = || StoreError::CheckLength { layer, kind: PartKind::Transition, found };
        let live = read_live_set(bytes, heads).ok_or_else(wrong)?;
        let count = live.iter().filter(|live| **live).count() as u64;
        let values = shape.head_bytes().and_then(|head| head.checked_mul(count));
        let set = live_set_bytes(heads) as u64;
        if values.and_then(|values| values.checked_add(set)) == Some(found) { Ok(live) } else { Err(wrong()) }
    }
}
