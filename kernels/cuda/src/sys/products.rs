//! Products of weights by cublasLt. What the library needs to know of a product is asked once and kept.

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
            let attribute = cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
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
