//! Bodies of the tests of every device. Whoever includes this names the device: `TestDevice`, its `DTYPE`, shapes of
//! its layers (`LINEAR`, `FULL`), `poisoned`, which makes one that fills fresh memory with NaN, and `pair`, which makes two
//! of which the first takes over what the second builds.

use std::sync::{Arc, Mutex};

use hypic_domain::id::ModelId;
use hypic_domain::logits::{Logits, MASKED, Need, Portion};
use hypic_domain::model::{LayerSpec, ModelSpec};
use hypic_domain::tuple::{PartKind, TupleFormat};
use hypic_domain::unit::Tokens;
use hypic_kernels::op::{
    Checked, Device, ExpertShape, Experts, Export, FullInput, Gates, HeadGate, HeadNorms, HostLayer,
    HostTensor, LinearInput, Norm, NormWeight, OpError, SharedExpert, Split, StoredPart, add_mixture_apart,
    full_mixer_apart, norm_linears_apart,
};
use hypic_kernels::plan::{BodyLayers, Context, PlacedBody, Plan, Record, Rule, Run, RunOp};
use hypic_kernels::random::RandomMatrix;
use hypic_kernels::reference::{self, Attention, Gdn, Inputs, Part, Summary, Token};
use hypic_kernels::tolerance::{Compared, bound, error};

use super::*;

mod attention;
mod builds;
mod coded;
mod linear;
mod rows;
mod together;
mod tuples;

type States = <TestDevice as Device>::States;
type Pages = <TestDevice as Device>::Pages;
type Tensor = <TestDevice as Device>::Tensor;
type Weight = <TestDevice as Device>::Weight;

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

    /// Values that bf16 holds too, so that devices of every precision get the same inputs.
    fn many(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| half::bf16::from_f64(self.uniform()).to_f32()).collect()
    }
}

fn weight(device: &TestDevice, values: &[f32], shape: &[usize]) -> Weight {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let host = HostTensor {
        name: "test",
        shape: shape.to_vec(),
        dtype: Dtype::F32,
        bytes: &bytes,
        split: Split::Whole,
    };
    device.weight(&host).unwrap()
}

fn exact(device: &TestDevice, values: &[f32], shape: &[usize]) -> Weight {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let host = HostTensor {
        name: "test",
        shape: shape.to_vec(),
        dtype: Dtype::F32,
        bytes: &bytes,
        split: Split::Whole,
    };
    device.exact(&host).unwrap()
}

fn within(compared: Compared, found: &[f32], right: &[f64]) {
    let (error, bound) = (error(found, right), bound(compared, DTYPE));
    assert!(error <= bound, "{compared:?}: {error:e} over {bound:e}");
}
