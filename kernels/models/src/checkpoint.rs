//! Tensors of a checkpoint on disk, read one by one.
//!
//! Reads are positional, not mapped: a mapping needs unsafe code, and a file cut short under it kills the process.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use hypic_domain::tuple::Dtype;
use hypic_kernels::coded::{Blocks, Coded};
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;

use crate::error::LoadError;
use crate::stored::{Stored, Values};
use crate::tensors::Tensors;

/// Longest header that is read; that of a checkpoint of 10^5 tensors has some 10 MiB.
const HEADER_LIMIT: u64 = 32 << 20;

/// A checkpoint's folder.
pub(crate) struct Checkpoint {
    dir: PathBuf,
    shards: Vec<Shard>,
    /// Tensor to shard.
    places: HashMap<String, usize>,
    /// Of tensors in 8-bit floats.
    blocks: Option<Blocks>,
    /// Of every tensor that was read: what it was.
    digests: BTreeMap<String, [u8; 32]>,
}

struct Shard {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// First byte of the values.
    start: u64,
}

impl Checkpoint {
    /// Opens every file and checks its header against its length.
    pub(crate) fn open(dir: &Path, blocks: Option<Blocks>) -> Result<Self, LoadError> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        let entries = if single.exists() || !index.exists() {
            vec!["model.safetensors".to_owned()]
        } else {
            let map = read_json(&index)?;
            let map = map.get("weight_map").and_then(Value::as_object);
            let map = map.ok_or_else(|| crate::keys::key("weight_map", "missing in the index"))?;
            let entry = |(name, value): (&String, &Value)| {
                let entry = value.as_str().map(str::to_owned);
                entry.ok_or_else(|| crate::keys::key(format!("weight_map.{name}"), "not a file name"))
            };
            let mut entries = map.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
            entries.sort();
            entries.dedup();
            entries
        };
        let shards = entries.iter().map(|entry| Shard::open(dir, entry)).collect::<Result<Vec<_>, _>>()?;
        let mut places = HashMap::new();
        for (i, shard) in shards.iter().enumerate() {
            for name in shard.header.tensors().into_keys() {
                if let Some(other) = places.insert(name.clone(), i) {
                    let reason =
                        format!("tensor \"{name}\" is in \"{}\" as well", shards[other].path.display());
                    return Err(LoadError::ParseHeader { path: shard.path.clone(), reason });
                }
            }
        }
        Ok(Self { dir: dir.to_owned(), shards, places, blocks, digests: BTreeMap::new() })
    }
}

impl Checkpoint {
    /// Reads a tensor of the given shape. Without `blocks`, 8-bit floats are none of a weight.
    fn read_as(&mut self, name: &str, shape: &[usize], blocks: Option<Blocks>) -> Result<Stored, LoadError> {
        let missing = || LoadError::FindTensor { name: name.to_owned(), dir: self.dir.clone() };
        let shard = &self.shards[*self.places.get(name).ok_or_else(missing)?];
        let info = shard.header.info(name).ok_or_else(missing)?;
        let squeeze = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        if squeeze(&info.shape) != squeeze(shape) {
            let (expected, found) = (shape.to_vec(), info.shape.clone());
            return Err(LoadError::FitTensor {
                name: name.to_owned(),
                path: shard.path.clone(),
                expected,
                found,
            });
        }
        let bytes = shard.read(info)?;
        let mut digest = blake3::Hasher::new_derive_key("hypic tensor v1");
        digest.update(format!("{name}\0{:?}\0{:?}\0", info.dtype, info.shape).as_bytes());
        digest.update(&bytes);
        let path = shard.path.clone();
        let values = match (info.dtype, blocks) {
            (safetensors::Dtype::F8_E4M3, Some(blocks)) if shape.len() > 1 => {
                Values::Coded(self.coded(name, shape, (bytes, blocks))?)
            }
            _ => decode(name, &path, info, bytes)?,
        };
        self.digests.insert(name.to_owned(), *digest.finalize().as_bytes());
        let stored = Stored { name: name.to_owned(), shape: shape.to_vec(), values };
        match stored.not_finite() {
            None => Ok(stored),
            Some(index) => Err(LoadError::CheckValues { name: stored.name, path, index }),
        }
    }

    /// 8-bit floats with the factors that lie beside them, as a matrix of the last axis.
    fn coded(
        &mut self,
        name: &str,
        shape: &[usize],
        (codes, blocks): (Vec<u8>, Blocks),
    ) -> Result<Coded, LoadError> {
        let factors = self.read_as(&format!("{name}_scale_inv"), &blocks.factors_of(shape), None)?;
        let factors = factors.values.widened();
        let factors = factors.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        let (count, matrix) = shape.split_at(shape.len().saturating_sub(2));
        let shape = match *matrix {
            [rows, columns] => [count.iter().product(), rows, columns],
            _ => [0; 3],
        };
        let refused = |source| LoadError::PlaceWeight { name: name.to_owned(), source };
        Coded::new(codes, shape, blocks, factors).map_err(refused)
    }
}

