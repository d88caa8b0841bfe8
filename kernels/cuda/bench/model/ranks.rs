//! Tensor parallel: the same model on the first of the devices that `--devices` names, then on all of them.
//!
//! Of each step stand the time until the host has given all launches, and until the logits are there: one thread of the
//! host gives those of all ranks.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use hypic_cuda::CudaDevice;
use hypic_domain::logits::{Logits, Need};
use hypic_kernels::op::{Device, OpError};
use hypic_kernels::parallel::{Rank, TensorParallel};
use hypic_kernels::plan::{Plan, Run};
use hypic_models::model::Memory;
use hypic_models::{Loaded, random};
use serde_json::{Map, Value, json};

use crate::{DECODING, Gpu, PAGE, PROMPT, REPEATS, runs, shape};

const BATCHES: [usize; 2] = [1, 32];

/// Writes figures of `layers` layers on the first of the devices named `0,1` or so, and on all of them, to `out`.
pub(crate) fn compare(out: &str, layers: usize, devices: &str) -> Result<()> {
    let mut figures = Map::new();
    let open = |number: &str| -> Result<Gpu> {
        let number = number.parse().with_context(|| format!("read the device {number}"))?;
        Ok(CudaDevice::new(hypic_cuda::Device::cuda(number)?, 0))
    };
    let names: Vec<&str> = devices.split(',').collect();
    On::new(open(names[0])?, Gpu::wait, layers)?.figures(1, &mut figures)?;
    let ranks = TensorParallel::new(names.iter().map(|name| open(name)).collect::<Result<_>>()?)?;
    note(&mut figures, "sum_32k", sum(&ranks)?);
    let wait = |ranks: &TensorParallel<Gpu>| ranks.ranks().iter().try_for_each(Gpu::wait);
    On::new(ranks, wait, layers)?.figures(names.len(), &mut figures)?;
    std::fs::write(out, format!("{:#}\n", Value::Object(figures))).with_context(|| format!("write {out}"))
}

fn note(figures: &mut Map<String, Value>, name: &str, ms: f64) {
    println!("{name:<28} {ms:>10.2} ms");
    figures.insert(name.to_owned(), json!(ms));
}

fn median(mut one: impl FnMut() -> Result<[f64; 2]>, repeats: usize) -> Result<[f64; 2]> {
    one()?;
    let mut times = (0..repeats).map(|_| one()).collect::<Result<Vec<_>>>()?;
    times.sort_by(|a, b| a[1].total_cmp(&b[1]));
    times.get(times.len() / 2).copied().context("no repeats")
}

/// One exchange of a prefill: the parts of `[PROMPT, hidden]` of each rank, added up on each.
fn sum(ranks: &TensorParallel<Gpu>) -> Result<f64> {
    let hidden = shape(4).hidden;
    let values: Vec<f32> = (0..PROMPT * hidden).map(|place| (place % 251) as f32).collect();
    let part = |rank: &Gpu| rank.tensor(&values, hidden);
    let parts = ranks.ranks().iter().map(part).collect::<Result<Vec<_>, _>>()?;
    let wait = || ranks.ranks().iter().try_for_each(Gpu::wait);
    let one = || {
        wait()?;
        let begun = Instant::now();
        let sums = Gpu::sum(ranks.ranks(), None, &parts)?;
        wait()?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        drop(sums);
        Ok([0.0, ms])
    };
    Ok(median(one, REPEATS)?[1])
}

/// A model on a device.
struct On<D: Device, W> {
    device: D,
    wait: W,
    loaded: Loaded<D>,
    states: D::States,
    pages: D::Pages,
}

impl<D: Device, W: Fn(&D) -> Result<(), OpError>> On<D, W> {
    fn new(device: D, wait: W, layers: usize) -> Result<Self> {
        let begun = Instant::now();
        let loaded = random::load(&device, &shape(layers))?;
        wait(&device)?;
        println!("{:.1} GB of weights in {:.1} s", loaded.bytes as f64 / 1e9, begun.elapsed().as_secs_f64());
        let most = BATCHES[BATCHES.len() - 1];
        let pages = PROMPT.max(most * DECODING) / PAGE;
        let (states, pages) = (device.states(&loaded.spec, most)?, device.pages(&loaded.spec, pages, PAGE)?);
        let mut on = Self { device, wait, loaded, states, pages };
        (0..most).try_for_each(|slot| on.device.reset_slot(&mut on.states, slot))?;
        Ok(on)
    }

    fn figures(&mut self, ranks: usize, figures: &mut Map<String, Value>) -> Result<()> {
        let mut of = |name: &str, [given, whole]: [f64; 2]| {
            note(figures, &format!("{name}_ranks_{ranks}_given"), given);
            note(figures, &format!("{name}_ranks_{ranks}"), whole);
        };
        of("prefill_32k", median(|| self.prefill(), 2)?);
        for batch in BATCHES {
            of(&format!("decode_b{batch}"), median(|| self.decode(batch), REPEATS)?);
        }
        Ok(())
    }

    fn prefill(&mut self) -> Result<[f64; 2]> {
        self.device.reset_slot(&mut self.states, 0)?;
        self.step(vec![runs::last_rows(PROMPT, PROMPT)])
    }

    /// One token of each of `batch` sequences with [`DECODING`] live tokens.
    fn decode(&mut self, batch: usize) -> Result<[f64; 2]> {
        self.step(runs::decoding(batch))
    }

    /// A step, and what greedy decoding needs of the last row of each run: until all is given, and until it is there.
    fn step(&mut self, runs: Vec<Run<D>>) -> Result<[f64; 2]> {
        let rows: usize = runs.iter().map(|run| run.rows.len()).sum();
        let last: Vec<_> = runs.iter().map(|run| (run.rows.end - 1, Need::largest(1))).collect();
        let ids = (0..rows).map(|row| (row * 7919 % self.loaded.spec.vocab) as u32).collect();
        (self.wait)(&self.device)?;
        let begun = Instant::now();
        let plan = Plan { ids, runs };
        let model = &self.loaded.model;
        let mut x = model.embed(&self.device, &plan)?;
        for layer in 0..self.loaded.spec.layers.len() {
            let memory = Memory { states: &mut self.states, pages: &mut self.pages };
            x = model.layer(&self.device, layer, &plan, memory, x)?;
        }
        let given = begun.elapsed().as_secs_f64() * 1e3;
        let logits = model.logits(&self.device, &x, &last)?;
        let whole = begun.elapsed().as_secs_f64() * 1e3;
        let is_finite =
            |logits: &Logits| matches!(logits, Logits::Largest { log_sum, .. } if log_sum.is_finite());
        if !logits.iter().all(is_finite) {
            bail!("a logit is not finite");
        }
        Ok([given, whole])
    }
}
