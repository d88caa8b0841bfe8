//! The tokens that the rows of a step attend to.

use hypic_kernels::check::{self, equal};
use hypic_kernels::op::OpError;
use hypic_kernels::plan::{Plan, Run};

use super::CudaDevice;
use super::tuple::LayerParts;
use crate::contexts::{Context, Token};
use crate::memory::Float;

const OP: &str = "full_mixer";

/// What the rows of each run attend to.
pub(super) fn listed<E: Float>(
    plan: &Plan<CudaDevice<E>>,
    layer: usize,
    page_tokens: usize,
) -> Result<Vec<Listed>, OpError> {
    plan.runs.iter().map(|run| Listed::new(run, layer, page_tokens)).collect()
}

/// What a run's rows attend to, and where they stand.
#[derive(PartialEq)]
pub(super) struct Listed {
    tokens: Vec<Token>,
    rows: Vec<u32>,
}

impl Listed {
    pub(super) fn context(&self) -> Context<'_> {
        Context { tokens: &self.tokens, rows: &self.rows }
    }

    /// All tokens that a run's rows may see, by ascending position.
    fn new<E: Float>(run: &Run<CudaDevice<E>>, layer: usize, page_tokens: usize) -> Result<Self, OpError> {
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
        tokens.extend(context.live.iter().enumerate().map(|(token, &position)| Token {
            slot: slot(context.pages[token / page_tokens], token),
            position,
        }));
        if !context.bodies.is_empty() {
            tokens.sort_by_key(|token| token.position);
        }
        Ok(Self { tokens, rows: context.live[context.live.len() - run.rows.len()..].to_vec() })
    }
}
