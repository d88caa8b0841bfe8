//! The op contract of `hypic-kernels` on a CUDA device.
//!
//! Activations, KV and tails have the format `E`: bf16 for use, fp32 for checks. States are fp32, bodies are tiles of
//! layout 1. Everything is given to one stream, in order, beside which tuples and layers of other devices arrive on a second
//! one; only what returns host values waits. Fresh memory comes from the device's stream-ordered pool.

mod experts;
mod few;
mod full;
mod linear;
mod listed;
mod memory;
mod prefill;
mod ranks;
mod record;
mod replay;
mod scores;
mod step;
mod step_tables;
mod tuple;
mod weight;

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use half::bf16;
use hypic_domain::logits::{Logits, Need};
use hypic_domain::model::ModelSpec;
use hypic_domain::tuple::TupleFormat;
use hypic_kernels::check::equal;
use hypic_kernels::coded::Coded;
use hypic_kernels::op::{
    self, DeviceMemory, Experts, Export, FullInput, HeadGate, HeadNorms, HostLayer, HostTensor, LinearInput,
    Norm, NormWeight, OpError, SharedExpert, Split, StepLayers,
};
use hypic_kernels::plan::Plan;
use hypic_kernels::random::RandomMatrix;

use crate::memory::{Float, Fresh};
use crate::{Buffer, Device, Error, Pinned, RmsNorm};
use memory::{Pages, SlotState, States, Tensor};
use record::Recording;
use tuple::{BuiltLayer, LayerParts};
use weight::{Values, Weight};

/// A CUDA device (or its fibers) as models and engine see it.
pub struct CudaDevice<E: Float = bf16> {
    device: Device,
    fresh: Fresh,
    body_tokens: usize,
    /// Where tuples land that leave the device.
    pinned: Option<Pinned>,
    /// The tables of the last full layer: those of the next are mostly the same.
    contexts: Mutex<Option<full::Tables>>,
    /// Those of the step that runs now, if it may be run again.
    step: Mutex<Option<step_tables::SharedTables<E>>>,
    /// Steps that can be run again.
    recordings: replay::Recordings<E>,
    format: PhantomData<E>,
}

impl<E: Float> CudaDevice<E> {
    /// Over `device`. Every pool of pages gets room for the KV of `body_tokens` tokens of cached bodies, beside the
    /// pages that it is asked for.
    pub fn new(device: Device, body_tokens: usize) -> Self {
        let (contexts, step) = (Mutex::default(), Mutex::default());
        let fresh = Fresh::Anything;
        let recordings = replay::Recordings::default();
        Self { device, fresh, body_tokens, pinned: None, contexts, step, recordings, format: PhantomData }
    }

    /// The same, whose tuples land in pinned memory while there is room; from there they come back beside what the
    /// device computes.
    pub fn with_pinned(self, pinned: Pinned) -> Self {
        Self { pinned: Some(pinned), ..self }
    }

    /// The same, with NaN in every fresh output, slot and page, for tests.
    pub fn poisoned(device: Device, body_tokens: usize) -> Self {
        Self { fresh: Fresh::Poison, ..Self::new(device, body_tokens) }
    }

    /// Waits until everything given to the device is done.
    ///
    /// # Errors
    /// What a kernel did wrong since the last wait.
    pub fn wait(&self) -> Result<(), OpError> {
        self.device.wait().map_err(failed("wait"))
    }

    /// Lets this device read the memory of `other`, so that what is built there comes here without the host.
    ///
    /// # Errors
    /// No way from one to the other.
    pub fn enable_peer(&self, other: &Self) -> Result<(), OpError> {
        self.device.enable_peer(&other.device).map_err(failed("enable_peer"))
    }

    /// The tables of the step that runs now, if it may be run again.
    fn tables(&self) -> Option<step_tables::SharedTables<E>> {
        // A panic while it was held leaves it whole.
        self.step.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn output<T: Float>(&self, len: usize) -> crate::Result<Buffer<T>> {
        Buffer::fresh(&self.device, len, self.fresh)
    }

    /// A tensor of as many rows as `values` in rows of `width` fit, written by `write`.
    fn written(
        &self,
        op: &'static str,
        (rows, width): (usize, usize),
        write: impl FnOnce(&Device, &mut Buffer<E>) -> crate::Result<()>,
    ) -> Result<Tensor<E>, OpError> {
        let mut values = self.output(rows * width).map_err(failed(op))?;
        write(&self.device, &mut values).map_err(failed(op))?;
        Ok(Tensor { values, width })
    }
}

/// What an op says when this layer refuses.
fn failed(op: &'static str) -> impl Fn(Error) -> OpError {
    move |error| match error {
        Error::CheckShape { what, expected, found } => {
            OpError::Shape { op, expected: format!("{what} to be {expected}"), found }
        }
        error @ Error::NoDevice { .. } => OpError::NoDevice { reason: error.to_string() },
        other => OpError::Device { op, source: other.into() },
    }
}

impl<E: Float> op::Device for CudaDevice<E> {
    type Tensor = Tensor<E>;
    type Weight = Weight<E>;
    type States = States<E>;
    type Pages = Pages<E>;
    type SlotState = SlotState<E>;
    type LayerParts = LayerParts<E>;
    type Recording = Recording;
    type BuiltLayer = BuiltLayer<E>;

