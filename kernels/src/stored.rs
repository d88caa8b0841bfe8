//! One layer of a tuple as it is stored: what devices take over and give out.

use bytes::Bytes;
use domain::model::{FullShape, LayerSpec, LinearShape};
use domain::part::{PartShape, live_set, live_set_bytes, read_live_set};
use domain::tuple::{PartKind, TupleFormat};
use domain::values;
use hypic_domain as domain;

use crate::error::OpError;

/// One layer of a tuple in host memory: the bytes of its parts, as the codec has them. Heads lie outermost in every
/// part, so that a range of heads is a range of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct HostLayer {
    /// Number formats of the parts, and the order of values within a head.
    pub format: TupleFormat,
    /// Tokens of the body.
    pub body: usize,
    /// The parts that the layer has. A transition begins with the set of its live heads, and is not there where no head
    /// is live.
    pub parts: Vec<(PartKind, Bytes)>,
}

/// A layer whose parts were found to be those that its shape and format ask for.
#[derive(Clone, Debug)]
pub enum Checked<'a> {
    /// Of a linear layer.
    Linear {
        /// Its shape.
        shape: &'a LinearShape,
        /// Which heads have a `T`, `[heads]`.
        live: Vec<bool>,
        /// `T` of the live heads, `[live heads, rows, width]`.
        transition: StoredPart,
        /// `S`, `[heads, key, value]`.
        state: StoredPart,
        /// Raw convolution inputs, oldest first, `[K-1, channels]`.
        tail: StoredPart,
    },
    /// Of a full layer.
    Full {
        /// Its shape.
        shape: &'a FullShape,
        /// Keys before rotation, `[kv heads, body, key]`.
        key: StoredPart,
        /// Values, `[kv heads, body, value]`.
        value: StoredPart,
    },
}

/// The values of one part.
#[derive(Clone, Debug)]
pub struct StoredPart {
    /// Heads that are there, their rows and the format.
    pub shape: PartShape,
    /// Exactly their bytes, without a set in front.
    pub bytes: Bytes,
}

impl StoredPart {
    /// Its values in fp32, of plain rows (layout 0).
    pub fn decode(&self) -> Vec<f32> {
        let PartShape { heads, rows, width, dtype } = self.shape;
        let mut out = vec![0.0; (heads * rows * width) as usize];
        values::decode(&self.bytes, width as usize, dtype, &mut out);
        out
    }
}

