//! One launch of one kernel, after all checks.

use std::marker::PhantomData;

#[cfg(feature = "cuda")]
use cudarc::driver::sys::{CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, cuLaunchKernelEx};
#[cfg(feature = "cuda")]
use hypic_domain::tuple::Dtype;

use crate::device::Backend;
use crate::memory::{Element, Float};
#[cfg(feature = "fibers")]
use crate::sys::Work;
use crate::{Buffer, Device, Error, Result};

/// The compute capability whose machine code waits by itself.
#[cfg(feature = "cuda")]
const OVERLAP: (i32, i32) = (9, 0);

/// A launch being put together: the arguments in the order of the kernel's parameters. Buffers stay borrowed
/// until it has run.
pub(crate) struct Launch<'a> {
    device: &'a Device,
    kernel: String,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    overlaps: bool,
    arguments: Vec<u64>,
    #[cfg(feature = "cuda")]
    boxes: Option<TensorMap>,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a> Launch<'a> {
    pub(crate) fn new(
        device: &'a Device,
        kernel: impl Into<String>,
        grid: [usize; 3],
        threads: usize,
    ) -> Self {
        Self {
            device,
            kernel: kernel.into(),
            grid: grid.map(|n| n as u32),
            threads: threads as u32,
            shared: 0,
            overlaps: false,
            arguments: Vec::with_capacity(16),
            #[cfg(feature = "cuda")]
            boxes: None,
            borrowed: PhantomData,
        }
    }

    /// Bytes of dynamic shared memory.
    pub(crate) fn shared(mut self, bytes: usize) -> Self {
        self.shared = bytes as u32;
        self
    }

    /// Lets it start before the launch before it is over: the kernel waits by itself (`await_inputs` of device/dev.cuh).
    pub(crate) fn overlapping(mut self) -> Self {
        self.overlaps = true;
        self
    }

    pub(crate) fn read<T: Element>(mut self, buffer: &'a Buffer<T>) -> Self {
        self.arguments.push(buffer.address());
        self
    }

    /// The first parameter of all: a matrix `[rows, columns]` of bf16 for the copy engine, which brings boxes of `size` rows
    /// and columns with the 128-byte swizzle.
    pub(crate) fn boxes<E: Float>(
        mut self,
        matrix: &'a Buffer<E>,
        [rows, columns]: [usize; 2],
        size: [usize; 2],
    ) -> Result<Self> {
        Error::unless(matrix.len() == rows * columns, "the matrix", rows * columns, matrix.len())?;
        match &*self.device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) if E::DTYPE == Dtype::Bf16 => {
                // SAFETY: the size was checked above; the matrix is borrowed until the launch has run.
                self.boxes = Some(unsafe { TensorMap::new(matrix.address(), [rows, columns], size) }?);
                Ok(self)
            }
            _ => {
                let _ = (&mut self, size);
                Err(Error::FindKernel { kernel: self.kernel })
            }
        }
    }

    pub(crate) fn write<T: Element>(mut self, buffer: &'a mut Buffer<T>) -> Self {
        self.arguments.push(buffer.address());
        self
    }

    /// A buffer from one of its values on.
    pub(crate) fn read_at<T: Element>(mut self, buffer: &'a Buffer<T>, first: usize) -> Self {
        self.arguments.push(buffer.address_of(first));
        self
    }

    /// The same, to be written.
    pub(crate) fn write_at<T: Element>(mut self, buffer: &'a mut Buffer<T>, first: usize) -> Self {
        self.arguments.push(buffer.address_of(first));
        self
    }

    /// A buffer, or a pointer the kernel does not use.
    pub(crate) fn read_if<T: Element>(self, buffer: Option<&'a Buffer<T>>) -> Self {
        match buffer {
            Some(buffer) => self.read(buffer),
            None => self.unused(),
        }
    }

    /// A pointer the kernel does not use in this launch.
    pub(crate) fn unused(mut self) -> Self {
        self.arguments.push(0);
        self
    }

    pub(crate) fn int(mut self, value: usize) -> Self {
        self.arguments.push(u64::from(value as u32));
        self
    }

    pub(crate) fn long(mut self, value: u64) -> Self {
        self.arguments.push(value);
        self
    }

    pub(crate) fn float(mut self, value: f32) -> Self {
        self.arguments.push(u64::from(value.to_bits()));
        self
    }

    /// Gives the launch to the device; an empty grid is nothing to do.
    pub(crate) fn run(#[cfg_attr(not(feature = "cuda"), allow(unused_mut))] mut self) -> Result<()> {
        if self.grid.contains(&0) {
            return Ok(());
        }
        match &*self.device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                let arguments = self.arguments.iter_mut().map(|argument| std::ptr::from_mut(argument).cast());
                let map = self.boxes.iter_mut().map(|map| std::ptr::from_mut(map).cast());
                let mut pointers: Vec<*mut std::ffi::c_void> = map.chain(arguments).collect();
                let function = context.function(&self.kernel, self.shared)?;
                context.enter()?;
                // SAFETY: an attribute is plain numbers, for which zeros are values.
                let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
                attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                attribute.value.programmaticStreamSerializationAllowed = 1;
                let config = CUlaunchConfig {
                    gridDimX: self.grid[0],
                    gridDimY: self.grid[1],
                    gridDimZ: self.grid[2],
                    blockDimX: self.threads,
                    blockDimY: 1,
                    blockDimZ: 1,
                    sharedMemBytes: self.shared,
                    hStream: context.stream.cu_stream(),
                    attrs: &raw mut attribute,
                    numAttrs: u32::from(self.overlaps && context.capability == OVERLAP),
                };
                // SAFETY: the safe function that built this launch has checked every size against the
                // kernel's contract, the arguments are in the order of its parameters, and the buffers are
                // borrowed and on this stream, or on that of a linked device which this one has met; the
                // configuration lives as long as the call.
                unsafe {
                    let arguments = pointers.as_mut_ptr();
                    cuLaunchKernelEx(
                        &raw const config,
                        function.cu_function(),
                        arguments,
                        std::ptr::null_mut(),
                    )
                }
                .result()
                .map_err(crate::sys::failed("launch a kernel"))
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(fibers) => {
                let Self { kernel, grid, threads, shared, arguments, .. } = self;
                // SAFETY: as above; the buffers are host memory.
                unsafe { fibers.give(Work::Launch { kernel, grid, threads, shared, arguments }) }
            }
        }
    }
}

