//! What one step computes: rows of many sequences, packed, and per sequence a short program.
//!
//! A sequence's program alternates runs of rows with summaries of cached bodies. In a linear layer, `Rows`
//! advances the sequence's state slot token by token and yields outputs; `Apply` does `S <- T S + S_body` and
//! takes over the body's tail. In a full layer the same rows attend causally, by global position, over the
//! sequence's live pages and over the cached bodies' KV.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use crate::op::Device;

/// One step: packed rows of all its runs.
pub struct Plan<D: Device> {
    /// Token ids, `[rows]`.
    pub ids: Vec<u32>,
    /// Sequences that take part; their rows are disjoint and cover `ids` in order.
    pub runs: Vec<Run<D>>,
}

/// One sequence's share of a step.
pub struct Run<D: Device> {
    /// Its rows of the step.
    pub rows: Range<usize>,
    /// Its state slot.
    pub slot: usize,
    /// What its rows may attend to.
    pub context: Context<D>,
    /// Its program, in order. The `Rows` in it cover `rows` exactly.
    pub ops: Vec<RunOp>,
    /// Set while a segment is built.
    pub record: Option<Record<D>>,
}

/// One step of a run's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOp {
    /// Compute these rows of the step.
    Rows(Range<usize>),
    /// Apply the summary of `context.bodies[body]` to the running state and take over its tail.
    Apply {
        /// Place in the run's bodies.
        body: usize,
        /// How.
        rule: Rule,
    },
    /// Forget the convolution's tail: the next rows see zeros to their left (an ablation of the tests).
    ClearTail,
}

/// How a body acts on the running state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// `S <- T S + S_body`.
    #[default]
    Compose,
    /// `S <- S + S_body`: naive addition.
    Add,
    /// `S <- S_body`: the last body only.
    Replace,
}

/// What a sequence's rows attend to in full layers; linear layers look at the bodies only. Keys lie unrotated and are
/// rotated to their global position on the way in.
pub struct Context<D: Device> {
    /// KV pages of the sequence's live tokens, in order.
    pub pages: Vec<usize>,
    /// Global positions of its live tokens, ascending; the last ones are this step's rows.
    pub live: Vec<u32>,
    /// Cached bodies, ascending by `start`. A body is never entered: no row lies inside one.
    pub bodies: Vec<PlacedBody<D>>,
}

/// A cached body at its place in a prompt.
pub struct PlacedBody<D: Device> {
    /// Its parts, layer by layer.
    pub layers: Arc<BodyLayers<D>>,
    /// Global position of its first token.
    pub start: u32,
    /// Tokens.
    pub len: u32,
}

impl<D: Device> Clone for PlacedBody<D> {
    fn clone(&self) -> Self {
        Self { layers: Arc::clone(&self.layers), start: self.start, len: self.len }
    }
}

/// One tuple's parts on the device. Each layer resolves on its own, so that a step over the first layers can
/// run while later ones are on the wire.
pub struct BodyLayers<D: Device> {
    layers: Vec<OnceLock<Arc<D::LayerParts>>>,
}

impl<D: Device> BodyLayers<D> {
    /// No layer has arrived yet.
    pub fn empty(layers: usize) -> Self {
        Self { layers: (0..layers).map(|_| OnceLock::new()).collect() }
    }

    /// Puts a layer in place. The first arrival stays: parts of one key are the same.
    pub fn arrive(&self, layer: usize, parts: D::LayerParts) {
        self.share(layer, Arc::new(parts));
    }

    /// The same for parts that somebody else holds too.
    pub(crate) fn share(&self, layer: usize, parts: Arc<D::LayerParts>) {
        if let Some(cell) = self.layers.get(layer) {
            // A second arrival (a hedged fetch) is dropped.
            let _ = cell.set(parts);
        }
    }

    /// A layer's parts, once they are here.
    pub fn layer(&self, layer: usize) -> Option<&D::LayerParts> {
        self.layers.get(layer)?.get().map(Arc::as_ref)
    }

    /// Layers that are here without a gap from the first.
    pub fn ready(&self) -> usize {
        self.layers.iter().take_while(|cell| cell.get().is_some()).count()
    }
}

/// What of a run is recorded as a segment's summary.
pub struct Record<D: Device> {
    /// Where it is collected, over all layers and steps of the build.
    pub recording: Arc<Mutex<D::Recording>>,
    /// Rows of this step that lie in the body.
    pub body: Range<usize>,
    /// Set where the body begins and ends in this step: heads whose gate-only bound is under it need no `T`.
    pub whole: Option<f32>,
}
