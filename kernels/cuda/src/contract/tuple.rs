//! One layer of a tuple on the device.

use std::sync::{Arc, Mutex, PoisonError};

use hypic_domain::model::{FullShape, LinearShape, ModelSpec};
use hypic_domain::tuple::{Dtype, TupleFormat};
use hypic_kernels::op::{Checked, HostLayer, OpError, StoredPart};
use hypic_kernels::plan::Plan;

use super::memory::{BodyPages, LayerPages, Pages, PagesTaken, gdn_only};
use super::{CudaDevice, failed};
use crate::attention::{KvOrder, KvRows};
use crate::conv_warm::RawRow;
use crate::device::Arrival;
use crate::memory::{Float, Table, upload};
use crate::pack::{Tiles, to_compute, widen};
use crate::programs::stored_for;
use crate::{Buffer, Device, Error};

pub(super) use built::{BuiltLayer, adopt, finish, keeps, land};

mod built;

/// One layer of a tuple.
pub enum LayerParts<E: Float> {
    /// Of a linear layer.
    Linear(Arc<LinearParts<E>>),
    /// Of a full layer.
    Full(FullParts),
}

/// Tiles of layout 1, and the tail.
pub struct LinearParts<E: Float> {
    pub(super) tiles: Arc<Tiles>,
    tail: Tail<E>,
    arrival: Arrival,
}

/// Raw convolution inputs, oldest first, `[K-1, channels]`.
enum Tail<E: Float> {
    /// Behind the tiles, from this byte on: they came together.
    Behind(usize),
    Own(Buffer<E>),
}

/// Keys and values in pages of the pool that they were imported for.
pub struct FullParts {
    pub(super) pages: BodyPages,
    pub(super) tokens: usize,
    kv: Mutex<Kv>,
    arrival: Arrival,
}

/// Where keys and values of a body are.
enum Kv {
    /// In their pages.
    Here,
    /// They go there when the first step needs them: pages are written in the order of kernels.
    Staged(Staged),
    /// A step that should have brought them there failed.
    Lost,
}

/// Keys and behind them values as they are stored, or as another device computed them: `[kv heads, tokens, width]` each.
struct Staged {
    stored: Buffer<u8>,
    dtype: Dtype,
}

impl<E: Float> LayerParts<E> {
    /// Bytes beside the pages.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Linear(parts) => {
                let tail = match &parts.tail {
                    Tail::Behind(_) => 0,
                    Tail::Own(tail) => tail.len() * size_of::<E>(),
                };
                (parts.tiles.bytes.len() + tail) as u64
            }
            Self::Full(_) => 0,
        }
    }
}

impl<E: Float> LinearParts<E> {
    /// A row of the tail.
    pub(super) fn tail_row(&self, row: usize, channels: usize) -> RawRow<'_, E> {
        match &self.tail {
            Tail::Behind(at) => RawRow::In(&self.tiles.bytes, at + row * channels * size_of::<E>()),
            Tail::Own(tail) => RawRow::At(tail, row * channels),
        }
    }
}

/// Lets a step of a layer wait for the bodies that it needs, on the device.
pub(super) fn await_bodies<E: Float>(
    device: &Device,
    layer: usize,
    plan: &Plan<CudaDevice<E>>,
) -> crate::Result<()> {
    let bodies = plan.runs.iter().flat_map(|run| &run.context.bodies);
    let arrivals = bodies.filter_map(|body| match body.layers.layer(layer) {
        Some(LayerParts::Linear(parts)) => Some(parts.arrival),
        Some(LayerParts::Full(parts)) => Some(parts.arrival),
        None => None,
    });
    device.wait_for_copy(arrivals.max().unwrap_or(Arrival::HERE))
}

