//! Tensors onto a device.

use std::cell::Cell;

use hypic_domain::tuple::Dtype;
use hypic_kernels::op::{Device, HostTensor, OpError, Split};

use crate::error::LoadError;
use crate::stored::{Stored, Values};
use crate::tensors::Tensors;

/// Reads tensors by name and hands them to the device.
pub(crate) struct Weights<'a, D: Device> {
    device: &'a D,
    tensors: Box<dyn Tensors>,
    prefix: &'static str,
    bytes: Cell<u64>,
}

impl<'a, D: Device> Weights<'a, D> {
    pub(crate) fn new(device: &'a D, tensors: Box<dyn Tensors>) -> Self {
        // Checkpoints with a vision part keep the language model one level deeper.
        let prefix = if tensors.has("model.language_model.embed_tokens.weight") {
            "model.language_model"
        } else {
            "model"
        };
        Self { device, tensors, prefix, bytes: Cell::new(0) }
    }

    /// Digest of all that was read.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.tensors.digest()
    }

    /// Bytes that the device has taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// A tensor of the language model.
    pub(crate) fn read(&mut self, name: &str, shape: &[usize]) -> Result<Stored, LoadError> {
        self.tensors.read(&format!("{}.{name}", self.prefix), shape)
    }

    /// Whether the language model has such a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.has(&format!("{}.{name}", self.prefix))
    }

    /// A matrix of products that was read.
    pub(crate) fn place(&self, stored: &Stored, split: Split) -> Result<D::Weight, LoadError> {
        let Stored { name, shape, values } = stored;
        match values {
            Values::Coded(matrix) => self.placed(name, self.device.coded(name, matrix, &split)),
            Values::Plain { dtype, bytes } => {
                self.hand_over((name, shape), (*dtype, bytes), split, D::weight)
            }
        }
    }

    /// Counts what the device has taken.
    fn placed(&self, name: &str, taken: Result<D::Weight, OpError>) -> Result<D::Weight, LoadError> {
        let weight = taken.map_err(|source| LoadError::PlaceWeight { name: name.to_owned(), source })?;
        self.bytes.set(self.bytes.get() + self.device.bytes(&weight));
        Ok(weight)
    }

    fn hand_over(
        &self,
        (name, shape): (&str, &[usize]),
        (dtype, bytes): (Dtype, &[u8]),
        split: Split,
        take: impl Fn(&D, &HostTensor<'_>) -> Result<D::Weight, OpError>,
    ) -> Result<D::Weight, LoadError> {
        let host = HostTensor { name, shape: shape.to_vec(), dtype, bytes, split };
        self.placed(name, take(self.device, &host))
    }

    /// Reads and places what stays fp32: norms, gates, taps.
    pub(crate) fn exact(
        &mut self,
        name: &str,
        shape: &[usize],
        split: Split,
    ) -> Result<D::Weight, LoadError> {
        let Stored { name, shape, values } = self.read(name, shape)?;
        let (dtype, bytes) = values.plain();
        self.hand_over((&name, &shape), (dtype, &bytes), split, D::exact)
    }

    /// Places a matrix of products, or a stack of them as one.
    pub(crate) fn weight(
        &mut self,
        name: &str,
        shape: &[usize],
        split: Split,
    ) -> Result<D::Weight, LoadError> {
        let name = format!("{}.{name}", self.prefix);
        match self.tensors.random(&name, shape) {
            Some(matrix) if self.tensors.is_coded(&name) => {
                self.placed(&name, self.device.random_coded(&[matrix], &split))
            }
            Some(matrix) => self.placed(&name, self.device.random(&[matrix], &split)),
            None => {
                let stored = self.tensors.read(&name, shape)?.into_matrix();
                self.place(&stored, split)
            }
        }
    }

    /// Places a matrix whose values stay as wide as the device's formats, whole: a table of embeddings, or scores.
    pub(crate) fn wide(&mut self, name: &str, shape: &[usize]) -> Result<D::Weight, LoadError> {
        self.root_wide(&format!("{}.{name}", self.prefix), shape)
    }

    /// The same without a prefix.
    pub(crate) fn root_wide(&mut self, name: &str, shape: &[usize]) -> Result<D::Weight, LoadError> {
        if let Some(matrix) = self.tensors.random(name, shape) {
            return self.placed(name, self.device.random(&[matrix], &Split::Whole));
        }
        let Stored { name, shape, values } = self.tensors.read(name, shape)?.into_matrix();
        let (dtype, bytes) = values.plain();
        self.hand_over((&name, &shape), (dtype, &bytes), Split::Whole, D::weight)
    }

    /// A computed matrix, which stays fp32.
    pub(crate) fn table(&self, name: &str, values: &[f32], width: usize) -> Result<D::Weight, LoadError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = [values.len() / width, width];
        self.hand_over((name, &shape), (Dtype::F32, &bytes), Split::Whole, D::exact)
    }
}
