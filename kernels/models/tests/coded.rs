//! Checkpoints of 8-bit floats in blocks: those of the same values load to the same model, and hostile ones are refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]

use std::fs;
use std::path::Path;

use hypic_kernels::coded::{Blocks, Coded, encode};
use hypic_kernels::cpu::CpuDevice;
use hypic_models::config::Naming;
use hypic_models::random::RandomSpec;
use hypic_models::{Loaded, canary};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use tempfile::TempDir;

#[path = "support/checkpoints.rs"]
mod checkpoints;

use checkpoints::{read, written};

const BLOCKS: Blocks = Blocks { rows: 16, columns: 32 };

/// A tensor of a file.
type Entry = (String, Dtype, Vec<usize>, Vec<u8>);

fn spec(naming: Naming, experts: Option<(usize, usize)>, blocks: Blocks) -> RandomSpec {
    // A width that is no whole number of blocks, and heads that are.
    let blocks = Some(blocks);
    RandomSpec {
        seed: 3,
        naming,
        experts,
        hidden: 80,
        intermediate: 48,
        layers: 2,
        full_interval: 2,
        blocks,
        ..RandomSpec::default()
    }
}

fn entries(dir: &Path) -> Vec<Entry> {
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let entry = |(name, view): (String, TensorView<'_>)| {
        (name, view.dtype(), view.shape().to_vec(), view.data().to_vec())
    };
    tensors.into_iter().map(entry).collect()
}

