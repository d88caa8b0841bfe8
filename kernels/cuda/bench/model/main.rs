//! A whole model of the 35B-A3B shape with random weights on one GPU: the figures of DESIGN §8 that need one.
//!
//! `model OUT.json [LAYERS] [SEQUENCES] [cold] [prefill] [layers] [ops] [warm] [host] [decode] [composed]`, layers in fours,
//! 40 for the whole model, all parts or the named ones: a cold prompt of 64 segments on one GPU and, where there is a
//! second, on two; cold prefill of 32k tokens, one layer of it by itself, the ops of a layer, a warm prompt of 64 cached
//! bodies with seams of 8 and one more body, the same from pinned memory of the host, decode of 1, 32 and 128 sequences (or
//! of so many) from recordings and eagerly, and how far composed logits are from recomputed ones. Figures are medians of
//! wall time from the plan to logits on the host. With the word `fp8` products are of 8-bit codes with factors of blocks.
//!
//! `model OUT.json LAYERS --devices 0,1`: prefill and decode on GPU 0, then on both as ranks.

mod cold;
mod composed;
mod ranks;
mod runs;
mod warm_host;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use hypic_cuda::{CudaDevice, Device, Pinned};
use hypic_domain::logits::{Logits, Need, Portion};
use hypic_domain::tuple::{Dtype, TupleFormat};
use hypic_kernels::coded::Blocks;
use hypic_kernels::op::{
    Device as _, ExpertShape, Experts, Export, HostLayer, HostTensor, NormWeight, OpError, Split,
};
use hypic_kernels::plan::{BodyLayers, Context, PlacedBody, Plan, Record, Rule, Run, RunOp};
use hypic_kernels::random::RandomMatrix;
use hypic_models::Loaded;
use hypic_models::config::Naming;
use hypic_models::model::Memory;
use hypic_models::random::{self, RandomSpec};
use serde_json::json;

use cold::SKIP_BELOW;

type Gpu = CudaDevice;
type Body = (Arc<BodyLayers<Gpu>>, usize);

const PAGE: usize = 64;
const PROMPT: usize = 32_768;
const SEGMENT: usize = 512;
const SEGMENTS: usize = 64;
const SEAM: usize = 8;
const QUERY: usize = 24;
/// Segments that are really built; a prompt names each of them several times.
const BUILT: usize = 8;
/// Live tokens of a sequence that decodes.
const DECODING: usize = 1024;
const MOST: usize = 128;
const REPEATS: usize = 7;
/// For 64 bodies with every `T`: 4.8 GB.
const PINNED: usize = 6 << 30;
/// The word for products of codes.
const CODES: &str = "fp8";

fn shape(layers: usize) -> RandomSpec {
    RandomSpec {
        naming: Naming::Qwen35,
        hidden: 2048,
        intermediate: 512,
        experts: Some((256, 8)),
        vocab: 248_320,
        layers,
        full_interval: 4,
        linear_heads: (16, 32),
        linear_width: 128,
        full_heads: (16, 2),
        full_width: 256,
        context: 40_960,
        half_lives: (8.0, 8192.0),
        half_precision: true,
        ..RandomSpec::default()
    }
}

struct Bench {
    device: Gpu,
    loaded: Loaded<Gpu>,
    states: <Gpu as hypic_kernels::op::Device>::States,
    pages: <Gpu as hypic_kernels::op::Device>::Pages,
    /// Decode layer by layer, and not from recordings.
    is_eager: bool,
}

impl Bench {
    /// The model on GPU `number`, room for `slots` sequences of [`DECODING`] tokens or one prompt, and for all bodies of
    /// a prompt; so many bytes of pinned memory.
    fn open(number: usize, spec: &RandomSpec, slots: usize, pinned: usize) -> Result<Self> {
        let gpu = Device::cuda(number)?;
        let pinned = Pinned::new(&gpu, pinned);
        let begun = Instant::now();
        pinned.pin()?;
        println!("{:.1} GB pinned in {:.1} s", pinned.usage().0 as f64 / 1e9, begun.elapsed().as_secs_f64());
        // A prompt names a body several times, and each of them lies in the pages once.
        let device: Gpu = CudaDevice::new(gpu, (BUILT + SEGMENTS) * SEGMENT).with_pinned(pinned);
        let begun = Instant::now();
        let loaded = random::load(&device, spec)?;
        device.wait()?;
        println!("{:.1} GB of weights in {:.1} s", loaded.bytes as f64 / 1e9, begun.elapsed().as_secs_f64());
        let pages = PROMPT.max(slots * DECODING) / PAGE;
        let (states, pages) = (device.states(&loaded.spec, slots)?, device.pages(&loaded.spec, pages, PAGE)?);
        let mut bench = Self { device, loaded, states, pages, is_eager: false };
        for slot in 0..slots {
            bench.device.reset_slot(&mut bench.states, slot)?;
        }
        Ok(bench)
    }

