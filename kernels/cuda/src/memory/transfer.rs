//! Bytes of tuples on their way to the host.

use std::marker::PhantomData;

use bytes::Bytes as HostBytes;
#[cfg(feature = "cuda")]
use cudarc::driver::result;

use super::pinned::{GRAIN, Pinned};
use super::{Buffer, Bytes, Element};
use crate::device::Backend;
#[cfg(feature = "cuda")]
use crate::sys::failed;
use crate::{Device, Result};

/// Bytes of a buffer that are to land on the host, behind some that are there already.
pub(crate) struct Landing<'a> {
    front: Vec<u8>,
    from: u64,
    len: usize,
    borrowed: PhantomData<&'a ()>,
}

impl<T: Element> Buffer<T> {
    /// `len` values from `first` on, to land behind `front`.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for values outside.
    pub(crate) fn landing(&self, front: Vec<u8>, first: usize, len: usize) -> Result<Landing<'_>> {
        self.check_part(first, len)?;
        Ok(Landing { front, from: self.address_of(first), len: len * size_of::<T>(), borrowed: PhantomData })
    }
}

impl<T: Element> Buffer<T> {
    /// The same bytes.
    pub(crate) fn into_bytes(self) -> Buffer<u8> {
        let len = self.len * size_of::<T>();
        self.retyped(len)
    }

    fn retyped<U: Element>(mut self, len: usize) -> Buffer<U> {
        let none = match &self.bytes {
            #[cfg(feature = "cuda")]
            Bytes::Cuda(_) | Bytes::Table(_) => Bytes::Cuda(None),
            #[cfg(feature = "fibers")]
            Bytes::Host(_) => Bytes::Host(None),
        };
        let bytes = std::mem::replace(&mut self.bytes, none);
        Buffer { device: self.device.clone(), bytes, len, arrival: self.arrival, element: PhantomData }
    }
}

impl Buffer<u8> {
    /// The same bytes as values of another type; what is left over at the end is out of reach.
    pub(crate) fn cast<T: Element>(self) -> Buffer<T> {
        let len = self.len / size_of::<T>();
        self.retyped(len)
    }
}

/// Brings the parts of a layer to the host, one behind the other, and waits for them once: into pinned memory while there
/// is room, else into plain memory.
///
/// # Errors
/// [`Error::CallDriver`] when a copy or an earlier kernel failed.
pub(crate) fn land(
    device: &Device,
    pinned: Option<&Pinned>,
    parts: Vec<Landing<'_>>,
) -> Result<Vec<HostBytes>> {
    // The values of the first part, which alone has a front, begin where those of a piece would.
    let first = parts.first().map_or(0, |part| part.front.len());
    let pad = first.next_multiple_of(GRAIN) - first;
    let lens: Vec<usize> = parts.iter().map(|part| part.front.len() + part.len).collect();
    let size = pad + lens.iter().sum::<usize>();
    let all = match pinned.and_then(|pinned| pinned.take(size)) {
        Some(mut piece) => {
            // SAFETY: nobody reads the piece or gives it back before the wait.
            unsafe { fill(parts, &mut piece.bytes_mut()[pad..], |from, to| device.read_pinned(from, to)) }?;
            device.wait()?;
            HostBytes::from_owner(piece)
        }
        None => {
            let mut bytes = vec![0; size];
            // SAFETY: each of these waits.
            unsafe { fill(parts, &mut bytes[pad..], |from, to| device.read(from, to)) }?;
            bytes.into()
        }
    };
    let mut end = pad;
    let slices = lens.into_iter().map(|len| {
        end += len;
        all.slice(end - len..end)
    });
    Ok(slices.collect())
}

/// Writes fronts to `to`, and lets `read` bring what lands behind each.
///
/// # Safety
/// `read` gets addresses of parts of buffers, and may need whoever owns `to` to leave it alone until the next wait.
unsafe fn fill(
    parts: Vec<Landing<'_>>,
    to: &mut [u8],
    read: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut rest = to;
    for Landing { front, from, len, .. } in parts {
        let (part, behind) = rest.split_at_mut(front.len() + len);
        let (start, values) = part.split_at_mut(front.len());
        start.copy_from_slice(&front);
        read(from, values)?;
        rest = behind;
    }
    Ok(())
}

impl Device {
    /// Copies from the device and waits.
    ///
    /// # Safety
    /// `from` is the address of as many bytes of a buffer of this device.
    pub(super) unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.now().check_landing()?;
        match &*self.backend {
            #[cfg(feature = "cuda")]
            // SAFETY: the caller's.
            Backend::Cuda(context) => unsafe { context.read(from, to) },
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => {
                // SAFETY: the caller's; buffers of fibers are host memory.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
                Ok(())
            }
        }
    }

    /// Copies from the device to pinned memory, which holds the bytes after the next wait.
    ///
    /// # Safety
    /// As [`Device::read`]; and nobody reads, writes or gives back `to` before that.
    unsafe fn read_pinned(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.now().check_landing()?;
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                context.enter()?;
                // SAFETY: the caller's.
                unsafe { result::memcpy_dtoh_async(to, from, context.stream.cu_stream()) }
                    .map_err(failed("copy from the device"))
            }
            #[cfg(feature = "fibers")]
            // SAFETY: the caller's.
            Backend::Fibers(_) => unsafe { self.read(from, to) },
        }
    }
}