    fn name(&self) -> &'static str {
        if self.device.capability().is_some() { "cuda" } else { "cuda fibers" }
    }

    fn memory(&self) -> Result<DeviceMemory, OpError> {
        self.device.memory().map_err(failed("memory"))
    }

    fn weight(&self, host: &HostTensor<'_>) -> Result<Weight<E>, OpError> {
        Weight::from_host(host, |values: &[E]| Buffer::from_slice(&self.device, values).map(Values::Compute))
    }

    fn random(&self, blocks: &[RandomMatrix], _: &Split) -> Result<Weight<E>, OpError> {
        weight::random(self, blocks)
    }

    fn coded(&self, name: &str, matrix: &Coded, split: &Split) -> Result<Weight<E>, OpError> {
        weight::coded(self, name, matrix, split)
    }

    fn keeps_codes(&self) -> bool {
        // fp32 is for checks: its products have no form for few rows, which reads codes.
        E::NAME == bf16::NAME
    }

    fn random_coded(&self, blocks: &[RandomMatrix], split: &Split) -> Result<Weight<E>, OpError> {
        weight::random_coded(self, blocks, split)
    }

    fn exact(&self, host: &HostTensor<'_>) -> Result<Weight<E>, OpError> {
        Weight::from_host(host, |values: &[f32]| Buffer::from_slice(&self.device, values).map(Values::Exact))
    }

    fn bytes(&self, weight: &Weight<E>) -> u64 {
        weight.bytes()
    }

    fn states(&self, spec: &ModelSpec, slots: usize) -> Result<States<E>, OpError> {
        States::new(&self.device, self.fresh, spec, slots).map_err(failed("states"))
    }

    fn pages(&self, spec: &ModelSpec, pages: usize, page_tokens: usize) -> Result<Pages<E>, OpError> {
        if page_tokens == 0 {
            return Err(OpError::shape("pages", "at least one token a page", 0));
        }
        let bodies = self.body_tokens.div_ceil(page_tokens);
        Pages::new(&self.device, self.fresh, spec, (pages, bodies, page_tokens)).map_err(failed("pages"))
    }

    fn body_bytes(&self, spec: &ModelSpec) -> u64 {
        memory::kv_bytes::<E>(spec) * self.body_tokens as u64
    }

    fn reset_slot(&self, states: &mut States<E>, slot: usize) -> Result<(), OpError> {
        states.reset(slot).map_err(failed("reset_slot"))
    }

    fn save_slot(&self, states: &States<E>, slot: usize) -> Result<SlotState<E>, OpError> {
        states.save(&self.device, slot).map_err(failed("save_slot"))
    }

    fn load_slot(&self, states: &mut States<E>, slot: usize, saved: &SlotState<E>) -> Result<(), OpError> {
        states.load(slot, saved).map_err(failed("load_slot"))
    }

    fn copy_page(&self, pages: &mut Pages<E>, from: usize, to: usize) -> Result<(), OpError> {
        pages.copy_page(from, to).map_err(failed("copy_page"))
    }

    fn slot_state(&self, states: &States<E>, slot: usize, layer: usize) -> Result<Vec<f32>, OpError> {
        states.read(slot, layer).map_err(failed("slot_state"))
    }

    fn import(
        &self,
        layer: usize,
        spec: &ModelSpec,
        pages: &mut Pages<E>,
        host: &HostLayer,
    ) -> Result<LayerParts<E>, OpError> {
        tuple::import(&self.device, (layer, spec), pages, host)
    }

    fn format(&self, wanted: &TupleFormat) -> TupleFormat {
        tuple::format::<E>(wanted)
    }

    fn layer_bytes(&self, parts: &LayerParts<E>) -> u64 {
        parts.bytes()
    }

    fn recording(&self, spec: &ModelSpec) -> Result<Recording, OpError> {
        Recording::empty(spec)
    }

    fn finish(&self, request: &Export<'_, Self>) -> Result<BuiltLayer<E>, OpError> {
        tuple::finish(&self.device, request)
    }

