//! One layer of a tuple on the device, and what a build has recorded.

use hypic_domain::family::Family;
use hypic_domain::model::{FullShape, LayerSpec, LinearShape, ModelSpec};
use hypic_kernels::op::{Export, HostLayer, OpError};

use super::memory::{BodyPages, LayerPages, Pages};
use super::{CudaDevice, failed};
use crate::attention::KvRows;
use crate::layout::ALIGNMENT;
use crate::memory::{Float, Fresh};
use crate::pack::{pack_tiles, set_identity};
use crate::programs::stored_for;
use crate::{Buffer, Device, Places};

/// One layer of a tuple.
pub enum LayerParts<E: Float> {
    /// Of a linear layer.
    Linear(LinearParts<E>),
    /// Of a full layer.
    Full(FullParts),
}

/// Tiles of layout 1, and the tail.
pub struct LinearParts<E: Float> {
    pub(super) tiles: Buffer<u8>,
    /// Byte offset of every head's `T`; a dead head has none.
    pub(super) transition: Vec<Option<u64>>,
    /// Byte offset of every head's `S`.
    pub(super) state: Vec<u64>,
    /// Raw convolution inputs, oldest first, `[K-1, channels]`.
    pub(super) tail: Buffer<E>,
}

/// Keys and values in pages of the pool that they were imported for.
pub struct FullParts {
    pub(super) pages: BodyPages,
    pub(super) tokens: usize,
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
                .map(LayerParts::Linear)
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
            full_parts(device, shape, (layer, page_tokens), [key, value]).map(LayerParts::Full)
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
    let stored = stored_for::<E>();
    let size = ((shape.key * shape.value * stored.size()) as u64).next_multiple_of(ALIGNMENT);
    let mut next = (0..).map(|tile| tile * size);
    let transitions: Vec<Option<u64>> =
        live.iter().map(|&live| if live { next.next() } else { None }).collect();
    let states: Vec<u64> = next.take(shape.heads).collect();
    let end = states.last().map_or(0, |last| last + size);
    let mut tiles = Buffer::fresh(device, end as usize, Fresh::Anything)?;
    let nothing = |len: usize| Buffer::<f32>::fresh(device, len, Fresh::Anything);
    // The kernel packs pairs; where one part has no place, its values are not read.
    let places: Vec<_> = transitions.iter().flatten().map(|&at| (Some(at), None)).collect();
    let places = Places::new(device, shape.key, stored, &places)?;
    let values = Buffer::from_slice(device, transition)?;
    pack_tiles(device, &places, [&values, &nothing(transition.len())?], &mut tiles)?;
    let places: Vec<_> = states.iter().map(|&at| (None, Some(at))).collect();
    let places = Places::new(device, shape.key, stored, &places)?;
    let values = Buffer::from_slice(device, state)?;
    pack_tiles(device, &places, [&nothing(state.len())?, &values], &mut tiles)?;
    let tail: Vec<E> = tail.iter().map(|&value| E::narrow(value)).collect();
    Ok(LinearParts {
        tiles,
        transition: transitions,
        state: states,
        tail: Buffer::from_slice(device, &tail)?,
    })
}

