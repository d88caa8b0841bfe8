//! Shapes and sizes of parts, from the head alone.

use hypic_domain::part::{PartShape, live_set_bytes};
use hypic_domain::tuple::PartKind;

use crate::codec::manifest::TupleHead;

impl TupleHead {
    /// Shape of a part with every head present; `None` where the layer has no such part.
    pub(crate) fn shape(&self, layer: u16, kind: PartKind) -> Option<PartShape> {
        self.format.part(self.layers.get(usize::from(layer))?, kind, self.body.0 as usize)
    }

    /// Whether `len` bytes can be that part.
    pub(crate) fn fits(&self, layer: u16, kind: PartKind, len: u64) -> bool {
        let Some(shape) = self.shape(layer, kind) else { return false };
        let (Some(head), Some(all)) = (shape.head_bytes(), shape.bytes()) else { return false };
        if kind == PartKind::Transition {
            let values = len.checked_sub(live_set_bytes(shape.heads as usize) as u64);
            values.is_some_and(|values| values > 0 && values <= all && values.is_multiple_of(head))
        } else {
            len == all
        }
    }
}