    fn land(&self, layer: usize, spec: &ModelSpec, built: &BuiltLayer<E>) -> Result<HostLayer, OpError> {
        tuple::land((layer, spec), self.pinned.as_ref(), built)
    }

    fn keeps(&self, format: &TupleFormat) -> bool {
        tuple::keeps::<E>(format)
    }

    fn adopt(
        &self,
        layer: usize,
        spec: &ModelSpec,
        pages: &mut Pages<E>,
        built: &Arc<BuiltLayer<E>>,
    ) -> Result<LayerParts<E>, OpError> {
        tuple::adopt(&self.device, (layer, spec), pages, built)
    }

    fn step(
        &self,
        plan: &Plan<Self>,
        states: &mut States<E>,
        pages: &mut Pages<E>,
        layers: StepLayers<'_, Self>,
    ) -> Result<Tensor<E>, OpError> {
        replay::step(self, plan, (states, pages), layers)
    }

    fn tensor(&self, values: &[f32], width: usize) -> Result<Tensor<E>, OpError> {
        if width == 0 || !values.len().is_multiple_of(width) {
            return Err(OpError::shape("tensor", format!("rows of {width}"), values.len()));
        }
        let narrow: Vec<E> = values.iter().map(|&value| E::narrow(value)).collect();
        let values = Buffer::from_slice(&self.device, &narrow).map_err(failed("tensor"))?;
        Ok(Tensor { values, width })
    }

    fn to_host(&self, tensor: &Tensor<E>) -> Result<Vec<f32>, OpError> {
        let values = tensor.values.read().map_err(failed("to_host"))?;
        Ok(values.into_iter().map(E::wide).collect())
    }

    fn embed(&self, table: &Weight<E>, ids: &[u32]) -> Result<Tensor<E>, OpError> {
        let (values, [rows, width]) = table.matrix("embed")?;
        let step = self.tables();
        let mut step = step.as_ref().map(step_tables::locked);
        let placed = step.as_mut().and_then(|tables| tables.ids(ids, rows));
        self.written("embed", (ids.len(), width), |device, out| match placed {
            Some(placed) => {
                crate::rows::check_ids(ids, rows)?;
                crate::rows::gather_placed(device, values, placed, width, out)
            }
            None => crate::gather_rows(device, values, ids, width, out),
        })
    }

    fn linear(&self, x: &Tensor<E>, weight: &Weight<E>) -> Result<Tensor<E>, OpError> {
        let [out] = self.linears(x, [weight])?;
        Ok(out)
    }

    fn linears<const N: usize>(
        &self,
        x: &Tensor<E>,
        weights: [&Weight<E>; N],
    ) -> Result<[Tensor<E>; N], OpError> {
        few::linears(self, x, weights)
    }

    fn norm_linears<const N: usize>(
        &self,
        x: &Tensor<E>,
        norm: &Norm<'_, Self>,
        weights: [&Weight<E>; N],
    ) -> Result<[Tensor<E>; N], OpError> {
        few::norm_linears(self, x, norm, weights)
    }

    fn scores(&self, x: &Tensor<E>, weight: &Weight<E>, needs: &[Need]) -> Result<Vec<Logits>, OpError> {
        scores::scores(self, x, weight, needs)
    }

    fn rms_norm(
        &self,
        x: &Tensor<E>,
        weight: &Weight<E>,
        width: usize,
        style: NormWeight,
        eps: f32,
    ) -> Result<Tensor<E>, OpError> {
        let norm = RmsNorm { weight: weight.vector("rms_norm", width)?, offset: offset_of(style), eps };
        self.written("rms_norm", (x.rows(), x.width), |device, out| {
            crate::rms_norm(device, &x.values, norm, out)
        })
    }

    fn gated_norm(
        &self,
        x: &Tensor<E>,
        gate: &Tensor<E>,
        weight: &Weight<E>,
        width: usize,
        eps: f32,
    ) -> Result<Tensor<E>, OpError> {
        same_shape("gated_norm", x, gate)?;
        let weight = weight.vector("gated_norm", width)?;
        self.written("gated_norm", (x.rows(), x.width), |device, out| {
            crate::gated_norm(device, &x.values, &gate.values, weight, out, eps)
        })
    }

    fn add(&self, x: &mut Tensor<E>, y: &Tensor<E>) -> Result<(), OpError> {
        same_shape("add", x, y)?;
        crate::add_rows(&self.device, &mut x.values, &y.values).map_err(failed("add"))
    }

