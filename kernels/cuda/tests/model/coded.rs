//! Random checkpoints whose products are codes: this device, which multiplies them where they lie, against the CPU, which
//! widens them when it loads.

use half::bf16;
use hypic_cuda::{CudaDevice, Float};
use hypic_domain::id::ModelId;
use hypic_domain::tuple::Dtype;
use hypic_kernels::coded::Blocks;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::op;
use hypic_kernels::tolerance::{Compared, bound, error};
use hypic_models::config::Naming;
use hypic_models::random::{self, RandomSpec};
use hypic_models::{Loaded, load};
use tempfile::TempDir;

use super::session::Session;
use super::{device, wide};

const BLOCKS: Blocks = Blocks { rows: 128, columns: 128 };
/// Every row chooses all experts: of choices between scores that are nearly equal bf16 would make others than fp32.
const ALL: Option<(usize, usize)> = Some((4, 4));

/// One linear and one full layer that the kernels have. Projections of whole blocks, and of heads that tear them.
fn spec(naming: Naming, experts: Option<(usize, usize)>) -> RandomSpec {
    RandomSpec {
        seed: 21,
        naming,
        experts,
        hidden: 192,
        intermediate: 128,
        layers: 2,
        full_interval: 2,
        linear_width: 64,
        full_width: 64,
        context: 512,
        blocks: Some(BLOCKS),
        ..RandomSpec::default()
    }
}

fn written(spec: &RandomSpec) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    random::write(dir.path(), spec).unwrap();
    dir
}

fn on<D: op::Device>(dir: &TempDir, device: &D) -> Loaded<D> {
    load(dir.path(), device, ModelId::from("random")).unwrap()
}

/// The likeliest token of a row, and how far the next one is behind it.
fn likeliest(row: &[f32]) -> (usize, f32) {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    (order[0], row[order[0]] - row[order[1]])
}

/// Logits of a prompt in steps for every form of products, and of each token behind it, are within the bound; tokens are
/// the same where the bound lets no other be the likeliest.
fn equals_the_cpu<E: Float>(naming: Naming, experts: Option<(usize, usize)>) {
    let spec = spec(naming, experts);
    let dir = written(&spec);
    let (ours, cpu) = (CudaDevice::<E>::poisoned(device(), 512), CpuDevice::new(2).unwrap());
    let (found, right) = (on(&dir, &ours), on(&dir, &cpu));
    let prompt: Vec<u32> = (0..45).map(|place| (place * 7919 % spec.vocab) as u32).collect();
    let mut session = Session::new(&cpu, &right);
    let whole = session.prefill(&prompt, 1000);
    let answer = session.greedy(&whole, 8);
    let ids = [&prompt[..], &answer].concat();
    let expected = Session::new(&cpu, &right).prefill(&ids, 1000);
    let bound = bound(Compared::Logits, E::DTYPE);
    let size = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
    for step in [1000, 20, 1] {
        let mut session = Session::new(&ours, &found);
        let logits = [session.prefill(&prompt, step), session.prefill(&answer, 1)].concat();
        let error = error(&logits, &wide(&expected));
        println!("{naming:?} {experts:?} in steps of {step}: {error:e}");
        assert!(error <= bound, "steps of {step}: {error:e} over {bound:e}");
        for (row, right) in logits.chunks(spec.vocab).zip(expected.chunks(spec.vocab)) {
            let (token, margin) = likeliest(right);
            assert!(likeliest(row).0 == token || f64::from(margin) < bound * f64::from(size));
        }
    }
}

#[test]
fn codes_of_dense_layers_give_the_tokens_of_the_cpu() {
    equals_the_cpu::<bf16>(Naming::Qwen3Next, None);
    equals_the_cpu::<bf16>(Naming::Qwen35, None);
    equals_the_cpu::<f32>(Naming::Qwen3Next, None);
}

#[test]
fn codes_of_experts_give_the_tokens_of_the_cpu() {
    equals_the_cpu::<bf16>(Naming::Qwen3Next, ALL);
    equals_the_cpu::<bf16>(Naming::Qwen35, ALL);
    equals_the_cpu::<f32>(Naming::Qwen35, Some((6, 2)));
}

#[test]
fn weights_of_codes_take_half_of_the_memory_and_have_an_identity_of_their_own() {
    for (naming, experts) in [(Naming::Qwen3Next, None), (Naming::Qwen35, Some((6, 2)))] {
        let coded = spec(naming, experts);
        let plain = RandomSpec { blocks: None, ..coded.clone() };
        let [coded, plain] = [coded, plain].map(|spec| {
            let device = CudaDevice::<bf16>::poisoned(device(), 0);
            on(&written(&spec), &device)
        });
        let exact = on(&written(&spec(naming, experts)), &CudaDevice::<f32>::poisoned(device(), 0));
        // Embeddings and head in bf16, and angles in fp32, are the same in both; so is what else stays wide.
        let tables = 2 * (2 * 256 * 192) + 4 * 512 * 16;
        let share = (coded.bytes - tables) as f64 / (plain.bytes - tables) as f64;
        assert!((0.5..0.55).contains(&share), "{share} of {}", plain.bytes);
        assert_eq!(coded.weights, exact.weights);
        assert!(coded.architecture.ends_with(";fp8=128x128;products=codes"), "{}", coded.architecture);
        assert!(exact.architecture.ends_with(";fp8=128x128"), "{}", exact.architecture);
    }
}

#[test]
fn random_models_of_codes_equal_the_cpus() {
    let spec = spec(Naming::Qwen35, ALL);
    let (ours, cpu) = (CudaDevice::<bf16>::poisoned(device(), 512), CpuDevice::new(2).unwrap());
    let (found, right) = (random::load(&ours, &spec).unwrap(), random::load(&cpu, &spec).unwrap());
    let prompt: Vec<u32> = (0..20).map(|place| (place * 7919 % spec.vocab) as u32).collect();
    let expected = wide(&Session::new(&cpu, &right).prefill(&prompt, 1000));
    let error = error(&Session::new(&ours, &found).prefill(&prompt, 7), &expected);
    assert!(error <= bound(Compared::Logits, Dtype::Bf16), "{error:e}");
    assert!(found.bytes < right.bytes / 3, "{} of {}", found.bytes, right.bytes);
}
