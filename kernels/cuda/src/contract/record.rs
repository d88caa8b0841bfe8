//! What a build has recorded of its body, layer by layer.

use std::sync::Arc;

use hypic_domain::model::{LayerSpec, LinearShape, ModelSpec};
use hypic_kernels::op::OpError;

use super::failed;
use super::memory::{PagesTaken, gdn_only};
use crate::memory::Fresh;
use crate::pack::{Tiles, pack_tiles, set_identity};
use crate::{Buffer, Device, Error, Result, StoredAs};

/// What a build has collected; nothing for full layers.
pub struct Recording {
    pub(super) layers: Vec<Option<LayerRecord>>,
    /// Those of the body that it becomes.
    pub(super) taken: PagesTaken,
}

/// One linear layer of a recording.
pub(super) enum LayerRecord {
    /// No token of the body yet: `T = I`, `S = 0`.
    Empty,
    /// `T` and `S` of the body's tokens so far.
    Open(Box<OpenRecord>),
    /// Of the whole body, from one launch.
    Whole(Arc<Tiles>),
}

/// `T` and `S` of a body that goes on.
pub(super) struct OpenRecord {
    /// `[heads, key, key]`.
    pub(super) transition: Buffer<f32>,
    /// `[heads, key, value]`.
    pub(super) state: Buffer<f32>,
    /// Logarithms of the gate-only bounds on the norms of `T`, `[heads]`.
    pub(super) bound: Buffer<f32>,
    /// Ones, `[heads]`: whether a head is dead is known only at the end.
    pub(super) live: Buffer<u8>,
}

impl Recording {
    pub(super) fn empty(spec: &ModelSpec) -> std::result::Result<Self, OpError> {
        let layers = spec.layers.iter().map(|layer| match layer {
            LayerSpec::Linear(shape) => gdn_only("recording", shape).map(|()| Some(LayerRecord::Empty)),
            LayerSpec::Full(_) => Ok(None),
        });
        Ok(Self { layers: layers.collect::<std::result::Result<_, _>>()?, taken: PagesTaken::default() })
    }
}

impl LayerRecord {
    /// To be gone on with; memory for it is taken at the body's first token.
    pub(super) fn open(
        &mut self,
        device: &Device,
        (heads, width): (usize, usize),
    ) -> Result<&mut OpenRecord> {
        if matches!(self, Self::Empty) {
            *self = Self::Open(Box::new(OpenRecord::new(device, (heads, width))?));
        }
        match self {
            Self::Open(open) => Ok(open),
            Self::Empty | Self::Whole(_) => Err(Error::CheckShape {
                what: "the recording",
                expected: "of a body that goes on".to_owned(),
                found: "one of a whole body".to_owned(),
            }),
        }
    }

    /// As tiles, without `T` for heads whose gate-only bound is under `skip_below`. Waits for the device where the
    /// bounds are not known yet.
    pub(super) fn tiles(
        &self,
        device: &Device,
        shape: &LinearShape,
        (stored, skip_below): (StoredAs, f32),
    ) -> std::result::Result<Arc<Tiles>, OpError> {
        let pack = |open: &OpenRecord| open.tiles(device, shape.key, (stored, skip_below));
        let tiles = match self {
            Self::Whole(tiles) => return Ok(Arc::clone(tiles)),
            Self::Open(open) => pack(open),
            Self::Empty => OpenRecord::new(device, (shape.heads, shape.key)).and_then(|open| pack(&open)),
        };
        tiles.map(Arc::new).map_err(failed("finish"))
    }
}

impl OpenRecord {
    fn new(device: &Device, (heads, width): (usize, usize)) -> Result<Self> {
        let square = width * width;
        let mut transition = Buffer::fresh(device, heads * square, Fresh::Anything)?;
        set_identity(device, &mut transition, width)?;
        Ok(Self {
            transition,
            state: Buffer::zeros(device, heads * square)?,
            bound: Buffer::zeros(device, heads)?,
            live: Buffer::from_slice(device, &vec![1; heads])?,
        })
    }

    fn tiles(&self, device: &Device, width: usize, (stored, skip_below): (StoredAs, f32)) -> Result<Tiles> {
        let live = live_heads(&self.bound.read()?, skip_below);
        let mut tiles = Tiles::fresh(device, &live, width, stored)?;
        pack_tiles(device, &tiles.places(device)?, [&self.transition, &self.state], &mut tiles.bytes)?;
        Ok(tiles)
    }
}

/// Which heads keep a `T`, from the logarithms of their gate-only bounds.
pub(super) fn live_heads(bounds: &[f32], skip_below: f32) -> Vec<bool> {
    bounds.iter().map(|bound| bound.exp() >= skip_below).collect()
}
