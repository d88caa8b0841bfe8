//! Logits against transformers in fp32: prefill in steps of several sizes, then cached decode.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypic_domain::id::ModelId;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::op::Device;
use hypic_kernels::plan::{Context, Plan, Run, RunOp};
use hypic_models::model::Memory;
use hypic_models::{Loaded, canary, load};
use serde_json::Value;

const PAGE: usize = 16;

struct Session {
    device: Arc<CpuDevice>,
    loaded: Loaded<CpuDevice>,
    states: <CpuDevice as Device>::States,
    pages: <CpuDevice as Device>::Pages,
    live: u32,
}

impl Session {
    fn open(dir: &Path) -> Self {
        let device = Arc::new(CpuDevice::poisoned(2).unwrap());
        let loaded = load(dir, &*device, ModelId::from("golden")).unwrap();
        let mut states = device.states(&loaded.spec, 3).unwrap();
        let pages = device.pages(&loaded.spec, 1024 / PAGE, PAGE).unwrap();
        device.reset_slot(&mut states, 1).unwrap();
        Self { device, loaded, states, pages, live: 0 }
    }

    /// Runs the tokens as one step and returns the logits of the wanted rows.
    fn step(&mut self, ids: &[u32], rows: &[usize]) -> Vec<f32> {
        let n = ids.len();
        self.live += n as u32;
        let context = Context {
            // Not in order, so that a page table is needed.
            pages: (0..1024 / PAGE).rev().collect(),
            live: (0..self.live).collect(),
            bodies: Vec::new(),
        };
        let run = Run { rows: 0..n, slot: 1, context, ops: vec![RunOp::Rows(0..n)], record: None };
        let plan = Plan { ids: ids.to_vec(), runs: vec![run] };
        let model = &self.loaded.model;
        let mut x = model.embed(&*self.device, &plan).unwrap();
        for layer in 0..self.loaded.spec.layers.len() {
            let memory = Memory { states: &mut self.states, pages: &mut self.pages };
            x = model.layer(&*self.device, layer, &plan, memory, x).unwrap();
        }
        model.all_logits(&*self.device, &x, rows).unwrap()
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn check(logits: &[f32], golden: &Value, bound: f64, what: &str) {
    let close =
        |found: f64, right: f64| assert!((found - right).abs() < bound, "{what}: {found} for {right}");
    for pair in golden["top"].as_array().unwrap() {
        close(f64::from(logits[pair[0].as_u64().unwrap() as usize]), number(&pair[1]));
    }
    for (i, right) in golden["every97"].as_array().unwrap().iter().enumerate() {
        close(f64::from(logits[97 * i]), number(right));
    }
    let lse = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
    close(lse, number(&golden["lse"]));
}

fn equals_transformers(dir: &Path, golden: &str, bound: f64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(golden);
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for (case, step) in cases.as_array().unwrap().iter().flat_map(|case| [(case, 1000), (case, 37)]) {
        let ids: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let mut session = Session::open(dir);
        for (i, chunk) in ids.chunks(step).enumerate() {
            let rows: Vec<usize> = (0..chunk.len()).collect();
            let logits = session.step(chunk, &rows);
            for (row, logits) in logits.chunks_exact(session.loaded.spec.vocab).enumerate() {
                if let Some(golden) = case["rows"].get((i * step + row).to_string()) {
                    check(logits, golden, bound, &format!("row {} of {}", i * step + row, ids.len()));
                }
            }
        }
        for golden in case["decode"].as_array().unwrap() {
            let logits = session.step(&[golden["id"].as_u64().unwrap() as u32], &[0]);
            check(&logits, golden, bound, &format!("decoded behind {}", ids.len()));
        }
    }
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/models/hypic-tiny")
}

#[test]
fn hypic_tiny_equals_transformers() {
    equals_transformers(&tiny(), "hypic-tiny.json", 1e-4);
}

#[test]
fn a_random_qwen3_5_equals_transformers() {
    equals_transformers(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/qwen3_5-tiny"),
        "qwen3_5-tiny.json",
        1e-4,
    );
}

#[test]
fn a_random_mixture_of_experts_equals_transformers() {
    // 1.1e-4 in the first row of the long prompt, whose query and key are nearly orthogonal: the norm behind the mixer
    // makes rounding large. 2e-5 everywhere else.
    equals_transformers(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/qwen3_5_moe-tiny"),
        "qwen3_5_moe-tiny.json",
        2e-4,
    );
}

#[test]
fn the_canary_finds_a_working_head() {
    let device = CpuDevice::new(1).unwrap();
    let loaded = load(&tiny(), &device, ModelId::from("tiny")).unwrap();
    let cases = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hypic-tiny.json")).unwrap();
    let cases: Value = serde_json::from_slice(&cases).unwrap();
    let id = |value: &Value| value.as_u64().unwrap() as u32;
    let mut ids: Vec<u32> = cases[1]["ids"].as_array().unwrap().iter().map(id).collect();
    let prompt = ids.len();
    // The answer and its end: what follows is beyond the model's training.
    ids.extend(cases[1]["decode"].as_array().unwrap().iter().take(2).map(|step| id(&step["id"])));
    let perplexity = canary::perplexity(&*loaded.model, &device, &ids, prompt).unwrap();
    assert!(perplexity < loaded.spec.vocab as f64 / 8.0, "{perplexity}");
}