/// A matrix as the copy engine reads boxes of it: a parameter of kernels.
#[cfg(feature = "cuda")]
#[repr(transparent)]
struct TensorMap(cudarc::driver::sys::CUtensorMap);

#[cfg(feature = "cuda")]
impl TensorMap {
    /// Boxes of `size`, rows and columns, of a row-major matrix of bf16 `[rows, columns]`, with the 128-byte swizzle.
    ///
    /// # Safety
    /// As many values lie at `address` as long as kernels use the map.
    unsafe fn new(address: u64, [rows, columns]: [usize; 2], size: [usize; 2]) -> Result<Self> {
        use cudarc::driver::sys as driver;
        let mut map = driver::CUtensorMap { opaque: [0; 16] };
        let (sizes, stride) = ([columns as u64, rows as u64], columns as u64 * 2);
        let (size, steps) = ([size[1] as u32, size[0] as u32], [1, 1]);
        // SAFETY: the map is written, the arrays have the rank's length and are only read; the driver refuses what the
        // copy engine cannot read.
        let status = unsafe {
            driver::cuTensorMapEncodeTiled(
                &raw mut map,
                driver::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                address as *mut std::ffi::c_void,
                sizes.as_ptr(),
                &raw const stride,
                size.as_ptr(),
                steps.as_ptr(),
                driver::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                driver::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                driver::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                driver::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        status.result().map_err(crate::sys::failed("describe a matrix to the copy engine"))?;
        Ok(Self(map))
    }
}

/// `y = x W^T` by the library, sums in fp32: x `[rows, inner]`, weight `[outer, inner]`, y `[rows, outer]`. False where
/// there is no library, on fibers.
pub(crate) fn library_product<E: Float, O: Float>(
    device: &Device,
    (x, weight): (&Buffer<E>, &Buffer<E>),
    y: &mut Buffer<O>,
    [rows, inner, outer]: [usize; 3],
) -> Result<bool> {
    Error::unless(x.len() == rows * inner, "the rows", rows * inner, x.len())?;
    Error::unless(weight.len() == outer * inner, "the weight", outer * inner, weight.len())?;
    Error::unless(y.len() == rows * outer, "the products", rows * outer, y.len())?;
    match &*device.backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda(context) => {
            if rows * inner * outer > 0 {
                let product = crate::sys::Product { rows, inner, outer, operand: E::DTYPE, result: O::DTYPE };
                // SAFETY: the sizes were checked above; the buffers are borrowed and on this stream.
                unsafe { context.multiply(product, x.address(), weight.address(), y.address()) }?;
            }
            Ok(true)
        }
        #[cfg(feature = "fibers")]
        Backend::Fibers(_) => Ok(false),
    }
}

#[cfg(all(test, feature = "fibers"))]
mod tests {
    use super::*;
    use crate::Order;

    fn check(kernel: &str, order: Order) -> Result<Vec<f32>> {
        let device = Device::fibers(order);
        let mut out = Buffer::from_slice(&device, &[f32::NAN; 64])?;
        Launch::new(&device, kernel, [1, 1, 1], 64).write(&mut out).run()?;
        out.read()
    }

    #[test]
    fn a_missing_barrier_shows_as_a_result_that_depends_on_the_order() {
        let [forward, backward] =
            [Order::Forward, Order::Backward].map(|order| check("check_missing_barrier", order).unwrap());
        assert_ne!(forward, backward);
    }

    #[test]
    fn a_barrier_that_some_threads_miss_is_reported() {
        let error = check("check_partial_barrier", Order::Forward).unwrap_err();
        assert!(error.to_string().ends_with("a barrier was not reached by the whole block"), "{error}");
    }

    #[test]
    fn an_unknown_kernel_is_reported() {
        assert!(check("no_such_kernel", Order::Forward).is_err());
    }
}
