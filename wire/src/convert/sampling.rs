//! How tokens are drawn.

use hypic_domain::sampling::Sampling;
use hypic_domain::unit::Tokens;

use super::finite;
use crate::{Error, proto};

impl From<Sampling> for proto::Sampling {
    fn from(sampling: Sampling) -> Self {
        let Sampling {
            temperature,
            top_p,
            top_k,
            seed,
            logit_bias,
            presence_penalty,
            frequency_penalty,
            logprobs,
            max_tokens,
            min_tokens,
            stop_ids,
        } = sampling;
        Self {
            temperature,
            top_p,
            top_k,
            seed,
            logit_bias: logit_bias.into_iter().map(|(id, addend)| proto::LogitBias { id, addend }).collect(),
            presence_penalty,
            frequency_penalty,
            logprobs,
            max_tokens: max_tokens.0,
            min_tokens: min_tokens.0,
            stop_ids,
        }
    }
}

impl TryFrom<proto::Sampling> for Sampling {
    type Error = Error;

    fn try_from(sampling: proto::Sampling) -> Result<Self, Error> {
        let proto::Sampling {
            temperature,
            top_p,
            top_k,
            seed,
            logit_bias,
            presence_penalty,
            frequency_penalty,
            logprobs,
            max_tokens,
            min_tokens,
            stop_ids,
        } = sampling;
        let logit_bias = logit_bias
            .into_iter()
            .map(|proto::LogitBias { id, addend }| Ok((id, finite("logit_bias", addend)?)))
            .collect::<Result<_, Error>>()?;
        Ok(Self {
            temperature: finite("temperature", temperature)?,
            top_p: finite("top_p", top_p)?,
            top_k,
            seed,
            logit_bias,
            presence_penalty: finite("presence_penalty", presence_penalty)?,
            frequency_penalty: finite("frequency_penalty", frequency_penalty)?,
            logprobs,
            max_tokens: Tokens(max_tokens),
            min_tokens: Tokens(min_tokens),
            stop_ids,
        })
    }
}
