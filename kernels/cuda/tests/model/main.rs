//! hypic-tiny on this device against the CPU device: logits of a whole prompt, of one composed of cached bodies, and
//! greedy answers.
//!
//! Without a feature the kernels run as fibers, on short prompts; with `gpu-tests` on GPU 0.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};

use half::bf16;
use hypic_cuda::{CudaDevice, Device};
use hypic_domain::id::ModelId;
use hypic_domain::tuple::Dtype;
use hypic_kernels::coded::Blocks;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::op;
use hypic_kernels::tolerance::{Compared, bound, error};
use hypic_models::{Loaded, load};
use serde_json::Value;

mod coded;
mod parallel;
#[path = "../../../models/tests/parallel/session.rs"]
mod session;
mod steps;

use session::Session;

/// Tokens of the seam.
const SEAM: usize = 8;
/// Tokens of a segment.
const SEGMENT: usize = 60;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/models/hypic-tiny")
}

fn loaded<D: op::Device>(device: &D) -> Loaded<D> {
    load(&tiny(), device, ModelId::from("tiny")).unwrap()
}

#[cfg(feature = "gpu-tests")]
fn device() -> Device {
    Device::cuda(0).expect("gpu-tests need a GPU")
}

#[cfg(not(feature = "gpu-tests"))]
fn device() -> Device {
    Device::fibers(hypic_cuda::Order::Forward)
}

/// A prompt and the tokens that transformers answers with.
struct Case {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

fn ids(values: &Value, id: impl Fn(&Value) -> &Value) -> Vec<u32> {
    values.as_array().unwrap().iter().map(|value| id(value).as_u64().unwrap() as u32).collect()
}

/// Prompts of the goldens; as fibers only the start of the long ones.
fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/hypic-tiny.json");
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let case = |case: &Value| {
        let mut case =
            Case { prompt: ids(&case["ids"], |id| id), answer: ids(&case["decode"], |step| &step["id"]) };
        if cfg!(not(feature = "gpu-tests")) && case.prompt.len() > 150 {
            case.prompt.truncate(150);
            case.answer.clear();
        }
        case
    };
    cases.as_array().unwrap().iter().map(case).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Logits of every row of a whole prompt, in steps of several sizes, and of the rows behind cached bodies.
fn logits_equal_the_cpus<D: op::Device>(device: &D, dtype: Dtype) {
    let cpu = CpuDevice::new(2).unwrap();
    let (ours, right) = (loaded(device), loaded(&cpu));
    let bound = bound(Compared::Logits, dtype);
    for Case { prompt, .. } in cases() {
        let whole = wide(&Session::new(&cpu, &right).prefill(&prompt, 1000));
        for step in [1000, 37] {
            let found = Session::new(device, &ours).prefill(&prompt, step);
            let error = error(&found, &whole);
            println!("{} tokens in steps of {step}: {error:e}", prompt.len());
            assert!(error <= bound, "steps of {step}: {error:e} over {bound:e}");
        }
        if prompt.len() > 2 * SEGMENT {
            let composed = wide(&Session::new(&cpu, &right).compose(&prompt));
            let found = Session::new(device, &ours).compose(&prompt);
            let error = error(&found, &composed);
            println!("{} tokens composed: {error:e}", prompt.len());
            assert!(error <= bound, "composed: {error:e} over {bound:e}");
        }
    }
}

/// Greedy answers are those of transformers, and after a composed prompt those of the CPU.
fn answers_equal<D: op::Device>(device: &D) {
    let cpu = CpuDevice::new(2).unwrap();
    let (ours, right) = (loaded(device), loaded(&cpu));
    for Case { prompt, answer } in cases() {
        let mut session = Session::new(device, &ours);
        let logits = session.prefill(&prompt, 1000);
        let found = session.greedy(&logits, answer.len().max(4));
        assert_eq!(found[..answer.len()], answer);
        if prompt.len() > 2 * SEGMENT {
            let answers = |logits: Vec<f32>, greedy: &mut dyn FnMut(&[f32]) -> Vec<u32>| greedy(&logits);
            let mut session = Session::new(device, &ours);
            let found = answers(session.compose(&prompt), &mut |logits| session.greedy(logits, 4));
            let mut session = Session::new(&cpu, &right);
            let expected = answers(session.compose(&prompt), &mut |logits| session.greedy(logits, 4));
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn logits_in_fp32_equal_the_cpus() {
    logits_equal_the_cpus(&CudaDevice::<f32>::poisoned(device(), 2048), Dtype::F32);
}

#[test]
fn logits_in_bf16_are_close_to_the_cpus() {
    logits_equal_the_cpus(&CudaDevice::<bf16>::poisoned(device(), 2048), Dtype::Bf16);
}

#[test]
fn greedy_answers_are_the_same_in_fp32() {
    answers_equal(&CudaDevice::<f32>::poisoned(device(), 2048));
}

#[test]
fn greedy_answers_are_the_same_in_bf16() {
    answers_equal(&CudaDevice::<bf16>::poisoned(device(), 2048));
}

#[test]
fn steps_run_again_have_the_same_bits_in_fp32() {
    steps::steps_run_again_have_the_same_bits(&CudaDevice::<f32>::poisoned(device(), 0), None);
}

#[test]
fn steps_run_again_have_the_same_bits_in_bf16() {
    steps::steps_run_again_have_the_same_bits(&CudaDevice::<bf16>::poisoned(device(), 0), None);
}

#[test]
fn steps_run_again_have_the_same_bits_on_codes() {
    let blocks = Some(Blocks { rows: 128, columns: 128 });
    steps::steps_run_again_have_the_same_bits(&CudaDevice::<bf16>::poisoned(device(), 0), blocks);
}

#[test]
fn bodies_that_come_anew_are_settled_in_fp32() {
    steps::bodies_that_come_anew_are_settled(&CudaDevice::<f32>::poisoned(device(), 1024));
}

#[test]
fn bodies_that_come_anew_are_settled_in_bf16() {
    steps::bodies_that_come_anew_are_settled(&CudaDevice::<bf16>::poisoned(device(), 1024));
}

#[test]
fn whatever_happens_to_sequences_has_the_same_bits_in_fp32() {
    steps::whatever_happens_has_the_same_bits(&CudaDevice::<f32>::poisoned(device(), 1024), 1, 24);
}

#[test]
fn whatever_happens_to_sequences_has_the_same_bits_in_bf16() {
    steps::whatever_happens_has_the_same_bits(&CudaDevice::<bf16>::poisoned(device(), 1024), 2, 24);
}

#[cfg(feature = "fibers")]
#[test]
fn what_steps_use_does_not_grow() {
    // Fibers on every machine: a GPU's memory is that of all tests at once.
    let fibers = Device::fibers(hypic_cuda::Order::Forward);
    steps::what_steps_use_does_not_grow(&CudaDevice::<bf16>::poisoned(fibers, 0));
}
