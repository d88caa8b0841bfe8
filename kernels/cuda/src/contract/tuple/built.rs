//! One layer of a finished build: kept on the device, taken over there or on another device, and brought to the host as
//! it is stored.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hypic_domain::model::{FullShape, LayerSpec, LinearShape, ModelSpec};
use hypic_domain::part::live_set;
use hypic_domain::tuple::{Dtype, PartKind, TupleFormat};
use hypic_kernels::op::{Export, HostLayer, OpError};

use super::super::memory::{BodyPages, LayerPages, Pages, PagesTaken};
use super::super::{CudaDevice, failed};
use super::{FullParts, Kv, LayerParts, LinearParts, Staged, Tail, places_of};
use crate::attention::{KvOrder, KvRows};
use crate::device::{Arrival, Mark};
use crate::memory::{self, Element, Float, Fresh, Table, fetch};
use crate::pack::{from_compute, narrow};
use crate::programs::stored_for;
use crate::{Buffer, Device, Pinned};

/// One layer of a finished build, in memory of its own.
pub struct BuiltLayer<E: Float> {
    values: Values<E>,
    /// That it is stored in.
    format: TupleFormat,
    /// Tokens of the body.
    body: usize,
    device: Device,
    /// By the layers of this build, wherever it was taken over.
    taken: PagesTaken,
    /// Behind the last launch that writes it.
    ready: Mark,
}

enum Values<E: Float> {
    Linear(Arc<LinearParts<E>>),
    Full(BodyKv<E>),
}

/// Keys before rotation and values of a body, each `[kv heads, tokens, width]`.
struct BodyKv<E: Float> {
    rows: [Buffer<E>; 2],
    tokens: usize,
}

/// Whether what was built is, in bits, what is imported when it was stored in `format`.
pub(in crate::contract) fn keeps<E: Float>(format: &TupleFormat) -> bool {
    let own = stored_for::<E>().dtype();
    let stored = [format.transition, format.state];
    let tiles = match format.layout {
        0 => {
            // What fp32 devices keep as pairs is not what they are given in the last two bits.
            E::DTYPE != Dtype::F32 && stored.iter().all(|dtype| [Dtype::F16, Dtype::F32].contains(dtype))
        }
        1 => stored == [own; 2],
        _ => false,
    };
    tiles && [format.tail, format.kv].iter().all(|dtype| [E::DTYPE, Dtype::F32].contains(dtype))
}

/// Layouts that this device stores: plain rows, and the tiles that it computes with.
fn check_layout<E: Float>(format: &TupleFormat) -> Result<(), OpError> {
    let is_own = [format.transition, format.state] == [stored_for::<E>().dtype(); 2];
    match format.layout {
        0 => Ok(()),
        1 if is_own => Ok(()),
        _ => Err(OpError::Unsupported { op: "finish", what: format!("{format:?}") }),
    }
}

impl<E: Float> BodyKv<E> {
    /// Writes it to its pages.
    fn place(
        &self,
        device: &Device,
        shape: &FullShape,
        (layer, page_tokens): (&mut LayerPages<E>, usize),
        pages: BodyPages,
    ) -> Result<FullParts, OpError> {
        let FullShape { kv_heads, key: width, .. } = *shape;
        let places = places_of(&pages.pages, 0..self.tokens, (kv_heads, page_tokens));
        let mut write = || {
            let places = Table::new(device, &places)?;
            let moved = KvRows { kv_heads, width, page_tokens, places: &places, order: KvOrder::Heads };
            moved.store(device, [&self.rows[0], &self.rows[1]], [&mut layer.key, &mut layer.value])
        };
        write().map_err(failed("adopt"))?;
        Ok(FullParts { pages, tokens: self.tokens, kv: Mutex::new(Kv::Here), arrival: Arrival::HERE })
    }
}

/// One layer of a finished build: its tiles, the slot's tail, and the body's KV.
pub(in crate::contract) fn finish<E: Float>(
    device: &Device,
    request: &Export<'_, CudaDevice<E>>,
) -> Result<BuiltLayer<E>, OpError> {
    let values = match request.spec.layers.get(request.layer) {
        Some(LayerSpec::Linear(shape)) => {
            check_layout::<E>(&request.format)?;
            let record = request.recording.layers.get(request.layer).and_then(Option::as_ref);
            let record = record.ok_or_else(|| OpError::shape("finish", "a recorded layer", request.layer))?;
            let tiles = record.tiles(device, shape, (stored_for::<E>(), request.format.skip_below))?;
            let tail = request.states.tail(device, request.slot, request.layer).map_err(failed("finish"))?;
            Values::Linear(Arc::new(LinearParts { tiles, tail: Tail::Own(tail), arrival: Arrival::HERE }))
        }
        Some(LayerSpec::Full(shape)) => Values::Full(finish_full(device, shape, request)?),
        None => return Err(OpError::shape("finish", "a layer of the model", request.layer)),
    };
    let ready = device.mark().map_err(failed("finish"))?;
    let (device, taken) = (device.clone(), request.recording.taken.clone());
    Ok(BuiltLayer { values, format: request.format, body: request.body, device, taken, ready })
}

