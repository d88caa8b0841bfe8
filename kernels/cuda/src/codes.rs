//! Matrices of products as E4M3 codes with a factor for each block.

use hypic_kernels::coded::{Blocks, Coded};
use hypic_kernels::random::RandomMatrix;

use crate::launch::Launch;
use crate::memory::{Float, Fresh};
use crate::random::{THREADS, blocks_of, random_codes};
use crate::{Buffer, Device, Error, Result};

/// What shares a factor on the device: of device/codes.cuh.
const BLOCKS: Blocks = Blocks { rows: 16, columns: 64 };
/// Codes that a thread widens at a time.
const EACH: usize = 16;

/// A matrix `[rows, columns]` as E4M3 codes on a device, whose factors, in fp32, stand for 16 rows and 64 columns each.
pub struct CodedMatrix {
    /// `[rows, columns]`.
    codes: Buffer<u8>,
    /// `[rows / 16, columns / 64]`, rounded up.
    factors: Buffer<f32>,
    columns: usize,
}

impl CodedMatrix {
    /// A copy of `matrix`; none of one whose columns are no multiple of 64, or whose blocks do not consist of whole ones of
    /// 16 rows and 64 columns. Codes are of finite values alone.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room or the copy fails.
    pub fn new(device: &Device, matrix: &Coded) -> Result<Option<Self>> {
        let [_, columns] = matrix.shape();
        let factors = matrix.factors_for(BLOCKS).filter(|_| columns.is_multiple_of(BLOCKS.columns));
        let Some(factors) = factors else { return Ok(None) };
        let codes = Buffer::from_slice(device, matrix.codes())?;
        Ok(Some(Self { codes, factors: Buffer::from_slice(device, &factors)?, columns }))
    }

    /// The codes of random blocks of rows `[rows, columns]`, one under the other, all with one factor, made where they
    /// lie; none where columns are no multiple of 64.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room or a launch fails.
    pub fn random(device: &Device, blocks: &[RandomMatrix], factor: f32) -> Result<Option<Self>> {
        let [rows, columns] = RandomMatrix::stacked(blocks);
        if !columns.is_multiple_of(BLOCKS.columns) {
            return Ok(None);
        }
        let mut codes = Buffer::fresh(device, rows * columns, Fresh::Anything)?;
        random_codes(device, blocks, &mut codes)?;
        let factors = vec![factor; BLOCKS.factors_of(&[rows, columns]).iter().product()];
        Ok(Some(Self { codes, factors: Buffer::from_slice(device, &factors)?, columns }))
    }

    /// Values of the matrix.
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        self.codes.device()
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.codes.len() + size_of::<f32>() * self.factors.len()
    }

    /// Writes all values to `y`, row-major: the product of code and factor in fp32, rounded to `E`.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for a buffer of another length, [`Error::CallDriver`] when the launch fails.
    pub fn widen<E: Float>(&self, device: &Device, y: &mut Buffer<E>) -> Result<()> {
        Error::unless(y.len() == self.len(), "the values", self.len(), y.len())?;
        let count = self.len() / EACH;
        Launch::new(device, format!("widen_codes_{}", E::NAME), blocks_of(count), THREADS)
            .read(&self.codes)
            .read(&self.factors)
            .write(y)
            .long(count as u64)
            .int(self.columns)
            .run()
    }
}

/// A matrix of products, or several one behind the other.
#[derive(Clone, Copy)]
pub enum Matrix<'a, E: Float> {
    /// In the format of activations.
    Wide(&'a Buffer<E>),
    /// As codes, for activations in bf16.
    Coded(&'a CodedMatrix),
}

impl<'a, E: Float> From<&'a Buffer<E>> for Matrix<'a, E> {
    fn from(values: &'a Buffer<E>) -> Self {
        Self::Wide(values)
    }
}

impl<'a, E: Float> From<&'a CodedMatrix> for Matrix<'a, E> {
    fn from(matrix: &'a CodedMatrix) -> Self {
        Self::Coded(matrix)
    }
}

/// The values of a matrix: those that are there, or widened for one use.
pub(crate) enum Widened<'a, E: Float> {
    There(&'a Buffer<E>),
    Made(Buffer<E>),
}

impl<E: Float> std::ops::Deref for Widened<'_, E> {
    type Target = Buffer<E>;

    fn deref(&self) -> &Buffer<E> {
        match self {
            Self::There(values) => values,
            Self::Made(values) => values,
        }
    }
}

impl<'a, E: Float> Matrix<'a, E> {
    /// An error for a matrix that is not one of `rows` rows of `columns`: factors of codes lie by their columns.
    pub(crate) fn check(self, what: &'static str, [rows, columns]: [usize; 2]) -> Result<()> {
        let (len, has_columns) = match self {
            Self::Wide(values) => (values.len(), true),
            Self::Coded(matrix) => (matrix.len(), matrix.columns == columns),
        };
        let fits = len == rows * columns && has_columns;
        Error::unless(fits, what, format!("{rows} rows of {columns}"), format!("{len} values"))
    }

    pub(crate) fn is_coded(self) -> bool {
        matches!(self, Self::Coded(_))
    }

    /// For kernels that do not read codes: twice the memory of the codes until it is dropped.
    pub(crate) fn widened(self, device: &Device) -> Result<Widened<'a, E>> {
        match self {
            Self::Wide(values) => Ok(Widened::There(values)),
            Self::Coded(matrix) => {
                let mut values = Buffer::fresh(device, matrix.len(), Fresh::Anything)?;
                matrix.widen(device, &mut values)?;
                Ok(Widened::Made(values))
            }
        }
    }
}

impl<'a> Launch<'a> {
    /// The values or codes of a matrix.
    pub(crate) fn matrix<E: Float>(self, matrix: Matrix<'a, E>) -> Self {
        match matrix {
            Matrix::Wide(values) => self.read(values),
            Matrix::Coded(matrix) => self.read(&matrix.codes),
        }
    }

    /// Its factors, or a pointer by which the kernel knows that it has none.
    pub(crate) fn factors<E: Float>(self, matrix: Matrix<'a, E>) -> Self {
        match matrix {
            Matrix::Wide(_) => self.unused(),
            Matrix::Coded(matrix) => self.read(&matrix.factors),
        }
    }
}
