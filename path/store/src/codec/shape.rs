//! Shapes and sizes of parts, from the head alone.

use hypic_domain::family::TransitionForm;
use hypic_domain::model::LayerSpec;
use hypic_domain::tuple::{Dtype, PartKind};

use crate::codec::manifest::TupleHead;

/// The parts that a layer can have, in the order in which they lie.
pub(crate) const KINDS: [PartKind; 5] =
    [PartKind::Transition, PartKind::State, PartKind::Tail, PartKind::Key, PartKind::Value];

/// Shape of one part: `[heads, rows, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartShape {
    pub(crate) heads: u64,
    pub(crate) rows: u64,
    pub(crate) width: u64,
    pub(crate) dtype: Dtype,
}

impl PartShape {
    /// Values of one head.
    pub(crate) fn head_values(&self) -> Option<u64> {
        self.rows.checked_mul(self.width)
    }

    /// Bytes of one row, the scale of an 8-bit one included.
    pub(crate) fn row_bytes(&self) -> Option<u64> {
        let scale = if self.dtype == Dtype::I8 { 4 } else { 0 };
        self.width.checked_mul(self.dtype.size() as u64)?.checked_add(scale)
    }

    /// Bytes of one head.
    pub(crate) fn head_bytes(&self) -> Option<u64> {
        self.rows.checked_mul(self.row_bytes()?)
    }

    /// Bytes of all heads.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.heads.checked_mul(self.head_bytes()?)
    }
}

/// Bytes in front of a transition's values: one bit per head, padded so that the values stay aligned.
pub(crate) fn live_set_bytes(heads: u64) -> u64 {
    heads.div_ceil(8).next_multiple_of(16)
}

impl TupleHead {
    /// Shape of a part with every head present; `None` where the layer has no such part.
    pub(crate) fn shape(&self, layer: u16, kind: PartKind) -> Option<PartShape> {
        let (heads, rows, width, dtype) = match (self.layers.get(usize::from(layer))?, kind) {
            (LayerSpec::Linear(shape), PartKind::Transition) => {
                let (rows, width) = match shape.family.transition() {
                    TransitionForm::Identity => (0, 0),
                    TransitionForm::Scalar => (1, 1),
                    TransitionForm::Diagonal => (1, shape.key),
                    TransitionForm::Dense => (shape.key, shape.key),
                };
                (shape.heads, rows, width, self.format.transition)
            }
            (LayerSpec::Linear(shape), PartKind::State) => {
                (shape.heads, shape.key, shape.value, self.format.state)
            }
            (LayerSpec::Linear(shape), PartKind::Tail) => {
                (1, shape.tail_rows(), shape.conv_channels(), self.format.tail)
            }
            (LayerSpec::Full(shape), PartKind::Key) => {
                (shape.kv_heads, self.body.0 as usize, shape.key, self.format.kv)
            }
            (LayerSpec::Full(shape), PartKind::Value) => {
                (shape.kv_heads, self.body.0 as usize, shape.value, self.format.kv)
            }
            _ => return None,
        };
        let present = heads > 0 && rows > 0 && width > 0;
        present.then_some(PartShape { heads: heads as u64, rows: rows as u64, width: width as u64, dtype })
    }

    /// Whether `len` bytes can be that part.
    pub(crate) fn fits(&self, layer: u16, kind: PartKind, len: u64) -> bool {
        let Some(shape) = self.shape(layer, kind) else { return false };
        let (Some(head), Some(all)) = (shape.head_bytes(), shape.bytes()) else { return false };
        if kind == PartKind::Transition {
            let values = len.checked_sub(live_set_bytes(shape.heads));
            values.is_some_and(|values| values > 0 && values <= all && values.is_multiple_of(head))
        } else {
            len == all
        }
    }
}
