//! What the CPU device holds: rows, weights, slots, pages, bodies, recordings.

use domain::family::Family;
use domain::model::{FullShape, LayerSpec, LinearShape, ModelSpec};
use domain::tuple::{Dtype, PartKind, TupleFormat};
use half::{bf16, f16};
use hypic_domain as domain;

use super::CpuDevice;
use super::matrix::{PANEL, pack_transposed};
use crate::op::{Checked, Export, HostLayer, HostTensor, OpError};

/// Packed rows, row-major.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) values: Vec<f32>,
    pub(crate) width: usize,
}

impl Tensor {
    pub(crate) fn rows(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..(row + 1) * self.width]
    }
}

/// A weight in fp32: a matrix `[out, in]` as panels `[out / 16, in, 16]`, a vector as it is.
pub struct Weight {
    pub(crate) values: Vec<f32>,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Weight {
    pub(crate) fn from_host(host: &HostTensor<'_>) -> Result<Self, OpError> {
        check(host)?;
        match host.shape[..] {
            [columns] => {
                let mut values = vec![0.0; columns];
                decode(host, 0, &mut values);
                Ok(Self { values, rows: 1, columns })
            }
            [rows, columns] => {
                // Panel by panel, so that the matrix is in memory once.
                let mut values = vec![0.0; rows.next_multiple_of(PANEL) * columns];
                let mut plain = vec![0.0; PANEL * columns];
                for (panel, out) in values.chunks_exact_mut((PANEL * columns).max(1)).enumerate() {
                    let count = PANEL.min(rows - panel * PANEL);
                    decode(host, panel * PANEL * columns, &mut plain[..count * columns]);
                    pack_transposed(&plain, columns, count, columns, out);
                }
                Ok(Self { values, rows, columns })
            }
            _ => Err(OpError::Shape {
                op: "weight",
                expected: format!("a vector or a matrix for \"{}\"", host.name),
                found: format!("{:?}", host.shape),
            }),
        }
    }

    /// Element of a matrix.
    pub(crate) fn at(&self, row: usize, column: usize) -> f32 {
        self.values[(row / PANEL * self.columns + column) * PANEL + row % PANEL]
    }
}

fn check(host: &HostTensor<'_>) -> Result<(), OpError> {
    let size = host.shape.iter().product::<usize>() * host.dtype.size();
    if host.dtype == Dtype::I8 {
        return Err(OpError::Unsupported {
            op: "weight",
            what: format!("\"{}\" in {}", host.name, host.dtype.name()),
        });
    }
    if host.bytes.len() != size {
        return Err(OpError::Shape {
            op: "weight",
            expected: format!("{size} bytes for \"{}\"", host.name),
            found: host.bytes.len().to_string(),
        });
    }
    Ok(())
}

/// Widens the values from `first` on.
fn decode(host: &HostTensor<'_>, first: usize, out: &mut [f32]) {
    let bytes = &host.bytes[first * host.dtype.size()..];
    let pairs = out.iter_mut().zip(bytes.as_chunks::<2>().0);
    match host.dtype {
        Dtype::F16 => pairs.for_each(|(out, &b)| *out = f16::from_le_bytes(b).to_f32()),
        Dtype::Bf16 => pairs.for_each(|(out, &b)| *out = bf16::from_le_bytes(b).to_f32()),
        Dtype::F32 | Dtype::I8 => {
            out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(out, &b)| *out = f32::from_le_bytes(b));
        }
    }
}

/// One linear layer of a slot; empty for a full layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerState {
    /// `[heads, key, value]`.
    pub(crate) state: Vec<f32>,
    /// Raw convolution inputs, oldest first, `[K-1, channels]`.
    pub(crate) tail: Vec<f32>,
}

/// All linear layers of one slot.
#[derive(Clone, Debug)]
pub struct SlotState {
    pub(crate) layers: Vec<LayerState>,
}

