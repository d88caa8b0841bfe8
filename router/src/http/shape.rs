//! What differs between the two endpoints, and what the chunks of an answer share.

use std::time::Instant;

use serde_json::{Value, json};

use super::collect::Collected;
use super::fields::Fields;
use crate::answer::{Delta, Finish};
use crate::front::Question;
use crate::refusal::Refusal;

/// How one endpoint reads its question and writes its answer.
pub(super) trait Shape: Send + Sync + 'static {
    /// Its metric label.
    const ENDPOINT: &'static str;
    /// What ids of its answers begin with.
    const ID: &'static str;
    /// `object` of an answer and of a chunk.
    const OBJECTS: (&'static str, &'static str);

    /// Reads the body.
    fn read(body: &Fields<'_>, arrived: Instant) -> Result<Question, Refusal>;
    /// A chunk's entry in `choices` for more of one choice. `first`: it is the choice's first.
    fn delta(head: &Head, choice: u32, first: bool, delta: Delta) -> Value;
    /// A chunk's entry in `choices` for the end of one choice.
    fn finished(choice: u32, first: bool, finish: Finish) -> Value;
    /// A whole answer's entry in `choices`.
    fn whole(head: &Head, choice: u32, collected: Collected, scored: bool) -> Value;
}

/// What all chunks of an answer share.
pub(super) struct Head {
    /// The request's own id, without the endpoint's prefix.
    pub(super) request: String,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Head {
    /// An answer's or a chunk's object around its choices.
    pub(super) fn around(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }
}
