//! The CPU device: fp32, chunks of 64 tokens, plain matrix products, a fixed number of threads.
//!
//! Invariants: a run's results do not depend on what else is in the step; nothing of a slot's or a page's former
//! user is ever read; every element of a result is written ([`CpuDevice::poisoned`] makes a miss visible).

use std::sync::Arc;

use domain::logits::{Logits, Need};
use domain::model::{LayerSpec, ModelSpec};
use domain::tuple::TupleFormat;
use hypic_domain as domain;
use pulp::Arch;
use rayon::prelude::*;

use crate::op::{
    Device, Experts, Export, FullInput, HostLayer, HostTensor, LinearInput, NormWeight, OpError,
};
use crate::plan::Plan;

mod attention;
mod chunk;
mod experts;
mod linear;
mod math;
mod matrix;
mod memory;
mod rows;
mod sums;

use math::{sigmoid, silu, zip};
use matrix::{Into, Left, PANEL, Right, Size, product};
use memory::LayerPages;
pub use memory::{LayerParts, Pages, Recording, SlotState, States, Tensor, Weight};

/// Multiplications under which handing work to threads costs more than it saves.
const SMALL: usize = 1 << 20;

/// The device.
pub struct CpuDevice {
    arch: Arch,
    /// None: everything on the caller's thread.
    threads: Option<rayon::ThreadPool>,
    poison: bool,
}

impl CpuDevice {
    /// A device of `threads` threads (at least one).
    ///
    /// # Errors
    /// [`OpError::NoDevice`] where the threads can't be started.
    pub fn new(threads: usize) -> Result<Self, OpError> {
        let build = || {
            let name = |i| format!("hypic-cpu-{i}");
            rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build()
        };
        let threads = (threads > 1).then(build).transpose();
        let threads = threads.map_err(|error| OpError::NoDevice { reason: error.to_string() })?;
        Ok(Self { arch: Arch::new(), threads, poison: false })
    }

    /// The same, with NaN in every fresh output, slot and page, for tests.
    ///
    /// # Errors
    /// As [`CpuDevice::new`].
    pub fn poisoned(threads: usize) -> Result<Self, OpError> {
        Ok(Self { poison: true, ..Self::new(threads)? })
    }

    fn fresh(&self) -> f32 {
        if self.poison { f32::NAN } else { 0.0 }
    }

    fn output(&self, len: usize) -> Vec<f32> {
        vec![self.fresh(); len]
    }

    /// Runs `jobs`, over the threads if `work` multiplications are worth it; `T` is one thread's scratch.
    fn each<J: Send, T: Default + Send>(
        &self,
        work: usize,
        jobs: Vec<J>,
        run: impl Fn(&mut T, J) + Sync + Send,
    ) {
        match &self.threads {
            Some(threads) if work >= SMALL && jobs.len() > 1 => {
                threads.install(|| jobs.into_par_iter().for_each_init(T::default, run));
            }
            _ => {
                let mut scratch = T::default();
                jobs.into_iter().for_each(|job| run(&mut scratch, job));
            }
        }
    }

    fn parts(&self) -> usize {
        self.threads.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// An elementwise or row-wise op in blocks of whole rows.
    fn by_rows<'a>(
        &self,
        out: &'a mut [f32],
        width: usize,
        run: impl Fn(usize, &'a mut [f32]) + Sync + Send,
    ) {
        let rows = out.len().checked_div(width).unwrap_or(0);
        let block = rows.div_ceil(self.parts() * 4).max(1);
        let work = out.len() * 16;
        let jobs: Vec<_> = out.chunks_mut((block * width).max(1)).enumerate().collect();
        self.each(work, jobs, |_: &mut (), (i, out)| run(i * block, out));
    }
}

fn same_shape(op: &'static str, x: &Tensor, y: &Tensor) -> Result<(), OpError> {
    if x.width == y.width && x.values.len() == y.values.len() {
        Ok(())
    } else {
        let of = |t: &Tensor| format!("[{}, {}]", t.rows(), t.width);
        Err(OpError::shape(op, of(x), of(y)))
    }
}

impl Device for CpuDevice {
    type Tensor = Tensor;
    type Weight = Weight;
    type States = States;
    type Pages = Pages;
    type SlotState = SlotState;
    type LayerParts = LayerParts;
    type Recording = Recording;
    type BuiltLayer = HostLayer;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn weight(&self, host: &HostTensor<'_>) -> Result<Weight, OpError> {
        Weight::from_host(host)
    }