impl SlotState {
    pub(crate) fn filled(spec: &ModelSpec, value: f32) -> Self {
        let layers = spec.layers.iter().map(|layer| match layer {
            LayerSpec::Linear(shape) => LayerState {
                state: vec![value; shape.heads * shape.key * shape.value],
                tail: vec![value; shape.tail_rows() * shape.conv_channels()],
            },
            LayerSpec::Full(_) => LayerState::default(),
        });
        Self { layers: layers.collect() }
    }
}

/// The pool of slots.
pub struct States {
    pub(crate) slots: Vec<SlotState>,
}

impl States {
    pub(crate) fn slot(&self, op: &'static str, slot: usize) -> Result<&SlotState, OpError> {
        self.slots.get(slot).ok_or_else(|| no_slot(op, self.slots.len(), slot))
    }

    pub(crate) fn slot_mut(&mut self, op: &'static str, slot: usize) -> Result<&mut SlotState, OpError> {
        let slots = self.slots.len();
        self.slots.get_mut(slot).ok_or_else(|| no_slot(op, slots, slot))
    }
}

fn no_slot(op: &'static str, slots: usize, slot: usize) -> OpError {
    OpError::shape(op, format!("a slot below {slots}"), slot)
}

/// One full layer's pages.
pub(crate) struct LayerPages {
    /// `[pages, kv heads, page tokens, key]`, not rotated.
    pub(crate) key: Vec<f32>,
    /// `[pages, kv heads, page tokens, value]`.
    pub(crate) value: Vec<f32>,
}

/// The pool of pages, layer by layer; nothing for linear layers.
pub struct Pages {
    pub(crate) page_tokens: usize,
    pub(crate) pages: usize,
    pub(crate) layers: Vec<Option<LayerPages>>,
}

/// One layer of a tuple.
pub enum LayerParts {
    /// Of a linear layer.
    Linear {
        /// Where a head's `T` lies in `transition`, in units of `[key, key]`.
        place: Vec<Option<usize>>,
        /// `T` of the live heads.
        transition: Vec<f32>,
        /// `S`, `[heads, key, value]`.
        state: Vec<f32>,
        /// `[K-1, channels]`.
        tail: Vec<f32>,
    },
    /// Of a full layer: `[kv heads, body, key]` and `[kv heads, body, value]`.
    Full {
        /// Keys before rotation.
        key: Vec<f32>,
        /// Values.
        value: Vec<f32>,
    },
}

