//! Tensor parallel: several devices, the ranks, as one.
//!
//! Every rank has its part of the heads of every mixer and of the width of every feed-forward part, with the weights,
//! states, pages and recordings that belong to it; the residual stream, norms, routers and embeddings are whole on all of
//! them. A product with a weight that is cut by columns is a rank's part of a sum. It is added up where it meets a tensor
//! that is whole, so that a part of a layer costs one exchange, in the same order on all ranks: they stay equal to the
//! bit, and none of them has to be asked what the others chose.
//!
//! A tuple is cut by heads when it comes in and joined when it goes out: it does not depend on the number of ranks.

use std::sync::{Arc, Mutex, PoisonError};

use domain::logits::{Logits, Need};
use domain::model::ModelSpec;
use domain::tuple::TupleFormat;
use hypic_domain as domain;

use crate::coded::Coded;
use crate::op::{
    Device, DeviceMemory, ExpertShape, Experts, Export, FullInput, Gates, HostLayer, HostTensor, LinearInput,
    NormWeight, OpError, Split,
};
use crate::plan::Plan;
use crate::random::RandomMatrix;
use cut::Place;
pub use shared::{Built, Tensor, Weight};
use shared::{Settled, Share};

mod cut;
mod shapes;
mod shared;
mod step;
mod tuple;

/// A device that can be a rank.
pub trait Rank: Device + Sized {
    /// Makes ranks known to each other, once and before anything else.
    ///
    /// # Errors
    /// Ranks that cannot exchange sums.
    fn link(_: &[Self]) -> Result<(), OpError> {
        Ok(())
    }

    /// `base + parts[0] + parts[1] + ..` for every rank: its own `base`, if there is one, and the part of each rank,
    /// `[rows, width]` all. Summed in fp32 in that order and rounded once.
    ///
    /// # Errors
    /// [`OpError::Shape`] for parts that differ in size, and what the devices say.
    fn sum(
        ranks: &[Self],
        base: Option<&[Self::Tensor]>,
        parts: &[Self::Tensor],
    ) -> Result<Vec<Self::Tensor>, OpError>;
}

/// Several devices as one.
pub struct TensorParallel<D> {
    ranks: Vec<D>,
}

impl<D: Rank> TensorParallel<D> {
    /// The devices `ranks`, in their order, as one.
    ///
    /// # Errors
    /// [`OpError::NoDevice`] for none, and what [`Rank::link`] says.
    pub fn new(ranks: Vec<D>) -> Result<Self, OpError> {
        if ranks.is_empty() {
            return Err(OpError::NoDevice { reason: "no ranks are named".to_owned() });
        }
        D::link(&ranks)?;
        Ok(Self { ranks })
    }

    /// The ranks.
    pub fn ranks(&self) -> &[D] {
        &self.ranks
    }

    /// The same op on every rank, given its number.
    fn each<T>(&self, mut op: impl FnMut(usize, &D) -> Result<T, OpError>) -> Result<Vec<T>, OpError> {
        self.ranks.iter().enumerate().map(|(rank, device)| op(rank, device)).collect()
    }

    /// The same op on every rank's part of a tensor; each has the same share of the result.
    fn with(
        &self,
        x: &Tensor<D>,
        mut op: impl FnMut(usize, &D, &D::Tensor) -> Result<D::Tensor, OpError>,
    ) -> Result<Tensor<D>, OpError> {
        let x = self.settled(x)?;
        let parts = self.each(|rank, device| op(rank, device, &x.parts[rank]))?;
        Ok(Tensor { parts, share: x.share })
    }

