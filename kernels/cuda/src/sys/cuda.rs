//! The driver with the kernels' machine code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUdevice_attribute, CUfunction_attribute_enum, CUmemPool_attribute, CUmemoryPool, is_culib_present,
};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaModule, CudaSlice, CudaStream, DriverError, result,
};
use cudarc::nvrtc::Ptx;
use hypic_kernels::op::DeviceMemory;

use super::products::{Product, Products};
use crate::arena::{Arena, Now};
use crate::copies::Copies;
use crate::device::Arrival;
use crate::reuse::{Spare, Tables};
use crate::{Error, Result};

pub(crate) struct Module {
    hopper: bool,
    kernels: &'static [&'static str],
    image: &'static [u8],
}
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Bytes that land at once.
const LANDING: usize = 32 << 20;

/// Pinned memory, as much as was needed at once so far.
#[derive(Default)]
struct Landing {
    bytes: Option<std::ptr::NonNull<u8>>,
    len: usize,
}

// SAFETY: it is plain memory of the process; a lock lets one thread at a time use it.
unsafe impl Send for Landing {}

impl Landing {
    fn room(&mut self, len: usize) -> std::result::Result<&mut [u8], DriverError> {
        if self.len < len {
            self.free();
            // SAFETY: no flags, and the memory is zeroed before anybody sees it.
            let bytes = unsafe { result::malloc_host(len, 0)? };
            self.bytes = std::ptr::NonNull::new(bytes.cast());
            if let Some(bytes) = self.bytes {
                // SAFETY: as many bytes were just allocated.
                unsafe { bytes.as_ptr().write_bytes(0, len) };
                self.len = len;
            }
        }
        let bytes = self.bytes.unwrap_or(std::ptr::NonNull::dangling());
        // SAFETY: it holds `self.len` initialised bytes, and is borrowed with `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr(), len.min(self.len)) })
    }

    fn free(&mut self) {
        self.len = 0;
        if let Some(bytes) = self.bytes.take() {
            // SAFETY: it was allocated by `malloc_host`, and nobody has it any more. A failure leaks it.
            let _ = unsafe { result::free_host(bytes.as_ptr().cast()) };
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.free();
    }
}

/// Launches that were recorded.
pub(crate) struct RecordedGraph(pub(crate) CudaGraph);

// SAFETY: it belongs to no thread, and whoever launches it has it to himself.
unsafe impl Send for RecordedGraph {}

// Above this a kernel asks for its dynamic shared memory: with what it has of its own, less than the 48 KB that need no asking.
const SHARED_WITHOUT_ASKING: u32 = 32 << 10;

/// A kernel, and the dynamic shared memory that it may have.
#[derive(Clone)]
struct Function {
    function: CudaFunction,
    shared: u32,
}

/// One device with one stream and all kernels loaded.
pub(crate) struct Context {
    /// Where copies to the host land first. Given back before the context is.
    landing: Mutex<Landing>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: usize,
    modules: Vec<(&'static [&'static str], Arc<CudaModule>)>,
    functions: Mutex<HashMap<String, Function>>,
    pub(crate) spare: Mutex<Spare>,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) arena: Arena<CudaSlice<u8>>,
    /// While launches are recorded, memory and tables are of the recording and not of the stream.
    pub(crate) now: Now,
    /// The stream on which tuples arrive.
    pub(crate) copies: Mutex<Copies>,
    /// None until the first product.
    products: Mutex<Option<Products>>,
}

impl Context {
    pub(crate) fn open(ordinal: usize) -> Result<Self> {
        // SAFETY: it only tries to open the driver's library, which has no preconditions.
        if !unsafe { is_culib_present() } {
            return Err(Error::no_device(format!(
                "cuda:{ordinal} needs NVIDIA's driver, whose library is missing"
            )));
        }
        if let Some(count) =
            CudaContext::device_count().ok().filter(|count| ordinal as i64 >= i64::from(*count))
        {
            return Err(Error::no_device(format!("the driver has {count}, of which none is cuda:{ordinal}")));
        }
        let context = CudaContext::new(ordinal).map_err(failed("open the device"))?;
        // SAFETY: there is one stream of kernels per context here, so its order is the order of all uses of a
        // buffer; what arrives on the stream of copies is waited for by hand.
        unsafe { context.disable_event_tracking() };
        let capability = context.compute_capability().map_err(failed("read the compute capability"))?;
        let count = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = context.attribute(count).map_err(failed("count the multiprocessors"))?;
        keep_freed_memory(ordinal).map_err(failed("set up the memory pool"))?;
        let stream = context.new_stream().map_err(failed("make a stream"))?;
        let copies = context.new_stream().map_err(failed("make a stream"))?;
        let copies = Mutex::new(Copies::new(copies));
        let modules = MODULES
            .iter()
            .filter(|module| !module.hopper || capability == (9, 0))
            .map(|module| {
                let loaded = context.load_module(Ptx::from_binary(module.image.to_vec()))?;
                Ok((module.kernels, loaded))
            })
            .collect::<std::result::Result<_, _>>()
            .map_err(failed("load the kernels"))?;
        Ok(Self {
            stream,
            capability,
            multiprocessors: count as usize,
            modules,
            functions: Mutex::default(),
            spare: Mutex::default(),
            tables: Mutex::default(),
            arena: Arena::default(),
            now: Now::default(),
            landing: Mutex::default(),
            copies,
            products: Mutex::default(),
        })
    }

