//! What the device holds: rows, slots, pages.

use std::sync::{Arc, Mutex, PoisonError};

use hypic_domain::family::Family;
use hypic_domain::model::{LayerSpec, LinearShape, ModelSpec};
use hypic_kernels::op::OpError;

use crate::memory::{Float, Fresh};
use crate::{Buffer, Device, Error, Result};

/// Packed rows, row-major.
pub struct Tensor<E: Float> {
    pub(super) values: Buffer<E>,
    pub(super) width: usize,
}

impl<E: Float> Tensor<E> {
    pub(super) fn rows(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }
}

/// This device computes the gated delta rule, on heads that its kernels have.
pub(super) fn gdn_only(op: &'static str, shape: &LinearShape) -> std::result::Result<(), OpError> {
    let fits = matches!(shape.key, 64 | 128) && shape.value == shape.key && shape.conv_kernel == crate::TAPS;
    if shape.family == Family::Gdn && fits {
        return Ok(());
    }
    let what = format!("{shape:?} (gated delta rule, heads of 64 or 128, {} taps)", crate::TAPS);
    Err(OpError::Unsupported { op, what })
}

/// Where a linear layer lies in a slot.
#[derive(Clone, Copy)]
pub(super) struct SlotLayer {
    pub(super) shape: LinearShape,
    /// First value of its states, `[heads, key, value]`.
    pub(super) state: usize,
    /// First value of its tail, `[K-1, channels]`.
    pub(super) tail: usize,
}

impl SlotLayer {
    fn states(&self) -> usize {
        self.shape.heads * self.shape.key * self.shape.value
    }

    pub(super) fn tail_len(&self) -> usize {
        self.shape.tail_rows() * self.shape.conv_channels()
    }
}

/// The pool of slots: a slot's layers lie side by side, so that it is set and copied as one.
pub struct States<E: Float> {
    pub(super) state: Buffer<f32>,
    pub(super) tails: Buffer<E>,
    pub(super) slots: usize,
    /// Values of one slot.
    pub(super) state_stride: usize,
    pub(super) tail_stride: usize,
    layers: Vec<Option<SlotLayer>>,
}

impl<E: Float> Drop for States<E> {
    fn drop(&mut self) {
        self.state.device().note_gone();
    }
}

/// A copy of one slot.
pub struct SlotState<E: Float> {
    state: Buffer<f32>,
    tails: Buffer<E>,
}

impl<E: Float> States<E> {
    pub(super) fn new(device: &Device, fresh: Fresh, spec: &ModelSpec, slots: usize) -> Result<Self> {
        let (mut state_stride, mut tail_stride) = (0, 0);
        let place = |layer: &LayerSpec| match layer {
            LayerSpec::Linear(shape) => {
                let place = SlotLayer { shape: *shape, state: state_stride, tail: tail_stride };
                state_stride += place.states();
                tail_stride += place.tail_len();
                Some(place)
            }
            LayerSpec::Full(_) => None,
        };
        let layers = spec.layers.iter().map(place).collect();
        let within = u32::try_from(state_stride).is_ok();
        Error::unless(within, "the states of a slot", "under 2^32 values", state_stride)?;
        Ok(Self {
            state: Buffer::fresh(device, slots * state_stride, fresh)?,
            tails: Buffer::fresh(device, slots * tail_stride, fresh)?,
            slots,
            state_stride,
            tail_stride,
            layers,
        })
    }

    fn check(&self, slot: usize) -> Result<()> {
        Error::unless(slot < self.slots, "a slot", format!("below {}", self.slots), slot)
    }

    /// Where a linear layer lies.
    pub(super) fn layer(&self, layer: usize) -> Result<SlotLayer> {
        self.layers.get(layer).copied().flatten().ok_or_else(|| Error::CheckShape {
            what: "the layer",
            expected: "a linear layer of the model".to_owned(),
            found: layer.to_string(),
        })
    }

    pub(super) fn reset(&mut self, slot: usize) -> Result<()> {
        self.check(slot)?;
        self.state.fill(slot * self.state_stride, self.state_stride, 0)?;
        self.tails.fill(slot * self.tail_stride, self.tail_stride, 0)
    }

    pub(super) fn save(&self, device: &Device, slot: usize) -> Result<SlotState<E>> {
        self.check(slot)?;
        let mut saved = SlotState {
            state: Buffer::fresh(device, self.state_stride, Fresh::Anything)?,
            tails: Buffer::fresh(device, self.tail_stride, Fresh::Anything)?,
        };
        saved.state.copy(0, &self.state, slot * self.state_stride, self.state_stride)?;
        saved.tails.copy(0, &self.tails, slot * self.tail_stride, self.tail_stride)?;
        Ok(saved)
    }

    pub(super) fn load(&mut self, slot: usize, saved: &SlotState<E>) -> Result<()> {
        self.check(slot)?;
        self.state.copy(slot * self.state_stride, &saved.state, 0, self.state_stride)?;
        self.tails.copy(slot * self.tail_stride, &saved.tails, 0, self.tail_stride)
    }

    /// One layer's states on the host.
    pub(super) fn read(&self, slot: usize, layer: usize) -> Result<Vec<f32>> {
        self.check(slot)?;
        let place = self.layer(layer)?;
        self.state.read_part(slot * self.state_stride + place.state, place.states())
    }

    /// A copy of one layer's tail.
    pub(super) fn tail(&self, device: &Device, slot: usize, layer: usize) -> Result<Buffer<E>> {
        self.check(slot)?;
        let place = self.layer(layer)?;
        let mut tail = Buffer::fresh(device, place.tail_len(), Fresh::Anything)?;
        tail.copy(0, &self.tails, slot * self.tail_stride + place.tail, place.tail_len())?;
        Ok(tail)
    }
}

