//! A checkpoint's folder onto a device.

use std::cell::Cell;
use std::path::Path;

use hypic_domain::id::ModelId;
use hypic_domain::model::ModelSpec;
use hypic_domain::tuple::Dtype;
use hypic_kernels::op::{Device, HostTensor, OpError, Split};
use hypic_kernels::random::RandomMatrix;

use crate::config::Config;
use crate::error::LoadError;
use crate::model::Model;
use crate::qwen3_next::Qwen3Next;
use crate::stored::{Checkpoint, Stored, read_json};

/// A model on a device, and what makes its identity.
pub struct Loaded<D: Device> {
    /// The model.
    pub model: Box<dyn Model<D>>,
    /// Its sizes.
    pub spec: ModelSpec,
    /// Digest of the weights: names, shapes, formats and bytes.
    pub weights: [u8; 32],
    /// Everything of the architecture that changes a result, in one line.
    pub architecture: String,
    /// Bytes that all weights take on the device: the engine's first cost.
    pub bytes: u64,
}

/// Loads the checkpoint in `dir`. Tensors are read one after the other: beside what the device keeps, at most one
/// of them is in memory.
///
/// # Errors
/// Names the file and the tensor or the config's key.
pub fn load<D: Device>(dir: &Path, device: &D, id: ModelId) -> Result<Loaded<D>, LoadError> {
    let config = Config::parse(&read_json(&dir.join("config.json"))?, id)?;
    load_from(Box::new(Checkpoint::open(dir, config.blocks)?), config, device)
}

/// Where a model's tensors come from.
pub(crate) trait Tensors {
    /// Whether there is such a tensor.
    fn has(&self, name: &str) -> bool;
    /// A tensor of that shape.
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Stored, LoadError>;
    /// What the tensor is, as the matrix of its last axis, if its values are random: then nothing need be read.
    fn random(&mut self, _: &str, _: &[usize]) -> Option<RandomMatrix> {
        None
    }
    /// Digest of all that was read.
    fn digest(&self) -> [u8; 32];
}

pub(crate) fn load_from<D: Device>(
    tensors: Box<dyn Tensors>,
    config: Config,
    device: &D,
) -> Result<Loaded<D>, LoadError> {
    device.fits(&config.spec).map_err(|source| LoadError::FitDevice { source })?;
    let mut weights = Weights { device, tensors, prefix: "", bytes: Cell::new(0) };
    // Checkpoints with a vision part keep the language model one level deeper.
    weights.prefix = if weights.tensors.has("model.language_model.embed_tokens.weight") {
        "model.language_model"
    } else {
        "model"
    };
    let model = Qwen3Next::load(&config, &mut weights)?;
    Ok(Loaded {
        model: Box::new(model),
        weights: weights.tensors.digest(),
        architecture: config.canonical(),
        bytes: weights.bytes.get(),
        spec: config.spec,
    })
}

/// Reads tensors by name and hands them to the device.
pub(crate) struct Weights<'a, D: Device> {
    device: &'a D,
    tensors: Box<dyn Tensors>,
    prefix: &'static str,
    bytes: Cell<u64>,
}

impl<D: Device> Weights<'_, D> {
    /// A tensor of the language model.
    pub(crate) fn read(&mut self, name: &str, shape: &[usize]) -> Result<Stored, LoadError> {
        self.tensors.read(&format!("{}.{name}", self.prefix), shape)
    }

    /// Whether the language model has such a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.has(&format!("{}.{name}", self.prefix))
    }

    /// A matrix of products or a table of embeddings that was read.
    pub(crate) fn place(&self, stored: &Stored, split: Split) -> Result<D::Weight, LoadError> {
        self.hand_over(stored, split, D::weight)
    }

    /// Counts what the device has taken.
    fn placed(&self, name: &str, taken: Result<D::Weight, OpError>) -> Result<D::Weight, LoadError> {
        let weight = taken.map_err(|source| LoadError::PlaceWeight { name: name.to_owned(), source })?;
        self.bytes.set(self.bytes.get() + self.device.bytes(&weight));
        Ok(weight)
    }

    fn hand_over(
        &self,
        stored: &Stored,
        split: Split,
        take: impl Fn(&D, &HostTensor<'_>) -> Result<D::Weight, OpError>,
    ) -> Result<D::Weight, LoadError> {
        let host = HostTensor {
            name: &stored.name,
            shape: stored.shape.clone(),
            dtype: stored.dtype,
            bytes: &stored.bytes,
            split,
        };
        self.placed(&stored.name, take(self.device, &host))
    }

    /// Reads and places what stays fp32: norms, gates, taps.
    pub(crate) fn exact(
        &mut self,
        name: &str,
        shape: &[usize],
        split: Split,
    ) -> Result<D::Weight, LoadError> {
        let stored = self.read(name, shape)?;
        self.hand_over(&stored, split, D::exact)
    }

    /// Places a matrix, or a stack of them as one.
    pub(crate) fn weight(
        &mut self,
        name: &str,
        shape: &[usize],
        split: Split,
    ) -> Result<D::Weight, LoadError> {
        self.root_weight(&format!("{}.{name}", self.prefix), shape, split)
    }

    /// Places a matrix that has no prefix.
    pub(crate) fn root_weight(
        &mut self,
        name: &str,
        shape: &[usize],
        split: Split,
    ) -> Result<D::Weight, LoadError> {
        match self.tensors.random(name, shape) {
            Some(matrix) => self.placed(name, self.device.random(&[matrix], &split)),
            None => {
                let stored = self.tensors.read(name, shape)?;
                self.place(&stored.into_matrix(), split)
            }
        }
    }

    /// A computed matrix, which stays fp32.
    pub(crate) fn table(&self, name: &str, values: &[f32], width: usize) -> Result<D::Weight, LoadError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = vec![values.len() / width, width];
        let stored = Stored { name: name.to_owned(), shape, dtype: Dtype::F32, bytes };
        self.hand_over(&stored, Split::Whole, D::exact)
    }
}
