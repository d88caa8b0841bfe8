//! The op contract: what a device offers to models and engine.
//!
//! Activations are packed rows `[rows, width]`. A device owns their form and precision; host slices are fp32,
//! row-major. Every op writes every element of its result.

mod apart;
mod input;

use std::sync::Arc;

use domain::logits::{Logits, Need};
use domain::model::{LayerSpec, ModelSpec};
use domain::tuple::{Dtype, TupleFormat};
use hypic_domain as domain;

use crate::coded::Coded;
use crate::plan::{Context, Plan};
use crate::random::RandomMatrix;
pub use crate::stored::{Checked, HostLayer, StoredPart};

pub use crate::error::OpError;
pub use apart::{
    add_experts_apart, add_mixture_apart, full_mixer_apart, linears_apart, norm_linears_apart, widened,
};
pub use input::{
    ExpertShape, Experts, FullInput, Gates, HeadGate, HeadNorms, LinearInput, Norm, NormWeight, SharedExpert,
};

/// A matrix or vector of a checkpoint, in host memory as it was stored.
pub struct HostTensor<'a> {
    /// Its name, for errors.
    pub name: &'a str,
    /// Shape; a matrix is `[out, in]`, so that `y = x W^T`.
    pub shape: Vec<usize>,
    /// Stored format.
    pub dtype: Dtype,
    /// Little-endian values.
    pub bytes: &'a [u8],
    /// How ranks share it out.
    pub split: Split,
}

/// How several devices that work as one ([`crate::parallel`]) share a weight out; a single device has it all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank has it all.
    Whole,
    /// The first axis is cut: it consists of blocks of these sizes, again and again, and a rank has its part of each.
    Rows(Vec<usize>),
    /// The last axis of a matrix is cut: products with it are parts of a sum.
    Columns,
}

/// Memory of a device, or of several that work as one, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Weights, pools, activations and what is kept for the next ones.
    pub used: u64,
    /// What the driver holds for them: it grows to the most that was ever used, and stays.
    pub held: u64,
}

/// What computes all layers of a step, over the pools that it is given.
pub type StepLayers<'a, D> = &'a mut dyn FnMut(
    &mut <D as Device>::States,
    &mut <D as Device>::Pages,
) -> Result<<D as Device>::Tensor, OpError>;