fn finish_full<E: Float>(
    device: &Device,
    shape: &FullShape,
    request: &Export<'_, CudaDevice<E>>,
) -> Result<BodyKv<E>, OpError> {
    let FullShape { kv_heads, key: width, .. } = *shape;
    let (context, page_tokens) = (request.context, request.pages.page_tokens);
    let layer = request.pages.layer("finish", request.layer)?;
    let tokens = context.live.len();
    let first = tokens
        .checked_sub(request.body)
        .ok_or_else(|| OpError::shape("finish", "a body within the run", request.body))?;
    let outside = context.pages.iter().any(|&page| page >= request.pages.pages);
    if outside || context.pages.len() * page_tokens < tokens || shape.value != width {
        let found = format!("{:?} of {}", context.pages, request.pages.pages);
        return Err(OpError::shape("finish", "pages for every live token", found));
    }
    let pages: Vec<u32> = context.pages.iter().map(|&page| page as u32).collect();
    let places = places_of(&pages, first..tokens, (kv_heads, page_tokens));
    let read = || {
        let places = Table::new(device, &places)?;
        let rows = |_| Buffer::<E>::fresh(device, request.body * kv_heads * width, Fresh::Anything);
        let mut rows = [rows(())?, rows(())?];
        let [key, value] = &mut rows;
        let moved = KvRows { kv_heads, width, page_tokens, places: &places, order: KvOrder::Heads };
        moved.load(device, [key, value], [&layer.key, &layer.value])?;
        Ok(BodyKv { rows, tokens: request.body })
    };
    read().map_err(failed("finish"))
}

/// Takes over what a build on this device has finished, or lets what another has come beside what is computed here: the
/// step that needs it waits for it.
pub(in crate::contract) fn adopt<E: Float>(
    device: &Device,
    (layer, spec): (usize, &ModelSpec),
    pages: &mut Pages<E>,
    built: &Arc<BuiltLayer<E>>,
) -> Result<LayerParts<E>, OpError> {
    const OP: &str = "adopt";
    let is_here = device.is(&built.device);
    match (spec.layers.get(layer), &built.values) {
        (Some(LayerSpec::Linear(_)), Values::Linear(parts)) if is_here => {
            Ok(LayerParts::Linear(Arc::clone(parts)))
        }
        (Some(LayerSpec::Linear(_)), Values::Linear(parts)) => {
            linear_of_peer(device, built, parts).map(LayerParts::Linear).map_err(failed(OP))
        }
        (Some(LayerSpec::Full(shape)), Values::Full(kv)) => {
            let page_tokens = pages.page_tokens;
            let layer = pages.layer_mut(OP, layer)?;
            let tokens = kv.tokens;
            let pages = layer.take((tokens, page_tokens), &built.taken)?;
            if is_here {
                return kv.place(device, shape, (layer, page_tokens), pages).map(LayerParts::Full);
            }
            let sent = kv.rows.each_ref().map(Buffer::sent);
            let fetched = fetch(device, (&sent, &built.ready), Arc::<BuiltLayer<E>>::clone(built));
            let (stored, arrival) = fetched.map_err(failed(OP))?;
            let kv = Mutex::new(Kv::Staged(Staged { stored, dtype: E::DTYPE }));
            Ok(LayerParts::Full(FullParts { pages, tokens, kv, arrival }))
        }
        _ => Err(OpError::shape(OP, "the layer's kind", layer)),
    }
}

fn linear_of_peer<E: Float>(
    device: &Device,
    built: &Arc<BuiltLayer<E>>,
    parts: &LinearParts<E>,
) -> crate::Result<Arc<LinearParts<E>>> {
    let LinearParts { tiles, tail, .. } = parts;
    let (mut sent, mut behind) = (vec![tiles.bytes.sent()], tiles.bytes.len());
    match tail {
        Tail::Own(tail) => sent.push(tail.sent()),
        Tail::Behind(at) => behind = *at,
    }
    let (bytes, arrival) = fetch(device, (&sent, &built.ready), Arc::<BuiltLayer<E>>::clone(built))?;
    let tiles = Arc::new(tiles.moved(bytes)?);
    Ok(Arc::new(LinearParts { tiles, tail: Tail::Behind(behind), arrival }))
}

