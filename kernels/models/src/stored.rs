//! One tensor in memory.

use half::{bf16, f16};
use hypic_domain::tuple::Dtype;

/// A tensor in memory, as it was stored, or f32 where it was stored wider.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: Dtype,
    pub(crate) bytes: Vec<u8>,
}

impl Stored {
    /// Index of the first NaN or infinity.
    fn not_finite(&self) -> Option<usize> {
        let pairs = self.bytes.as_chunks::<2>().0;
        match self.dtype {
            Dtype::F16 => pairs.iter().position(|&b| !f16::from_le_bytes(b).is_finite()),
            Dtype::Bf16 => pairs.iter().position(|&b| !bf16::from_le_bytes(b).is_finite()),
            _ => self.bytes.as_chunks::<4>().0.iter().position(|&b| !f32::from_le_bytes(b).is_finite()),
        }
    }

    /// The rows of a matrix, in the order given.
    pub(crate) fn rows(&self, rows: impl Iterator<Item = usize>) -> Self {
        let width = self.shape[1] * self.dtype.size();
        let mut bytes = Vec::new();
        let mut count = 0;
        for row in rows {
            bytes.extend_from_slice(&self.bytes[row * width..(row + 1) * width]);
            count += 1;
        }
        Self { name: self.name.clone(), shape: vec![count, self.shape[1]], dtype: self.dtype, bytes }
    }

    /// A tensor of more axes as the matrix of its last one.
    pub(crate) fn into_matrix(self) -> Self {
        let width = self.shape.last().copied().unwrap_or(1);
        let rows = self.shape.iter().product::<usize>() / width.max(1);
        Self { shape: vec![rows, width], ..self }
    }

    /// The rows of matrices of one width, one after the other, under a new name.
    pub(crate) fn stacked(name: &str, parts: Vec<Self>) -> Self {
        let is_one = parts.windows(2).all(|pair| pair[0].dtype == pair[1].dtype);
        let parts: Vec<Self> = if is_one { parts } else { parts.into_iter().map(Self::widened).collect() };
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let (dtype, width) = parts.first().map_or((Dtype::F32, 0), |part| (part.dtype, part.shape[1]));
        // One allocation: the experts of a layer are a gigabyte.
        let mut bytes = Vec::with_capacity(rows * width * dtype.size());
        parts.iter().for_each(|part| bytes.extend_from_slice(&part.bytes));
        Self { name: name.to_owned(), shape: vec![rows, width], dtype, bytes }
    }

    /// The rows of two matrices of one width, one after the other.
    pub(crate) fn under(self, other: Self) -> Self {
        if self.dtype != other.dtype {
            return self.widened().under(other.widened());
        }
        let mut bytes = self.bytes;
        bytes.extend_from_slice(&other.bytes);
        let shape = vec![self.shape[0] + other.shape[0], self.shape[1]];
        Self { name: self.name, shape, dtype: self.dtype, bytes }
    }

    fn widened(self) -> Self {
        let pairs = self.bytes.as_chunks::<2>().0.iter();
        let bytes = match self.dtype {
            Dtype::F16 => pairs.flat_map(|&b| f16::from_le_bytes(b).to_f32().to_le_bytes()).collect(),
            Dtype::Bf16 => pairs.flat_map(|&b| bf16::from_le_bytes(b).to_f32().to_le_bytes()).collect(),
            _ => self.bytes,
        };
        Self { dtype: Dtype::F32, bytes, ..self }
    }
}
