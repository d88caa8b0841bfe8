//! Buffers of a device. The only place that sees addresses.

mod arrive;
mod pinned;
mod transfer;

pub(crate) use arrive::{fetch, upload};
pub use pinned::Pinned;
pub(crate) use transfer::land;

use std::marker::PhantomData;

use half::{bf16, f16};
use hypic_domain::tuple::Dtype;

use crate::arena::Memory;
use crate::device::{Arrival, Backend};
#[cfg(feature = "cuda")]
use crate::sys::failed;
#[cfg(feature = "fibers")]
use crate::sys::{Units, Work};
use crate::{Device, Error, Result};

/// Types a buffer can hold: plain numbers, for which every bit pattern is a value.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty),*) => {$(impl sealed::Sealed for $t {} impl Element for $t {})*};
}
elements!(u8, i32, u32, u64, f32, f64, f16, bf16);

/// Formats of activations.
pub trait Float: Element {
    /// Its name in kernels.
    const NAME: &'static str;
    /// Its name in tuples.
    const DTYPE: Dtype;
    /// Rounded to nearest.
    fn narrow(value: f32) -> Self;
    /// Exact.
    fn wide(self) -> f32;
    /// Values as checkpoints store them, little-endian.
    fn from_le(bytes: &[u8]) -> Vec<Self>;
}

impl Float for bf16 {
    const NAME: &'static str = "bf16";
    const DTYPE: Dtype = Dtype::Bf16;
    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn from_le(bytes: &[u8]) -> Vec<Self> {
        bytes.as_chunks().0.iter().map(|&bytes| Self::from_le_bytes(bytes)).collect()
    }
}

impl Float for f32 {
    const NAME: &'static str = "f32";
    const DTYPE: Dtype = Dtype::F32;
    fn narrow(value: f32) -> Self {
        value
    }
    fn wide(self) -> f32 {
        self
    }
    fn from_le(bytes: &[u8]) -> Vec<Self> {
        bytes.as_chunks().0.iter().map(|&bytes| Self::from_le_bytes(bytes)).collect()
    }
}

/// `len` values on a device. Dropping it gives the memory back to the device's pool, in the order of the stream.
pub struct Buffer<T: Element> {
    device: Device,
    bytes: Bytes,
    len: usize,
    /// The copy that fills it, if one does.
    arrival: Arrival,
    element: PhantomData<T>,
}

enum Bytes {
    // None while it is dropped, here and below.
    #[cfg(feature = "cuda")]
    Cuda(Option<Memory<cudarc::driver::CudaSlice<u8>>>),
    #[cfg(feature = "cuda")]
    Table(std::sync::Arc<cudarc::driver::CudaSlice<u8>>),
    #[cfg(feature = "fibers")]
    Host(Option<Memory<Units>>),
}

/// What a fresh buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// Whatever is there: for what the next kernel writes whole.
    Anything,
    /// NaN in every format of floats, so that a value nobody wrote is found out.
    Poison,
    /// Zeros.
    Zeros,
}

impl Fresh {
    fn byte(self) -> Option<u8> {
        match self {
            Self::Anything => None,
            Self::Poison => Some(0xff),
            Self::Zeros => Some(0),
        }
    }
}

