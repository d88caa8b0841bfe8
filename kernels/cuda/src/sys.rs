//! Entry points: the driver with the kernels' machine code, and the kernels as host code.

#[cfg(feature = "cuda")]
pub(crate) use cuda::{Context, RecordedGraph};

#[cfg(feature = "cuda")]
mod peers;

#[cfg(feature = "cuda")]
mod cuda {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::sync::{Arc, Mutex, PoisonError};

    use cudarc::driver::sys::{
        CUdevice_attribute, CUfunction_attribute_enum, CUmemPool_attribute, is_culib_present,
    };
    use cudarc::driver::{
        CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaModule, CudaSlice, CudaStream, DriverError,
        result,
    };
    use cudarc::nvrtc::Ptx;

    use super::products::{Product, Products};
    use crate::copies::Copies;
    use crate::device::Arrival;
    use crate::reuse::{Arena, Spare, Tables};
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

    // Above this a kernel must ask for its dynamic shared memory.
    const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

    /// One device with one stream and all kernels loaded.
    pub(crate) struct Context {
        /// Where copies to the host land first. Given back before the context is.
        landing: Mutex<Landing>,
        pub(crate) stream: Arc<CudaStream>,
        pub(crate) capability: (i32, i32),
        pub(crate) multiprocessors: usize,
        modules: Vec<(&'static [&'static str], Arc<CudaModule>)>,
        functions: Mutex<HashMap<String, CudaFunction>>,
        pub(crate) spare: Mutex<Spare>,
        pub(crate) tables: Mutex<Tables>,
        pub(crate) arena: Mutex<Arena>,
        /// While a step runs that is or may be recorded, memory comes from the arena.
        pub(crate) is_step: AtomicBool,
        /// Weights and pools that are gone: what was recorded before may name their places.
        pub(crate) gone: AtomicU64,
        /// While launches are recorded, memory and tables are of the recording and not of the stream.
        pub(crate) is_recording: AtomicBool,
        /// The stream on which tuples arrive.
        pub(crate) copies: Mutex<Copies>,
        /// None until the first product.
        products: Mutex<Option<Products>>,
        /// What peers wait for.
        pub(super) mark: CudaEvent,
    }

    impl Context {
        pub(crate) fn open(ordinal: usize) -> Result<Self> {
            // SAFETY: it only tries to open the driver's library, which has no preconditions.
            if !unsafe { is_culib_present() } {
                return Err(Error::NoDevice);
            }
            if CudaContext::device_count().is_ok_and(|count| ordinal as i64 >= i64::from(count)) {
                return Err(Error::NoDevice);
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
            let mark = context.new_event(None).map_err(failed("make an event"))?;
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
                arena: Mutex::default(),
                is_step: AtomicBool::new(false),
                gone: AtomicU64::new(0),
                is_recording: AtomicBool::new(false),
                landing: Mutex::default(),
                copies,
                products: Mutex::default(),
                mark,
            })
        }

        /// Memory that nobody had.
        pub(crate) fn fresh(&self, size: usize) -> Result<CudaSlice<u8>> {
            // SAFETY: any bytes are values of u8, so memory that nobody wrote holds values too.
            unsafe { self.stream.alloc(size) }.map_err(failed("allocate"))
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

        /// Copies `size` bytes from the device of `other`, in the order of this stream.
        ///
        /// # Safety
        /// `from` is the address of as many bytes of a buffer of `other`, `to` of one of this context; the former is
        /// kept until the copy is done.
        pub(crate) unsafe fn copy_from(&self, other: &Self, from: u64, to: u64, size: usize) -> Result<()> {
            self.enter()?;
            let (here, there) = (self.stream.context().cu_ctx(), other.stream.context().cu_ctx());
            // SAFETY: the caller's.
            unsafe { result::memcpy_peer_async(here, to, there, from, size, self.stream.cu_stream()) }
                .map_err(failed("copy from another device"))
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

        pub(crate) fn function(&self, kernel: &str, shared: u32) -> Result<CudaFunction> {
            // A panic while the map was held leaves it whole: entries go in complete.
            let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(function) = functions.get(kernel) {
                return Ok(function.clone());
            }
            let (_, module) = self
                .modules
                .iter()
                .find(|(kernels, _)| kernels.contains(&kernel))
                .ok_or_else(|| Error::FindKernel { kernel: kernel.to_owned() })?;
            let function = module.load_function(kernel).map_err(failed("find a kernel"))?;
            if shared > SHARED_WITHOUT_ASKING {
                let size = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                function
                    .set_attribute(size, shared as i32)
                    .map_err(failed("set a kernel's shared memory"))?;
            }
            functions.insert(kernel.to_owned(), function.clone());
            Ok(function)
        }
    }

    /// Memory that is freed stays in the pool of the device: by default every wait would give it back to the
    /// driver, and the next step would pay for it again. And no stream waits for another one for the sake of its memory:
    /// copies would stop at whatever kernels are before them.
    fn keep_freed_memory(ordinal: usize) -> std::result::Result<(), DriverError> {
        let device = result::device::get(ordinal as i32)?;
        let mut all = u64::MAX;
        let mut never = 0_i32;
        // SAFETY: the device exists, the attributes are a number of 64 and one of 32 bits, and the driver only reads them.
        unsafe {
            let pool = result::device::get_default_mem_pool(device)?;
            let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, threshold, std::ptr::from_mut(&mut all).cast())?;
            let waits = CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
            result::mem_pool::set_attribute(pool, waits, std::ptr::from_mut(&mut never).cast())
        }
    }

    pub(crate) fn failed(action: &'static str) -> impl Fn(DriverError) -> Error {
        move |source| Error::CallDriver { action, source: source.into() }
    }
}
#[cfg(feature = "cuda")]
pub(crate) use cuda::failed;

