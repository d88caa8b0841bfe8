//! The parts of a tuple: their shapes, from model and format alone, and the set of live heads in front of a transition.

use crate::family::TransitionForm;
use crate::model::LayerSpec;
use crate::tuple::{Dtype, PartKind, TupleFormat};
use crate::values;

/// Shape of one part: `[heads, rows, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartShape {
    /// Outermost: a range of heads is a range of bytes.
    pub heads: u64,
    /// Rows of a head.
    pub rows: u64,
    /// Values of a row.
    pub width: u64,
    /// Their format.
    pub dtype: Dtype,
}

impl PartShape {
    /// Bytes of one row, the scale of an 8-bit one included; `None` where it overflows, here and below.
    pub fn row_bytes(&self) -> Option<u64> {
        let scale = if self.dtype == Dtype::I8 { 4 } else { 0 };
        self.width.checked_mul(self.dtype.size() as u64)?.checked_add(scale)
    }

    /// Bytes of one head.
    pub fn head_bytes(&self) -> Option<u64> {
        self.rows.checked_mul(self.row_bytes()?)
    }

    /// Bytes of all heads.
    pub fn bytes(&self) -> Option<u64> {
        self.heads.checked_mul(self.head_bytes()?)
    }
}

impl TupleFormat {
    /// Shape of a part of a layer with every head present, for a body of so many tokens; `None` where the layer has no
    /// such part.
    pub fn part(&self, layer: &LayerSpec, kind: PartKind, body: usize) -> Option<PartShape> {
        let (heads, rows, width, dtype) = match (layer, kind) {
            (LayerSpec::Linear(shape), PartKind::Transition) => {
                let (rows, width) = match shape.family.transition() {
                    TransitionForm::Identity => (0, 0),
                    TransitionForm::Scalar => (1, 1),
                    TransitionForm::Diagonal => (1, shape.key),
                    TransitionForm::Dense => (shape.key, shape.key),
                };
                (shape.heads, rows, width, self.transition)
            }
            (LayerSpec::Linear(shape), PartKind::State) => (shape.heads, shape.key, shape.value, self.state),
            (LayerSpec::Linear(shape), PartKind::Tail) => {
                (1, shape.tail_rows(), shape.conv_channels(), self.tail)
            }
            (LayerSpec::Full(shape), PartKind::Key) => (shape.kv_heads, body, shape.key, self.kv),
            (LayerSpec::Full(shape), PartKind::Value) => (shape.kv_heads, body, shape.value, self.kv),
            _ => return None,
        };
        let present = heads > 0 && rows > 0 && width > 0;
        present.then_some(PartShape { heads: heads as u64, rows: rows as u64, width: width as u64, dtype })
    }

    /// Whether every value of a part's heads, `bytes` of rows of `width`, is finite.
    pub fn is_finite(&self, kind: PartKind, shape: &PartShape, bytes: &[u8]) -> bool {
        // A pair of tiles is two numbers of 16 bits.
        let is_pair = self.layout == 1 && kind == PartKind::Transition && shape.dtype == Dtype::F32;
        let dtype = if is_pair { Dtype::F16 } else { shape.dtype };
        values::is_finite(bytes, shape.width as usize, dtype)
    }
}

/// Bytes in front of a transition's values: one bit per head, padded so that the values stay aligned.
pub fn live_set_bytes(heads: usize) -> usize {
    heads.div_ceil(8).next_multiple_of(16)
}

/// The set of live heads as it stands in front of a transition's values.
pub fn live_set(live: &[bool]) -> Vec<u8> {
    let mut bytes = vec![0; live_set_bytes(live.len())];
    for (head, _) in live.iter().enumerate().filter(|(_, live)| **live) {
        bytes[head / 8] |= 1 << (head % 8);
    }
    bytes
}

/// The live heads, `[heads]`, of the transition that begins with `bytes`; `None` where they are too few or name a head
/// that is not there.
pub fn read_live_set(bytes: &[u8], heads: usize) -> Option<Vec<bool>> {
    let set = bytes.get(..live_set_bytes(heads))?;
    let live: Vec<bool> = (0..heads).map(|head| set[head / 8] >> (head % 8) & 1 == 1).collect();
    let named = set.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
    (named == live.iter().filter(|live| **live).count()).then_some(live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_set_comes_back_and_names_no_head_that_is_not_there() {
        for heads in [1, 3, 8, 9, 32, 129] {
            let live: Vec<bool> = (0..heads).map(|head| head % 3 != 1).collect();
            let mut bytes = live_set(&live);
            assert_eq!((bytes.len() % 16, read_live_set(&bytes, heads)), (0, Some(live)));
            assert_eq!(read_live_set(&bytes[1..], heads), None);
            bytes[heads / 8] |= 1 << (heads % 8);
            let named = read_live_set(&bytes, heads);
            assert_eq!(named, None, "{heads}");
        }
    }
}
