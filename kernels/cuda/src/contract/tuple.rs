//! One layer of a tuple on the device: from the host, from a build, from another device, and to the host.

use std::sync::Arc;

use hypic_domain::family::Family;
use hypic_domain::model::{FullShape, LayerSpec, LinearShape, ModelSpec};
use hypic_kernels::op::{Export, HostLayer, OpError};

use super::memory::{BodyPages, LayerPages, Pages};
use super::{CudaDevice, failed};
use crate::attention::KvRows;
use crate::device::Mark;
use crate::memory::{Float, Fresh};
use crate::pack::Tiles;
use crate::programs::stored_for;
use crate::{Buffer, Device};

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
    /// Raw convolution inputs, oldest first, `[K-1, channels]`.
    pub(super) tail: Buffer<E>,
}

/// Keys and values in pages of the pool that they were imported for.
pub struct FullParts {
    pub(super) pages: BodyPages,
    pub(super) tokens: usize,
}

/// One layer of a finished build, in memory of its own.
pub struct BuiltLayer<E: Float> {
    values: Values<E>,
    device: Device,
    /// Behind the last launch that writes it.
    ready: Mark,
}

enum Values<E: Float> {
    Linear(Arc<LinearParts<E>>),
    Full(BodyKv<E>),
}

/// Keys before rotation and values of a body, each `[tokens, kv heads, width]`.
struct BodyKv<E: Float> {
    rows: [Buffer<E>; 2],
    tokens: usize,
}

/// This device computes the gated delta rule, on heads that its kernels have.
pub(super) fn gdn_only(op: &'static str, shape: &LinearShape) -> Result<(), OpError> {
    let fits = matches!(shape.key, 64 | 128) && shape.value == shape.key && shape.conv_kernel == crate::TAPS;
    if shape.family == Family::Gdn && fits {
        return Ok(());
    }
    let what = format!("{shape:?} (gated delta rule, heads of 64 or 128, {} taps)", crate::TAPS);
    Err(OpError::Unsupported { op, what })
}

pub(super) fn import<E: Float>(
    device: &Device,
    (layer, spec): (usize, &ModelSpec),
    pages: &mut Pages<E>,
    host: &HostLayer,
) -> Result<LayerParts<E>, OpError> {
    let wrong = |expected: &str, found: String| {
        OpError::shape("import", format!("{expected} in layer {layer}"), found)
    };
    match (spec.layers.get(layer), host) {
        (Some(LayerSpec::Linear(shape)), HostLayer::Linear { live, transition, state, tail }) => {
            gdn_only("import", shape)?;
            let alive = live.iter().filter(|&&live| live).count();
            let lengths = [live.len(), transition.len(), state.len(), tail.len()];
            let square = shape.key * shape.value;
            let tail_len = shape.tail_rows() * shape.conv_channels();
            if lengths != [shape.heads, alive * square, shape.heads * square, tail_len] {
                return Err(wrong(&format!("parts of {shape:?}"), format!("lengths {lengths:?}")));
            }
            linear_parts(device, shape, live, [transition, state, tail])
                .map(|parts| LayerParts::Linear(Arc::new(parts)))
                .map_err(failed("import"))
        }
        (Some(LayerSpec::Full(shape)), HostLayer::Full { key, value }) => {
            let width = shape.kv_heads * shape.key;
            let tokens = key.len().checked_div(width).unwrap_or(0);
            if shape.key != shape.value || key.len() != tokens * width || value.len() != key.len() {
                let found = format!("lengths {} and {}", key.len(), value.len());
                return Err(wrong(&format!("parts of {shape:?}"), found));
            }
            let page_tokens = pages.page_tokens;
            let layer = pages.layer_mut("import", layer)?;
            let kv = body_kv(device, shape, [key, value]).map_err(failed("import"))?;
            kv.place(device, shape, (layer, page_tokens)).map(LayerParts::Full)
        }
        (layer, _) => Err(wrong("parts of the layer's kind", format!("the other kind, for {layer:?}"))),
    }
}

