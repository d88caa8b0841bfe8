//! When an answer ends.

use hypic_domain::sampling::{FinishReason, Sampling};
use hypic_domain::unit::Tokens;

/// What bounds one choice beside its own sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of the prompt.
    pub prompt: Tokens,
    /// Longest prompt and answer together.
    pub context: Tokens,
}

/// Whether an answer of `answered` tokens is complete once `drawn` was drawn behind them (`None`: before the
/// first draw). A stop id is not part of the answer; any other token is, also when the answer ends with it.
pub fn check(
    sampling: &Sampling,
    limits: Limits,
    answered: Tokens,
    drawn: Option<u32>,
) -> Option<FinishReason> {
    if drawn.is_some_and(|id| sampling.stop_ids.contains(&id)) {
        return Some(FinishReason::Stop);
    }
    let length = answered.0 + u32::from(drawn.is_some());
    let full = limits.prompt.0.saturating_add(length) >= limits.context.0;
    (length >= sampling.max_tokens.0 || full).then_some(FinishReason::Length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { prompt: Tokens(90), context: Tokens(100) };

    fn sampling() -> Sampling {
        Sampling { max_tokens: Tokens(5), stop_ids: vec![2, 3], ..Sampling::default() }
    }

    #[test]
    fn a_stop_id_ends_the_answer() {
        assert_eq!(check(&sampling(), LIMITS, Tokens(1), Some(3)), Some(FinishReason::Stop));
        assert_eq!(check(&sampling(), LIMITS, Tokens(1), Some(4)), None);
    }

    #[test]
    fn a_stop_id_at_the_last_place_is_a_stop() {
        assert_eq!(check(&sampling(), LIMITS, Tokens(4), Some(2)), Some(FinishReason::Stop));
    }

    #[test]
    fn the_longest_answer_ends_with_its_last_token() {
        assert_eq!(check(&sampling(), LIMITS, Tokens(3), Some(9)), None);
        assert_eq!(check(&sampling(), LIMITS, Tokens(4), Some(9)), Some(FinishReason::Length));
    }

    #[test]
    fn no_tokens_asked_for_end_before_the_first() {
        let none = Sampling { max_tokens: Tokens(0), ..sampling() };
        assert_eq!(check(&none, LIMITS, Tokens(0), None), Some(FinishReason::Length));
        assert_eq!(check(&sampling(), LIMITS, Tokens(0), None), None);
    }

    #[test]
    fn the_context_bounds_prompt_and_answer_together() {
        let long = Sampling { max_tokens: Tokens(u32::MAX), ..sampling() };
        assert_eq!(check(&long, LIMITS, Tokens(8), Some(9)), None);
        assert_eq!(check(&long, LIMITS, Tokens(9), Some(9)), Some(FinishReason::Length));
    }
}
