//! Two ranks against one device: as fibers in CI, on GPUs 0 and 1 with `gpu-tests` (GPU 0 twice where there is one).

use half::bf16;
use hypic_cuda::{CudaDevice, Float};
use hypic_domain::tuple::Dtype;
use hypic_kernels::coded::Blocks;
use hypic_kernels::parallel::TensorParallel;
use hypic_models::Loaded;
use hypic_models::config::Naming;
use hypic_models::random::{self, RandomSpec};

use super::{cases, device, loaded};

#[path = "../../../models/tests/parallel/bodies.rs"]
mod bodies;

use bodies::{On, equal_one};

#[cfg(feature = "gpu-tests")]
fn peer() -> hypic_cuda::Device {
    hypic_cuda::Device::cuda(1).unwrap_or_else(|_| device())
}

#[cfg(not(feature = "gpu-tests"))]
fn peer() -> hypic_cuda::Device {
    device()
}

fn ranks<E: Float>() -> TensorParallel<CudaDevice<E>> {
    let ranks = [device(), peer()].map(|device| CudaDevice::poisoned(device, 2048));
    TensorParallel::new(ranks.into()).unwrap()
}

/// One linear and one full layer that the kernels have; on a GPU of the shape of Qwen3.5-35B-A3B.
fn spec(experts: Option<(usize, usize)>) -> RandomSpec {
    let naming = if experts.is_some() { Naming::Qwen35 } else { Naming::Qwen3Next };
    let (layers, full_interval) = (2, 2);
    let spec = RandomSpec { seed: 11, naming, experts, layers, full_interval, ..RandomSpec::default() };
    if cfg!(feature = "gpu-tests") {
        let (linear_heads, full_heads) = ((16, 32), (16, 2));
        // All of them, or a choice.
        let experts = experts.map(|(count, top)| if count == top { (8, 8) } else { (256, 8) });
        let (linear_width, full_width) = (128, 256);
        return RandomSpec {
            hidden: 2048,
            intermediate: 512,
            experts,
            vocab: 4096,
            linear_heads,
            linear_width,
            full_heads,
            full_width,
            ..spec
        };
    }
    RandomSpec { hidden: 128, intermediate: 128, linear_width: 64, full_width: 64, ..spec }
}

fn ranks_equal_one<E: Float>(experts: Option<(usize, usize)>, dtype: Dtype) {
    specs_equal_one::<E>(&spec(experts), dtype);
}

fn specs_equal_one<E: Float>(spec: &RandomSpec, dtype: Dtype) {
    let tokens = if cfg!(feature = "gpu-tests") { 301 } else { 75 };
    let ids: Vec<u32> = (0..tokens).map(|place| (place * 7919 % spec.vocab) as u32).collect();
    let one =
        On::new(CudaDevice::<E>::poisoned(device(), 2048), |device| random::load(device, spec).unwrap());
    let several = On::new(ranks::<E>(), |device| random::load(device, spec).unwrap());
    equal_one(&one, &several, &ids, dtype);
}

#[test]
fn two_ranks_equal_one_device_in_fp32() {
    ranks_equal_one::<f32>(None, Dtype::F32);
    ranks_equal_one::<f32>(Some((5, 2)), Dtype::F32);
}

#[test]
fn two_ranks_equal_one_device_in_bf16() {
    ranks_equal_one::<bf16>(None, Dtype::Bf16);
    ranks_equal_one::<bf16>(Some((5, 2)), Dtype::Bf16);
}

#[test]
fn two_ranks_equal_one_device_on_codes() {
    let blocks = Some(Blocks { rows: 128, columns: 128 });
    // Every row has all experts: where rounding chose others, errors would be those of other experts and not of codes.
    for experts in [None, Some((5, 5))] {
        specs_equal_one::<bf16>(&RandomSpec { blocks, ..spec(experts) }, Dtype::Bf16);
    }
}

fn answers_equal<E: Float>() {
    let load = |device: &TensorParallel<CudaDevice<E>>| -> Loaded<_> { loaded(device) };
    let several = On::new(ranks::<E>(), load);
    for case in cases() {
        let mut session = several.session();
        let logits = session.prefill(&case.prompt, 1000);
        assert_eq!(session.greedy(&logits, case.answer.len().max(1))[..case.answer.len()], case.answer);
    }
}

#[test]
fn two_ranks_answer_as_transformers_do() {
    answers_equal::<f32>();
    answers_equal::<bf16>();
}