    /// Adds up an open sum.
    fn settled<'a>(&self, x: &'a Tensor<D>) -> Result<Settled<'a, D>, OpError> {
        if x.share != Share::Sum {
            return Ok(Settled::Kept(x));
        }
        let parts = D::sum(&self.ranks, None, &x.parts)?;
        Ok(Settled::Summed(Tensor { parts, share: Share::Whole }))
    }

    /// Shares random rows out; each rank makes its own.
    fn draw(
        &self,
        blocks: &[RandomMatrix],
        split: &Split,
        make: impl Fn(&D, &[RandomMatrix], &Split) -> Result<D::Weight, OpError>,
    ) -> Result<Weight<D>, OpError> {
        let ranks = self.ranks.len();
        let own = |rank| cut::random(blocks, split, Place { rank, ranks });
        let parts = self.each(|rank, device| make(device, &own(rank)?, &Split::Whole))?;
        Ok(Weight { parts, split: split.clone() })
    }

    /// Shares a weight out, one rank after the other.
    fn share_out(
        &self,
        host: &HostTensor<'_>,
        take: impl Fn(&D, &HostTensor<'_>) -> Result<D::Weight, OpError>,
    ) -> Result<Weight<D>, OpError> {
        let ranks = self.ranks.len();
        let parts = self.each(|rank, device| {
            let (shape, bytes) = cut::weight(host, Place { rank, ranks })?;
            let HostTensor { name, dtype, .. } = *host;
            take(device, &HostTensor { name, shape, dtype, bytes: &bytes, split: Split::Whole })
        })?;
        Ok(Weight { parts, split: host.split.clone() })
    }
}

impl<D: Rank> Device for TensorParallel<D> {
    type Tensor = Tensor<D>;
    type Weight = Weight<D>;
    type States = Vec<D::States>;
    type Pages = Vec<D::Pages>;
    type SlotState = Vec<D::SlotState>;
    type LayerParts = Vec<Arc<D::LayerParts>>;
    type Recording = Vec<Arc<Mutex<D::Recording>>>;
    type BuiltLayer = Built<D>;

