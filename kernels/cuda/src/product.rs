use crate::launch::{Launch, library_product};
use crate::memory::Float;
use crate::{Buffer, Device, Error, Result};

/// Sizes of a product of weights: `y [rows, outer] = x [rows, inner] weight [outer, inner]^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductSize {
    /// Rows of activations.
    pub rows: usize,
    /// Terms of each sum.
    pub inner: usize,
    /// Rows of the weight.
    pub outer: usize,
}

/// `y = x weight^T` with sums in fp32: by cublasLt on a GPU, by [`product_plain`] on fibers.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::FindLibrary`] without cublasLt, [`Error::CallDriver`]
/// when it fails.
pub fn product<E: Float, O: Float>(
    device: &Device,
    x: &Buffer<E>,
    weight: &Buffer<E>,
    y: &mut Buffer<O>,
    size: ProductSize,
) -> Result<()> {
    if library_product(device, (x, weight), y, [size.rows, size.inner, size.outer])? {
        return Ok(());
    }
    product_plain(device, x, weight, y, size)
}

/// The same by our own plain kernel: what the library is checked against.
///
/// # Errors
/// As [`product`], and [`Error::FindKernel`] for bf16 results of fp32 operands.
pub fn product_plain<E: Float, O: Float>(
    device: &Device,
    x: &Buffer<E>,
    weight: &Buffer<E>,
    y: &mut Buffer<O>,
    ProductSize { rows, inner, outer }: ProductSize,
) -> Result<()> {
    Error::unless(x.len() == rows * inner, "the rows", rows * inner, x.len())?;
    Error::unless(weight.len() == outer * inner, "the weight", outer * inner, weight.len())?;
    Error::unless(y.len() == rows * outer, "the products", rows * outer, y.len())?;
    let kernel = match (E::NAME, O::NAME) {
        ("bf16", "bf16") => "product_bf16",
        ("bf16", "f32") => "product_bf16_f32",
        ("f32", "f32") => "product_f32",
        (from, to) => return Err(Error::FindKernel { kernel: format!("product_{from}_{to}") }),
    };
    Launch::new(device, kernel, [rows, outer.div_ceil(64), 1], 32)
        .read(x)
        .read(weight)
        .write(y)
        .int(inner)
        .int(outer)
        .run()
}
