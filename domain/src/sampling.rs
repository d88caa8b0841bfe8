//! How tokens are drawn and when an answer ends.

use serde::{Deserialize, Serialize};

use crate::unit::Tokens;

/// Sampling and stop rules of one choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Smallest set of tokens whose probabilities reach this sum.
    pub top_p: f32,
    /// Most likely tokens considered; 0 for all.
    pub top_k: u32,
    /// Seed of the draw: same seed, same answer.
    pub seed: u64,
    /// `(token, addend)` on logits before all else.
    pub logit_bias: Vec<(u32, f32)>,
    /// Subtracted from the logits of tokens already in the answer.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the answer.
    pub frequency_penalty: f32,
    /// `Some(n)`: report log probabilities of the drawn token and of the `n` likeliest.
    pub logprobs: Option<u32>,
    /// Longest answer.
    pub max_tokens: Tokens,
    /// End-of-text ids are not drawn before this many tokens.
    pub min_tokens: Tokens,
    /// Ids that end the answer; they are not part of it.
    pub stop_ids: Vec<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            seed: 0,
            logit_bias: Vec::new(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logprobs: None,
            max_tokens: Tokens(u32::MAX),
            min_tokens: Tokens(0),
            stop_ids: Vec::new(),
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop id, or a stop string found by the router.
    Stop,
    /// The longest answer, or the context, was reached.
    Length,
    /// The client went away, or its deadline passed.
    Cancelled,
}
