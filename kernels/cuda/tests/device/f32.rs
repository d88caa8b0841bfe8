use hypic_cuda::CudaDevice;
use hypic_domain::model::{FullShape, LinearShape};
use hypic_domain::tuple::Dtype;

#[path = "../../../tests/device/bodies.rs"]
mod bodies;

type TestDevice = CudaDevice<f32>;
const DTYPE: Dtype = Dtype::F32;
const LINEAR: LinearShape = super::LINEAR;
const FULL: FullShape = super::FULL;

fn poisoned(_: usize) -> TestDevice {
    CudaDevice::poisoned(super::device(), super::BODIES)
}

fn pair() -> [TestDevice; 2] {
    super::pair().map(|device| CudaDevice::poisoned(device, super::BODIES))
}
