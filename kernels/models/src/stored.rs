//! One tensor in memory.

use half::{bf16, f16};
use hypic_domain::tuple::Dtype;
use hypic_kernels::coded::Coded;

/// A tensor in memory, as it was stored, or f32 where it was stored wider.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Values,
}

/// Values of a tensor.
pub(crate) enum Values {
    /// Little-endian.
    Plain { dtype: Dtype, bytes: Vec<u8> },
    /// As the matrix of the last axis.
    Coded(Coded),
}

impl Stored {
    /// Index of the first NaN or infinity.
    pub(crate) fn not_finite(&self) -> Option<usize> {
        let (dtype, bytes) = match &self.values {
            Values::Plain { dtype, bytes } => (dtype, bytes),
            Values::Coded(matrix) => return matrix.not_finite(),
        };
        let pairs = bytes.as_chunks::<2>().0;
        match dtype {
            Dtype::F16 => pairs.iter().position(|&b| !f16::from_le_bytes(b).is_finite()),
            Dtype::Bf16 => pairs.iter().position(|&b| !bf16::from_le_bytes(b).is_finite()),
            _ => bytes.as_chunks::<4>().0.iter().position(|&b| !f32::from_le_bytes(b).is_finite()),
        }
    }

    /// The rows of a matrix, in the order given.
    pub(crate) fn rows(&self, rows: impl Iterator<Item = usize>) -> Self {
        let columns = self.shape[1];
        let (count, values) = match &self.values {
            Values::Coded(matrix) => {
                let part = matrix.rows(rows);
                (part.shape()[0], Values::Coded(part))
            }
            Values::Plain { dtype, bytes: whole } => {
                let width = columns * dtype.size();
                let mut bytes = Vec::new();
                let mut count = 0;
                for row in rows {
                    bytes.extend_from_slice(&whole[row * width..(row + 1) * width]);
                    count += 1;
                }
                (count, Values::Plain { dtype: *dtype, bytes })
            }
        };
        Self { name: self.name.clone(), shape: vec![count, columns], values }
    }

    /// A tensor of more axes as the matrix of its last one.
    pub(crate) fn into_matrix(self) -> Self {
        let width = self.shape.last().copied().unwrap_or(1);
        let rows = self.shape.iter().product::<usize>() / width.max(1);
        Self { shape: vec![rows, width], ..self }
    }

    /// The rows of matrices of one width, one after the other, under a new name. Those of one format keep it.
    pub(crate) fn stacked(name: &str, parts: Vec<Self>) -> Self {
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let width = parts.first().map_or(0, |part| part.shape[1]);
        let coded: Vec<_> = parts.iter().filter_map(Self::coded).collect();
        let both = if coded.len() == parts.len() { Coded::stacked(&coded) } else { None };
        let values = both.map_or_else(|| Self::plain_stacked(parts), Values::Coded);
        Self { name: name.to_owned(), shape: vec![rows, width], values }
    }

    fn coded(&self) -> Option<&Coded> {
        match &self.values {
            Values::Coded(matrix) => Some(matrix),
            Values::Plain { .. } => None,
        }
    }

    /// As little-endian values of the one format that the parts have, or f32.
    fn plain_stacked(parts: Vec<Self>) -> Values {
        let format = |part: &Self| match &part.values {
            Values::Plain { dtype, .. } => Some(*dtype),
            Values::Coded(_) => None,
        };
        let first = parts.first().and_then(format);
        let dtype = first.filter(|_| parts.iter().all(|part| format(part) == first)).unwrap_or(Dtype::F32);
        // One allocation: the experts of a layer are a gigabyte.
        let count: usize = parts.iter().map(|part| part.shape.iter().product::<usize>()).sum();
        let mut bytes = Vec::with_capacity(count * dtype.size());
        for part in parts {
            match part.values {
                Values::Plain { dtype: of, bytes: own } if of == dtype => bytes.extend_from_slice(&own),
                values => bytes.extend_from_slice(&values.widened()),
            }
        }
        Values::Plain { dtype, bytes }
    }

    /// The rows of two matrices of one width, one after the other.
    pub(crate) fn under(self, other: Self) -> Self {
        let name = self.name.clone();
        Self::stacked(&name, vec![self, other])
    }
}

impl Values {
    /// Little-endian values in the format they have, or in f32 where they are codes.
    pub(crate) fn plain(self) -> (Dtype, Vec<u8>) {
        match self {
            Self::Plain { dtype, bytes } => (dtype, bytes),
            codes @ Self::Coded(_) => (Dtype::F32, codes.widened()),
        }
    }

    /// Little-endian f32.
    pub(crate) fn widened(self) -> Vec<u8> {
        let (dtype, bytes) = match self {
            Self::Coded(matrix) => return matrix.values().flat_map(f32::to_le_bytes).collect(),
            Self::Plain { dtype, bytes } => (dtype, bytes),
        };
        let pairs = bytes.as_chunks::<2>().0.iter();
        match dtype {
            Dtype::F16 => pairs.flat_map(|&b| f16::from_le_bytes(b).to_f32().to_le_bytes()).collect(),
            Dtype::Bf16 => pairs.flat_map(|&b| bf16::from_le_bytes(b).to_f32().to_le_bytes()).collect(),
            _ => bytes,
        }
    }
}
