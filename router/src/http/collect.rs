//! A choice's deltas put together: the unstreamed answer is what the streamed one joins to.

use crate::answer::markup::Fragment;
use crate::answer::{Delta, Finish, ScoredToken};

/// One choice so far.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Collected {
    pub(super) content: String,
    pub(super) reasoning: String,
    /// Name and arguments.
    pub(super) calls: Vec<(String, String)>,
    pub(super) scores: Vec<ScoredToken>,
    pub(super) finish: Option<Finish>,
}

impl Collected {
    pub(super) fn add(&mut self, delta: Delta) {
        for fragment in delta.fragments {
            match fragment {
                Fragment::Content(text) => self.content.push_str(&text),
                Fragment::Reasoning(text) => self.reasoning.push_str(&text),
                Fragment::CallStart { name, .. } => self.calls.push((name, String::new())),
                Fragment::CallArguments { index, text } => {
                    if let Some((_, arguments)) = self.calls.get_mut(index) {
                        arguments.push_str(&text);
                    }
                }
            }
        }
        self.scores.extend(delta.scores);
    }
}