/// One layer of a finished build on the host, as it is stored; waits for the device that built it.
pub(in crate::contract) fn land<E: Float>(
    (layer, spec): (usize, &ModelSpec),
    pinned: Option<&Pinned>,
    built: &BuiltLayer<E>,
) -> Result<HostLayer, OpError> {
    let BuiltLayer { values, format, body, device, .. } = built;
    let mut host = HostLayer::empty(*format, *body);
    let landed = match (spec.layers.get(layer), values) {
        (Some(LayerSpec::Linear(shape)), Values::Linear(parts)) => {
            land_linear(device, (shape, format), pinned, parts)
        }
        (Some(LayerSpec::Full(shape)), Values::Full(kv)) => land_full(device, (shape, format), pinned, kv),
        _ => return Err(OpError::shape("land", "the layer's kind", layer)),
    };
    host.parts = landed.map_err(failed("land"))?;
    Ok(host)
}

fn land_linear<E: Float>(
    device: &Device,
    (shape, format): (&LinearShape, &TupleFormat),
    pinned: Option<&Pinned>,
    parts: &LinearParts<E>,
) -> crate::Result<Vec<(PartKind, Bytes)>> {
    let tiles = &parts.tiles;
    let live: Vec<bool> = tiles.transition.iter().map(Option::is_some).collect();
    let is_alive = live.contains(&true);
    let tail = match &parts.tail {
        Tail::Behind(at) => {
            let len = shape.tail_rows() * shape.conv_channels() * size_of::<E>();
            copy_of(device, &tiles.bytes, *at, len)?.cast()
        }
        Tail::Own(tail) => copy_of(device, tail, 0, tail.len())?,
    };
    let tail = from_compute(device, (format.tail, shape.conv_channels()), tail)?;
    let set = live_set(&live);
    let (transition, state);
    let landings = match format.layout {
        // The tiles are what is stored.
        1 => {
            let (first, end) = (tiles.state.first().map_or(0, |at| *at as usize), tiles.end());
            [tiles.bytes.landing(set, 0, first)?, tiles.bytes.landing(Vec::new(), first, end - first)?]
        }
        _ => {
            let [all, states] = tiles.unpacked(device)?;
            transition = narrow(device, (format.transition, shape.key), &gather_heads(device, &all, &live)?)?;
            state = narrow(device, (format.state, shape.value), &states)?;
            [transition.landing(set, 0, transition.len())?, state.landing(Vec::new(), 0, state.len())?]
        }
    };
    let landings = landings.into_iter().chain([tail.landing(Vec::new(), 0, tail.len())?]);
    // A layer without a live head has no transition.
    let landings = landings.skip(usize::from(!is_alive)).collect();
    let kinds = [PartKind::Transition, PartKind::State, PartKind::Tail];
    let kinds = kinds.into_iter().skip(usize::from(!is_alive));
    Ok(kinds.zip(memory::land(device, pinned, landings)?).collect())
}

fn copy_of<T: Element>(
    device: &Device,
    source: &Buffer<T>,
    first: usize,
    len: usize,
) -> crate::Result<Buffer<T>> {
    let mut copy = Buffer::fresh(device, len, Fresh::Anything)?;
    copy.copy(0, source, first, len)?;
    Ok(copy)
}

/// The matrices of the live heads, one behind the other.
fn gather_heads(device: &Device, all: &Buffer<f32>, live: &[bool]) -> crate::Result<Buffer<f32>> {
    let square = all.len().checked_div(live.len()).unwrap_or(0);
    let alive = live.iter().enumerate().filter(|(_, live)| **live);
    let mut heads = Buffer::fresh(device, alive.clone().count() * square, Fresh::Anything)?;
    for (place, (head, _)) in alive.enumerate() {
        heads.copy(place * square, all, head * square, square)?;
    }
    Ok(heads)
}

fn land_full<E: Float>(
    device: &Device,
    (shape, format): (&FullShape, &TupleFormat),
    pinned: Option<&Pinned>,
    kv: &BodyKv<E>,
) -> crate::Result<Vec<(PartKind, Bytes)>> {
    let stored = |rows: &Buffer<E>| {
        from_compute(device, (format.kv, shape.key), copy_of(device, rows, 0, rows.len())?)
    };
    let (key, value) = (stored(&kv.rows[0])?, stored(&kv.rows[1])?);
    let landings = vec![key.landing(Vec::new(), 0, key.len())?, value.landing(Vec::new(), 0, value.len())?];
    Ok([PartKind::Key, PartKind::Value].into_iter().zip(memory::land(device, pinned, landings)?).collect())
}