impl HostLayer {
    /// The bytes of one part.
    pub fn part(&self, kind: PartKind) -> Option<&Bytes> {
        self.parts.iter().find(|(found, _)| *found == kind).map(|(_, bytes)| bytes)
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// How many heads have a `T`, of how many; none for a full layer.
    pub fn live_heads(&self, spec: &LayerSpec) -> (usize, usize) {
        let LayerSpec::Linear(shape) = spec else { return (0, 0) };
        let live = self.part(PartKind::Transition).and_then(|bytes| read_live_set(bytes, shape.heads));
        (live.map_or(0, |live| live.iter().filter(|live| **live).count()), shape.heads)
    }

    /// Compares the parts with what a layer of the shape `spec` has.
    ///
    /// # Errors
    /// [`OpError::Shape`]: parts of the other kind of layer, one that is missing, too short or too long, or a set of
    /// live heads that contradicts its part.
    pub fn check<'a>(&self, op: &'static str, spec: &'a LayerSpec) -> Result<Checked<'a>, OpError> {
        let found: Vec<PartKind> = self.parts.iter().map(|(kind, _)| *kind).collect();
        let is_known = |kind: &PartKind| {
            let times = found.iter().filter(|found| *found == kind).count();
            times == 1 && self.format.part(spec, *kind, self.body).is_some()
        };
        if !found.iter().all(is_known) {
            return Err(OpError::shape(op, format!("parts of {spec:?}"), format!("{found:?}")));
        }
        let whole = |kind| self.whole(op, spec, kind);
        Ok(match spec {
            LayerSpec::Linear(shape) => {
                let (live, transition) = self.transition(op, spec, shape)?;
                let (state, tail) = (whole(PartKind::State)?, whole(PartKind::Tail)?);
                Checked::Linear { shape, live, transition, state, tail }
            }
            LayerSpec::Full(shape) => {
                Checked::Full { shape, key: whole(PartKind::Key)?, value: whole(PartKind::Value)? }
            }
        })
    }

    /// A part that has all heads; empty where the layer has none of that kind.
    fn whole(&self, op: &'static str, spec: &LayerSpec, kind: PartKind) -> Result<StoredPart, OpError> {
        let bytes = self.part(kind).cloned().unwrap_or_default();
        let shape = self.format.part(spec, kind, self.body).unwrap_or(nothing(self.format));
        if shape.bytes() != Some(bytes.len() as u64) {
            return Err(OpError::shape(
                op,
                format!("{kind:?} of {shape:?}"),
                format!("{} bytes", bytes.len()),
            ));
        }
        Ok(StoredPart { shape, bytes })
    }

    fn transition(
        &self,
        op: &'static str,
        spec: &LayerSpec,
        linear: &LinearShape,
    ) -> Result<(Vec<bool>, StoredPart), OpError> {
        let Some(shape) = self.format.part(spec, PartKind::Transition, self.body) else {
            // A family whose `T` is the identity.
            let part = StoredPart { shape: nothing(self.format), bytes: Bytes::new() };
            return Ok((vec![true; linear.heads], part));
        };
        let Some(bytes) = self.part(PartKind::Transition) else {
            let part = StoredPart { shape: PartShape { heads: 0, ..shape }, bytes: Bytes::new() };
            return Ok((vec![false; linear.heads], part));
        };
        let wrong =
            || OpError::shape(op, format!("T of live heads of {shape:?}"), format!("{} bytes", bytes.len()));
        let live = read_live_set(bytes, linear.heads).ok_or_else(wrong)?;
        let shape = PartShape { heads: live.iter().filter(|live| **live).count() as u64, ..shape };
        let values = bytes.slice(live_set_bytes(linear.heads)..);
        if shape.bytes() != Some(values.len() as u64) {
            return Err(wrong());
        }
        Ok((live, StoredPart { shape, bytes: values }))
    }

    /// An empty layer in `format`, to be given parts.
    pub fn empty(format: TupleFormat, body: usize) -> Self {
        Self { format, body, parts: Vec::new() }
    }

    /// Stores fp32 values as a part of plain rows (layout 0); for a transition those of the heads that are `live`. No
    /// values are no part.
    ///
    /// # Errors
    /// [`OpError::Shape`] where the layer has no such part, [`OpError::NotFinite`] for a NaN or an infinity: caching it
    /// would spread it.
    pub fn encode(
        &mut self,
        op: &'static str,
        spec: &LayerSpec,
        kind: PartKind,
        (live, values): (&[bool], &[f32]),
    ) -> Result<(), OpError> {
        if values.is_empty() {
            return Ok(());
        }
        let shape = self.format.part(spec, kind, self.body);
        let shape =
            shape.ok_or_else(|| OpError::shape(op, format!("a part of {spec:?}"), format!("{kind:?}")))?;
        let mut bytes = if kind == PartKind::Transition { live_set(live) } else { Vec::new() };
        bytes.reserve_exact(values.len() / shape.width as usize * shape.row_bytes().unwrap_or(0) as usize);
        values::encode(values, shape.width as usize, shape.dtype, &mut bytes)
            .ok_or_else(|| OpError::NotFinite { op, what: format!("{kind:?}") })?;
        self.parts.push((kind, bytes.into()));
        Ok(())
    }
}

fn nothing(format: TupleFormat) -> PartShape {
    PartShape { heads: 0, rows: 0, width: 0, dtype: format.state }
}
