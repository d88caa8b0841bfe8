//! Bytes on their way to a device, beside what it computes: of tuples from the host, of layers from another device.

#[cfg(feature = "cuda")]
use std::marker::PhantomData;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::PoisonError;

use bytes::Bytes as HostBytes;
#[cfg(feature = "cuda")]
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result, sys};

#[cfg(feature = "cuda")]
use super::Bytes;
#[cfg(feature = "fibers")]
use super::Fresh;
use super::{Buffer, Element};
#[cfg(feature = "cuda")]
use crate::arena::Memory;
use crate::device::{Arrival, Backend, Kept, Mark};
#[cfg(feature = "cuda")]
use crate::reuse::Spare;
#[cfg(feature = "cuda")]
use crate::sys::{Context, failed};
#[cfg(feature = "fibers")]
use crate::sys::{Fibers, HostCopy};
use crate::{Device, Error, Result};

/// Host bytes and where they go in the device's memory.
pub(crate) type Parts = Vec<(usize, HostBytes)>;

/// Copies host bytes to `size` bytes of fresh memory, beside what the device computes meanwhile. Whoever uses the memory
/// lets the device wait for the arrival first; the host waits for nothing, if the bytes are pinned.
///
/// # Errors
/// [`Error::CheckShape`] for a part outside, [`Error::CallDriver`] when the device has no room or a copy fails.
pub(crate) fn upload(device: &Device, size: usize, parts: Parts) -> Result<(Buffer<u8>, Arrival)> {
    for (at, bytes) in &parts {
        let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= size);
        Error::unless(fits, "a part", format!("within {size}"), format!("{} at {at}", bytes.len()))?;
    }
    let copies = runs(&parts);
    let kept: Kept = Arc::new(parts);
    match &*device.backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda(context) => {
            let copy = |start: u64, stream: &CudaStream| {
                copies.into_iter().try_for_each(|Copied { at, from, size }| {
                    // SAFETY: the parts were found to lie in the memory, and their bytes are kept until the copy is done.
                    unsafe {
                        let from = from as *const std::ffi::c_void;
                        sys::cuMemcpyHtoDAsync_v2(start + at as u64, from, size, stream.cu_stream())
                    }
                    .result()
                    .map_err(failed("copy to the device"))
                })
            };
            let (slice, arrival) = send(context, size, (copy, kept))?;
            Ok(arriving(device, (slice, size), arrival))
        }
        #[cfg(feature = "fibers")]
        // SAFETY: the parts were found to lie in the memory, and are kept.
        Backend::Fibers(fibers) => unsafe { send_later((device, fibers), size, (copies, kept)) },
    }
}

/// Bytes of a buffer of a device that are to be on another one.
pub(crate) struct Sent<'a> {
    device: &'a Device,
    from: u64,
    size: usize,
}

impl<T: Element> Buffer<T> {
    /// All of it, for [`fetch`].
    pub(crate) fn sent(&self) -> Sent<'_> {
        Sent { device: &self.device, from: self.address(), size: self.len * size_of::<T>() }
    }
}

/// Copies `parts` of another device, one behind the other, to fresh memory of this one, when that device has passed `ready`
/// and beside what both compute. Whoever uses the memory lets the device wait for the arrival first; the host waits for
/// nothing. `kept` owns what is read, and goes when it was.
///
/// # Errors
/// [`Error::CallDriver`] when the device has no room or a copy fails, [`Error::NoDevice`] for devices of two kinds.
pub(crate) fn fetch(
    device: &Device,
    (parts, ready): (&[Sent<'_>], &Mark),
    kept: Kept,
) -> Result<(Buffer<u8>, Arrival)> {
    let mut size = 0;
    let place = |part: &Sent<'_>| {
        size += part.size;
        Copied { at: size - part.size, from: part.from, size: part.size }
    };
    let copies: Vec<Copied> = parts.iter().map(place).collect();
    match &*device.backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda(context) => {
            let here = context.stream.context().cu_ctx();
            let copy = |start: u64, stream: &CudaStream| {
                if let Some(event) = ready.event() {
                    stream.wait(event).map_err(failed("wait for an event"))?;
                }
                let parts = copies.into_iter().zip(parts).filter(|(copied, _)| copied.size > 0);
                for (Copied { at, from, size }, Sent { device, .. }) in parts {
                    let there = context_of(device)?.stream.context().cu_ctx();
                    let to = start + at as u64;
                    // SAFETY: the memory is as large as all parts, each lies in a buffer that is kept until the copy is
                    // done, and the stream is of the current context.
                    unsafe { result::memcpy_peer_async(here, to, there, from, size, stream.cu_stream()) }
                        .map_err(failed("copy from another device"))?;
                }
                Ok(())
            };
            let (slice, arrival) = send(context, size, (copy, kept))?;
            Ok(arriving(device, (slice, size), arrival))
        }
        #[cfg(feature = "fibers")]
        Backend::Fibers(fibers) => {
            let _ = ready;
            let is_host = parts.iter().all(|part| matches!(&*part.device.backend, Backend::Fibers(_)));
            if !is_host {
                return Err(Error::no_device("a GPU reads no memory of fibers"));
            }
            // SAFETY: the memory is as large as all parts, and each lies in a buffer that is kept.
            unsafe { send_later((device, fibers), size, (copies, kept)) }
        }
    }
}