    fn add_norm(
        &self,
        x: &mut Tensor<E>,
        y: &Tensor<E>,
        (weight, width): (&Weight<E>, usize),
        style: NormWeight,
        eps: f32,
    ) -> Result<Tensor<E>, OpError> {
        const OP: &str = "add_norm";
        same_shape(OP, x, y)?;
        equal(OP, "the width of rows", width, x.width)?;
        let norm = RmsNorm { weight: weight.vector(OP, width)?, offset: offset_of(style), eps };
        self.written(OP, (x.rows(), width), |device, out| {
            crate::add_norm(device, [&mut x.values, out], &y.values, norm)
        })
    }

    fn sigmoid_gate(&self, x: &mut Tensor<E>, gate: &Tensor<E>) -> Result<(), OpError> {
        if gate.rows() != x.rows() || (gate.width != 1 && gate.width != x.width) {
            let found = format!("[{}, {}]", gate.rows(), gate.width);
            return Err(OpError::shape(
                "sigmoid_gate",
                format!("gates for [{}, {}]", x.rows(), x.width),
                found,
            ));
        }
        crate::sigmoid_gate(&self.device, &mut x.values, &gate.values).map_err(failed("sigmoid_gate"))
    }

    fn swiglu(&self, x: &Tensor<E>) -> Result<Tensor<E>, OpError> {
        if !x.width.is_multiple_of(2) {
            return Err(OpError::shape("swiglu", "an even width", x.width));
        }
        let width = x.width / 2;
        self.written("swiglu", (x.rows(), width), |device, out| crate::swiglu(device, &x.values, width, out))
    }

    fn select(&self, x: &Tensor<E>, rows: &[usize]) -> Result<Tensor<E>, OpError> {
        if let Some(row) = rows.iter().find(|&&row| row >= x.rows()) {
            return Err(OpError::shape("select", format!("rows below {}", x.rows()), row));
        }
        let ids: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        self.written("select", (rows.len(), x.width), |device, out| {
            crate::gather_rows(device, &x.values, &ids, x.width, out)
        })
    }

    fn experts(&self, x: &Tensor<E>, experts: &Experts<'_, Self>) -> Result<Tensor<E>, OpError> {
        experts::experts(self, x, experts)
    }

    fn add_experts(
        &self,
        into: &mut Tensor<E>,
        x: &Tensor<E>,
        experts: &Experts<'_, Self>,
        shared: Option<&SharedExpert<'_, Self>>,
    ) -> Result<(), OpError> {
        few::add_experts(self, into, x, experts, shared)
    }

    fn add_mixture(
        &self,
        x: &mut Tensor<E>,
        mixed: &Tensor<E>,
        norm: &Norm<'_, Self>,
        experts: (&Experts<'_, Self>, Option<&SharedExpert<'_, Self>>),
    ) -> Result<(), OpError> {
        few::add_mixture(self, x, mixed, norm, experts)
    }

    fn linear_mixer(
        &self,
        input: &LinearInput<'_, Self>,
        plan: &Plan<Self>,
        states: &mut States<E>,
    ) -> Result<Tensor<E>, OpError> {
        linear::linear_mixer(self, input, plan, states)
    }

    fn linear_mixer_norm(
        &self,
        input: &LinearInput<'_, Self>,
        gate: &HeadGate<'_, Self>,
        plan: &Plan<Self>,
        states: &mut States<E>,
    ) -> Result<Tensor<E>, OpError> {
        linear::linear_mixer_norm(self, input, gate, plan, states)
    }

    fn full_mixer(
        &self,
        input: &FullInput<'_, Self>,
        plan: &Plan<Self>,
        pages: &mut Pages<E>,
    ) -> Result<Tensor<E>, OpError> {
        full::full_mixer(self, (input, None), plan, pages)
    }

    fn full_mixer_gated(
        &self,
        input: &FullInput<'_, Self>,
        around: (&HeadNorms<'_, Self>, &Tensor<E>),
        plan: &Plan<Self>,
        pages: &mut Pages<E>,
    ) -> Result<Tensor<E>, OpError> {
        full::full_mixer_gated(self, input, around, plan, pages)
    }
}

/// What is added to the weights of a norm.
fn offset_of(style: NormWeight) -> f32 {
    match style {
        NormWeight::ZeroCentred => 1.0,
        NormWeight::Plain => 0.0,
    }
}

fn same_shape<E: Float>(op: &'static str, x: &Tensor<E>, y: &Tensor<E>) -> Result<(), OpError> {
    if x.width == y.width && x.values.len() == y.values.len() {
        Ok(())
    } else {
        let of = |t: &Tensor<E>| format!("[{}, {}]", t.rows(), t.width);
        Err(OpError::shape(op, of(x), of(y)))
    }
}