#[cfg(feature = "cuda")]
pub(crate) use products::Product;

/// Products of weights by cublasLt. What the library needs to know of a product is asked once and kept.
#[cfg(feature = "cuda")]
mod products {
    use std::collections::HashMap;
    use std::ffi::c_void;
    use std::ptr::from_ref;
    use std::sync::Arc;

    use cudarc::cublaslt::result::{self, CublasError};
    use cudarc::cublaslt::sys::{
        cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
        cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t,
        cudaDataType, is_culib_present,
    };
    use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
    use hypic_domain::tuple::Dtype;

    use super::failed;
    use crate::{Error, Result};

    /// What cublasLt recommends for Hopper.
    const WORKSPACE: usize = 32 << 20;
    /// Plans that are kept: the shapes of a model times the row counts of its steps. Beyond it all are dropped.
    const MOST_PLANS: usize = 8192;

    /// `y [rows, outer] = x [rows, inner] weight [outer, inner]^T`, row-major, sums in fp32.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    pub(crate) struct Product {
        pub(crate) rows: usize,
        pub(crate) inner: usize,
        pub(crate) outer: usize,
        pub(crate) operand: Dtype,
        pub(crate) result: Dtype,
    }

    pub(crate) struct Products {
        handle: cublasLtHandle_t,
        workspace: CudaSlice<u8>,
        plans: HashMap<Product, Plan>,
    }

    // SAFETY: the handle and the descriptors belong to no thread; a lock lets one thread at a time use them.
    unsafe impl Send for Products {}

    struct Plan {
        operation: cublasLtMatmulDesc_t,
        layouts: [cublasLtMatrixLayout_t; 3],
        algorithm: cublasLtMatmulAlgo_t,
    }

    impl Products {
        pub(crate) fn open(stream: &Arc<CudaStream>) -> Result<Self> {
            // SAFETY: it only tries to open the library, which has no preconditions.
            if !unsafe { is_culib_present() } {
                return Err(Error::FindLibrary { library: "libcublasLt.so.13" });
            }
            // SAFETY: the library never reads its workspace before it has written it.
            let workspace = unsafe { stream.alloc(WORKSPACE) }.map_err(failed("allocate"))?;
            let handle = result::create_handle().map_err(refused("start cublasLt"))?;
            Ok(Self { handle, workspace, plans: HashMap::new() })
        }

        /// # Safety
        /// `[x, weight, y]` are addresses of as many values as the product says, on the stream's device.
        pub(crate) unsafe fn run(
            &mut self,
            stream: &Arc<CudaStream>,
            product: Product,
            [x, weight, y]: [u64; 3],
        ) -> Result<()> {
            if self.plans.len() >= MOST_PLANS {
                self.plans.clear();
            }
            if !self.plans.contains_key(&product) {
                let plan = Plan::new(self.handle, product).map_err(refused("plan a product"))?;
                self.plans.insert(product, plan);
            }
            let Some(plan) = self.plans.get(&product) else { return Ok(()) };
            let (one, zero) = (1.0_f32, 0.0_f32);
            let [a, b, c] = plan.layouts;
            // SAFETY: the descriptors live in the plan, the addresses are the caller's, and the workspace is used
            // by this stream alone.
            unsafe {
                result::matmul(
                    self.handle,
                    plan.operation,
                    from_ref(&one).cast(),
                    from_ref(&zero).cast(),
                    weight as *const c_void,
                    a,
                    x as *const c_void,
                    b,
                    y as *const c_void,
                    c,
                    y as *mut c_void,
                    c,
                    &raw const plan.algorithm,
                    self.workspace.device_ptr(stream).0 as *mut c_void,
                    WORKSPACE,
                    stream.cu_stream().cast(),
                )
            }
            .map_err(refused("multiply"))
        }
    }

    impl Drop for Products {
        fn drop(&mut self) {
            self.plans.clear();
            // SAFETY: it is the handle's only owner. What a failure at the end would mean, nobody can act on.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }

    impl Plan {
        /// cublasLt counts in columns: `Y^T [outer, rows] = W [inner, outer]^T X^T [inner, rows]`.
        fn new(handle: cublasLtHandle_t, product: Product) -> std::result::Result<Self, CublasError> {
            let Product { rows, inner, outer, operand, result: product_result } = product;
            let scale = cudaDataType::CUDA_R_32F;
            let layout = |dtype, rows: usize, columns: usize| {
                result::create_matrix_layout(data_type(dtype), rows as u64, columns as u64, rows as i64)
            };
            let operation = result::create_matmul_desc(cublasComputeType_t::CUBLAS_COMPUTE_32F, scale)?;
            let layouts = [
                layout(operand, inner, outer)?,
                layout(operand, inner, rows)?,
                layout(product_result, outer, rows)?,
            ];
            let preference = result::create_matmul_pref()?;
            let (transposed, workspace) = (1_i32, WORKSPACE);
            // SAFETY: all descriptors were just made, and the attributes have the sizes that the library asks for.
            let found = unsafe {
                let attribute = cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
                let value = from_ref(&transposed).cast();
                result::set_matmul_desc_attribute(operation, attribute, value, size_of::<i32>())?;
                let attribute =
                    cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
                let value = from_ref(&workspace).cast();
                result::set_matmul_pref_attribute(preference, attribute, value, size_of::<usize>())?;
                let [a, b, c] = layouts;
                let found = result::get_matmul_algo_heuristic(handle, operation, a, b, c, c, preference);
                result::destroy_matmul_pref(preference)?;
                found?
            };
            Ok(Self { operation, layouts, algorithm: found.algo })
        }
    }

    impl Drop for Plan {
        fn drop(&mut self) {
            // SAFETY: the plan is their only owner. What a failure at the end would mean, nobody can act on.
            unsafe {
                let _ = result::destroy_matmul_desc(self.operation);
                for layout in self.layouts {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
        }
    }

    fn data_type(dtype: Dtype) -> cudaDataType {
        match dtype {
            Dtype::Bf16 => cudaDataType::CUDA_R_16BF,
            Dtype::F16 => cudaDataType::CUDA_R_16F,
            Dtype::I8 => cudaDataType::CUDA_R_8I,
            Dtype::F32 => cudaDataType::CUDA_R_32F,
        }
    }

    fn refused(action: &'static str) -> impl Fn(CublasError) -> Error {
        move |source| Error::CallDriver { action, source: source.into() }
    }
}

#[cfg(feature = "fibers")]
unsafe extern "C" {
    /// Runs a kernel by name, one pointer per argument; null, or what went wrong as a static string.
    pub(crate) fn hypic_fiber_launch(
        name: *const std::ffi::c_char,
        grid: *const u32,
        block: *const u32,
        shared: usize,
        order: u32,
        arguments: *mut *mut std::ffi::c_void,
    ) -> *const std::ffi::c_char;
}
