//! One choice's answer while it arrives: stop strings, then the markup of reasoning and tool calls.

pub mod markup;
pub mod stop;

mod json_call;
mod xml_call;

use hypic_domain::sampling::FinishReason;

use markup::{Fragment, Markup, Reading};
use stop::StopMatcher;

/// Why an answer ended, as clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It was complete, or a stop string was found.
    Stop,
    /// The longest answer, or the context, was reached.
    Length,
    /// It ended with tool calls.
    ToolCalls,
}

impl Finish {
    /// `finish_reason`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// A token with its log probability, for the answer's `logprobs`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// Its text and score.
    pub token: Scored,
    /// The likeliest tokens at its place, likeliest first.
    pub top: Vec<Scored>,
    /// Characters of the answer before it.
    pub offset: usize,
}

/// A token's text and score.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The exact bytes, which may be part of a character.
    pub bytes: Vec<u8>,
    /// Log probability.
    pub logprob: f32,
}

/// What one token, or the end, adds to the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Text and calls.
    pub fragments: Vec<Fragment>,
    /// Scores of the tokens whose text is out by now.
    pub scores: Vec<ScoredToken>,
}

impl Delta {
    /// Whether it says anything.
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty() && self.scores.is_empty()
    }
}

/// The answer of one choice.
#[derive(Debug)]
pub struct Answer {
    stop: StopMatcher,
    markup: Markup,
    held_scores: Vec<ScoredToken>,
    finish: Option<Finish>,
    may_stop_after: u32,
    tokens: u32,
    characters: usize,
}

impl Answer {
    /// An answer at its start. Stop strings count from the `min_tokens`th token on.
    pub fn new(reading: Reading, stop: &[String], min_tokens: u32) -> Self {
        Self {
            stop: StopMatcher::new(stop),
            markup: Markup::new(reading),
            held_scores: Vec::new(),
            finish: None,
            may_stop_after: min_tokens,
            tokens: 0,
            characters: 0,
        }
    }

    /// Tokens so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Characters of text so far: where the next token's text begins.
    pub fn characters(&self) -> usize {
        self.characters
    }

    /// Why it ended, once it has.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Takes a token: the text that it completes, and its score where asked for.
    pub fn token(&mut self, text: &str, score: Option<ScoredToken>) -> Delta {
        if self.finish.is_some() {
            return Delta::default();
        }
        self.tokens += 1;
        self.characters += text.chars().count();
        self.held_scores.extend(score);
        let safe = if self.tokens <= self.may_stop_after { text.to_owned() } else { self.stop.push(text) };
        let mut fragments = Vec::new();
        self.markup.push(&safe, &mut fragments);
        if self.stop.hit() || self.markup.is_over() {
            self.markup.finish(&mut fragments);
            self.finish = Some(self.ended(FinishReason::Stop));
        }
        // Scores go out with the text they belong to, so that a stream's chunks join to the whole list.
        let flush = !fragments.is_empty() || self.finish.is_some();
        let scores = if flush { std::mem::take(&mut self.held_scores) } else { Vec::new() };
        Delta { fragments, scores }
    }

    /// The agent's end of the answer; `tail` is text that was waiting for the rest of a character.
    pub fn end(&mut self, tail: &str, reason: FinishReason) -> Delta {
        if self.finish.is_some() {
            return Delta::default();
        }
        let mut text = self.stop.push(tail);
        text.push_str(&self.stop.finish());
        let mut fragments = Vec::new();
        self.markup.push(&text, &mut fragments);
        self.markup.finish(&mut fragments);
        self.finish = Some(self.ended(reason));
        Delta { fragments, scores: std::mem::take(&mut self.held_scores) }
    }

    fn ended(&self, reason: FinishReason) -> Finish {
        match reason {
            FinishReason::Stop if self.markup.calls() > 0 => Finish::ToolCalls,
            FinishReason::Stop => Finish::Stop,
            FinishReason::Length | FinishReason::Cancelled => Finish::Length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stop: &[&str], min_tokens: u32) -> Answer {
        let stop: Vec<String> = stop.iter().map(|stop| (*stop).to_owned()).collect();
        Answer::new(Reading::default(), &stop, min_tokens)
    }

    fn text(deltas: &[Delta]) -> String {
        let fragments = deltas.iter().flat_map(|delta| &delta.fragments);
        fragments
            .map(|fragment| match fragment {
                Fragment::Content(text) => text.as_str(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_stop_string_ends_the_answer_and_is_not_part_of_it() {
        let mut answer = answer(&["END"], 0);
        let deltas = ["one ", "E", "ND", " two"].map(|piece| answer.token(piece, None));
        assert_eq!(text(&deltas), "one ");
        assert_eq!((answer.finish(), answer.tokens()), (Some(Finish::Stop), 3));
    }

    #[test]
    fn stop_strings_wait_for_the_shortest_answer() {
        let mut answer = answer(&["x"], 2);
        let deltas = ["x", "x", "yx", "z"].map(|piece| answer.token(piece, None));
        assert_eq!(text(&deltas), "xxy");
        assert_eq!(answer.finish(), Some(Finish::Stop));
    }

    #[test]
    fn held_text_and_scores_come_out_at_the_end() {
        let mut answer = answer(&["END"], 0);
        let score = |offset| ScoredToken {
            token: Scored { bytes: b"E".to_vec(), logprob: -0.5 },
            top: Vec::new(),
            offset,
        };
        assert!(answer.token("E", Some(score(0))).is_empty());
        assert!(answer.token("N", Some(score(1))).is_empty());
        let end = answer.end("", FinishReason::Length);
        assert_eq!(text(std::slice::from_ref(&end)), "EN");
        assert_eq!((end.scores.len(), answer.finish()), (2, Some(Finish::Length)));
    }
}
