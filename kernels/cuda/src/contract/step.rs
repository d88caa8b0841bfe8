//! One token of many sequences through a linear layer: the form of decode.

use hypic_domain::family::Family;
use hypic_kernels::op::{Gates, HeadGate, LinearInput, OpError};
use hypic_kernels::plan::Plan;

use super::CudaDevice;
use super::memory::{SlotLayer, States, Tensor};
use super::step_tables::{locked, slots_of};
use crate::conv_warm::TAPS;
use crate::memory::{Float, Table};
use crate::programs::Pool;
use crate::step::{ConvStep, StepOut, conv_step, gdn_step};
use crate::{Buffer, Rows, Shape};

const OP: &str = "linear_mixer";

/// The linear mixer of a step of one row for each sequence, and the gated norm behind it where there is one: its inputs
/// were checked.
pub(super) fn linear_step<E: Float>(
    device: &CudaDevice<E>,
    (input, behind): (&LinearInput<'_, CudaDevice<E>>, Option<&HeadGate<'_, CudaDevice<E>>>),
    plan: &Plan<CudaDevice<E>>,
    states: &mut States<E>,
    place: SlotLayer,
) -> Result<Tensor<E>, OpError> {
    let (shape, rows) = (Shape::from(input.shape), plan.ids.len());
    let Some(taps) = input.conv else {
        let what = "a layer without a convolution".to_owned();
        return Err(OpError::Unsupported { op: OP, what });
    };
    let (taps, _) = taps.table(OP, TAPS)?;
    let Gates::Gdn { a, b, a_log, dt_bias } = &input.gates;
    let decay = [a_log.vector(OP, shape.heads)?, dt_bias.vector(OP, shape.heads)?];
    let weight = behind.map(|behind| behind.weight.vector(OP, shape.width)).transpose()?;
    device.written(OP, (rows, shape.heads * shape.width), |gpu, out| {
        let step = device.tables();
        let step = step.as_ref().map(locked);
        let named = slots_of(plan);
        let placed;
        let slots = match step.as_ref().and_then(|tables| tables.slots(&named)) {
            Some(slots) => slots,
            None => {
                placed = Table::new(gpu, &named)?;
                &*placed
            }
        };
        let narrow = |heads: usize| -> crate::Result<Buffer<E>> { device.output(rows * heads * shape.width) };
        let (mut q, mut k, mut v) =
            (narrow(shape.key_heads)?, narrow(shape.key_heads)?, narrow(shape.heads)?);
        let (mut gate, mut write) = (device.output(rows * shape.heads)?, device.output(rows * shape.heads)?);
        let conv = ConvStep {
            shape,
            x: &input.raw.values,
            taps,
            slots,
            most: states.slots,
            tails: &mut states.tails,
            first: place.tail,
            stride: states.tail_stride,
            ab: [&a.values, &b.values],
            decay,
            qkv: [&mut q, &mut k, &mut v],
            gates: [&mut gate, &mut write],
        };
        conv_step(gpu, conv)?;
        let rows = Rows { family: Family::Gdn, shape, q: &q, k: &k, v: &v, gate: &gate, beta: &write };
        let pool = Pool { state: &mut states.state, first: place.state, stride: states.state_stride };
        let out = match behind.zip(weight) {
            None => StepOut::Plain(out),
            Some((behind, weight)) => {
                StepOut::Normed { gate: &behind.gate.values, weight, eps: behind.eps, y: out }
            }
        };
        gdn_step(gpu, rows, (slots, states.slots), pool, out)
    })
}
