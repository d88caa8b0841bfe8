//! The CPU device against the reference, on fresh random data, with NaN in every output before it is written.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]

use std::sync::{Arc, Mutex};

use hypic_domain::family::Family;
use hypic_domain::id::ModelId;
use hypic_domain::model::{FullShape, LayerSpec, LinearShape, ModelSpec};
use hypic_domain::tuple::Dtype;
use hypic_domain::unit::Tokens;
use hypic_kernels::cpu::CpuDevice;
use hypic_kernels::op::{
    Device, Export, FullInput, Gates, HostLayer, HostTensor, LinearInput, NormWeight, OpError,
};
use hypic_kernels::plan::{BodyLayers, Context, PlacedBody, Plan, Record, Rule, Run, RunOp};
use hypic_kernels::reference::{self, Attention, Gdn, Inputs, Part, Summary, Token};
use hypic_kernels::tolerance::{Compared, bound, error};

#[path = "device/attention.rs"]
mod attention;
#[path = "device/linear.rs"]
mod linear;
#[path = "device/rows.rs"]
mod rows;

type States = <CpuDevice as Device>::States;
type Pages = <CpuDevice as Device>::Pages;
type Weight = <CpuDevice as Device>::Weight;

const LINEAR: LinearShape =
    LinearShape { family: Family::Gdn, key_heads: 2, heads: 4, key: 32, value: 48, conv_kernel: 4 };
const FULL: FullShape = FullShape { heads: 6, kv_heads: 2, key: 40, value: 32, rotary: 16 };

fn spec() -> ModelSpec {
    ModelSpec {
        id: ModelId::from("random"),
        layers: vec![LayerSpec::Linear(LINEAR), LayerSpec::Full(FULL)],
        hidden: 8,
        vocab: 8,
        context: Tokens(4096),
    }
}

/// Uniform in [-1, 1), seeded.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    fn many(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.uniform() as f32).collect()
    }
}

fn weight(device: &CpuDevice, values: &[f32], shape: &[usize]) -> Weight {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    device
        .weight(&HostTensor { name: "test", shape: shape.to_vec(), dtype: Dtype::F32, bytes: &bytes })
        .unwrap()
}

fn within(compared: Compared, found: &[f32], right: &[f64]) {
    let (error, bound) = (error(found, right), bound(compared, Dtype::F32));
    assert!(error <= bound, "{compared:?}: {error:e} over {bound:e}");
}