    /// Memory that nobody had.
    pub(crate) fn fresh(&self, size: usize) -> Result<CudaSlice<u8>> {
        // SAFETY: any bytes are values of u8, so memory that nobody wrote holds values too.
        unsafe { self.stream.alloc(size) }.map_err(failed("allocate"))
    }

    /// Bytes of the pool that all memory comes from.
    pub(crate) fn memory(&self) -> std::result::Result<DeviceMemory, DriverError> {
        let pool = pool_of(self.stream.context().ordinal())?;
        let read = |what| {
            let mut bytes = 0_u64;
            // SAFETY: the pool is a device's own, and these attributes are numbers of 64 bits, which the driver writes.
            unsafe { result::mem_pool::get_attribute(pool, what, std::ptr::from_mut(&mut bytes).cast()) }?;
            Ok(bytes)
        };
        Ok(DeviceMemory {
            used: read(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            held: read(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        })
    }

    /// Lets all kernels from now on wait for what arrives.
    pub(crate) fn wait_for_copy(&self, arrival: Arrival) -> Result<()> {
        if arrival == Arrival::HERE {
            return Ok(());
        }
        self.enter()?;
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).wait_on(&self.stream, arrival.0)
    }

    /// Copies from the device and waits. By way of pinned memory: the driver's own way to memory that can move is
    /// ten times slower for logits.
    ///
    /// # Safety
    /// `from` is the address of as many bytes of a buffer of this context.
    pub(crate) unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.enter()?;
        // A panic while it was held leaves it whole.
        let mut landing = self.landing.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, part) in to.chunks_mut(LANDING).enumerate() {
            let landed = landing.room(part.len()).map_err(failed("pin memory"))?;
            let stream = self.stream.cu_stream();
            // SAFETY: the caller's for `from`; the landing is as long, and nobody reads it before the wait.
            unsafe { result::memcpy_dtoh_async(landed, from + (i * LANDING) as u64, stream) }
                .map_err(failed("copy from the device"))?;
            self.stream.synchronize().map_err(failed("finish the stream"))?;
            part.copy_from_slice(landed);
        }
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).forget_done();
        Ok(())
    }

    /// Makes this the context of the calling thread, as calls of the driver need it.
    pub(crate) fn enter(&self) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(failed("enter the context"))
    }

    /// `y = x W^T` by cublasLt, on this stream.
    ///
    /// # Safety
    /// The addresses are of buffers of this context that hold as many values as the product says.
    pub(crate) unsafe fn multiply(&self, product: Product, x: u64, weight: u64, y: u64) -> Result<()> {
        self.enter()?;
        // A panic while it was held leaves it whole: plans go in complete.
        let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        let products = match &mut *products {
            Some(products) => products,
            empty => empty.insert(Products::open(&self.stream)?),
        };
        // SAFETY: the caller's.
        unsafe { products.run(&self.stream, product, [x, weight, y]) }
    }

    /// The kernel, which may have so many bytes of dynamic shared memory: the most that any of its launches asked for so far.
    pub(crate) fn function(&self, kernel: &str, shared: u32) -> Result<CudaFunction> {
        // A panic while the map was held leaves it whole: entries go in complete.
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = functions.get(kernel).cloned();
        if let Some(Function { function, shared: most }) = &known
            && *most >= shared
        {
            return Ok(function.clone());
        }
        let function = match known {
            Some(known) => known.function,
            None => {
                let found = self.modules.iter().find(|(kernels, _)| kernels.contains(&kernel));
                let (_, module) = found.ok_or_else(|| Error::FindKernel { kernel: kernel.to_owned() })?;
                module.load_function(kernel).map_err(failed("find a kernel"))?
            }
        };
        if shared > SHARED_WITHOUT_ASKING {
            let size = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(size, shared as i32).map_err(failed("set a kernel's shared memory"))?;
        }
        let shared = shared.max(SHARED_WITHOUT_ASKING);
        functions.insert(kernel.to_owned(), Function { function: function.clone(), shared });
        Ok(function)
    }
}

/// The pool of a device, from which all of its memory comes.
pub(super) fn pool_of(ordinal: usize) -> std::result::Result<CUmemoryPool, DriverError> {
    let device = result::device::get(ordinal as i32)?;
    // SAFETY: the device exists.
    unsafe { result::device::get_default_mem_pool(device) }
}

/// Memory that is freed stays in the pool of the device: by default every wait would give it back to the
/// driver, and the next step would pay for it again. And no stream waits for another one for the sake of its memory:
/// copies would stop at whatever kernels are before them.
fn keep_freed_memory(ordinal: usize) -> std::result::Result<(), DriverError> {
    let pool = pool_of(ordinal)?;
    let mut all = u64::MAX;
    let mut never = 0_i32;
    // SAFETY: the pool is a device's own, the attributes are a number of 64 and one of 32 bits, and the driver only reads
    // them.
    unsafe {
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, threshold, std::ptr::from_mut(&mut all).cast())?;
        let waits = CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
        result::mem_pool::set_attribute(pool, waits, std::ptr::from_mut(&mut never).cast())
    }
}

pub(crate) fn failed(action: &'static str) -> impl Fn(DriverError) -> Error {
    move |source| Error::CallDriver { action, source: source.into() }
}
