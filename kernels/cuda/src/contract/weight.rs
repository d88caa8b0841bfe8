//! Weights on the device: in the format of the products, in fp32, or as codes.

use half::{bf16, f16};
use hypic_domain::tuple::Dtype;
use hypic_kernels::coded::Coded;
use hypic_kernels::op::{self, Device as _, HostTensor, OpError, Split};
use hypic_kernels::random::RandomMatrix;

use super::memory::Tensor;
use super::{CudaDevice, failed};
use crate::codes::{CodedMatrix, Matrix};
use crate::memory::Float;
use crate::{Buffer, ProductSize, Result};

/// A matrix `[out, in]` or a vector.
pub struct Weight<E: Float> {
    values: Values<E>,
    shape: Vec<usize>,
}

impl<E: Float> Drop for Weight<E> {
    fn drop(&mut self) {
        match &self.values {
            Values::Compute(values) => values.device().note_gone(),
            Values::Exact(values) => values.device().note_gone(),
            Values::Coded(matrix) => matrix.device().note_gone(),
        }
    }
}

/// In the format of the products, in fp32, or as codes.
pub(super) enum Values<E: Float> {
    Compute(Buffer<E>),
    Exact(Buffer<f32>),
    Coded(CodedMatrix),
}

impl<E: Float> Weight<E> {
    /// Decodes the stored values to the format that `place` takes.
    pub(super) fn from_host<T: Float>(
        host: &HostTensor<'_>,
        place: impl FnOnce(&[T]) -> Result<Values<E>>,
    ) -> std::result::Result<Self, OpError> {
        let size = host.shape.iter().product::<usize>() * host.dtype.size();
        if host.bytes.len() != size {
            let expected = format!("{size} bytes for \"{}\"", host.name);
            return Err(OpError::shape("weight", expected, host.bytes.len()));
        }
        let halves = host.bytes.as_chunks::<2>().0;
        let values: Vec<T> = match host.dtype {
            dtype if dtype == T::DTYPE => T::from_le(host.bytes),
            Dtype::F32 => {
                host.bytes.as_chunks().0.iter().map(|&b| T::narrow(f32::from_le_bytes(b))).collect()
            }
            Dtype::F16 => halves.iter().map(|&b| T::narrow(f16::from_le_bytes(b).to_f32())).collect(),
            Dtype::Bf16 => halves.iter().map(|&b| T::narrow(bf16::from_le_bytes(b).to_f32())).collect(),
            Dtype::I8 => {
                let what = format!("\"{}\" in {}", host.name, host.dtype.name());
                return Err(OpError::Unsupported { op: "weight", what });
            }
        };
        Ok(Self { values: place(&values).map_err(failed("weight"))?, shape: host.shape.clone() })
    }

    pub(super) fn bytes(&self) -> u64 {
        let count: usize = self.shape.iter().product();
        let bytes = match &self.values {
            Values::Compute(_) => count * size_of::<E>(),
            Values::Exact(_) => count * size_of::<f32>(),
            Values::Coded(matrix) => matrix.bytes(),
        };
        bytes as u64
    }

    /// A matrix of products, and its `[out, in]`.
    pub(super) fn product(
        &self,
        op: &'static str,
    ) -> std::result::Result<(Matrix<'_, E>, [usize; 2]), OpError> {
        match (&self.values, &self.shape[..]) {
            (Values::Coded(matrix), &[rows, columns]) => Ok((matrix.into(), [rows, columns])),
            _ => self.matrix(op).map(|(values, shape)| (values.into(), shape)),
        }
    }

    /// A matrix whose values are there, and its `[out, in]`.
    pub(super) fn matrix(&self, op: &'static str) -> std::result::Result<(&Buffer<E>, [usize; 2]), OpError> {
        match (&self.values, &self.shape[..]) {
            (Values::Compute(values), &[rows, columns]) => Ok((values, [rows, columns])),
            _ => Err(OpError::shape(op, "a matrix in the compute dtype", format!("{:?}", self.shape))),
        }
    }

    /// A vector of `len` values, kept exact.
    pub(super) fn vector(&self, op: &'static str, len: usize) -> std::result::Result<&Buffer<f32>, OpError> {
        match (&self.values, &self.shape[..]) {
            (Values::Exact(values), &[found]) if found == len => Ok(values),
            _ => Err(OpError::shape(op, format!("{len} exact values"), format!("{:?}", self.shape))),
        }
    }

    /// A matrix that was kept exact, and its rows of `width` values.
    pub(super) fn table(
        &self,
        op: &'static str,
        width: usize,
    ) -> std::result::Result<(&Buffer<f32>, usize), OpError> {
        match (&self.values, &self.shape[..]) {
            (Values::Exact(values), &[rows, found]) if found == width => Ok((values, rows)),
            _ => Err(OpError::shape(op, format!("exact rows of {width}"), format!("{:?}", self.shape))),
        }
    }
}

/// Draws a matrix.
pub(super) fn random<E: Float>(
    device: &CudaDevice<E>,
    blocks: &[RandomMatrix],
) -> std::result::Result<Weight<E>, OpError> {
    let shape = RandomMatrix::stacked(blocks);
    let make = || {
        let mut values = device.output(shape[0] * shape[1])?;
        crate::random_values(&device.device, blocks, &mut values)?;
        Ok(Weight { values: Values::Compute(values), shape: shape.to_vec() })
    };
    make().map_err(failed("random"))
}

/// Places a matrix of codes, as codes where there is a form for its blocks.
pub(super) fn coded<E: Float>(
    device: &CudaDevice<E>,
    name: &str,
    matrix: &Coded,
    split: &Split,
) -> std::result::Result<Weight<E>, OpError> {
    match keep(device, |device| CodedMatrix::new(device, matrix)).map_err(failed("coded"))? {
        Some(kept) => Ok(Weight { values: Values::Coded(kept), shape: matrix.shape().to_vec() }),
        None => op::widened(device, name, matrix, split),
    }
}

/// The same of codes that are drawn.
pub(super) fn random_coded<E: Float>(
    device: &CudaDevice<E>,
    blocks: &[RandomMatrix],
    split: &Split,
) -> std::result::Result<Weight<E>, OpError> {
    let factor = RandomMatrix::factor_of(blocks)?;
    match keep(device, |device| CodedMatrix::random(device, blocks, factor))
        .map_err(failed("random_coded"))?
    {
        Some(kept) => {
            Ok(Weight { values: Values::Coded(kept), shape: RandomMatrix::stacked(blocks).to_vec() })
        }
        None => op::widened(device, "random", &RandomMatrix::coded(blocks)?, split),
    }
}

/// What `place` makes, on devices that keep codes.
fn keep<E: Float>(
    device: &CudaDevice<E>,
    place: impl FnOnce(&crate::Device) -> Result<Option<CodedMatrix>>,
) -> Result<Option<CodedMatrix>> {
    if device.keeps_codes() { place(&device.device) } else { Ok(None) }
}

/// The weight of a product of the rows of `x`, and the product's size.
pub(super) fn product_of<'a, E: Float>(
    op: &'static str,
    x: &Tensor<E>,
    weight: &'a Weight<E>,
) -> std::result::Result<(Matrix<'a, E>, ProductSize), OpError> {
    let (values, [outer, inner]) = weight.product(op)?;
    if x.width != inner {
        return Err(OpError::shape(op, format!("rows of {inner}"), x.width));
    }
    Ok((values, ProductSize { rows: x.rows(), inner, outer }))
}