    fn exact(&self, host: &HostTensor<'_>) -> Result<Weight, OpError> {
        Weight::from_host(host)
    }

    fn bytes(&self, weight: &Weight) -> u64 {
        size_of_val(weight.values.as_slice()) as u64
    }

    fn states(&self, spec: &ModelSpec, slots: usize) -> Result<States, OpError> {
        Ok(States { slots: vec![SlotState::filled(spec, self.fresh()); slots] })
    }

    fn pages(&self, spec: &ModelSpec, pages: usize, page_tokens: usize) -> Result<Pages, OpError> {
        if page_tokens == 0 {
            return Err(OpError::shape("pages", "at least one token a page", 0));
        }
        let tokens = pages * page_tokens;
        let layers = spec.layers.iter().map(|layer| match layer {
            LayerSpec::Linear(_) => None,
            LayerSpec::Full(shape) => Some(LayerPages {
                key: self.output(tokens * shape.kv_heads * shape.key),
                value: self.output(tokens * shape.kv_heads * shape.value),
            }),
        });
        Ok(Pages { page_tokens, pages, layers: layers.collect() })
    }

    fn body_bytes(&self, _: &ModelSpec) -> u64 {
        // Every body has memory of its own.
        0
    }

    fn reset_slot(&self, states: &mut States, slot: usize) -> Result<(), OpError> {
        for layer in &mut states.slot_mut("reset_slot", slot)?.layers {
            layer.state.fill(0.0);
            layer.tail.fill(0.0);
        }
        Ok(())
    }

    fn save_slot(&self, states: &States, slot: usize) -> Result<SlotState, OpError> {
        states.slot("save_slot", slot).cloned()
    }

    fn load_slot(&self, states: &mut States, slot: usize, saved: &SlotState) -> Result<(), OpError> {
        for (layer, saved) in states.slot_mut("load_slot", slot)?.layers.iter_mut().zip(&saved.layers) {
            layer.state.copy_from_slice(&saved.state);
            layer.tail.copy_from_slice(&saved.tail);
        }
        Ok(())
    }

    fn copy_page(&self, pages: &mut Pages, from: usize, to: usize) -> Result<(), OpError> {
        let count = pages.pages;
        if let Some(page) = [from, to].into_iter().find(|&page| page >= count) {
            return Err(OpError::shape("copy_page", format!("a page below {count}"), page));
        }
        for layer in pages.layers.iter_mut().flatten() {
            for values in [&mut layer.key, &mut layer.value] {
                let size = values.len() / count;
                values.copy_within(from * size..(from + 1) * size, to * size);
            }
        }
        Ok(())
    }

    fn slot_state(&self, states: &States, slot: usize, layer: usize) -> Result<Vec<f32>, OpError> {
        let layer = states.slot("slot_state", slot)?.layers.get(layer);
        Ok(layer.map_or_else(Vec::new, |layer| layer.state.clone()))
    }

    fn import(
        &self,
        layer: usize,
        spec: &ModelSpec,
        _: &mut Pages,
        host: &HostLayer,
    ) -> Result<LayerParts, OpError> {
        LayerParts::from_host(layer, spec, host)
    }

    fn format(&self, wanted: &TupleFormat) -> TupleFormat {
        TupleFormat { layout: 0, ..*wanted }
    }

    fn layer_bytes(&self, parts: &LayerParts) -> u64 {
        parts.bytes()
    }

    fn recording(&self, spec: &ModelSpec) -> Result<Recording, OpError> {
        Recording::empty(spec)
    }

    fn finish(&self, request: &Export<'_, Self>) -> Result<HostLayer, OpError> {
        memory::export(request)
    }

    fn land(&self, _: usize, _: &ModelSpec, built: &HostLayer) -> Result<HostLayer, OpError> {
        Ok(built.clone())
    }