/// Brings the bodies of a step of a full layer to their pages, where they are not there yet.
pub(super) fn settle_full<E: Float>(
    device: &Device,
    (layer, shape): (usize, &FullShape),
    plan: &Plan<CudaDevice<E>>,
    pages: &mut Pages<E>,
) -> Result<(), OpError> {
    await_bodies(device, layer, plan).map_err(failed("full_mixer"))?;
    let page_tokens = pages.page_tokens;
    let pages = pages.layer_mut("full_mixer", layer)?;
    for body in plan.runs.iter().flat_map(|run| &run.context.bodies) {
        if let Some(LayerParts::Full(parts)) = body.layers.layer(layer) {
            parts.settle(device, shape, (&mut *pages, page_tokens)).map_err(failed("full_mixer"))?;
        }
    }
    Ok(())
}

impl FullParts {
    /// Behind the wait for its arrival.
    fn settle<E: Float>(
        &self,
        device: &Device,
        shape: &FullShape,
        (layer, page_tokens): (&mut LayerPages<E>, usize),
    ) -> crate::Result<()> {
        // A panic while it was held leaves them lost.
        let mut kv = self.kv.lock().unwrap_or_else(PoisonError::into_inner);
        let Staged { stored, dtype } = match std::mem::replace(&mut *kv, Kv::Lost) {
            Kv::Staged(staged) => staged,
            Kv::Here => {
                *kv = Kv::Here;
                return Ok(());
            }
            Kv::Lost => {
                let found = "lost in a step that failed";
                return Error::unless(false, "keys and values of a body", "in their pages", found);
            }
        };
        let FullShape { kv_heads, key: width, .. } = *shape;
        let rows = to_compute(device, (dtype, width), stored)?;
        let places = places_of(&self.pages.pages, 0..self.tokens, (kv_heads, page_tokens));
        let places = Table::new(device, &places)?;
        let moved = KvRows { kv_heads, width, page_tokens, places: &places, order: KvOrder::Heads };
        moved.store_both(device, &rows, [&mut layer.key, &mut layer.value])?;
        *kv = Kv::Here;
        Ok(())
    }
}

/// The format in which this device stores: its own tiles, unless numbers of 8 bits are wanted for `T` or `S`, and keys,
/// values and tails as it computes them, unless in 8 bits.
pub(super) fn format<E: Float>(wanted: &TupleFormat) -> TupleFormat {
    let tiles = wanted.transition != Dtype::I8 && wanted.state != Dtype::I8;
    let stored = stored_for::<E>().dtype();
    let computed = |dtype| if dtype == Dtype::I8 { dtype } else { E::DTYPE };
    TupleFormat {
        transition: if tiles { stored } else { wanted.transition },
        state: if tiles { stored } else { wanted.state },
        tail: computed(wanted.tail),
        kv: computed(wanted.kv),
        layout: u32::from(tiles),
        skip_below: wanted.skip_below,
    }
}

pub(super) fn import<E: Float>(
    device: &Device,
    (layer, spec): (usize, &ModelSpec),
    pages: &mut Pages<E>,
    host: &HostLayer,
) -> Result<LayerParts<E>, OpError> {
    const OP: &str = "import";
    let shape = spec.layers.get(layer).ok_or_else(|| OpError::shape(OP, "a layer of the model", layer))?;
    match host.check(OP, shape)? {
        Checked::Linear { shape, live, transition, state, tail } => {
            gdn_only(OP, shape)?;
            let stored = [transition, state, tail];
            match host.format.layout {
                0 => linear_from_rows(device, shape, &live, stored).map_err(failed(OP)),
                1 => linear_from_tiles(device, shape, &live, stored),
                layout => Err(OpError::Unsupported { op: OP, what: format!("layout {layout}") }),
            }
            .map(|parts| LayerParts::Linear(Arc::new(parts)))
        }
        Checked::Full { shape, key, value } => {
            if shape.key != shape.value {
                return Err(OpError::shape(OP, "values as wide as keys", shape.value));
            }
            let page_tokens = pages.page_tokens;
            let pages = pages.layer_mut(OP, layer)?.take((host.body, page_tokens), &PagesTaken::default())?;
            full_parts(device, (pages, host.body), [key, value]).map(LayerParts::Full).map_err(failed(OP))
        }
    }
}

