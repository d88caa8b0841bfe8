//! The full mixer: keys and values of a step into the pages, then attention over pages and bodies.

use std::sync::PoisonError;

use half::bf16;
use hypic_domain::model::FullShape;
use hypic_kernels::check::{self, Room, equal};
use hypic_kernels::op::{self, FullInput, HeadNorms, OpError};
use hypic_kernels::plan::Plan;

use super::listed::{Listed, listed};
use super::memory::{Pages, Tensor};
use super::step_tables::locked;
use super::tuple::settle_full;
use super::{CudaDevice, failed, offset_of};
use crate::choice::norms_in_place;
use crate::contexts::{Context, Contexts};
use crate::memory::Float;
use crate::{Attention, Heads, attention, norm_and_store, store_kv};

const OP: &str = "full_mixer";

/// What stands around attention in the launches of few rows: the norms of heads before it, and the gate behind it.
type Around<'a, E> = (&'a HeadNorms<'a, CudaDevice<E>>, &'a Tensor<E>);

pub(super) fn full_mixer_gated<E: Float>(
    device: &CudaDevice<E>,
    input: &FullInput<'_, CudaDevice<E>>,
    around: Around<'_, E>,
    plan: &Plan<CudaDevice<E>>,
    pages: &mut Pages<E>,
) -> Result<Tensor<E>, OpError> {
    let is_few = E::NAME == bf16::NAME && norms_in_place(plan.ids.len());
    match is_few && around.1.width == input.shape.heads * input.shape.value {
        true => full_mixer(device, (input, Some(around)), plan, pages),
        false => op::full_mixer_apart(device, input, around, plan, pages),
    }
}

pub(super) fn full_mixer<E: Float>(
    device: &CudaDevice<E>,
    (input, around): (&FullInput<'_, CudaDevice<E>>, Option<Around<'_, E>>),
    plan: &Plan<CudaDevice<E>>,
    pages: &mut Pages<E>,
) -> Result<Tensor<E>, OpError> {
    let shape = input.shape;
    let rows = plan.ids.len();
    equal(OP, "query values", rows * shape.heads * shape.key, input.query.values.len())?;
    equal(OP, "key values", rows * shape.kv_heads * shape.key, input.key.values.len())?;
    equal(OP, "value values", rows * shape.kv_heads * shape.value, input.value.values.len())?;
    let (_, positions) = input.rope.table(OP, shape.rotary)?;
    let page_tokens = pages.page_tokens;
    let room = Room { pages: pages.pages, page_tokens, positions };
    check::contexts(input.layer, plan, room)?;
    settle_full(&device.device, (input.layer, shape), plan, pages)?;
    if let Some(tables) = device.tables() {
        let mut tables = locked(&tables);
        if let Some(contexts) = tables.contexts(&device.device, plan, (input.layer, *shape, room))? {
            return attend(device, (input, around), contexts, pages);
        }
    }
    let listed = listed(plan, input.layer, page_tokens)?;
    // A panic while it was held leaves tables that are whole, or none.
    let mut kept = device.contexts.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = match kept.take() {
        Some(tables) if tables.are_of(shape, page_tokens, &listed) => tables,
        _ => Tables::new(device, *shape, page_tokens, listed).map_err(failed(OP))?,
    };
    attend(device, (input, around), &mut kept.insert(tables).contexts, pages)
}

/// Keys and values into the pages, then attention.
fn attend<E: Float>(
    device: &CudaDevice<E>,
    (input, around): (&FullInput<'_, CudaDevice<E>>, Option<Around<'_, E>>),
    contexts: &mut Contexts,
    pages: &mut Pages<E>,
) -> Result<Tensor<E>, OpError> {
    let shape = input.shape;
    let (rope, _) = input.rope.table(OP, shape.rotary)?;
    let (rows, gpu) = (contexts.rows(), &device.device);
    let layer = pages.layer_mut(OP, input.layer)?;
    let [q, k, v] = [&input.query.values, &input.key.values, &input.value.values];
    let normed = match around {
        None => {
            store_kv(gpu, [k, v], contexts, &mut layer.key, &mut layer.value).map_err(failed(OP))?;
            None
        }
        Some((norms, _)) => {
            let weights = [norms.query.vector(OP, shape.key)?, norms.key.vector(OP, shape.key)?];
            let (offset, eps) = (offset_of(norms.style), norms.eps);
            let Tensor { values, .. } = device.written(OP, (rows, input.query.width), |gpu, normed| {
                let heads = Heads { q, k, v, norms: weights, offset, eps, normed };
                norm_and_store(gpu, heads, contexts, [&mut layer.key, &mut layer.value])
            })?;
            Some(values)
        }
    };
    device.written(OP, (rows, shape.heads * shape.value), |gpu, out| {
        let run = Attention {
            q: normed.as_ref().unwrap_or(q),
            key: &layer.key,
            value: &layer.value,
            contexts,
            rope,
            scale: input.scale,
            gate: around.map(|(_, gate)| &gate.values),
            out,
        };
        attention(gpu, run)
    })
}

/// The contexts of a step on the device, and what they were made of.
pub(super) struct Tables {
    listed: Vec<Listed>,
    shape: FullShape,
    page_tokens: usize,
    contexts: Contexts,
}

impl Tables {
    fn new<E: Float>(
        device: &CudaDevice<E>,
        shape: FullShape,
        page_tokens: usize,
        listed: Vec<Listed>,
    ) -> crate::Result<Self> {
        let contexts: Vec<Context<'_>> = listed.iter().map(Listed::context).collect();
        let contexts = Contexts::new(&device.device, shape, page_tokens, &contexts)?;
        Ok(Self { listed, shape, page_tokens, contexts })
    }

    fn are_of(&self, shape: &FullShape, page_tokens: usize, listed: &[Listed]) -> bool {
        self.shape == *shape && self.page_tokens == page_tokens && self.listed == listed
    }
}
