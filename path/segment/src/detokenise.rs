//! Ids to text as they come: whole characters only.

use std::sync::Arc;

use crate::tokenise::Tokeniser;

/// Turns one answer's ids into text. The texts of [`push`](Self::push) and [`finish`](Self::finish), one behind
/// the other, are the text of all ids decoded at once.
pub struct Detokeniser {
    tokeniser: Arc<Tokeniser>,
    skip_special: bool,
    pending: Vec<u8>,
}

impl Detokeniser {
    /// For one answer. `skip_special` leaves special tokens out of the text.
    pub fn new(tokeniser: Arc<Tokeniser>, skip_special: bool) -> Self {
        Self { tokeniser, skip_special, pending: Vec::new() }
    }

    /// The text that `id` completes; empty while a character is unfinished.
    pub fn push(&mut self, id: u32) -> String {
        if !(self.skip_special && self.tokeniser.is_special(id)) {
            self.pending.extend(self.tokeniser.token_bytes(id).unwrap_or_default());
        }
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let (whole, rest) = self.pending.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(whole));
                    let Some(wrong) = error.error_len() else {
                        self.pending = rest.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending = rest[wrong..].to_vec();
                }
            }
        }
    }

    /// What is left at the end of the answer: one U+FFFD for an unfinished character.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }
}