fn linear_parts<E: Float>(
    device: &Device,
    shape: &LinearShape,
    live: &[bool],
    [transition, state, tail]: [&[f32]; 3],
) -> crate::Result<LinearParts<E>> {
    let values = [Buffer::from_slice(device, transition)?, Buffer::from_slice(device, state)?];
    let tiles = Tiles::packed(device, (live, shape.key, stored_for::<E>()), [&values[0], &values[1]])?;
    let tail: Vec<E> = tail.iter().map(|&value| E::narrow(value)).collect();
    Ok(LinearParts { tiles: Arc::new(tiles), tail: Buffer::from_slice(device, &tail)? })
}

fn body_kv<E: Float>(
    device: &Device,
    shape: &FullShape,
    [key, value]: [&[f32]; 2],
) -> crate::Result<BodyKv<E>> {
    let FullShape { kv_heads, key: width, .. } = *shape;
    let tokens = key.len() / (kv_heads * width);
    // From heads outermost to tokens outermost.
    let by_token = |values: &[f32]| -> Vec<E> {
        let rows = (0..tokens).flat_map(|token| (0..kv_heads).map(move |head| head * tokens + token));
        rows.flat_map(|row| &values[row * width..][..width]).map(|&value| E::narrow(value)).collect()
    };
    let rows = [Buffer::from_slice(device, &by_token(key))?, Buffer::from_slice(device, &by_token(value))?];
    Ok(BodyKv { rows, tokens })
}

impl<E: Float> BodyKv<E> {
    /// Writes it to pages for bodies.
    fn place(
        &self,
        device: &Device,
        shape: &FullShape,
        (layer, page_tokens): (&mut LayerPages<E>, usize),
    ) -> Result<FullParts, OpError> {
        let FullShape { kv_heads, key: width, .. } = *shape;
        let pages = layer.take(self.tokens, page_tokens)?;
        let places = places_of(&pages.pages, 0..self.tokens, (kv_heads, page_tokens));
        let mut write = || {
            let places = Buffer::from_slice(device, &places)?;
            let moved = KvRows { kv_heads, width, page_tokens, places: &places };
            moved.store(device, [&self.rows[0], &self.rows[1]], [&mut layer.key, &mut layer.value])
        };
        write().map_err(failed("import"))?;
        Ok(FullParts { pages, tokens: self.tokens })
    }

    fn copied(&self, device: &Device) -> crate::Result<Self> {
        let [key, value] = &self.rows;
        let rows = [Buffer::from_peer(device, key)?, Buffer::from_peer(device, value)?];
        Ok(Self { rows, tokens: self.tokens })
    }
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

/// One layer of a finished build: its tiles, the slot's tail, and the body's KV.
pub(super) fn finish<E: Float>(
    device: &Device,
    request: &Export<'_, CudaDevice<E>>,
) -> Result<BuiltLayer<E>, OpError> {
    let values = match request.spec.layers.get(request.layer) {
        Some(LayerSpec::Linear(shape)) => {
            let record = request.recording.layers.get(request.layer).and_then(Option::as_ref);
            let record = record.ok_or_else(|| OpError::shape("finish", "a recorded layer", request.layer))?;
            let tiles = record.tiles(device, shape, (stored_for::<E>(), request.skip_below))?;
            let tail = request.states.tail(device, request.slot, request.layer).map_err(failed("finish"))?;
            Values::Linear(Arc::new(LinearParts { tiles, tail }))
        }
        Some(LayerSpec::Full(shape)) => Values::Full(finish_full(device, shape, request)?),
        None => return Err(OpError::shape("finish", "a layer of the model", request.layer)),
    };
    Ok(BuiltLayer { values, device: device.clone(), ready: device.mark().map_err(failed("finish"))? })
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
        let places = Buffer::from_slice(device, &places)?;
        let rows = |_| Buffer::<E>::fresh(device, request.body * kv_heads * width, Fresh::Anything);
        let mut rows = [rows(())?, rows(())?];
        let [key, value] = &mut rows;
        let moved = KvRows { kv_heads, width, page_tokens, places: &places };
        moved.load(device, [key, value], [&layer.key, &layer.value])?;
        Ok(BodyKv { rows, tokens: request.body })
    };
    read().map_err(failed("finish"))
}