    fn name(&self) -> &'static str {
        self.ranks[0].name()
    }

    fn memory(&self) -> Result<DeviceMemory, OpError> {
        self.ranks.iter().try_fold(DeviceMemory::default(), |all, rank| {
            let DeviceMemory { used, held } = rank.memory()?;
            Ok(DeviceMemory { used: all.used + used, held: all.held + held })
        })
    }

    fn fits(&self, spec: &ModelSpec) -> Result<(), OpError> {
        self.ranks[0].fits(&shapes::spec(spec, self.ranks.len())?)
    }

    fn weight(&self, host: &HostTensor<'_>) -> Result<Weight<D>, OpError> {
        self.share_out(host, D::weight)
    }

    fn coded(&self, name: &str, matrix: &Coded, split: &Split) -> Result<Weight<D>, OpError> {
        let ranks = self.ranks.len();
        let parts = self.each(|rank, device| {
            device.coded(name, &*cut::coded(name, matrix, split, Place { rank, ranks })?, &Split::Whole)
        })?;
        Ok(Weight { parts, split: split.clone() })
    }

    fn keeps_codes(&self) -> bool {
        self.ranks[0].keeps_codes()
    }

    fn random(&self, blocks: &[RandomMatrix], split: &Split) -> Result<Weight<D>, OpError> {
        self.draw(blocks, split, D::random)
    }

    fn random_coded(&self, blocks: &[RandomMatrix], split: &Split) -> Result<Weight<D>, OpError> {
        self.draw(blocks, split, D::random_coded)
    }

    fn exact(&self, host: &HostTensor<'_>) -> Result<Weight<D>, OpError> {
        self.share_out(host, D::exact)
    }

    fn bytes(&self, weight: &Weight<D>) -> u64 {
        self.ranks.iter().zip(&weight.parts).map(|(device, part)| device.bytes(part)).sum()
    }

    fn states(&self, spec: &ModelSpec, slots: usize) -> Result<Self::States, OpError> {
        let spec = shapes::spec(spec, self.ranks.len())?;
        self.each(|_, device| device.states(&spec, slots))
    }

    fn pages(&self, spec: &ModelSpec, pages: usize, page_tokens: usize) -> Result<Self::Pages, OpError> {
        let spec = shapes::spec(spec, self.ranks.len())?;
        self.each(|_, device| device.pages(&spec, pages, page_tokens))
    }

    fn body_bytes(&self, spec: &ModelSpec) -> u64 {
        // Each rank has room for its heads of as many tokens: together that of one device.
        self.ranks[0].body_bytes(spec)
    }

    fn reset_slot(&self, states: &mut Self::States, slot: usize) -> Result<(), OpError> {
        self.each(|rank, device| device.reset_slot(&mut states[rank], slot)).map(drop)
    }

    fn save_slot(&self, states: &Self::States, slot: usize) -> Result<Self::SlotState, OpError> {
        self.each(|rank, device| device.save_slot(&states[rank], slot))
    }

    fn load_slot(
        &self,
        states: &mut Self::States,
        slot: usize,
        saved: &Self::SlotState,
    ) -> Result<(), OpError> {
        self.each(|rank, device| device.load_slot(&mut states[rank], slot, &saved[rank])).map(drop)
    }

    fn copy_page(&self, pages: &mut Self::Pages, from: usize, to: usize) -> Result<(), OpError> {
        self.each(|rank, device| device.copy_page(&mut pages[rank], from, to)).map(drop)
    }

    fn slot_state(&self, states: &Self::States, slot: usize, layer: usize) -> Result<Vec<f32>, OpError> {
        // Heads are outermost.
        Ok(self.each(|rank, device| device.slot_state(&states[rank], slot, layer))?.concat())
    }

    fn import(
        &self,
        layer: usize,
        spec: &ModelSpec,
        pages: &mut Self::Pages,
        host: &HostLayer,
    ) -> Result<Self::LayerParts, OpError> {
        let parts = tuple::cut(host, (layer, spec), self.ranks.len())?;
        let spec = shapes::spec(spec, self.ranks.len())?;
        self.each(|rank, device| device.import(layer, &spec, &mut pages[rank], &parts[rank]).map(Arc::new))
    }

    fn format(&self, wanted: &TupleFormat) -> TupleFormat {
        self.ranks[0].format(wanted)
    }

    fn layer_bytes(&self, parts: &Self::LayerParts) -> u64 {
        self.ranks.iter().zip(parts).map(|(device, part)| device.layer_bytes(part)).sum()
    }

    fn recording(&self, spec: &ModelSpec) -> Result<Self::Recording, OpError> {
        let spec = shapes::spec(spec, self.ranks.len())?;
        self.each(|_, device| Ok(Arc::new(Mutex::new(device.recording(&spec)?))))
    }

    fn finish(&self, request: &Export<'_, Self>) -> Result<Self::BuiltLayer, OpError> {
        let Export { layer, slot, body, .. } = *request;
        let format = tuple::apart(&request.format);
        let spec = shapes::spec(request.spec, self.ranks.len())?;
        let parts = self.each(|rank, device| {
            // A panic while it was held leaves a build that nobody goes on with.
            let recording = request.recording[rank].lock().unwrap_or_else(PoisonError::into_inner);
            let built = device.finish(&Export {
                layer,
                spec: &spec,
                recording: &*recording,
                states: &request.states[rank],
                slot,
                pages: &request.pages[rank],
                context: &step::context(request.context, (layer, rank)),
                body,
                format,
            });
            built.map(Arc::new)
        })?;
        Ok(Built { parts, format: request.format })
    }

    fn land(&self, layer: usize, spec: &ModelSpec, built: &Self::BuiltLayer) -> Result<HostLayer, OpError> {
        let of_rank = shapes::spec(spec, self.ranks.len())?;
        let parts = self.each(|rank, device| device.land(layer, &of_rank, &built.parts[rank]))?;
        tuple::join(&parts, (layer, spec, &of_rank), &built.format)
    }

    fn keeps(&self, format: &TupleFormat) -> bool {
        tuple::apart(format) == *format && self.ranks[0].keeps(format)
    }

    fn adopt(
        &self,
        layer: usize,
        spec: &ModelSpec,
        pages: &mut Self::Pages,
        built: &Arc<Self::BuiltLayer>,
    ) -> Result<Self::LayerParts, OpError> {
        let spec = shapes::spec(spec, self.ranks.len())?;
        self.each(|rank, device| {
            device.adopt(layer, &spec, &mut pages[rank], &built.parts[rank]).map(Arc::new)
        })
    }

    fn tensor(&self, values: &[f32], width: usize) -> Result<Tensor<D>, OpError> {
        Ok(Tensor { parts: self.each(|_, device| device.tensor(values, width))?, share: Share::Whole })
    }

    fn to_host(&self, tensor: &Tensor<D>) -> Result<Vec<f32>, OpError> {
        self.ranks[0].to_host(&self.settled(tensor)?.as_share("to_host", Share::Whole)?[0])
    }

    fn embed(&self, table: &Weight<D>, ids: &[u32]) -> Result<Tensor<D>, OpError> {
        let table = table.whole("embed")?;
        Ok(Tensor { parts: self.each(|rank, device| device.embed(&table[rank], ids))?, share: Share::Whole })
    }

    fn linear(&self, x: &Tensor<D>, weight: &Weight<D>) -> Result<Tensor<D>, OpError> {
        let x = self.settled(x)?;
        let share = match (x.share, &weight.split) {
            (Share::Whole, Split::Whole) => Share::Whole,
            (Share::Whole, Split::Rows(_)) => Share::Columns,
            (Share::Columns, Split::Columns) => Share::Sum,
            (share, split) => {
                return Err(OpError::shape("linear", format!("rows for {split:?}"), format!("{share:?}")));
            }
        };
        let parts = self.each(|rank, device| device.linear(&x.parts[rank], &weight.parts[rank]))?;
        Ok(Tensor { parts, share })
    }

    fn scores(&self, x: &Tensor<D>, weight: &Weight<D>, needs: &[Need]) -> Result<Vec<Logits>, OpError> {
        let (x, weight) = (self.settled(x)?, weight.whole("scores")?);
        self.ranks[0].scores(&x.as_share("scores", Share::Whole)?[0], &weight[0], needs)
    }

    fn rms_norm(
        &self,
        x: &Tensor<D>,
        weight: &Weight<D>,
        width: usize,
        style: NormWeight,
        eps: f32,
    ) -> Result<Tensor<D>, OpError> {
        let weight = weight.whole("rms_norm")?;
        self.with(x, |rank, device, x| device.rms_norm(x, &weight[rank], width, style, eps))
    }

    fn gated_norm(
        &self,
        x: &Tensor<D>,
        gate: &Tensor<D>,
        weight: &Weight<D>,
        width: usize,
        eps: f32,
    ) -> Result<Tensor<D>, OpError> {
        let (gate, weight) = (self.settled(gate)?, weight.whole("gated_norm")?);
        self.with(x, |rank, device, x| device.gated_norm(x, &gate.parts[rank], &weight[rank], width, eps))
    }

    fn add(&self, x: &mut Tensor<D>, y: &Tensor<D>) -> Result<(), OpError> {
        match (x.share, y.share) {
            (Share::Whole, Share::Sum) => x.parts = D::sum(&self.ranks, Some(&x.parts), &y.parts)?,
            (Share::Sum, Share::Whole) => {
                x.parts = D::sum(&self.ranks, Some(&y.parts), &x.parts)?;
                x.share = Share::Whole;
            }
            // Parts of two sums are parts of their sum.
            (share, _) => {
                let y = y.as_share("add", share)?;
                self.each(|rank, device| device.add(&mut x.parts[rank], &y[rank]))?;
            }
        }
        Ok(())
    }

    fn sigmoid_gate(&self, x: &mut Tensor<D>, gate: &Tensor<D>) -> Result<(), OpError> {
        // Parts of a sum, each times the same gate, are parts of the gated sum.
        let gate = self.settled(gate)?;
        self.each(|rank, device| device.sigmoid_gate(&mut x.parts[rank], &gate.parts[rank])).map(drop)
    }

    fn swiglu(&self, x: &Tensor<D>) -> Result<Tensor<D>, OpError> {
        self.with(x, |_, device, x| device.swiglu(x))
    }

    fn select(&self, x: &Tensor<D>, rows: &[usize]) -> Result<Tensor<D>, OpError> {
        self.with(x, |_, device, x| device.select(x, rows))
    }

    fn experts(&self, x: &Tensor<D>, experts: &Experts<'_, Self>) -> Result<Tensor<D>, OpError> {
        const OP: &str = "experts";
        let (x, router) = (self.settled(x)?, experts.router.whole(OP)?);
        let x = x.as_share(OP, Share::Whole)?;
        let (intermediate, share) = match (&experts.gate_up.split, &experts.down.split) {
            (Split::Whole, Split::Whole) => (experts.shape.intermediate, Share::Whole),
            (Split::Rows(_), Split::Columns) => {
                (shapes::width(experts.shape.intermediate, self.ranks.len())?, Share::Sum)
            }
            (found, down) => {
                return Err(OpError::shape(OP, format!("a split for {down:?}"), format!("{found:?}")));
            }
        };
        let parts = self.each(|rank, device| {
            let experts = Experts {
                shape: ExpertShape { intermediate, ..experts.shape },
                router: &router[rank],
                gate_up: &experts.gate_up.parts[rank],
                down: &experts.down.parts[rank],
            };
            device.experts(&x[rank], &experts)
        })?;
        Ok(Tensor { parts, share })
    }

    fn linear_mixer(
        &self,
        input: &LinearInput<'_, Self>,
        plan: &Plan<Self>,
        states: &mut Self::States,
    ) -> Result<Tensor<D>, OpError> {
        let share = Share::Columns;
        let part = |x: &Tensor<D>| x.as_share("linear_mixer", share).map(|_| ());
        let Gates::Gdn { a, b, a_log, dt_bias } = &input.gates;
        [input.raw, a, b].into_iter().try_for_each(part)?;
        let shape = shapes::linear(input.shape, self.ranks.len())?;
        let parts = self.each(|rank, device| {
            let gates = Gates::Gdn {
                a: &a.parts[rank],
                b: &b.parts[rank],
                a_log: &a_log.parts[rank],
                dt_bias: &dt_bias.parts[rank],
            };
            let conv = input.conv.map(|conv| &conv.parts[rank]);
            let raw = &input.raw.parts[rank];
            let input = LinearInput { layer: input.layer, shape: &shape, raw, conv, gates };
            device.linear_mixer(&input, &step::of_linear(plan, (input.layer, rank)), &mut states[rank])
        })?;
        Ok(Tensor { parts, share })
    }

    fn full_mixer(
        &self,
        input: &FullInput<'_, Self>,
        plan: &Plan<Self>,
        pages: &mut Self::Pages,
    ) -> Result<Tensor<D>, OpError> {
        const OP: &str = "full_mixer";
        let share = Share::Columns;
        let (query, key) = (input.query.as_share(OP, share)?, input.key.as_share(OP, share)?);
        let (value, rope) = (input.value.as_share(OP, share)?, input.rope.whole(OP)?);
        let shape = shapes::full(input.shape, self.ranks.len())?;
        let parts = self.each(|rank, device| {
            let part = FullInput {
                layer: input.layer,
                shape: &shape,
                query: &query[rank],
                key: &key[rank],
                value: &value[rank],
                rope: &rope[rank],
                scale: input.scale,
            };
            device.full_mixer(&part, &step::of_full(plan, (input.layer, rank)), &mut pages[rank])
        })?;
        Ok(Tensor { parts, share })
    }
}
