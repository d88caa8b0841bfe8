//! Tensor parallel over CPU devices: two and four ranks against one, on random models and on hypic-tiny.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]

use std::path::Path;

use hypic_domain::id::ModelId;
use hypic_domain::tuple::Dtype;
use hypic_kernels::coded::Blocks;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::parallel::TensorParallel;
use hypic_models::config::Naming;
use hypic_models::random::{self, RandomSpec};
use hypic_models::{Loaded, load};

mod bodies;
mod session;

use bodies::{On, equal_one};

/// Tokens of the seam.
const SEAM: usize = 8;
/// Tokens of a segment.
const SEGMENT: usize = 60;

fn ranks(count: usize) -> TensorParallel<CpuDevice> {
    TensorParallel::new((0..count).map(|_| CpuDevice::poisoned(1).unwrap()).collect()).unwrap()
}

fn prompt(vocab: usize, len: usize) -> Vec<u32> {
    (0..len).map(|place| (place * 7919 % vocab) as u32).collect()
}

/// As many heads as four ranks can share.
fn wide(seed: u64) -> RandomSpec {
    RandomSpec { seed, linear_heads: (4, 8), full_heads: (8, 4), ..RandomSpec::default() }
}

/// A checkpoint of `spec`, as models name their weights, on `count` ranks and on one device.
fn ranks_equal_one(spec: &RandomSpec, count: usize) {
    let dir = tempfile::tempdir().unwrap();
    random::write(dir.path(), spec).unwrap();
    let one = On::new(CpuDevice::poisoned(1).unwrap(), |device| on(dir.path(), device));
    let several = On::new(ranks(count), |device| on(dir.path(), device));
    equal_one(&one, &several, &prompt(spec.vocab, 201), Dtype::F32);
}

fn on<D: hypic_kernels::op::Device>(dir: &Path, device: &D) -> Loaded<D> {
    load(dir, device, ModelId::from("random")).unwrap()
}

#[test]
fn two_ranks_equal_one_device_on_dense_layers() {
    for naming in [Naming::Qwen3Next, Naming::Qwen35] {
        ranks_equal_one(&RandomSpec { seed: 5, naming, ..RandomSpec::default() }, 2);
    }
}

#[test]
fn two_ranks_equal_one_device_on_mixtures() {
    for naming in [Naming::Qwen3Next, Naming::Qwen35] {
        let spec = RandomSpec { seed: 6, naming, experts: Some((5, 2)), tied: true, ..RandomSpec::default() };
        ranks_equal_one(&spec, 2);
    }
}

#[test]
fn two_ranks_equal_one_device_on_codes() {
    // Blocks that ranks cut in whole, and blocks that they tear.
    for blocks in [Blocks { rows: 16, columns: 32 }, Blocks { rows: 128, columns: 128 }] {
        for (naming, experts) in [(Naming::Qwen3Next, None), (Naming::Qwen35, Some((5, 2)))] {
            let blocks = Some(blocks);
            ranks_equal_one(&RandomSpec { seed: 7, naming, experts, blocks, ..RandomSpec::default() }, 2);
        }
    }
}

#[test]
fn four_ranks_equal_one_device() {
    ranks_equal_one(&wide(7), 4);
    ranks_equal_one(&RandomSpec { experts: Some((5, 2)), naming: Naming::Qwen35, ..wide(8) }, 4);
}

#[test]
fn two_ranks_equal_one_device_on_hypic_tiny() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/models/hypic-tiny");
    let one = On::new(CpuDevice::new(1).unwrap(), |device| on(&dir, device));
    let several = On::new(ranks(2), |device| on(&dir, device));
    let ids = prompt(one.loaded.spec.vocab, 131);
    equal_one(&one, &several, &ids, Dtype::F32);
    let (mut right, mut found) = (one.session(), several.session());
    let (first, other) = (right.prefill(&ids, 1000), found.prefill(&ids, 1000));
    assert_eq!(found.greedy(&other, 8), right.greedy(&first, 8));
    let (mut right, mut found) = (one.session(), several.session());
    let (first, other) = (right.compose(&ids), found.compose(&ids));
    assert_eq!(found.greedy(&other, 8), right.greedy(&first, 8));
}

#[test]
fn memory_is_that_of_one_device_but_for_what_is_whole() {
    let load = |device: &TensorParallel<CpuDevice>| random::load(device, &wide(9)).unwrap();
    let [one, four] = [1, 4].map(|count| On::new(ranks(count), load).loaded.bytes);
    let table = 4 * 64 * 256;
    assert!((one + 3 * table..2 * one).contains(&four), "{four} against {one}");
}

#[test]
fn heads_that_cannot_be_divided_are_refused_by_name_before_a_weight_is_read() {
    let refused = |spec: &RandomSpec, count: usize| {
        let error = random::load(&ranks(count), spec).err().unwrap();
        std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source())
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": ")
    };
    let spec = RandomSpec::default();
    assert_eq!(
        refused(&spec, 4),
        "the device does not run models of this shape: tensor parallel is not available for 2 key heads of a linear \
         layer over 4 ranks on this device"
    );
    let odd = RandomSpec { linear_heads: (4, 8), ..spec.clone() };
    assert!(refused(&odd, 4).contains("2 key heads of a full layer over 4 ranks"), "{}", refused(&odd, 4));
    let narrow = RandomSpec { intermediate: 90, ..wide(1) };
    assert!(refused(&narrow, 4).contains("mlp.gate_proj.weight"), "{}", refused(&narrow, 4));
    assert!(TensorParallel::<CpuDevice>::new(Vec::new()).is_err());
}