/// Takes over what a build on this device or on another has finished.
pub(super) fn adopt<E: Float>(
    device: &Device,
    (layer, spec): (usize, &ModelSpec),
    pages: &mut Pages<E>,
    built: &BuiltLayer<E>,
) -> Result<LayerParts<E>, OpError> {
    let is_here = device.is(&built.device);
    if !is_here {
        device.wait_for(&built.ready).map_err(failed("adopt"))?;
    }
    match (spec.layers.get(layer), &built.values) {
        (Some(LayerSpec::Linear(_)), Values::Linear(parts)) => {
            if is_here {
                return Ok(LayerParts::Linear(Arc::clone(parts)));
            }
            let copy = || {
                let tiles = Arc::new(parts.tiles.copied(device)?);
                Ok(LinearParts { tiles, tail: Buffer::from_peer(device, &parts.tail)? })
            };
            copy().map(|parts| LayerParts::Linear(Arc::new(parts))).map_err(failed("adopt"))
        }
        (Some(LayerSpec::Full(shape)), Values::Full(kv)) => {
            let page_tokens = pages.page_tokens;
            let layer = (pages.layer_mut("adopt", layer)?, page_tokens);
            let placed = if is_here {
                kv.place(device, shape, layer)
            } else {
                kv.copied(device).map_err(failed("adopt"))?.place(device, shape, layer)
            };
            placed.map(LayerParts::Full)
        }
        _ => Err(OpError::shape("adopt", "the layer's kind", layer)),
    }
}

/// One layer of a finished build on the host; waits for the device that built it.
pub(super) fn land<E: Float>(
    (layer, spec): (usize, &ModelSpec),
    built: &BuiltLayer<E>,
) -> Result<HostLayer, OpError> {
    let landed = match (spec.layers.get(layer), &built.values) {
        (Some(LayerSpec::Linear(shape)), Values::Linear(parts)) => {
            land_linear(&built.device, shape.key * shape.key, parts)
        }
        (Some(LayerSpec::Full(shape)), Values::Full(kv)) => land_full(shape, kv),
        _ => return Err(OpError::shape("land", "the layer's kind", layer)),
    };
    landed.map_err(failed("land"))
}

fn land_linear<E: Float>(device: &Device, square: usize, parts: &LinearParts<E>) -> crate::Result<HostLayer> {
    let [transition, state] = parts.tiles.unpacked(device)?;
    let live: Vec<bool> = parts.tiles.transition.iter().map(Option::is_some).collect();
    let transition = transition.read()?;
    let heads = transition.chunks_exact(square).zip(&live);
    Ok(HostLayer::Linear {
        transition: heads.filter(|(_, live)| **live).flat_map(|(values, _)| values).copied().collect(),
        state: state.read()?,
        tail: parts.tail.read()?.into_iter().map(E::wide).collect(),
        live,
    })
}

fn land_full<E: Float>(shape: &FullShape, kv: &BodyKv<E>) -> crate::Result<HostLayer> {
    let FullShape { kv_heads, key: width, .. } = *shape;
    // From tokens outermost to heads outermost.
    let by_head = |values: &[E]| -> Vec<f32> {
        let rows = (0..kv_heads).flat_map(|head| (0..kv.tokens).map(move |token| token * kv_heads + head));
        rows.flat_map(|row| &values[row * width..][..width]).map(|&value| value.wide()).collect()
    };
    let [key, value] = &kv.rows;
    Ok(HostLayer::Full { key: by_head(&key.read()?), value: by_head(&value.read()?) })
}