/// Layout 1: the bytes are the tiles.
fn linear_from_tiles<E: Float>(
    device: &Device,
    shape: &LinearShape,
    live: &[bool],
    [transition, state, tail]: [StoredPart; 3],
) -> Result<LinearParts<E>, OpError> {
    let stored = stored_for::<E>();
    let found = [transition.shape.dtype, state.shape.dtype];
    if found != [stored.dtype(); 2] {
        let what = format!("tiles of {} and {}", found[0].name(), found[1].name());
        return Err(OpError::Unsupported { op: "import", what });
    }
    let (first, end) = (transition.bytes.len(), transition.bytes.len() + state.bytes.len());
    let mut parts = vec![(0, transition.bytes), (first, state.bytes)];
    let is_behind = tail.shape.dtype == E::DTYPE;
    let size = end + if is_behind { tail.bytes.len() } else { 0 };
    if is_behind {
        parts.push((end, tail.bytes.clone()));
    }
    let place = || {
        let (bytes, arrival) = upload(device, size, parts)?;
        let tiles = Arc::new(Tiles::around(bytes, live, shape.key, stored)?);
        let tail = if is_behind { Tail::Behind(end) } else { Tail::Own(own_tail(device, tail)?) };
        Ok(LinearParts { tiles, tail, arrival })
    };
    place().map_err(failed("import"))
}

/// A tail in the format of activations, in the order of kernels.
fn own_tail<E: Float>(device: &Device, tail: StoredPart) -> crate::Result<Buffer<E>> {
    let row = (tail.shape.dtype, tail.shape.width as usize);
    let (stored, arrival) = upload(device, tail.bytes.len(), vec![(0, tail.bytes)])?;
    device.wait_for_copy(arrival)?;
    to_compute(device, row, stored)
}

/// Layout 0: plain rows become tiles on the device, in the order of its kernels.
fn linear_from_rows<E: Float>(
    device: &Device,
    shape: &LinearShape,
    live: &[bool],
    [transition, state, tail]: [StoredPart; 3],
) -> crate::Result<LinearParts<E>> {
    let types = [&transition, &state].map(|part| (part.shape.dtype, part.shape.width as usize));
    let arriving = |part: StoredPart| upload(device, part.bytes.len(), vec![(0, part.bytes)]);
    let (transition, (state, arrival)) = (arriving(transition)?.0, arriving(state)?);
    device.wait_for_copy(arrival)?;
    let values = [widen(device, types[0], transition)?, widen(device, types[1], state)?];
    let tiles = Tiles::packed(device, (live, shape.key, stored_for::<E>()), [&values[0], &values[1]])?;
    let tail = Tail::Own(own_tail(device, tail)?);
    Ok(LinearParts { tiles: Arc::new(tiles), tail, arrival: Arrival::HERE })
}

fn full_parts(
    device: &Device,
    (pages, tokens): (BodyPages, usize),
    [key, value]: [StoredPart; 2],
) -> crate::Result<FullParts> {
    let (dtype, half) = (key.shape.dtype, key.bytes.len());
    let parts = vec![(0, key.bytes), (half, value.bytes)];
    let (stored, arrival) = upload(device, 2 * half, parts)?;
    Ok(FullParts { pages, tokens, kv: Mutex::new(Kv::Staged(Staged { stored, dtype })), arrival })
}

/// Where tokens lie in pages, as the kernels count.
fn places_of(
    pages: &[u32],
    tokens: std::ops::Range<usize>,
    (kv_heads, page_tokens): (usize, usize),
) -> Vec<u32> {
    let place =
        |token: usize| pages[token / page_tokens] as usize * kv_heads * page_tokens + token % page_tokens;
    tokens.map(|token| place(token) as u32).collect()
}

#[cfg(all(test, feature = "fibers"))]
mod tests;