    fn keeps(&self, _: &TupleFormat) -> bool {
        // What is built is what is stored.
        true
    }

    fn adopt(
        &self,
        layer: usize,
        spec: &ModelSpec,
        _: &mut Pages,
        built: &Arc<HostLayer>,
    ) -> Result<LayerParts, OpError> {
        LayerParts::from_host(layer, spec, built)
    }

    fn tensor(&self, values: &[f32], width: usize) -> Result<Tensor, OpError> {
        Ok(Tensor { values: values.to_vec(), width })
    }

    fn to_host(&self, tensor: &Tensor) -> Result<Vec<f32>, OpError> {
        Ok(tensor.values.clone())
    }

    fn embed(&self, table: &Weight, ids: &[u32]) -> Result<Tensor, OpError> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= table.rows) {
            return Err(OpError::shape("embed", format!("ids below {}", table.rows), id));
        }
        let mut values = self.output(ids.len() * table.columns);
        for (row, &id) in values.chunks_exact_mut(table.columns).zip(ids) {
            let (panel, j) = (id as usize / PANEL, id as usize % PANEL);
            let cells = table.values[panel * table.columns * PANEL..].chunks_exact(PANEL);
            row.iter_mut().zip(cells).for_each(|(value, cell)| *value = cell[j]);
        }
        Ok(Tensor { values, width: table.columns })
    }

    fn linear(&self, x: &Tensor, weight: &Weight) -> Result<Tensor, OpError> {
        let (rows, inner, columns) = (x.rows(), weight.columns, weight.rows);
        if x.width != inner {
            return Err(OpError::shape("linear", format!("rows of {inner}"), x.width));
        }
        let mut values = self.output(rows * columns);
        let work = rows * inner * columns;
        let arch = self.arch;
        let left = |row: usize| Left { values: &x.values[row * inner..], row_step: inner, inner_step: 1 };
        let panels = |first: usize| Right::panels(&weight.values[first * inner..], inner);
        if self.parts() == 1 || work < SMALL {
            product(
                arch,
                Size { rows, inner, columns },
                left(0),
                panels(0),
                &mut values,
                (columns, Into::Set),
            );
        } else if rows >= self.parts() * 48 {
            // Whole tiles, a few blocks a thread.
            let block = rows.div_ceil(self.parts() * 3).next_multiple_of(6);
            let jobs: Vec<_> = values.chunks_mut(block * columns).enumerate().collect();
            self.each(work, jobs, |_: &mut (), (i, out)| {
                let size = Size { rows: out.len() / columns, inner, columns };
                product(arch, size, left(i * block), panels(0), out, (columns, Into::Set));
            });
        } else {
            // Few rows: every thread reads its own part of the weight, once.
            let block = columns.div_ceil(self.parts()).next_multiple_of(PANEL);
            let mut parts: Vec<_> = (0..columns)
                .step_by(block)
                .map(|first| {
                    let width = block.min(columns - first);
                    (first, width, self.output(rows * width))
                })
                .collect();
            self.each(work, parts.iter_mut().collect(), |_: &mut (), (first, width, out)| {
                let size = Size { rows, inner, columns: *width };
                product(arch, size, left(0), panels(*first), out, (*width, Into::Set));
            });
            for (first, width, part) in parts {
                for (out, part) in values.chunks_exact_mut(columns).zip(part.chunks_exact(width)) {
                    out[first..first + width].copy_from_slice(part);
                }
            }
        }
        Ok(Tensor { values, width: columns })
    }

    fn scores(&self, x: &Tensor, weight: &Weight, needs: &[Need]) -> Result<Vec<Logits>, OpError> {
        let scores = self.linear(x, weight)?;
        crate::check::equal("scores", "needs", scores.rows(), needs.len())?;
        let rows = scores.values.chunks_exact(scores.width.max(1));
        Ok(rows.zip(needs).map(|(row, need)| Logits::of_row(row, need)).collect())
    }

    fn rms_norm(
        &self,
        x: &Tensor,
        weight: &Weight,
        width: usize,
        style: NormWeight,
        eps: f32,
    ) -> Result<Tensor, OpError> {
        self.norm("rms_norm", (x, None), (weight, width), style, eps)
    }

    fn gated_norm(
        &self,
        x: &Tensor,
        gate: &Tensor,
        weight: &Weight,
        width: usize,
        eps: f32,
    ) -> Result<Tensor, OpError> {
        same_shape("gated_norm", x, gate)?;
        self.norm("gated_norm", (x, Some(gate)), (weight, width), NormWeight::Plain, eps)
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) -> Result<(), OpError> {
        same_shape("add", x, y)?;
        let width = x.width;
        self.by_rows(&mut x.values, width, |row, x| {
            zip(self.arch, x, &y.values[row * width..], |x, y| x + y)
        });
        Ok(())
    }

    fn sigmoid_gate(&self, x: &mut Tensor, gate: &Tensor) -> Result<(), OpError> {
        let width = x.width;
        if gate.width == 1 && width != 1 && gate.rows() == x.rows() {
            self.by_rows(&mut x.values, width, |row, x| {
                for (x, &gate) in x.chunks_exact_mut(width).zip(&gate.values[row..]) {
                    let gate = sigmoid(gate);
                    x.iter_mut().for_each(|x| *x *= gate);
                }
            });
            return Ok(());
        }
        same_shape("sigmoid_gate", x, gate)?;
        let gate = &gate.values;
        self.by_rows(&mut x.values, width, |row, x| {
            zip(self.arch, x, &gate[row * width..], |x, gate| x * sigmoid(gate));
        });
        Ok(())
    }

    fn swiglu(&self, x: &Tensor) -> Result<Tensor, OpError> {
        if !x.width.is_multiple_of(2) {
            return Err(OpError::shape("swiglu", "an even width", x.width));
        }
        let width = x.width / 2;
        let mut values = self.output(x.rows() * width);
        self.by_rows(&mut values, width, |first, out| {
            for (row, out) in (first..).zip(out.chunks_exact_mut(width)) {
                let (gate, up) = x.row(row).split_at(width);
                out.copy_from_slice(up);
                zip(self.arch, out, gate, |up, gate| up * silu(gate));
            }
        });
        Ok(Tensor { values, width })
    }

    fn select(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor, OpError> {
        if let Some(row) = rows.iter().find(|&&row| row >= x.rows()) {
            return Err(OpError::shape("select", format!("rows below {}", x.rows()), row));
        }
        Ok(Tensor { values: rows.iter().flat_map(|&row| x.row(row)).copied().collect(), width: x.width })
    }

    fn experts(&self, x: &Tensor, experts: &Experts<'_, Self>) -> Result<Tensor, OpError> {
        experts::experts(self, x, experts)
    }

    fn linear_mixer(
        &self,
        input: &LinearInput<'_, Self>,
        plan: &Plan<Self>,
        states: &mut States,
    ) -> Result<Tensor, OpError> {
        linear::linear_mixer(self, input, plan, states)
    }

    fn full_mixer(
        &self,
        input: &FullInput<'_, Self>,
        plan: &Plan<Self>,
        pages: &mut Pages,
    ) -> Result<Tensor, OpError> {
        attention::full_mixer(self, input, plan, pages)
    }
}

impl CpuDevice {
    fn norm(
        &self,
        op: &'static str,
        (x, gate): (&Tensor, Option<&Tensor>),
        (weight, width): (&Weight, usize),
        style: NormWeight,
        eps: f32,
    ) -> Result<Tensor, OpError> {
        if width == 0 || weight.values.len() != width || !x.width.is_multiple_of(width) {
            return Err(OpError::shape(
                op,
                format!("groups of {width}"),
                format!("{} of {}", x.width, weight.values.len()),
            ));
        }
        let mut values = self.output(x.values.len());
        self.by_rows(&mut values, x.width, |row, out| {
            let at = row * x.width;
            let x = &x.values[at..at + out.len()];
            let gate = gate.map(|gate| &gate.values[at..at + out.len()]);
            rows::Norm { x, gate, weight: &weight.values, style, eps, out }.run(self.arch);
        });
        Ok(Tensor { values, width: x.width })
    }
}