    fn run(&mut self, runs: Vec<Run<Gpu>>, last: &[(usize, Need)]) -> Result<f64> {
        let rows: usize = runs.iter().map(|run| run.rows.len()).sum();
        let ids = self.ids(rows);
        self.device.wait()?;
        let begun = Instant::now();
        let logits = self.forward(&Plan { ids, runs }, last)?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        check_finite(&logits)?;
        Ok(ms)
    }

    fn ids(&self, rows: usize) -> Vec<u32> {
        (0..rows).map(|row| (row * 7919 % self.loaded.spec.vocab) as u32).collect()
    }

    /// One step, and what is needed of the logits of some rows; without any of them only the layers.
    fn forward(&mut self, plan: &Plan<Gpu>, needs: &[(usize, Need)]) -> Result<Vec<Logits>> {
        let x = if self.is_eager {
            self.by_layers(plan, |_, _| Ok(()))?
        } else {
            let memory = Memory { states: &mut self.states, pages: &mut self.pages };
            self.loaded.model.step(&self.device, plan, memory)?
        };
        match needs.is_empty() {
            true => Ok(self.device.wait().map(|()| Vec::new())?),
            false => Ok(self.loaded.model.logits(&self.device, &x, needs)?),
        }
    }

    /// One step layer by layer, each behind `before` it.
    fn by_layers(
        &mut self,
        plan: &Plan<Gpu>,
        mut before: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<<Gpu as hypic_kernels::op::Device>::Tensor> {
        let mut x = self.loaded.model.embed(&self.device, plan)?;
        for layer in 0..self.loaded.spec.layers.len() {
            before(self, layer)?;
            let memory = Memory { states: &mut self.states, pages: &mut self.pages };
            x = self.loaded.model.layer(&self.device, layer, plan, memory, x)?;
        }
        Ok(x)
    }

    /// Each layer of one step of `rows` rows by itself: the first linear and the first full one.
    fn layers(&mut self, rows: usize) -> Result<[f64; 2]> {
        self.device.reset_slot(&mut self.states, 0)?;
        let plan = Plan { ids: vec![7; rows], runs: vec![runs::last_rows(rows, rows)] };
        let mut x = self.loaded.model.embed(&self.device, &plan)?;
        let mut times = [0.0; 4];
        for (layer, time) in times.iter_mut().enumerate() {
            self.device.wait()?;
            let begun = Instant::now();
            let memory = Memory { states: &mut self.states, pages: &mut self.pages };
            x = self.loaded.model.layer(&self.device, layer, &plan, memory, x)?;
            self.device.wait()?;
            *time = begun.elapsed().as_secs_f64() * 1e3;
        }
        Ok([times[1], times[3]])
    }

    /// Every op of a linear layer by itself, over `rows` rows.
    fn ops(&mut self, rows: usize, note: &mut impl FnMut(&str, f64)) -> Result<()> {
        let device = &self.device;
        let mut random = 1_u32;
        let mut values = |len: usize, scale: f32| -> Vec<f32> {
            let mut one = || {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                scale * ((random >> 8) as f32 / (1 << 23) as f32 - 1.0)
            };
            (0..len).map(|_| one()).collect()
        };
        let matrix = |outer: usize, inner: usize| {
            let seed = outer as u64;
            let block = RandomMatrix { seed, shape: [outer, inner], scale: 0.02, stride: inner };
            device.random(&[block], &Split::Whole)
        };
        let x = device.tensor(&values(rows * 2048, 1.0), 2048)?;
        let wide = device.tensor(&values(rows * 4096, 1.0), 4096)?;
        let (raw, out, gates) = (matrix(8192, 2048)?, matrix(2048, 4096)?, matrix(32, 2048)?);
        let experts = Experts {
            shape: ExpertShape { experts: 256, top: 8, intermediate: 512, renormalise: true },
            router: &matrix(256, 2048)?,
            gate_up: &matrix(256 * 1024, 2048)?,
            down: &matrix(256 * 2048, 512)?,
        };
        let exact = |len: usize| {
            let bytes = vec![0_u8; 4 * len];
            device.exact(&HostTensor {
                name: "",
                shape: vec![len],
                dtype: Dtype::F32,
                bytes: &bytes,
                split: Split::Whole,
            })
        };
        let (hidden, head) = (exact(2048)?, exact(128)?);
        let mut time = |name: &str, op: &dyn Fn() -> Result<(), OpError>| -> Result<()> {
            let mut times = Vec::new();
            for _ in 0..5 {
                device.wait()?;
                let begun = Instant::now();
                op()?;
                device.wait()?;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            note(name, times[2]);
            Ok(())
        };
        time("op_rms_norm", &|| device.rms_norm(&x, &hidden, 2048, NormWeight::ZeroCentred, 1e-6).map(drop))?;
        time("op_linear_2048_8192", &|| device.linear(&x, &raw).map(drop))?;
        time("op_linear_4096_2048", &|| device.linear(&wide, &out).map(drop))?;
        time("op_linear_2048_32", &|| device.linear(&x, &gates).map(drop))?;
        time("op_gated_norm", &|| device.gated_norm(&wide, &wide, &head, 128, 1e-6).map(drop))?;
        time("op_swiglu", &|| device.swiglu(&wide).map(drop))?;
        time("op_experts", &|| device.experts(&x, &experts).map(drop))?;
        // Of steps between decode and a whole prompt: those of a batch, of seams and a query, and of a step of prefill.
        for rows in [128, SEGMENTS * SEAM + QUERY, 2048] {
            let part = device.select(&x, &(0..rows).collect::<Vec<_>>())?;
            time(&format!("op_experts_{rows}"), &|| device.experts(&part, &experts).map(drop))?;
        }
        Ok(())
    }

    fn median(&mut self, repeats: usize, mut one: impl FnMut(&mut Self) -> Result<f64>) -> Result<f64> {
        one(self)?;
        let mut times = (0..repeats).map(|_| one(self)).collect::<Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().context("no repeats")
    }

    fn prefill(&mut self, tokens: usize, step: usize) -> Result<f64> {
        self.device.reset_slot(&mut self.states, 0)?;
        let mut sum = 0.0;
        for first in (0..tokens).step_by(step) {
            let rows = step.min(tokens - first);
            sum += self.run(vec![runs::last_rows(rows, first + rows)], &[(rows - 1, Need::largest(1))])?;
        }
        Ok(sum)
    }

    /// A segment alone, exported and imported; and the time of its rows.
    fn build(&mut self) -> Result<(Body, f64)> {
        let (stored, ms) = self.build_stored(SKIP_BELOW)?;
        let body = BodyLayers::empty(stored.len());
        for (layer, host) in stored.iter().enumerate() {
            body.arrive(layer, self.device.import(layer, &self.loaded.spec, &mut self.pages, host)?);
        }
        Ok(((Arc::new(body), SEGMENT - SEAM), ms))
    }

    /// The layers of a segment's tuple, and the time of its rows; heads whose bound is under `skip_below` have no `T`.
    fn build_stored(&mut self, skip_below: f32) -> Result<(Vec<HostLayer>, f64)> {
        self.device.reset_slot(&mut self.states, 0)?;
        let spec = self.loaded.spec.clone();
        let recording = Arc::new(Mutex::new(self.device.recording(&spec)?));
        let record =
            Some(Record { recording: Arc::clone(&recording), body: SEAM..SEGMENT, whole: Some(skip_below) });
        let run = Run { record, ..runs::last_rows(SEGMENT, SEGMENT) };
        let ms = self.run(vec![run], &[(SEGMENT - 1, Need::largest(1))])?;
        let recording = recording.lock().map_err(|_| anyhow::anyhow!("a step died"))?;
        let format = self.device.format(&TupleFormat { skip_below, ..TupleFormat::default() });
        let mut stored = Vec::new();
        for layer in 0..spec.layers.len() {
            stored.push(self.device.export(&Export {
                layer,
                spec: &spec,
                recording: &*recording,
                states: &self.states,
                slot: 0,
                pages: &self.pages,
                context: &runs::live(0, SEGMENT),
                body: SEGMENT - SEAM,
                format,
            })?);
        }
        Ok((stored, ms))
    }

    /// A prompt of cached bodies with live seams, and a query behind them.
    fn warm(&mut self, bodies: &[Body], segments: usize) -> Result<f64> {
        self.device.reset_slot(&mut self.states, 0)?;
        let runs = self.warm_runs(bodies, segments);
        let last = segments * SEAM + QUERY - 1;
        self.run(runs, &[(last, Need::largest(1))])
    }

    fn warm_runs(&self, bodies: &[Body], segments: usize) -> Vec<Run<Gpu>> {
        let mut context = Context { pages: Vec::new(), live: Vec::new(), bodies: Vec::new() };
        let mut ops = Vec::new();
        for number in 0..segments {
            let first = (number * SEGMENT) as u32;
            let (layers, len) = &bodies[number % bodies.len()];
            ops.push(RunOp::Rows(number * SEAM..(number + 1) * SEAM));
            ops.push(RunOp::Apply { body: number, rule: Rule::Compose });
            context.live.extend(first..first + SEAM as u32);
            let (layers, len) = (Arc::clone(layers), *len as u32);
            context.bodies.push(PlacedBody { layers, start: first + SEAM as u32, len });
        }
        let rows = segments * SEAM + QUERY;
        ops.push(RunOp::Rows(segments * SEAM..rows));
        let end = (segments * SEGMENT) as u32;
        context.live.extend(end..end + QUERY as u32);
        context.pages = (0..rows.div_ceil(PAGE)).collect();
        vec![Run { rows: 0..rows, slot: 0, context, ops, record: None }]
    }

    /// Prompts of bodies that are built first, and what one more of them costs.
    fn cached(&mut self, note: &mut impl FnMut(&str, f64)) -> Result<()> {
        let (mut bodies, mut builds) = (Vec::new(), Vec::new());
        for _ in 0..BUILT {
            let (body, ms) = self.build()?;
            bodies.push(body);
            builds.push(ms);
        }
        builds.sort_by(f64::total_cmp);
        note("build_512", builds[BUILT / 2]);
        let warm = self.median(REPEATS, |b| b.warm(&bodies, SEGMENTS))?;
        note("warm_32k", warm);
        let half = self.median(REPEATS, |b| b.warm(&bodies, SEGMENTS / 2))?;
        note("added_segment", (warm - half) / (SEGMENTS / 2) as f64);
        Ok(())
    }

    /// One token of each of `batch` sequences with [`DECODING`] live tokens; without a need only the layers.
    fn decode(&mut self, batch: usize, need: Option<&Need>) -> Result<f64> {
        let last: Vec<_> =
            need.iter().flat_map(|need| (0..batch).map(|row| (row, (*need).clone()))).collect();
        self.run(runs::decoding(batch), &last)
    }
}

fn check_finite(logits: &[Logits]) -> Result<()> {
    let is_finite = |logits: &Logits| match logits {
        Logits::All(row) => row.iter().all(|logit| logit.is_finite()),
        Logits::Largest { log_sum, .. } | Logits::Drawn { log_sum, .. } | Logits::Nucleus { log_sum, .. } => {
            log_sum.is_finite()
        }
    };
    if logits.iter().all(is_finite) { Ok(()) } else { bail!("a logit is not finite") }
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let out = words.next().context("name the file for the results")?;
    let layers = words.next().map_or(Ok(40), |word| word.parse()).context("read the number of layers")?;
    let mut parts: Vec<String> = words.collect();
    if let [flag, devices] = &parts[..]
        && flag == "--devices"
    {
        return ranks::compare(&out, layers, devices);
    }
    let is_coded = parts.iter().any(|part| part == CODES);
    parts.retain(|part| part != CODES);
    let blocks = is_coded.then_some(Blocks { rows: 128, columns: 128 });
    let spec = RandomSpec { blocks, ..shape(layers) };
    let (numbers, parts): (Vec<&String>, Vec<&String>) =
        parts.iter().partition(|part| part.parse::<usize>().is_ok());
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| *wanted == part);
    let batches = match numbers[..] {
        [] => vec![1, 32, MOST],
        _ => numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>()?,
    };
    // Both at once: the host's memory bounds neither.
    let of_second = spec.clone();
    let second = wanted("cold").then(|| std::thread::spawn(move || Bench::open(1, &of_second, SEGMENTS, 0)));
    let mut bench = Bench::open(0, &spec, MOST, if wanted("host") { PINNED } else { 0 })?;
    let mut figures = serde_json::Map::new();
    let mut note = |name: &str, ms: f64| {
        println!("{name:<28} {ms:>10.2} ms");
        figures.insert(name.to_owned(), json!(ms));
    };
    if let Some(second) = second {
        let second = second.join().map_err(|_| anyhow::anyhow!("the second GPU's thread died"))?;
        cold_prompts(&mut bench, second, &mut note)?;
    }
    if wanted("prefill") {
        for step in [2048, 8192, PROMPT] {
            note(&format!("prefill_32k_steps_of_{step}"), bench.median(2, |b| b.prefill(PROMPT, step))?);
        }
    }
    if wanted("layers") {
        let [linear, full] = bench.layers(PROMPT)?;
        note("linear_layer_32k", linear);
        note("full_layer_32k", full);
    }
    if wanted("ops") {
        bench.ops(PROMPT, &mut note)?;
    }
    if wanted("warm") {
        bench.cached(&mut note)?;
    }
    if wanted("host") {
        warm_host::warm_host(&mut bench, &mut note)?;
    }
    for batch in batches.into_iter().filter(|_| wanted("decode")) {
        bench.is_eager = true;
        note(&format!("decode_b{batch}_layers_eager"), bench.median(REPEATS, |b| b.decode(batch, None))?);
        bench.is_eager = false;
        bench.decode(batch, None)?;
        note(&format!("decode_b{batch}_layers"), bench.median(REPEATS, |b| b.decode(batch, None))?);
        let draw = Portion::Draw { temperature: 1.0, uniform: 0.5, largest: 0 };
        // Cold, since logits of random weights are flat.
        let nucleus = Portion::Nucleus { temperature: 0.05, top_p: 0.9, largest: 0 };
        // As many tokens as an answer of that length may have.
        let addends = Arc::new((0..1024).map(|token| (token * 200, -0.5)).collect());
        let penalties = Need { portion: Portion::Largest(20), addends };
        let needs = [
            ("", Need::largest(1)),
            ("_draw", draw.into()),
            ("_nucleus", nucleus.into()),
            ("_penalties", penalties),
            ("_top20", Need::largest(20)),
            ("_rows", Need::all()),
        ];
        for (suffix, need) in needs {
            let ms = bench.median(REPEATS, |b| b.decode(batch, Some(&need)))?;
            note(&format!("decode_b{batch}{suffix}"), ms);
            println!("{:<28} {:>10.0} tokens/s", "", batch as f64 / ms * 1e3);
        }
    }
    let composed = if wanted("composed") { Some(bench.composed()?) } else { None };
    for (what, composed::Distance { most, kl, same }) in composed.into_iter().flatten() {
        println!(
            "{what:<28} largest difference {most:.3}, KL {kl:.2e}, same largest in {same} of {QUERY} rows"
        );
        figures.insert(format!("logits: {what}"), json!({"most": most, "kl": kl, "same": same}));
    }
    write(&out, figures)
}

/// Cold prompts on one GPU, on two, and without `T`; one prefill beside them.
fn cold_prompts(bench: &mut Bench, second: Result<Bench>, note: &mut impl FnMut(&str, f64)) -> Result<()> {
    note("prefill_32k", bench.median(2, |b| b.prefill(PROMPT, PROMPT))?);
    for (name, skip_below) in [("", Some(0.0)), ("_without_t", Some(f32::INFINITY)), ("_unrecorded", None)] {
        note(&format!("builds_32k{name}"), bench.median(2, |b| b.builds(8192, skip_below))?);
    }
    let mut second = match second {
        Ok(second) => {
            bench.device.enable_peer(&second.device)?;
            Some(second)
        }
        Err(error) => {
            println!("no second GPU: {error:#}");
            None
        }
    };
    for rows in cold::STEPS {
        note(&format!("cold_32k_steps_of_{rows}"), bench.median(3, |b| b.cold(rows))?);
        if let Some(second) = &mut second
            && rows < PROMPT
        {
            let mut taken = 0;
            let ms = bench.median(3, |b| {
                let (ms, steps) = b.cold_with(second, rows)?;
                taken = steps;
                Ok(ms)
            })?;
            note(&format!("cold_32k_2gpu_steps_of_{rows}"), ms);
            println!("{:<28} {taken:>10} of {} steps by the second GPU", "", PROMPT / rows);
        }
    }
    Ok(())
}

fn write(out: &str, figures: serde_json::Map<String, serde_json::Value>) -> Result<()> {
    std::fs::write(out, format!("{:#}\n", serde_json::Value::Object(figures)))
        .with_context(|| format!("write {out}"))
}