/// Bytes to copy, and where to: so far behind the beginning of the memory.
struct Copied {
    at: usize,
    from: u64,
    size: usize,
}

#[cfg(feature = "cuda")]
fn context_of(device: &Device) -> Result<&Context> {
    match &*device.backend {
        Backend::Cuda(context) => Ok(context),
        #[cfg(feature = "fibers")]
        Backend::Fibers(_) => Err(Error::no_device("a GPU reads no memory of fibers")),
    }
}

#[cfg(feature = "cuda")]
fn arriving(
    device: &Device,
    (slice, len): (CudaSlice<u8>, usize),
    arrival: Arrival,
) -> (Buffer<u8>, Arrival) {
    let bytes = Bytes::Cuda(Some(Memory::shared(slice)));
    (Buffer { device: device.clone(), bytes, len, arrival, element: PhantomData }, arrival)
}

/// Lets `copy` give copies to the stream of copies, to `size` bytes of fresh memory from the address on that it gets. What
/// is kept goes when they are done.
#[cfg(feature = "cuda")]
fn send(
    context: &Context,
    size: usize,
    (copy, kept): (impl FnOnce(u64, &CudaStream) -> Result<()>, Kept),
) -> Result<(CudaSlice<u8>, Arrival)> {
    context.enter()?;
    // A panic while it was held leaves it whole.
    let mut copies = context.copies.lock().unwrap_or_else(PoisonError::into_inner);
    let stream = Arc::clone(&copies.stream);
    // SAFETY: any bytes are values of u8, so memory that nobody wrote holds values too.
    let fresh = unsafe { stream.alloc::<u8>(Spare::rounded(size.max(1))) }.map_err(failed("allocate"))?;
    let len = fresh.len();
    // SAFETY: from now on it belongs to the kernels' stream, which waits for the arrival before it is given back.
    let slice = unsafe { context.stream.upgrade_device_ptr::<u8>(fresh.leak(), len) };
    let start = slice.device_ptr(&context.stream).0;
    match copy(start, &stream).and_then(|()| copies.end(Arc::clone(&kept))) {
        Ok(number) => Ok((slice, Arrival(number))),
        Err(error) => {
            // Neither memory nor what is read goes before the copies that were given are done.
            stream.synchronize().map_err(failed("finish the copies"))?;
            Err(error)
        }
    }
}

/// The same with fibers.
///
/// # Safety
/// What is copied lies in host memory that `kept` owns and nobody writes, and goes to places within `size` bytes.
#[cfg(feature = "fibers")]
unsafe fn send_later(
    (device, fibers): (&Device, &Fibers),
    size: usize,
    (copies, kept): (Vec<Copied>, Kept),
) -> Result<(Buffer<u8>, Arrival)> {
    let mut buffer = Buffer::<u8>::fresh(device, size, Fresh::Poison)?;
    let to = |Copied { at, from, size }| HostCopy { to: buffer.address_of(at), from, size };
    // SAFETY: the caller's; the buffer waits before it goes.
    let arrival = unsafe { fibers.copy_later(copies.into_iter().map(to).collect(), kept) };
    buffer.arrival = arrival;
    Ok((buffer, arrival))
}

/// The parts, those as one that follow each other on both sides: every copy costs its start. Pieces of two chunks of pinned
/// memory never touch.
fn runs(parts: &Parts) -> Vec<Copied> {
    let mut runs: Vec<Copied> = Vec::with_capacity(parts.len());
    for (at, bytes) in parts.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        let from = bytes.as_ptr() as u64;
        match runs.last_mut() {
            Some(run) if run.at + run.size == *at && run.from + run.size as u64 == from => {
                run.size += bytes.len();
            }
            _ => runs.push(Copied { at: *at, from, size: bytes.len() }),
        }
    }
    runs
}