impl<T: Element> Buffer<T> {
    /// `len` values of `fresh`.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room.
    pub fn fresh(device: &Device, len: usize, fresh: Fresh) -> Result<Self> {
        let size = len.max(1) * size_of::<T>();
        let bytes = match &*device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                // Every bit pattern is a value of T, so memory that nobody wrote holds values too.
                Bytes::Cuda(Some(context.allocate(size)?))
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(fibers) => Bytes::Host(Some(fibers.allocate(size)?)),
        };
        let mut buffer =
            Self { device: device.clone(), bytes, len, arrival: Arrival::HERE, element: PhantomData };
        if let Some(byte) = fresh.byte() {
            buffer.fill(0, len, byte)?;
        }
        Ok(buffer)
    }

    /// `len` zeros.
    ///
    /// # Errors
    /// As [`Buffer::fresh`].
    pub fn zeros(device: &Device, len: usize) -> Result<Self> {
        Self::fresh(device, len, Fresh::Zeros)
    }

    /// A copy of `values`.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room or the copy fails.
    pub fn from_slice(device: &Device, values: &[T]) -> Result<Self> {
        let mut buffer = Self::fresh(device, values.len(), Fresh::Anything)?;
        buffer.write(values)?;
        Ok(buffer)
    }

    /// Overwrites all values.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for another length, [`Error::CallDriver`] when the copy fails.
    pub fn write(&mut self, values: &[T]) -> Result<()> {
        Error::unless(values.len() == self.len, "values written to a buffer", self.len, values.len())?;
        self.write_part(0, values)
    }

    /// Overwrites as many values as there are, from `first` on.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for values outside, [`Error::CallDriver`] when the copy fails.
    pub(crate) fn write_part(&mut self, first: usize, values: &[T]) -> Result<()> {
        self.check_part(first, values.len())?;
        let (from, bytes) = (first * size_of::<T>(), bytes_of(values));
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.now().check_upload()?;
        match (&*self.device.backend, &mut self.bytes) {
            #[cfg(feature = "cuda")]
            (Backend::Cuda(context), Bytes::Cuda(Some(memory))) => {
                let mut part = memory.block.slice_mut(from..from + bytes.len());
                context.stream.memcpy_htod(bytes, &mut part).map_err(failed("copy to the device"))
            }
            #[cfg(feature = "fibers")]
            (_, Bytes::Host(Some(memory))) => {
                // SAFETY: the units hold at least as many bytes as `fresh` was asked for, and the part lies within.
                unsafe {
                    let to = memory.block.as_mut_ptr().cast::<u8>().add(from);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
                }
                Ok(())
            }
            // Of a buffer that is dropped, and of a table, which nobody writes.
            _ => Ok(()),
        }
    }

    /// A copy of all values; waits for what was given to the device before.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the copy or an earlier kernel failed.
    pub fn read(&self) -> Result<Vec<T>> {
        self.read_part(0, self.len)
    }

    /// A copy of `len` values from `first` on; waits for what was given to the device before.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for values outside, [`Error::CallDriver`] when the copy or an earlier kernel failed.
    pub fn read_part(&self, first: usize, len: usize) -> Result<Vec<T>> {
        self.check_part(first, len)?;
        // SAFETY: every bit pattern, zero too, is a value of T.
        let mut values = vec![unsafe { std::mem::zeroed::<T>() }; len];
        let size = len * size_of::<T>();
        if size == 0 {
            return Ok(values);
        }
        // SAFETY: the part lies in the buffer, the vector is as long, and any bytes are values of T.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size);
            self.device.read(self.address_of(first), bytes)?;
        }
        Ok(values)
    }

    /// Sets every byte of `len` values from `first` on.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for values outside, [`Error::CallDriver`] when the driver refuses.
    pub(crate) fn fill(&mut self, first: usize, len: usize, byte: u8) -> Result<()> {
        self.check_part(first, len)?;
        let size = len * size_of::<T>();
        if size == 0 {
            return Ok(());
        }
        match &*self.device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                context.enter()?;
                let stream = context.stream.cu_stream();
                // SAFETY: the part lies in the buffer, and any bytes are values of T.
                unsafe { cudarc::driver::result::memset_d8_async(self.address_of(first), byte, size, stream) }
                    .map_err(failed("fill memory"))
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(fibers) => {
                // SAFETY: the part lies in the buffer, which is host memory.
                unsafe { fibers.give(Work::Fill { at: self.address_of(first), byte, size }) }
            }
        }
    }

    /// Copies `len` values from `from` on of `source` to `to` on.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for values outside, [`Error::CallDriver`] when the copy fails.
    pub(crate) fn copy(&mut self, to: usize, source: &Self, from: usize, len: usize) -> Result<()> {
        self.check_part(to, len)?;
        source.check_part(from, len)?;
        self.copy_bytes(self.address_of(to), source.address_of(from), len * size_of::<T>())
    }

    /// Copies `len` values from `from` on to `to` on; the two parts must not overlap.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for parts outside or that overlap, [`Error::CallDriver`] when the copy fails.
    pub(crate) fn copy_within(&mut self, to: usize, from: usize, len: usize) -> Result<()> {
        self.check_part(to, len)?;
        self.check_part(from, len)?;
        Error::unless(to.abs_diff(from) >= len, "the distance of the parts", len, to.abs_diff(from))?;
        self.copy_bytes(self.address_of(to), self.address_of(from), len * size_of::<T>())
    }

    fn copy_bytes(&self, to: u64, from: u64, size: usize) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        match &*self.device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                context.enter()?;
                // SAFETY: the callers have checked that both parts lie in buffers of this device.
                unsafe {
                    cudarc::driver::result::memcpy_dtod_async(to, from, size, context.stream.cu_stream())
                }
                .map_err(failed("copy on the device"))
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(fibers) => {
                // SAFETY: as above; here they are host memory.
                unsafe { fibers.give(Work::Copy { to, from, size }) }
            }
        }
    }

    fn check_part(&self, first: usize, len: usize) -> Result<()> {
        let fits = first.checked_add(len).is_some_and(|end| end <= self.len);
        Error::unless(fits, "a part of a buffer", format!("within {}", self.len), format!("{len} at {first}"))
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

    /// The address of a value, for tables of addresses: whoever makes one keeps the buffer until the kernel that
    /// reads the table is launched.
    pub(crate) fn address_of(&self, first: usize) -> u64 {
        self.address() + (first * size_of::<T>()) as u64
    }

    /// The address as the device's kernels see it.
    pub(crate) fn address(&self) -> u64 {
        match (&*self.device.backend, &self.bytes) {
            #[cfg(feature = "cuda")]
            (Backend::Cuda(context), Bytes::Cuda(Some(memory))) => {
                use cudarc::driver::DevicePtr;
                memory.block.device_ptr(&context.stream).0
            }
            #[cfg(feature = "cuda")]
            (Backend::Cuda(context), Bytes::Table(slice)) => {
                use cudarc::driver::DevicePtr;
                slice.device_ptr(&context.stream).0
            }
            #[cfg(feature = "fibers")]
            (_, Bytes::Host(Some(memory))) => memory.block.as_ptr() as u64,
            // Of a buffer that is dropped.
            _ => 0,
        }
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        match (&*self.device.backend, &mut self.bytes) {
            #[cfg(feature = "cuda")]
            (Backend::Cuda(context), Bytes::Cuda(memory)) => {
                let Some(memory) = memory.take() else { return };
                match context.wait_for_copy(self.arrival) {
                    Ok(()) => context.give_back(memory),
                    // Memory that a copy may still write is given to nobody.
                    Err(_) => std::mem::forget(memory),
                }
            }
            #[cfg(feature = "fibers")]
            (Backend::Fibers(fibers), Bytes::Host(memory)) => {
                if let Some(memory) = memory.take() {
                    // As above: nobody else gets it before the copy that fills it is done.
                    fibers.wait_for_copy(self.arrival);
                    fibers.give_back(memory);
                }
            }
            #[cfg(feature = "cuda")]
            _ => {}
        }
    }
}

/// Values on a device that nobody writes. On a GPU the same values share one small copy, which stays there.
pub(crate) struct Table<T: Element>(Buffer<T>);

impl<T: Element> Table<T> {
    /// A copy of `values`.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room or the copy fails.
    pub(crate) fn new(device: &Device, values: &[T]) -> Result<Self> {
        match &*device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                let bytes = Bytes::Table(context.table(bytes_of(values))?);
                let (device, len) = (device.clone(), values.len());
                Ok(Self(Buffer { device, bytes, len, arrival: Arrival::HERE, element: PhantomData }))
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => Buffer::from_slice(device, values).map(Self),
        }
    }
}

impl<T: Element> std::ops::Deref for Table<T> {
    type Target = Buffer<T>;

    fn deref(&self) -> &Buffer<T> {
        &self.0
    }
}

fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: the slice's memory is `len * size_of::<T>()` initialised bytes, and T has no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}