fn store(dir: &Path, entries: &[Entry]) {
    let mut views = Vec::new();
    for (name, dtype, shape, bytes) in entries {
        views.push((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    }
    serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}

/// The same checkpoint with values in the place of codes.
fn widened(dir: &Path, blocks: Blocks) -> TempDir {
    let (all, wide) = (entries(dir), tempfile::tempdir().unwrap());
    let floats = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let of = |entry: &Entry| {
        let (name, dtype, shape, bytes) = entry;
        let ([count @ .., rows, columns], Dtype::F8_E4M3) = (&shape[..], dtype) else { return entry.clone() };
        let factors = all.iter().find(|other| other.0 == format!("{name}_scale_inv")).unwrap();
        let of = [count.iter().product(), *rows, *columns];
        let matrix = Coded::new(bytes.clone(), of, blocks, floats(&factors.3)).unwrap();
        (name.clone(), Dtype::F32, shape.clone(), matrix.values().flat_map(f32::to_le_bytes).collect())
    };
    let kept = all.iter().filter(|entry| !entry.0.ends_with("_scale_inv"));
    store(wide.path(), &kept.map(of).collect::<Vec<_>>());
    let mut config: Value = serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
    config["quantization_config"] = Value::Null;
    fs::write(wide.path().join("config.json"), config.to_string()).unwrap();
    wide
}

#[test]
fn codes_in_every_kind_of_layer_are_their_values() {
    let perplexity = |loaded: &Loaded<CpuDevice>| {
        let ids: Vec<u32> = (0..40).collect();
        canary::perplexity(&*loaded.model, &CpuDevice::new(1).unwrap(), &ids, 1).unwrap()
    };
    for naming in [Naming::Qwen3Next, Naming::Qwen35] {
        for experts in [None, Some((5, 2))] {
            let of = |rows, columns| Blocks { rows, columns };
            let mut all = vec![BLOCKS, of(128, 128)];
            if naming == Naming::Qwen3Next && experts.is_some() {
                all.extend([of(1, 1), of(3, 5), of(7, 1 << 40), of(usize::MAX, 64)]);
            }
            for blocks in all {
                let dir = written(&spec(naming, experts, blocks));
                let coded = entries(dir.path()).iter().filter(|entry| entry.1 == Dtype::F8_E4M3).count();
                assert!(coded > 8, "{coded} matrices of codes");
                let narrow = read(dir.path()).unwrap();
                let wide = read(widened(dir.path(), blocks).path()).unwrap();
                assert_eq!(perplexity(&narrow), perplexity(&wide), "{naming:?} {experts:?} {blocks:?}");
                assert_eq!(narrow.bytes, wide.bytes);
                // This device multiplies values, as it did before others kept codes.
                let named =
                    narrow.architecture.replace(&format!(";fp8={}x{}", blocks.rows, blocks.columns), "");
                assert_eq!(named, wide.architecture);
            }
        }
    }
}

/// The whole chain of causes of a checkpoint whose tensor was changed.
fn refusal(name: &str, change: impl Fn(&mut Entry)) -> String {
    let dir = written(&spec(Naming::Qwen35, None, BLOCKS));
    let mut all = entries(dir.path());
    change(all.iter_mut().find(|entry| entry.0 == name).unwrap());
    all.retain(|entry| !entry.0.is_empty());
    store(dir.path(), &all);
    let Err(error) = read(dir.path()) else { panic!("it loaded") };
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn wrong_codes_and_factors_are_named() {
    let matrix = "model.layers.0.mlp.down_proj.weight";
    let scales = format!("{matrix}_scale_inv");
    let says = |text: &str, words: &[&str]| {
        words.iter().for_each(|word| assert!(text.contains(word), "no {word} in: {text}"));
    };
    says(&refusal(&scales, |entry| entry.0.clear()), &[&scales, "in no file"]);
    let cut = refusal(&scales, |(_, _, shape, bytes)| {
        shape[0] -= 1;
        bytes.truncate(4 * shape.iter().product::<usize>());
    });
    says(&cut, &[&scales, "[4, 2]", "[5, 2]"]);
    for factor in [f32::NAN, f32::INFINITY] {
        let text = refusal(&scales, |entry| entry.3[8..12].copy_from_slice(&factor.to_le_bytes()));
        says(&text, &[&scales, "not finite at 2"]);
    }
    for code in [0x7f, 0xff] {
        says(&refusal(matrix, |entry| entry.3[7] = code), &[matrix, "not finite at 7"]);
    }
    let text = refusal(&scales, |entry| entry.3[..4].copy_from_slice(&f32::MAX.to_le_bytes()));
    says(&text, &[matrix, "not finite at"]);
    // Factors of factors there are not, or a name that goes on and on would be read to the end of the stack.
    for dtype in [Dtype::F8_E4M3, Dtype::I8, Dtype::F8_E8M0] {
        let text = refusal(&scales, |entry| {
            let count = entry.2.iter().product();
            (entry.1, entry.3) = (dtype, vec![0x38; count]);
        });
        says(&text, &[&format!("\"{scales}\""), "model.safetensors", &format!("{dtype:?}")]);
    }
}

/// The checkpoint of `spec` after a change, beside its values.
fn equals_its_values(spec: &RandomSpec, change: impl Fn(&mut Vec<Entry>)) {
    let blocks = spec.blocks.unwrap();
    let dir = written(spec);
    let mut all = entries(dir.path());
    change(&mut all);
    store(dir.path(), &all);
    let wide = widened(dir.path(), blocks);
    let [narrow, wide] = [&dir, &wide].map(|dir| {
        let loaded = read(dir.path()).unwrap();
        let ids: Vec<u32> = (0..40).collect();
        canary::perplexity(&*loaded.model, &CpuDevice::new(1).unwrap(), &ids, 1).unwrap()
    });
    assert!(narrow.is_finite());
    assert_eq!(narrow, wide);
}

/// Codes in the place of values.
fn encoded(all: &mut Vec<Entry>, name: &str, blocks: Blocks) {
    let entry = all.iter_mut().find(|entry| entry.0 == name).unwrap();
    let values: Vec<f32> = entry.3.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let (codes, factors) = encode(&values, [1, entry.2[0], entry.2[1]], blocks);
    (entry.1, entry.3) = (Dtype::F8_E4M3, codes);
    let shape = blocks.factors_of(&entry.2);
    let factors = factors.into_iter().flat_map(f32::to_le_bytes).collect();
    all.push((format!("{name}_scale_inv"), Dtype::F32, shape, factors));
}

/// Values in the place of codes.
fn decoded(all: &mut Vec<Entry>, name: &str, blocks: Blocks) {
    let scales = format!("{name}_scale_inv");
    let factors = all.iter().find(|entry| entry.0 == scales).unwrap().3.clone();
    let factors = factors.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    all.retain(|entry| entry.0 != scales);
    let entry = all.iter_mut().find(|entry| entry.0 == name).unwrap();
    let matrix = Coded::new(entry.3.clone(), [1, entry.2[0], entry.2[1]], blocks, factors).unwrap();
    (entry.1, entry.3) = (Dtype::F32, matrix.values().flat_map(f32::to_le_bytes).collect());
}

#[test]
fn what_is_left_out_or_tied_or_signed_is_as_its_values() {
    let dense = spec(Naming::Qwen35, None, BLOCKS);
    let separate = spec(Naming::Qwen3Next, Some((5, 2)), BLOCKS);
    // Of the two that one matrix is made of, and of the experts of a layer, one has no codes.
    equals_its_values(&dense, |all| decoded(all, "model.layers.0.mlp.up_proj.weight", BLOCKS));
    equals_its_values(&separate, |all| decoded(all, "model.layers.0.mlp.experts.3.gate_proj.weight", BLOCKS));
    let tied = RandomSpec { tied: true, ..dense.clone() };
    equals_its_values(&tied, |all| encoded(all, "model.embed_tokens.weight", BLOCKS));
    equals_its_values(&separate, |all| encoded(all, "model.layers.0.mlp.gate.weight", BLOCKS));
    // Factors are numbers like any other.
    let scales = "model.layers.0.mlp.down_proj.weight_scale_inv";
    equals_its_values(&dense, |all| {
        let factors = &mut all.iter_mut().find(|entry| entry.0 == scales).unwrap().3;
        for (place, value) in [0.0, -0.01, 1e-42, -0.0].into_iter().enumerate() {
            factors[4 * place..4 * place + 4].copy_from_slice(&f32::to_le_bytes(value));
        }
    });
    // Those of bf16, and one that nobody asks for.
    equals_its_values(&dense, |all| {
        let factors = all.iter_mut().find(|entry| entry.0 == scales).unwrap();
        factors.3.chunks_mut(4).for_each(|factor| factor[..2].fill(0));
        all.push(("model.layers.9.weight_scale_inv".to_owned(), Dtype::F32, vec![1], vec![0; 4]));
    });
}