fn full_parts<E: Float>(
    device: &Device,
    shape: &FullShape,
    (layer, page_tokens): (&mut LayerPages<E>, usize),
    [key, value]: [&[f32]; 2],
) -> Result<FullParts, OpError> {
    let FullShape { kv_heads, key: width, .. } = *shape;
    let tokens = key.len() / (kv_heads * width);
    let pages = layer.take(tokens, page_tokens)?;
    let places = places_of(&pages.pages, 0..tokens, (kv_heads, page_tokens));
    // From heads outermost to tokens outermost.
    let by_token = |values: &[f32]| -> Vec<E> {
        let rows = (0..tokens).flat_map(|token| (0..kv_heads).map(move |head| head * tokens + token));
        rows.flat_map(|row| &values[row * width..][..width]).map(|&value| E::narrow(value)).collect()
    };
    let mut write = || {
        let places = Buffer::from_slice(device, &places)?;
        let rows =
            [Buffer::from_slice(device, &by_token(key))?, Buffer::from_slice(device, &by_token(value))?];
        let moved = KvRows { kv_heads, width, page_tokens, places: &places };
        moved.store(device, [&rows[0], &rows[1]], [&mut layer.key, &mut layer.value])
    };
    write().map_err(failed("import"))?;
    Ok(FullParts { pages, tokens })
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

/// One layer of a recording: `T` and `S` of the body's tokens so far.
pub(super) struct LayerRecord {
    /// `[heads, key, key]`.
    pub(super) transition: Buffer<f32>,
    /// `[heads, key, value]`.
    pub(super) state: Buffer<f32>,
    /// Logarithms of the gate-only bounds on the norms of `T`, `[heads]`.
    pub(super) bound: Buffer<f32>,
    /// Ones, `[heads]`: whether a head is dead is known only at the end.
    pub(super) live: Buffer<u8>,
}

/// What a build has collected, layer by layer; nothing for full layers.
pub struct Recording {
    pub(super) layers: Vec<Option<LayerRecord>>,
}

impl Recording {
    pub(super) fn empty(device: &Device, spec: &ModelSpec) -> Result<Self, OpError> {
        let layers = spec.layers.iter().map(|layer| match layer {
            LayerSpec::Linear(shape) => {
                gdn_only("recording", shape)?;
                LayerRecord::empty(device, shape).map(Some).map_err(failed("recording"))
            }
            LayerSpec::Full(_) => Ok(None),
        });
        Ok(Self { layers: layers.collect::<Result<_, _>>()? })
    }
}

impl LayerRecord {
    fn empty(device: &Device, shape: &LinearShape) -> crate::Result<Self> {
        let mut transition = Buffer::fresh(device, shape.heads * shape.key * shape.key, Fresh::Anything)?;
        set_identity(device, &mut transition, shape.key)?;
        Ok(Self {
            transition,
            state: Buffer::zeros(device, shape.heads * shape.key * shape.value)?,
            bound: Buffer::zeros(device, shape.heads)?,
            live: Buffer::from_slice(device, &vec![1; shape.heads])?,
        })
    }
}

pub(super) fn export<E: Float>(
    device: &Device,
    request: &Export<'_, CudaDevice<E>>,
) -> Result<HostLayer, OpError> {
    match request.spec.layers.get(request.layer) {
        Some(LayerSpec::Linear(shape)) => {
            let record = request.recording.layers.get(request.layer).and_then(Option::as_ref);
            let record = record.ok_or_else(|| OpError::shape("export", "a recorded layer", request.layer))?;
            export_linear(shape, record, request).map_err(failed("export"))
        }
        Some(LayerSpec::Full(shape)) => export_full(device, shape, request),
        None => Err(OpError::shape("export", "a layer of the model", request.layer)),
    }
}

fn export_linear<E: Float>(
    shape: &LinearShape,
    record: &LayerRecord,
    request: &Export<'_, CudaDevice<E>>,
) -> crate::Result<HostLayer> {
    let live: Vec<bool> =
        record.bound.read()?.into_iter().map(|bound| bound.exp() >= request.skip_below).collect();
    let transition = record.transition.read()?;
    let heads = transition.chunks_exact(shape.key * shape.key).zip(&live);
    Ok(HostLayer::Linear {
        transition: heads.filter(|(_, live)| **live).flat_map(|(values, _)| values).copied().collect(),
        state: record.state.read()?,
        tail: request.states.read_tail(request.slot, request.layer)?,
        live,
    })
}

fn export_full<E: Float>(
    device: &Device,
    shape: &FullShape,
    request: &Export<'_, CudaDevice<E>>,
) -> Result<HostLayer, OpError> {
    let FullShape { kv_heads, key: width, .. } = *shape;
    let (context, page_tokens) = (request.context, request.pages.page_tokens);
    let layer = request.pages.layer("export", request.layer)?;
    let tokens = context.live.len();
    let first = tokens
        .checked_sub(request.body)
        .ok_or_else(|| OpError::shape("export", "a body within the run", request.body))?;
    let outside = context.pages.iter().any(|&page| page >= request.pages.pages);
    if outside || context.pages.len() * page_tokens < tokens || shape.value != width {
        let found = format!("{:?} of {}", context.pages, request.pages.pages);
        return Err(OpError::shape("export", "pages for every live token", found));
    }
    let pages: Vec<u32> = context.pages.iter().map(|&page| page as u32).collect();
    let places = places_of(&pages, first..tokens, (kv_heads, page_tokens));
    let read = || {
        let places = Buffer::from_slice(device, &places)?;
        let rows = |_| Buffer::<E>::fresh(device, request.body * kv_heads * width, Fresh::Anything);
        let (mut key, mut value) = (rows(())?, rows(())?);
        let moved = KvRows { kv_heads, width, page_tokens, places: &places };
        moved.load(device, [&mut key, &mut value], [&layer.key, &layer.value])?;
        Ok((key.read()?, value.read()?))
    };
    let (key, value) = read().map_err(failed("export"))?;
    // From tokens outermost to heads outermost.
    let by_head = |values: &[E]| -> Vec<f32> {
        let rows = (0..kv_heads).flat_map(|head| (0..request.body).map(move |token| token * kv_heads + head));
        rows.flat_map(|row| &values[row * width..][..width]).map(|&value| value.wide()).collect()
    };
    Ok(HostLayer::Full { key: by_head(&key), value: by_head(&value) })
}
