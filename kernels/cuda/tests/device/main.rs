//! The op contract on this device, in both of its formats: the same bodies as the CPU device's tests.
//!
//! Without a feature the kernels run as fibers; with `gpu-tests` the same bodies run on GPU 0, and what goes from device to
//! device goes from GPU 1 where there is one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]
#![allow(clippy::duplicate_mod, reason = "the same bodies run in each format")]

#[cfg(feature = "gpu-tests")]
use std::io::Write as _;

use hypic_cuda::Device;
use hypic_domain::family::Family;
use hypic_domain::model::{FullShape, LinearShape};

mod bf16;
mod f32;
// The widths of large models: on a Hopper GPU they have forms of their own, and as fibers they would take minutes.
#[cfg(feature = "gpu-tests")]
mod wide;

/// Layers that the kernels have: heads of 64.
const LINEAR: LinearShape =
    LinearShape { family: Family::Gdn, key_heads: 2, heads: 4, key: 64, value: 64, conv_kernel: 4 };
const FULL: FullShape = FullShape { heads: 6, kv_heads: 2, key: 64, value: 64, rotary: 16 };
/// Tokens of bodies: more than a test places.
const BODIES: usize = 512;

#[cfg(feature = "gpu-tests")]
fn device() -> Device {
    Device::cuda(0).expect("gpu-tests need a GPU")
}

#[cfg(not(feature = "gpu-tests"))]
fn device() -> Device {
    Device::fibers(hypic_cuda::Order::Backward)
}

#[cfg(feature = "gpu-tests")]
fn pair() -> [Device; 2] {
    let other = Device::cuda(1).unwrap_or_else(|error| {
        // To be seen of tests that pass, too.
        let _ = writeln!(std::io::stderr(), "skipped between two GPUs, GPU 0 is both: {error}");
        device()
    });
    let pair = [device(), other];
    Device::link(&pair.each_ref()).expect("GPUs without a link");
    pair
}

#[cfg(not(feature = "gpu-tests"))]
fn pair() -> [Device; 2] {
    [device(), device()]
}
