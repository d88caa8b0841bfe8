//! Buffers of a device. The only place that sees addresses.

use std::marker::PhantomData;

use half::{bf16, f16};

use crate::device::Backend;
#[cfg(feature = "cuda")]
use crate::sys::failed;
use crate::{Device, Error, Result};

/// Types a buffer can hold: plain numbers, for which every bit pattern is a value.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty),*) => {$(impl sealed::Sealed for $t {} impl Element for $t {})*};
}
elements!(u8, i32, u32, u64, f32, f16, bf16);

/// `len` values on a device.
pub struct Buffer<T: Element> {
    device: Device,
    bytes: Bytes,
    len: usize,
    element: PhantomData<T>,
}

enum Bytes {
    #[cfg(feature = "cuda")]
    Cuda(cudarc::driver::CudaSlice<u8>),
    // As 16-byte units: vectors of the kernels are at most that wide.
    #[cfg(feature = "fibers")]
    Host(Vec<u128>),
}

impl<T: Element> Buffer<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room.
    pub fn zeros(device: &Device, len: usize) -> Result<Self> {
        let size = len.max(1) * size_of::<T>();
        let bytes = match &*device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                Bytes::Cuda(context.stream.alloc_zeros(size).map_err(failed("allocate"))?)
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => Bytes::Host(vec![0; size.div_ceil(16)]),
        };
        Ok(Self { device: device.clone(), bytes, len, element: PhantomData })
    }

    /// A copy of `values`.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room or the copy fails.
    pub fn from_slice(device: &Device, values: &[T]) -> Result<Self> {
        let mut buffer = Self::zeros(device, values.len())?;
        buffer.write(values)?;
        Ok(buffer)
    }

    /// Overwrites all values.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for another length, [`Error::CallDriver`] when the copy fails.
    pub fn write(&mut self, values: &[T]) -> Result<()> {
        Error::unless(values.len() == self.len, "values written to a buffer", self.len, values.len())?;
        // SAFETY: the slice's memory is `len * size_of::<T>()` initialised bytes, and T has no padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        match (&*self.device.backend, &mut self.bytes) {
            #[cfg(feature = "cuda")]
            (Backend::Cuda(context), Bytes::Cuda(slice)) if !bytes.is_empty() => {
                context.stream.memcpy_htod(bytes, slice).map_err(failed("copy to the device"))
            }
            #[cfg(feature = "fibers")]
            (_, Bytes::Host(units)) => {
                // SAFETY: the units hold at least as many bytes as `zeros` was asked for, which is
                // `bytes.len()`.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), units.as_mut_ptr().cast(), bytes.len())
                };
                Ok(())
            }
            #[cfg(feature = "cuda")]
            _ => Ok(()),
        }
    }

    /// A copy of all values; waits for what was given to the device before.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the copy or an earlier kernel failed.
    pub fn read(&self) -> Result<Vec<T>> {
        // SAFETY: every bit pattern, zero too, is a value of T.
        let mut values = vec![unsafe { std::mem::zeroed::<T>() }; self.len];
        let size = self.len * size_of::<T>();
        // SAFETY: the vector's memory is that many bytes, and any bytes are values of T.
        let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size) };
        match (&*self.device.backend, &self.bytes) {
            #[cfg(feature = "cuda")]
            (Backend::Cuda(context), Bytes::Cuda(slice)) if size > 0 => {
                context.stream.memcpy_dtoh(slice, bytes).map_err(failed("copy from the device"))?;
                context.stream.synchronize().map_err(failed("finish the stream"))?;
            }
            #[cfg(feature = "fibers")]
            // SAFETY: the units hold at least `size` bytes.
            (_, Bytes::Host(units)) => unsafe {
                std::ptr::copy_nonoverlapping(units.as_ptr().cast(), bytes.as_mut_ptr(), size);
            },
            #[cfg(feature = "cuda")]
            _ => {}
        }
        Ok(values)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address as the device's kernels see it.
    pub(crate) fn address(&self) -> u64 {
        match (&*self.device.backend, &self.bytes) {
            #[cfg(feature = "cuda")]
            (Backend::Cuda(context), Bytes::Cuda(slice)) => {
                use cudarc::driver::DevicePtr;
                slice.device_ptr(&context.stream).0
            }
            #[cfg(feature = "fibers")]
            (_, Bytes::Host(units)) => units.as_ptr() as u64,
            #[cfg(all(feature = "cuda", feature = "fibers"))]
            (Backend::Fibers(_), Bytes::Cuda(_)) => 0,
        }
    }
}