/// A device.
///
/// Slots hold the running states of all linear layers of one sequence; they are set on acquire
/// ([`Device::reset_slot`], [`Device::load_slot`]), never trusted from a former user. Pages hold
/// `page_tokens` tokens of unrotated keys and of values, for all full layers.
pub trait Device: Send + Sync + 'static {
    /// Packed activations.
    type Tensor: Send;
    /// A loaded matrix or vector.
    type Weight: Send + Sync;
    /// All state slots.
    type States: Send;
    /// All KV pages.
    type Pages: Send;
    /// A copy of one slot, outside the pool.
    type SlotState: Send + Sync;
    /// One layer of a tuple.
    type LayerParts: Send + Sync;
    /// What a build has collected so far.
    type Recording: Send;
    /// One layer of a finished build, which needs neither slot nor pages any more.
    type BuiltLayer: Send + Sync;

    /// For logs and errors.
    fn name(&self) -> &'static str;

    /// What the device's memory holds now, as far as it is apart from the host's. Any thread may ask.
    ///
    /// # Errors
    /// What the driver says.
    fn memory(&self) -> Result<DeviceMemory, OpError> {
        Ok(DeviceMemory::default())
    }

    /// Whether models of these shapes run here: asked before any weight is read.
    ///
    /// # Errors
    /// What the device lacks for them.
    fn fits(&self, _: &ModelSpec) -> Result<(), OpError> {
        // A device that says nothing more refuses what it lacks where it is used.
        Ok(())
    }

    // --- memory ---

    /// Takes over a matrix of products or a table of embeddings; any stored dtype becomes the compute dtype.
    fn weight(&self, host: &HostTensor<'_>) -> Result<Self::Weight, OpError>;
    /// Takes over a matrix of products in codes. By default its values, as of any other matrix; a device that multiplies
    /// codes keeps them as far as its kernels have the blocks.
    fn coded(&self, name: &str, matrix: &Coded, split: &Split) -> Result<Self::Weight, OpError>
    where
        Self: Sized,
    {
        widened(self, name, matrix, split)
    }
    /// Whether [`Device::coded`] keeps codes: products then have other roundings, which an identity must tell.
    fn keeps_codes(&self) -> bool {
        false
    }
    /// Makes a random matrix of products or table of embeddings of blocks of rows, one under the other. By default its
    /// values are made on the host.
    fn random(&self, blocks: &[RandomMatrix], split: &Split) -> Result<Self::Weight, OpError> {
        let bytes: Vec<u8> =
            blocks.iter().flat_map(RandomMatrix::values).flat_map(f32::to_le_bytes).collect();
        let shape = RandomMatrix::stacked(blocks).to_vec();
        let split = split.clone();
        self.weight(&HostTensor { name: "random", shape, dtype: Dtype::F32, bytes: &bytes, split })
    }
    /// The same as codes: [`RandomMatrix::coded`].
    fn random_coded(&self, blocks: &[RandomMatrix], split: &Split) -> Result<Self::Weight, OpError>
    where
        Self: Sized,
    {
        self.coded("random", &RandomMatrix::coded(blocks)?, split)
    }
    /// Takes over what stays fp32 on every device: norms, gates, taps, tables of angles.
    fn exact(&self, host: &HostTensor<'_>) -> Result<Self::Weight, OpError>;
    /// Bytes that a weight takes on the device.
    fn bytes(&self, weight: &Self::Weight) -> u64;
    /// A pool of `slots` state slots.
    fn states(&self, spec: &ModelSpec, slots: usize) -> Result<Self::States, OpError>;
    /// A pool of `pages` pages of `page_tokens` tokens.
    fn pages(&self, spec: &ModelSpec, pages: usize, page_tokens: usize) -> Result<Self::Pages, OpError>;
    /// Bytes that [`Device::pages`] takes for the KV of cached bodies, beside those of its pages.
    fn body_bytes(&self, spec: &ModelSpec) -> u64;
    /// Sets a slot's states and tails to zero.
    fn reset_slot(&self, states: &mut Self::States, slot: usize) -> Result<(), OpError>;
    /// Copies a slot out of the pool.
    fn save_slot(&self, states: &Self::States, slot: usize) -> Result<Self::SlotState, OpError>;
    /// Sets a slot from a copy.
    fn load_slot(
        &self,
        states: &mut Self::States,
        slot: usize,
        saved: &Self::SlotState,
    ) -> Result<(), OpError>;
    /// Copies page `from` onto page `to`, all layers.
    fn copy_page(&self, pages: &mut Self::Pages, from: usize, to: usize) -> Result<(), OpError>;
    /// The states of one layer of a slot, `[heads, key, value]`, for tests.
    fn slot_state(&self, states: &Self::States, slot: usize, layer: usize) -> Result<Vec<f32>, OpError>;

    // --- tuples ---

    /// The number formats and the layout in which this device stores tuples where a model's owner asks for `wanted`.
    fn format(&self, wanted: &TupleFormat) -> TupleFormat;
    /// Takes one layer of a tuple over, for use with `pages`: a device may keep the KV of bodies beside them. It may
    /// still be on its way when this returns; who computes with it waits for it on the device.
    ///
    /// # Errors
    /// [`OpError::Shape`] for parts that do not fit the layer, [`OpError::Unsupported`] for a layout that is not this
    /// device's, [`OpError::OutOfMemory`] where other bodies must go first.
    fn import(
        &self,
        layer: usize,
        spec: &ModelSpec,
        pages: &mut Self::Pages,
        host: &HostLayer,
    ) -> Result<Self::LayerParts, OpError>;
    /// Bytes that a layer takes on the device beside its KV in pages.
    fn layer_bytes(&self, parts: &Self::LayerParts) -> u64;
    /// An empty recording: `T = I`, `S_body = 0` for every linear layer.
    fn recording(&self, spec: &ModelSpec) -> Result<Self::Recording, OpError>;
    /// Most bytes that one recording takes: `T` and `S` of every head of every linear layer, fp32.
    fn recording_bytes(&self, spec: &ModelSpec) -> u64 {
        let values = spec.layers.iter().map(|layer| match layer {
            LayerSpec::Linear(shape) => {
                shape.heads * (shape.family.transition().len(shape.key) + shape.key * shape.value)
            }
            LayerSpec::Full(_) => 0,
        });
        (values.sum::<usize>() * size_of::<f32>()) as u64
    }
    /// One layer of a finished build: what was recorded, the slot's tail, and the body's KV, which are the
    /// last `body` live tokens of `context`. Heads whose gate-only bound is under `format.skip_below` get no `T`.
    fn finish(&self, request: &Export<'_, Self>) -> Result<Self::BuiltLayer, OpError>
    where
        Self: Sized;
    /// A layer that was built on this device or on another of its kind, as it is stored in the format it was finished
    /// for; waits for it. A value that is not finite is refused, or stored as NaN for whoever writes the tuple to find.
    fn land(&self, layer: usize, spec: &ModelSpec, built: &Self::BuiltLayer) -> Result<HostLayer, OpError>;
    /// [`Device::finish`], then [`Device::land`].
    fn export(&self, request: &Export<'_, Self>) -> Result<HostLayer, OpError>
    where
        Self: Sized,
    {
        self.land(request.layer, request.spec, &self.finish(request)?)
    }
    /// Whether [`Device::adopt`] gives the bits that a way over the host gives: finished for `format`, landed, and
    /// imported.
    fn keeps(&self, format: &TupleFormat) -> bool;
    /// Takes over a layer that was built on this device or on another of its kind, for use with `pages`. The host does
    /// not wait.
    fn adopt(
        &self,
        layer: usize,
        spec: &ModelSpec,
        pages: &mut Self::Pages,
        built: &Arc<Self::BuiltLayer>,
    ) -> Result<Self::LayerParts, OpError>;

    // --- steps ---

    /// Runs `layers`: all of a step, from its ids to its last rows. Of a step in which every sequence has one row a device
    /// may keep what it is asked to do, and do it again for others of as many sequences without asking; so all steps over
    /// the same `pages` must be of one model and one pool of states.
    fn step(
        &self,
        plan: &Plan<Self>,
        states: &mut Self::States,
        pages: &mut Self::Pages,
        layers: StepLayers<'_, Self>,
    ) -> Result<Self::Tensor, OpError>
    where
        Self: Sized,
    {
        let _ = plan;
        layers(states, pages)
    }

    // --- rows ---

    /// Rows from host values `[rows, width]`.
    fn tensor(&self, values: &[f32], width: usize) -> Result<Self::Tensor, OpError>;
    /// Rows to host values; waits for the device.
    fn to_host(&self, tensor: &Self::Tensor) -> Result<Vec<f32>, OpError>;
    /// `table[ids]`, `[rows, hidden]`.
    fn embed(&self, table: &Self::Weight, ids: &[u32]) -> Result<Self::Tensor, OpError>;
    /// `x W^T`, `[rows, out]`.
    fn linear(&self, x: &Self::Tensor, weight: &Self::Weight) -> Result<Self::Tensor, OpError>;
    /// `x W^T` for several matrices, for devices that save something by knowing them all.
    fn linears<const N: usize>(
        &self,
        x: &Self::Tensor,
        weights: [&Self::Weight; N],
    ) -> Result<[Self::Tensor; N], OpError>
    where
        Self: Sized,
    {
        linears_apart(self, x, weights)
    }
    /// [`Device::linears`] of the norm of whole rows.
    fn norm_linears<const N: usize>(
        &self,
        x: &Self::Tensor,
        norm: &Norm<'_, Self>,
        weights: [&Self::Weight; N],
    ) -> Result<[Self::Tensor; N], OpError>
    where
        Self: Sized,
    {
        norm_linears_apart(self, x, norm, weights)
    }
    /// What `needs` asks of each row of `x W^T`, on the host and never rounded below fp32: scores to choose tokens by.
    /// Waits for the device.
    fn scores(&self, x: &Self::Tensor, weight: &Self::Weight, needs: &[Need])
    -> Result<Vec<Logits>, OpError>;
    /// RMS norm over groups of `width` values: the whole row, or each head.
    fn rms_norm(
        &self,
        x: &Self::Tensor,
        weight: &Self::Weight,
        width: usize,
        style: NormWeight,
        eps: f32,
    ) -> Result<Self::Tensor, OpError>;
    /// `rms_norm(x) * silu(gate)` over groups of `width` values, plain weight.
    fn gated_norm(
        &self,
        x: &Self::Tensor,
        gate: &Self::Tensor,
        weight: &Self::Weight,
        width: usize,
        eps: f32,
    ) -> Result<Self::Tensor, OpError>;
    /// `x + y`, into `x`.
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), OpError>;
    /// [`Device::add`], then [`Device::rms_norm`] of the sums over whole rows, which are as wide as the weight.
    fn add_norm(
        &self,
        x: &mut Self::Tensor,
        y: &Self::Tensor,
        (weight, width): (&Self::Weight, usize),
        style: NormWeight,
        eps: f32,
    ) -> Result<Self::Tensor, OpError> {
        self.add(x, y)?;
        self.rms_norm(x, weight, width, style, eps)
    }
    /// `x * sigmoid(gate)`, into `x`; the gate is as wide as `x`, or has one value a row.
    fn sigmoid_gate(&self, x: &mut Self::Tensor, gate: &Self::Tensor) -> Result<(), OpError>;
    /// `silu(x[.., :n]) * x[.., n:]`, `[rows, n]` from `[rows, 2 n]`.
    fn swiglu(&self, x: &Self::Tensor) -> Result<Self::Tensor, OpError>;
    /// The rows at `rows`, in that order.
    fn select(&self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor, OpError>;

    /// The sum over the chosen experts of a row of share times `down(silu(gate x) * up x)`.
    fn experts(&self, x: &Self::Tensor, experts: &Experts<'_, Self>) -> Result<Self::Tensor, OpError>
    where
        Self: Sized;

    /// What [`Device::experts`] and the shared expert say of `x`, added to `into`.
    fn add_experts(
        &self,
        into: &mut Self::Tensor,
        x: &Self::Tensor,
        experts: &Experts<'_, Self>,
        shared: Option<&SharedExpert<'_, Self>>,
    ) -> Result<(), OpError>
    where
        Self: Sized,
    {
        add_experts_apart(self, into, x, experts, shared)
    }
    /// [`Device::add_norm`] of `mixed` into `x`, and [`Device::add_experts`] of that norm: a layer from its mixer on. The norm
    /// is over whole rows.
    fn add_mixture(
        &self,
        x: &mut Self::Tensor,
        mixed: &Self::Tensor,
        norm: &Norm<'_, Self>,
        (experts, shared): (&Experts<'_, Self>, Option<&SharedExpert<'_, Self>>),
    ) -> Result<(), OpError>
    where
        Self: Sized,
    {
        add_mixture_apart(self, x, mixed, norm, (experts, shared))
    }

    // --- mixers ---

    /// Convolution, gates and recurrence of a linear layer, for every run's program: `[rows, heads * value]`.
    /// Advances slots and tails; collects recordings.
    fn linear_mixer(
        &self,
        input: &LinearInput<'_, Self>,
        plan: &Plan<Self>,
        states: &mut Self::States,
    ) -> Result<Self::Tensor, OpError>
    where
        Self: Sized;
    /// [`Device::linear_mixer`], then [`Device::gated_norm`] over each head.
    fn linear_mixer_norm(
        &self,
        input: &LinearInput<'_, Self>,
        gate: &HeadGate<'_, Self>,
        plan: &Plan<Self>,
        states: &mut Self::States,
    ) -> Result<Self::Tensor, OpError>
    where
        Self: Sized,
    {
        let mixed = self.linear_mixer(input, plan, states)?;
        self.gated_norm(&mixed, gate.gate, gate.weight, input.shape.value, gate.eps)
    }
    /// Writes this step's keys and values to the pages, then attends: `[rows, heads * value]`.
    fn full_mixer(
        &self,
        input: &FullInput<'_, Self>,
        plan: &Plan<Self>,
        pages: &mut Self::Pages,
    ) -> Result<Self::Tensor, OpError>
    where
        Self: Sized;
    /// [`Device::rms_norm`] of every head's query and key, [`Device::full_mixer`], then [`Device::sigmoid_gate`].
    fn full_mixer_gated(
        &self,
        input: &FullInput<'_, Self>,
        (norms, gate): (&HeadNorms<'_, Self>, &Self::Tensor),
        plan: &Plan<Self>,
        pages: &mut Self::Pages,
    ) -> Result<Self::Tensor, OpError>
    where
        Self: Sized,
    {
        full_mixer_apart(self, input, (norms, gate), plan, pages)
    }
}

/// What [`Device::finish`] reads.
pub struct Export<'a, D: Device> {
    /// Place of the layer in the model.
    pub layer: usize,
    /// The model.
    pub spec: &'a ModelSpec,
    /// What the build collected.
    pub recording: &'a D::Recording,
    /// The slots, for the tail.
    pub states: &'a D::States,
    /// The build's slot.
    pub slot: usize,
    /// The pages, for the KV.
    pub pages: &'a D::Pages,
    /// The build's context.
    pub context: &'a Context<D>,
    /// Tokens of the body.
    pub body: usize,
    /// One that [`Device::format`] gave.
    pub format: TupleFormat,
}
