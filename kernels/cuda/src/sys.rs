//! Entry points: the driver with the kernels' machine code, and the kernels as host code.

#[cfg(feature = "cuda")]
pub(crate) use cuda::Context;

#[cfg(feature = "cuda")]
mod cuda {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex, PoisonError};

    use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute_enum, is_culib_present};
    use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError};
    use cudarc::nvrtc::Ptx;

    use crate::{Error, Result};

    pub(crate) struct Module {
        hopper: bool,
        kernels: &'static [&'static str],
        image: &'static [u8],
    }
    include!(concat!(env!("OUT_DIR"), "/modules.rs"));

    // Above this a kernel must ask for its dynamic shared memory.
    const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

    /// One device with one stream and all kernels loaded.
    pub(crate) struct Context {
        pub(crate) stream: Arc<CudaStream>,
        pub(crate) capability: (i32, i32),
        pub(crate) multiprocessors: usize,
        modules: Vec<(&'static [&'static str], Arc<CudaModule>)>,
        functions: Mutex<HashMap<String, CudaFunction>>,
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
            // SAFETY: there is one stream per context here, so the order of the stream is the order of all
            // uses of a buffer.
            unsafe { context.disable_event_tracking() };
            let capability = context.compute_capability().map_err(failed("read the compute capability"))?;
            let count = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
            let count = context.attribute(count).map_err(failed("count the multiprocessors"))?;
            let stream = context.new_stream().map_err(failed("make a stream"))?;
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
            })
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

    pub(crate) fn failed(action: &'static str) -> impl Fn(DriverError) -> Error {
        move |source| Error::CallDriver { action, source: source.into() }
    }
}
#[cfg(feature = "cuda")]
pub(crate) use cuda::failed;

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