/// One full layer's pages: the pool's, then those of bodies.
pub(super) struct LayerPages<E: Float> {
    /// `[pages, kv heads, page tokens, key]`, not rotated.
    pub(super) key: Buffer<E>,
    /// Values, likewise.
    pub(super) value: Buffer<E>,
    /// Pages of bodies that nobody uses. Giving one back while kernels still read it is safe: whoever writes it next
    /// comes after them on the stream.
    free: Arc<Mutex<Vec<u32>>>,
}

/// The pool of pages, layer by layer; nothing for linear layers.
pub struct Pages<E: Float> {
    pub(super) page_tokens: usize,
    /// Pages that callers name; those of bodies come behind.
    pub(super) pages: usize,
    bodies: usize,
    layers: Vec<Option<LayerPages<E>>>,
}

/// The pages that a layer of a body took last, shared by all of its layers: where they lie alike, one list of tokens serves
/// all full layers.
#[derive(Clone, Default)]
pub(super) struct PagesTaken(Arc<Mutex<Vec<u32>>>);

/// Pages of one layer of a body; dropping it gives them back.
pub(super) struct BodyPages {
    pub(super) pages: Vec<u32>,
    free: Arc<Mutex<Vec<u32>>>,
}

impl Drop for BodyPages {
    fn drop(&mut self) {
        // A list poisoned by a panic still holds plain numbers.
        self.free.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.pages);
    }
}

/// Bytes of one token's keys and values over all full layers.
pub(super) fn kv_bytes<E: Float>(spec: &ModelSpec) -> u64 {
    let values = spec.layers.iter().map(|layer| match layer {
        LayerSpec::Linear(_) => 0,
        LayerSpec::Full(shape) => shape.kv_heads * (shape.key + shape.value),
    });
    (values.sum::<usize>() * size_of::<E>()) as u64
}

impl<E: Float> Drop for Pages<E> {
    fn drop(&mut self) {
        if let Some(layer) = self.layers.iter().flatten().next() {
            layer.key.device().note_gone();
        }
    }
}

impl<E: Float> Pages<E> {
    pub(super) fn new(
        device: &Device,
        fresh: Fresh,
        spec: &ModelSpec,
        (pages, bodies, page_tokens): (usize, usize, usize),
    ) -> Result<Self> {
        let tokens = (pages + bodies) * page_tokens;
        let layer = |layer: &LayerSpec| match layer {
            LayerSpec::Linear(_) => Ok(None),
            LayerSpec::Full(shape) => Ok(Some(LayerPages {
                key: Buffer::fresh(device, tokens * shape.kv_heads * shape.key, fresh)?,
                value: Buffer::fresh(device, tokens * shape.kv_heads * shape.value, fresh)?,
                free: Arc::new(Mutex::new((pages..pages + bodies).rev().map(|page| page as u32).collect())),
            })),
        };
        let layers = spec.layers.iter().map(layer).collect::<Result<_>>()?;
        Ok(Self { page_tokens, pages, bodies, layers })
    }

    pub(super) fn copy_page(&mut self, from: usize, to: usize) -> Result<()> {
        for page in [from, to] {
            Error::unless(page < self.pages, "a page", format!("below {}", self.pages), page)?;
        }
        if from == to {
            return Ok(());
        }
        for layer in self.layers.iter_mut().flatten() {
            for values in [&mut layer.key, &mut layer.value] {
                let size = values.len() / (self.pages + self.bodies);
                values.copy_within(to * size, from * size, size)?;
            }
        }
        Ok(())
    }

    /// Where they lie, if there are any.
    pub(super) fn address(&self) -> Option<u64> {
        self.layers.iter().flatten().next().map(|layer| layer.key.address())
    }

    /// The full layers.
    pub(super) fn full_layers(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().enumerate().filter_map(|(layer, pages)| pages.as_ref().map(|_| layer))
    }

    /// The pages of a full layer.
    pub(super) fn layer(
        &self,
        op: &'static str,
        layer: usize,
    ) -> std::result::Result<&LayerPages<E>, OpError> {
        let pages = self.layers.get(layer).and_then(Option::as_ref);
        pages.ok_or_else(|| OpError::shape(op, "pages for the layer", layer))
    }

    pub(super) fn layer_mut(
        &mut self,
        op: &'static str,
        layer: usize,
    ) -> std::result::Result<&mut LayerPages<E>, OpError> {
        let pages = self.layers.get_mut(layer).and_then(Option::as_mut);
        pages.ok_or_else(|| OpError::shape(op, "pages for the layer", layer))
    }
}

impl<E: Float> LayerPages<E> {
    /// Takes pages for a body of `tokens` tokens: those that another layer of it took, where they are free here, too.
    pub(super) fn take(
        &self,
        (tokens, page_tokens): (usize, usize),
        body: &PagesTaken,
    ) -> std::result::Result<BodyPages, OpError> {
        // A panic while it was held leaves plain numbers.
        let mut taken = body.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let count = tokens.div_ceil(page_tokens);
        if taken.len() == count && taken.iter().all(|page| free.contains(page)) {
            free.retain(|page| !taken.contains(page));
            return Ok(BodyPages { pages: taken.clone(), free: Arc::clone(&self.free) });
        }
        let Some(rest) = free.len().checked_sub(count) else {
            return Err(OpError::OutOfMemory {
                what: format!("keys and values of a body of {tokens} tokens, counted in pages,"),
                needed: count as u64,
                free: free.len() as u64,
            });
        };
        let pages = free.split_off(rest);
        taken.clone_from(&pages);
        Ok(BodyPages { pages, free: Arc::clone(&self.free) })
    }
}
