//! The CPU device against the reference, on fresh random data, with NaN in every output before it is written.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]

use hypic_domain::family::Family;
use hypic_domain::model::{FullShape, LinearShape};
use hypic_domain::tuple::Dtype;
use hypic_kernels::cpu::CpuDevice;

#[path = "device/bodies.rs"]
mod bodies;

type TestDevice = CpuDevice;
const DTYPE: Dtype = Dtype::F32;
const LINEAR: LinearShape =
    LinearShape { family: Family::Gdn, key_heads: 2, heads: 4, key: 32, value: 48, conv_kernel: 4 };
const FULL: FullShape = FullShape { heads: 6, kv_heads: 2, key: 40, value: 32, rotary: 16 };

fn poisoned(threads: usize) -> TestDevice {
    CpuDevice::poisoned(threads).unwrap()
}

fn pair() -> [TestDevice; 2] {
    [poisoned(2), poisoned(1)]
}