impl Tensors for Checkpoint {
    fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Reads a tensor of the given shape and checks that all its values are finite. Axes of length one in the
    /// file do not count. 8-bit floats come with the tensor of their factors.
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Stored, LoadError> {
        self.read_as(name, shape, self.blocks)
    }

    /// Digest of all tensors that were read: names, shapes, formats and bytes, in the order of the names.
    fn digest(&self) -> [u8; 32] {
        let mut digest = blake3::Hasher::new_derive_key("hypic weights v1");
        self.digests.values().for_each(|one| {
            digest.update(one);
        });
        *digest.finalize().as_bytes()
    }
}

pub(crate) fn read_json(path: &Path) -> Result<Value, LoadError> {
    let bytes =
        std::fs::read(path).map_err(|source| LoadError::ReadFile { path: path.to_owned(), source })?;
    serde_json::from_slice(&bytes).map_err(|source| LoadError::ParseJson { path: path.to_owned(), source })
}

impl Shard {
    fn open(dir: &Path, entry: &str) -> Result<Self, LoadError> {
        let path = resolve(dir, entry)?;
        let failed = |source| LoadError::ReadFile { path: path.clone(), source };
        let wrong = |reason: String| LoadError::ParseHeader { path: path.clone(), reason };
        let file = File::open(&path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let mut size = [0; 8];
        file.read_exact_at(&mut size, 0).map_err(failed)?;
        let size = u64::from_le_bytes(size);
        // Before anything of that size is allocated.
        if size > HEADER_LIMIT || size > len - 8 {
            return Err(wrong(format!("it claims {size} bytes, the file has {len}")));
        }
        let mut header = vec![0; size as usize];
        file.read_exact_at(&mut header, 8).map_err(failed)?;
        // Parsing checks shapes, products, and that the tensors lie side by side without gap or overlap.
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| wrong(error.to_string()))?;
        let (start, values) = (8 + size, header.data_len() as u64);
        if start + values != len {
            return Err(wrong(format!(
                "it describes {values} bytes of values, the file has {}",
                len - start
            )));
        }
        Ok(Self { path, file, header, start })
    }

    fn read(&self, info: &TensorInfo) -> Result<Vec<u8>, LoadError> {
        let (first, end) = info.data_offsets;
        let mut bytes = vec![0; end - first];
        let read = self.file.read_exact_at(&mut bytes, self.start + first as u64);
        read.map_err(|source| LoadError::ReadFile { path: self.path.clone(), source })?;
        Ok(bytes)
    }
}

/// The file of an index entry. It must be a plain file inside the checkpoint's folder; a link may also lead to the
/// `blobs` folder of a Hugging Face cache, if the checkpoint is one of its snapshots.
fn resolve(dir: &Path, entry: &str) -> Result<PathBuf, LoadError> {
    let refuse = |reason: &str| LoadError::OpenShard { entry: entry.to_owned(), reason: reason.to_owned() };
    let inside = Path::new(entry).components().all(|part| matches!(part, Component::Normal(_)));
    if entry.is_empty() || entry.contains('\0') || !inside {
        return Err(refuse("not a plain path inside the folder"));
    }
    let path = dir.join(entry);
    let failed = |source| LoadError::ReadFile { path: path.clone(), source };
    let target = path.canonicalize().map_err(failed)?;
    let dir = dir.canonicalize().map_err(failed)?;
    let snapshots = dir.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|cache| cache.join("blobs"));
    if !target.starts_with(&dir) && !blobs.is_some_and(|blobs| target.starts_with(blobs)) {
        return Err(refuse("a link out of the folder"));
    }
    if !target.is_file() {
        return Err(refuse("not a plain file"));
    }
    Ok(target)
}

fn decode(name: &str, path: &Path, info: &TensorInfo, bytes: Vec<u8>) -> Result<Values, LoadError> {
    let plain = |dtype, bytes| Ok(Values::Plain { dtype, bytes });
    match info.dtype {
        safetensors::Dtype::F32 => plain(Dtype::F32, bytes),
        safetensors::Dtype::F16 => plain(Dtype::F16, bytes),
        safetensors::Dtype::BF16 => plain(Dtype::Bf16, bytes),
        safetensors::Dtype::F64 => {
            let values = bytes.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b) as f32);
            plain(Dtype::F32, values.flat_map(f32::to_le_bytes).collect())
        }
        other => Err(LoadError::ReadDtype {
            name: name.to_owned(),
            path: path.to_owned(),
            dtype: format!("{other:?}"),
        }),
    }
}
