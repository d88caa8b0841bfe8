//! Checkpoints that must load, and hostile ones that must be refused by name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]

use std::fs;
use std::path::Path;

use hypic_kernels::cpu::CpuDevice;
use hypic_models::canary;
use hypic_models::config::Naming;
use hypic_models::random::{self, RandomSpec};
use serde_json::{Value, json};
use tempfile::TempDir;

#[path = "support/checkpoints.rs"]
mod checkpoints;

use checkpoints::{read, written};

fn small() -> RandomSpec {
    RandomSpec {
        hidden: 32,
        intermediate: 32,
        vocab: 64,
        layers: 2,
        full_interval: 2,
        context: 128,
        ..RandomSpec::default()
    }
}

/// The whole chain of causes.
fn refusal(dir: &Path) -> String {
    let Err(error) = read(dir) else { panic!("it loaded") };
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

fn refused_with(dir: &Path, words: &[&str]) {
    let text = refusal(dir);
    words.iter().for_each(|word| assert!(text.contains(word), "no {word} in: {text}"));
}

/// Rewrites the file's header.
fn edit_header(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    edit(&mut header);
    write_raw(&path, header.to_string().as_bytes(), &bytes[end..]);
}

/// Rewrites a vector of four values.
fn replace(dir: &Path, name: &str, dtype: safetensors::Dtype, values: &[u8]) {
    let path = dir.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all = tensors.tensors();
    for (other, view) in &mut all {
        if other == name {
            *view = safetensors::tensor::TensorView::new(dtype, vec![4], values).unwrap();
        }
    }
    safetensors::tensor::serialize_to_file(all, None, &path).unwrap();
}

fn write_raw(path: &Path, header: &[u8], values: &[u8]) {
    fs::write(path, [&(header.len() as u64).to_le_bytes(), header, values].concat()).unwrap();
}

fn edit_config(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

#[test]
fn both_namings_tied_or_not_in_either_precision_load_and_differ_in_digest() {
    let mut seen = std::collections::HashSet::new();
    let device = CpuDevice::new(1).unwrap();
    for naming in [Naming::Qwen3Next, Naming::Qwen35] {
        for tied in [false, true] {
            for half_precision in [false, true] {
                let dir = written(&RandomSpec { naming, tied, half_precision, ..small() });
                let loaded = read(dir.path()).unwrap();
                assert!(seen.insert(loaded.weights));
                let ids: Vec<u32> = (0..40).collect();
                assert!(canary::perplexity(&*loaded.model, &device, &ids, 1).unwrap().is_finite());
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_digest_and_one_value_changes_it() {
    let digest = |spec: &RandomSpec| read(written(spec).path()).unwrap().weights;
    assert_eq!(digest(&small()), digest(&small()));
    assert_ne!(digest(&small()), digest(&RandomSpec { seed: 2, ..small() }));
    let dir = written(&small());
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_ne!(digest(&small()), read(dir.path()).unwrap().weights);
}

#[test]
fn a_stored_head_is_not_read_when_tied_and_needed_when_not() {
    let dir = written(&small());
    edit_config(dir.path(), |config| config["tie_word_embeddings"] = json!(true));
    let tied = read(dir.path()).unwrap();
    let untied = read(written(&small()).path()).unwrap();
    assert_ne!(tied.weights, untied.weights);
    assert_ne!(tied.architecture, untied.architecture);
    let dir = written(&RandomSpec { tied: true, ..small() });
    edit_config(dir.path(), |config| config["tie_word_embeddings"] = json!(false));
    refused_with(dir.path(), &["lm_head.weight"]);
}

#[test]
fn sharded_checkpoints_load_and_give_the_same_digest() {
    let dir = written(&small());
    let right = read(dir.path()).unwrap().weights;
    let bytes = fs::read(dir.path().join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (mut shards, mut map) = ([vec![], vec![]], serde_json::Map::new());
    fs::create_dir(dir.path().join("sub")).unwrap();
    let files = ["sub/a.safetensors", "b.safetensors"];
    for (i, (name, view)) in tensors.tensors().into_iter().enumerate() {
        map.insert(name.clone(), json!(files[i % 2]));
        shards[i % 2].push((name, view));
    }
    for (file, shard) in files.iter().zip(shards) {
        safetensors::tensor::serialize_to_file(shard, None, &dir.path().join(file)).unwrap();
    }
    let index = json!({"weight_map": map}).to_string();
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    assert_eq!(read(dir.path()).unwrap().weights, right);
}

#[test]
fn index_entries_that_lead_elsewhere_are_refused() {
    let outside = written(&small());
    let dir = written(&small());
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    let target = outside.path().join("model.safetensors");
    std::os::unix::fs::symlink(&target, dir.path().join("link.safetensors")).unwrap();
    let fifo = dir.path().join("fifo.safetensors");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let absolute = target.to_str().unwrap();
    for entry in [
        "../other/model.safetensors",
        absolute,
        "sub/../../x",
        "shard\0.safetensors",
        "",
        "link.safetensors",
        "fifo.safetensors",
        "sub",
    ] {
        let index = json!({"weight_map": {"model.norm.weight": entry}}).to_string();
        fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        refused_with(dir.path(), &[entry, "is refused"]);
    }
}

#[test]
fn a_snapshot_of_a_hugging_face_cache_loads_through_its_links() {
    let cache = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    random::write(&blobs, &small()).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(Path::new("../../blobs").join(file), snapshot.join(file)).unwrap();
    }
    assert!(read(&snapshot).is_ok());
}

#[test]
fn hostile_headers_are_refused_before_anything_is_allocated() {
    let dir = written(&small());
    let path = dir.path().join("model.safetensors");
    let name = "model.norm.weight";
    let mut huge = (1_u64 << 63).to_le_bytes().to_vec();
    huge.extend([b' '; 92]);
    fs::write(&path, huge).unwrap();
    refused_with(dir.path(), &["model.safetensors", "claims"]);
    fs::write(&path, [0; 4]).unwrap();
    refused_with(dir.path(), &["model.safetensors"]);
    let header = |shape: Value, offsets: [usize; 2]| {
        json!({(name): {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).to_string()
    };
    let mut cases = vec![
        header(json!([4]), [0, 1 << 40]),
        header(json!([1_u64 << 40, 1_u64 << 40]), [0, 16]),
        header(json!([4]), [16, 0]),
        header(json!([2]), [0, 16]),
        header(json!([2]), [0, 8]),
        header(json!([-1]), [0, 16]),
        "{".to_owned(),
        "[]".to_owned(),
    ];
    let overlapping = json!({
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]},
    });
    cases.push(overlapping.to_string());
    let one = r#""a": {"dtype": "F32", "shape": [2], "data_offsets": "#;
    cases.push(format!("{{{one}[0, 8]}}, {one}[8, 16]}}}}"));
    for case in cases {
        write_raw(&path, case.as_bytes(), &[0; 16]);
        refused_with(dir.path(), &["header", "model.safetensors"]);
    }
}

#[test]
fn a_file_cut_short_or_grown_is_refused() {
    let dir = written(&small());
    let path = dir.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    refused_with(dir.path(), &["header", "bytes of values"]);
    fs::write(&path, [&bytes[..], &[0]].concat()).unwrap();
    refused_with(dir.path(), &["header", "bytes of values"]);
    fs::remove_file(&path).unwrap();
    refused_with(dir.path(), &["model.safetensors"]);
}

#[test]
fn wrong_tensors_are_named_with_their_file() {
    let name = "model.layers.0.linear_attn.A_log";
    let file = "model.safetensors";
    let dir = written(&small());
    edit_header(dir.path(), |header| {
        let entry = header.as_object_mut().unwrap().remove(name).unwrap();
        header["other"] = entry;
    });
    refused_with(dir.path(), &[name]);

    let dir = written(&small());
    edit_header(dir.path(), |header| header[name]["shape"] = json!([2, 2]));
    refused_with(dir.path(), &[name, file, "[2, 2]", "[4]"]);

    for (dtype, size) in [(safetensors::Dtype::F8_E4M3, 1), (safetensors::Dtype::I32, 4)] {
        let dir = written(&small());
        replace(dir.path(), name, dtype, &vec![0; 4 * size]);
        refused_with(dir.path(), &[name, file, &format!("{dtype:?}")]);
    }

    let dir = written(&small());
    let path = dir.path().join(file);
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    refused_with(dir.path(), &[file, "not finite"]);
}

type Stored = (String, safetensors::Dtype, Vec<usize>, Vec<u8>);

fn stored(dir: &Path) -> Vec<Stored> {
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors();
    tensors
        .into_iter()
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect()
}

fn store(dir: &Path, tensors: &[Stored]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::tensor::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}

/// A matrix of 8-bit floats in blocks: its codes, its factors, and the values in fp32.
fn in_blocks(name: &str, shape: &[usize], blocks: [usize; 2]) -> [Stored; 3] {
    let [rows, columns] = *shape else { panic!("{name} is no matrix") };
    let across = columns.div_ceil(blocks[1]);
    let factors: Vec<f32> =
        (0..rows.div_ceil(blocks[0]) * across).map(|block| 0.01 + 0.001 * block as f32).collect();
    let codes: Vec<u8> = (0..rows * columns).map(|place| (place * 37 % 256) as u8 & 0x8f | 0x30).collect();
    let value = |(place, code): (usize, &u8)| {
        let factor = factors[place / columns / blocks[0] * across + place % columns / blocks[1]];
        let size = (1.0 + f32::from(code & 7) / 8.0) * 2_f32.powi(i32::from(code >> 3 & 15) - 7);
        if *code < 0x80 { size * factor } else { -size * factor }
    };
    let values = codes.iter().enumerate().map(value).flat_map(f32::to_le_bytes).collect();
    let factor_bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let factors_shape = vec![rows.div_ceil(blocks[0]), across];
    [
        (name.to_owned(), safetensors::Dtype::F8_E4M3, shape.to_vec(), codes.clone()),
        (format!("{name}_scale_inv"), safetensors::Dtype::F32, factors_shape, factor_bytes),
        (name.to_owned(), safetensors::Dtype::F32, shape.to_vec(), values),
    ]
}

#[test]
fn a_checkpoint_in_blocks_of_8_bit_floats_is_that_of_its_values() {
    let (narrow, wide) = (written(&small()), written(&small()));
    let quantised = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [12, 20]});
    edit_config(narrow.path(), |config| config["quantization_config"] = quantised);
    let is_coded = |stored: &Stored| stored.0.ends_with("_proj.weight");
    let (mut narrow_parts, mut wide_parts) = (Vec::new(), Vec::new());
    for part in stored(narrow.path()) {
        if is_coded(&part) {
            let [codes, factors, values] = in_blocks(&part.0, &part.2, [12, 20]);
            narrow_parts.extend([codes, factors]);
            wide_parts.push(values);
        } else {
            narrow_parts.push(part.clone());
            wide_parts.push(part);
        }
    }
    store(narrow.path(), &narrow_parts);
    store(wide.path(), &wide_parts);
    let ids: Vec<u32> = (0..40).collect();
    let perplexity = |dir: &TempDir| {
        let loaded = read(dir.path()).unwrap();
        canary::perplexity(&*loaded.model, &CpuDevice::new(1).unwrap(), &ids, 1).unwrap()
    };
    assert_eq!(perplexity(&narrow), perplexity(&wide));
    narrow_parts.retain(|part| !part.0.ends_with("_scale_inv"));
    store(narrow.path(), &narrow_parts);
    refused_with(narrow.path(), &["_proj.weight_scale_inv"]);
}

/// A bf16 checkpoint whose decays are fp32: they are used as they are.
#[test]
fn a_tensor_keeps_the_precision_it_is_stored_in() {
    let spec = RandomSpec { half_precision: true, ..small() };
    let dir = written(&spec);
    let write = |dtype: safetensors::Dtype, a_log: &[u8]| {
        replace(dir.path(), "model.layers.0.linear_attn.A_log", dtype, a_log);
        let loaded = read(dir.path()).unwrap();
        let ids: Vec<u32> = (0..64).collect();
        canary::perplexity(&*loaded.model, &CpuDevice::new(1).unwrap(), &ids, 1).unwrap()
    };
    let values = [-5.000_123_f64, -6.000_321, -7.000_111, -4.000_222];
    let single: Vec<u8> = values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let double: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let half: Vec<u8> = values.iter().flat_map(|&x| half::bf16::from_f64(x).to_le_bytes()).collect();
    let right = write(safetensors::Dtype::F32, &single);
    assert_eq!(write(safetensors::Dtype::F64, &double), right);
    assert_ne!(write(safetensors::Dtype::BF16, &half), right);
}
