//! The full mixer: keys and values of a step into the pages, then attention over pages and bodies.

use hypic_kernels::check::{self, Room, equal};
use hypic_kernels::op::{FullInput, OpError};
use hypic_kernels::plan::{Plan, Run};

use super::memory::{Pages, Tensor};
use super::tuple::LayerParts;
use super::{CudaDevice, failed};
use crate::contexts::{Context, Contexts, Token};
use crate::memory::Float;
use crate::{Attention, attention, store_kv};

const OP: &str = "full_mixer";

pub(super) fn full_mixer<E: Float>(
    device: &CudaDevice<E>,
    input: &FullInput<'_, CudaDevice<E>>,
    plan: &Plan<CudaDevice<E>>,
    pages: &mut Pages<E>,
) -> Result<Tensor<E>, OpError> {
    let shape = input.shape;
    let rows = plan.ids.len();
    equal(OP, "query values", rows * shape.heads * shape.key, input.query.values.len())?;
    equal(OP, "key values", rows * shape.kv_heads * shape.key, input.key.values.len())?;
    equal(OP, "value values", rows * shape.kv_heads * shape.value, input.value.values.len())?;
    let (rope, positions) = input.rope.table(OP, shape.rotary)?;
    let page_tokens = pages.page_tokens;
    let room = Room { pages: pages.pages, page_tokens, positions };
    check::contexts(input.layer, plan, room)?;
    let tokens: Vec<Vec<Token>> =
        plan.runs.iter().map(|run| tokens_of(run, input.layer, page_tokens)).collect::<Result<_, _>>()?;
    let contexts: Vec<Context<'_>> = plan
        .runs
        .iter()
        .zip(&tokens)
        .map(|(run, tokens)| {
            let first = run.context.live.len() - run.rows.len();
            Context { tokens, rows: &run.context.live[first..] }
        })
        .collect();
    let mut contexts = Contexts::new(&device.device, *shape, page_tokens, &contexts).map_err(failed(OP))?;
    let layer = pages.layer_mut(OP, input.layer)?;
    let new = [&input.key.values, &input.value.values];
    store_kv(&device.device, new, &contexts, &mut layer.key, &mut layer.value).map_err(failed(OP))?;
    device.written(OP, (rows, shape.heads * shape.value), |device, out| {
        let run = Attention {
            q: &input.query.values,
            key: &layer.key,
            value: &layer.value,
            contexts: &mut contexts,
            rope,
            scale: input.scale,
            out,
        };
        attention(device, run)
    })
}

/// All tokens that a run's rows may see, by ascending position.
fn tokens_of<E: Float>(
    run: &Run<CudaDevice<E>>,
    layer: usize,
    page_tokens: usize,
) -> Result<Vec<Token>, OpError> {
    let slot = |page: usize, token: usize| (page * page_tokens + token % page_tokens) as u32;
    let context = &run.context;
    let mut tokens = Vec::new();
    for (number, placed) in context.bodies.iter().enumerate() {
        let (LayerParts::Full(parts), len) = check::body_of(OP, run, number, layer)? else {
            return Err(OpError::shape(OP, "parts of a full layer", layer));
        };
        equal(OP, "tokens of the body", len, parts.tokens)?;
        tokens.extend((0..len).map(|token| Token {
            slot: slot(parts.pages.pages[token / page_tokens] as usize, token),
            position: placed.start + token as u32,
        }));
    }
    tokens.extend(
        context.live.iter().enumerate().map(|(token, &position)| Token {
            slot: slot(context.pages[token / page_tokens], token),
            position,
        }),
    );
    tokens.sort_by_key(|token| token.position);
    Ok(tokens)
}