impl LayerParts {
    pub(crate) fn from_host(layer: usize, spec: &ModelSpec, host: &HostLayer) -> Result<Self, OpError> {
        plain_rows("import", host.format)?;
        let layer =
            spec.layers.get(layer).ok_or_else(|| OpError::shape("import", "a layer of the model", layer))?;
        Ok(match host.check("import", layer)? {
            Checked::Linear { live, transition, state, tail, .. } => {
                let mut next = 0..;
                let place = live.iter().map(|&live| live.then(|| next.next()).flatten()).collect();
                let [transition, state, tail] = [transition, state, tail].map(|part| part.decode());
                Self::Linear { place, transition, state, tail }
            }
            Checked::Full { key, value, .. } => Self::Full { key: key.decode(), value: value.decode() },
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        let values = match self {
            Self::Linear { transition, state, tail, .. } => transition.len() + state.len() + tail.len(),
            Self::Full { key, value } => key.len() + value.len(),
        };
        4 * values as u64
    }
}

/// This device reads and writes plain rows only.
fn plain_rows(op: &'static str, format: TupleFormat) -> Result<(), OpError> {
    match format.layout {
        0 => Ok(()),
        layout => Err(OpError::Unsupported { op, what: format!("layout {layout}") }),
    }
}

/// One head of a recording: `T` and `S` of the body's tokens so far.
#[derive(Clone)]
pub(crate) struct HeadRecord {
    /// `[key, key]`.
    pub(crate) transition: Vec<f32>,
    /// `[key, value]`.
    pub(crate) state: Vec<f32>,
    /// Logarithm of the gate-only bound on the norm of `T`.
    pub(crate) log_bound: f64,
}

/// What a build has collected, layer by layer, head by head; nothing for full layers.
pub struct Recording {
    pub(crate) layers: Vec<Vec<HeadRecord>>,
}

impl Recording {
    pub(crate) fn empty(spec: &ModelSpec) -> Result<Self, OpError> {
        let layers = spec.layers.iter().map(|layer| match layer {
            LayerSpec::Linear(shape) => {
                gdn_only("recording", shape)?;
                let mut transition = vec![0.0; shape.key * shape.key];
                transition.iter_mut().step_by(shape.key + 1).for_each(|one| *one = 1.0);
                let state = vec![0.0; shape.key * shape.value];
                Ok(vec![HeadRecord { transition, state, log_bound: 0.0 }; shape.heads])
            }
            LayerSpec::Full(_) => Ok(Vec::new()),
        });
        Ok(Self { layers: layers.collect::<Result<_, OpError>>()? })
    }
}

/// This device computes the gated delta rule only.
pub(crate) fn gdn_only(op: &'static str, shape: &LinearShape) -> Result<(), OpError> {
    if shape.family == Family::Gdn {
        Ok(())
    } else {
        Err(OpError::Unsupported { op, what: format!("{:?}", shape.family) })
    }
}

/// One layer of a finished build, as it is stored.
pub(crate) fn export(request: &Export<'_, CpuDevice>) -> Result<HostLayer, OpError> {
    const OP: &str = "export";
    plain_rows(OP, request.format)?;
    let wrong = |expected: &str, found: usize| OpError::shape(OP, expected, found);
    let spec = request.spec.layers.get(request.layer);
    let spec = spec.ok_or_else(|| wrong("a layer of the model", request.layer))?;
    let mut host = HostLayer::empty(request.format, request.body);
    match spec {
        LayerSpec::Linear(_) => {
            let heads = request.recording.layers.get(request.layer).map_or(&[][..], Vec::as_slice);
            let slot = request.states.slots.get(request.slot).and_then(|slot| slot.layers.get(request.layer));
            let slot = slot.ok_or_else(|| wrong("a slot of the pool", request.slot))?;
            let skip_below = f64::from(request.format.skip_below);
            let live: Vec<bool> = heads.iter().map(|head| head.log_bound.exp() >= skip_below).collect();
            let alive = heads.iter().zip(&live).filter(|(_, live)| **live);
            let transition: Vec<f32> = alive.flat_map(|(head, _)| &head.transition).copied().collect();
            let state: Vec<f32> = heads.iter().flat_map(|head| &head.state).copied().collect();
            host.encode(OP, spec, PartKind::Transition, (&live, &transition))?;
            host.encode(OP, spec, PartKind::State, (&[], &state))?;
            host.encode(OP, spec, PartKind::Tail, (&[], &slot.tail))?;
        }
        LayerSpec::Full(shape) => {
            let [key, value] = body_kv(request, shape)?;
            host.encode(OP, spec, PartKind::Key, (&[], &key))?;
            host.encode(OP, spec, PartKind::Value, (&[], &value))?;
        }
    }
    Ok(host)
}

/// Keys and values of the body, `[kv heads, body, width]`.
fn body_kv(request: &Export<'_, CpuDevice>, shape: &FullShape) -> Result<[Vec<f32>; 2], OpError> {
    let wrong = |expected: &str, found: usize| OpError::shape("export", expected, found);
    let layer = request.pages.layers.get(request.layer).and_then(Option::as_ref);
    let layer = layer.ok_or_else(|| wrong("pages for the layer", request.layer))?;
    let tokens = request.context.live.len();
    let first =
        tokens.checked_sub(request.body).ok_or_else(|| wrong("a body within the run", request.body))?;
    let size = request.pages.page_tokens;
    if request.context.pages.len() * size < tokens {
        return Err(wrong("pages for every live token", request.context.pages.len()));
    }
    let read = |values: &[f32], width: usize| {
        let mut out = Vec::with_capacity(shape.kv_heads * request.body * width);
        for head in 0..shape.kv_heads {
            for token in first..tokens {
                let page = request.context.pages[token / size];
                let at = (page * shape.kv_heads + head) * size + token % size;
                out.extend_from_slice(&values[at * width..][..width]);
            }
        }
        out
    };
    Ok([read(&layer.key, shape.key), read(&layer.value, shape.value)])
}
