//! Texts to token ids and back. Control tokens are recognised only where no byte of them is a user's.

use std::fs;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::error::SegmentError;

/// An added token: recognised as a whole, before all merges.
struct Control {
    text: String,
    id: u32,
    /// It takes the white space beside it with it.
    strips: bool,
}

/// A byte-level tokenizer, twice: as the checkpoint has it, and without its control tokens.
pub struct Tokeniser {
    full: Tokenizer,
    plain: Tokenizer,
    /// Longest first.
    controls: Vec<Control>,
    special: Vec<u32>,
    leading: Vec<u32>,
}

impl Tokeniser {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// `RefuseSetting` for a tokenizer that is not byte-level or that adds a space to each text: its pieces
    /// could not be tokenised apart. `ReadFile`, `ParseFile` and `LoadTokeniser` name the file.
    pub fn load(file: &Path) -> Result<Self, SegmentError> {
        let bytes =
            fs::read(file).map_err(|source| SegmentError::ReadFile { file: file.to_owned(), source })?;
        let mut json: Value = serde_json::from_slice(&bytes)
            .map_err(|source| SegmentError::ParseFile { file: file.to_owned(), source })?;
        check(&json).map_err(|(field, reason)| SegmentError::RefuseSetting {
            file: file.to_owned(),
            field,
            reason: reason.to_owned(),
        })?;
        let refuse = |source| SegmentError::LoadTokeniser { file: file.to_owned(), source };
        let full = Tokenizer::from_bytes(&bytes).map_err(refuse)?;
        let (mut controls, mut special) = (Vec::new(), Vec::new());
        for (id, token) in full.get_added_tokens_decoder() {
            // Runs of white space can be added tokens, too; they control nothing.
            if !token.content.trim().is_empty() {
                let strips = token.lstrip || token.rstrip;
                controls.push(Control { text: token.content, id, strips });
            }
            if token.special {
                special.push(id);
            }
        }
        controls.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.id.cmp(&b.id)));
        if let Some(added) = json.get_mut("added_tokens").and_then(Value::as_array_mut) {
            added.retain(|token| token["content"].as_str().is_some_and(|text| text.trim().is_empty()));
        }
        json["post_processor"] = Value::Null;
        let plain = Tokenizer::from_bytes(json.to_string()).map_err(refuse)?;
        let mut tokeniser = Self { full, plain, controls, special, leading: Vec::new() };
        tokeniser.leading = tokeniser.leading_ids()?;
        Ok(tokeniser)
    }

    /// Ids that the checkpoint wants before a plain completion, as a beginning-of-text token.
    pub(crate) fn leading(&self) -> &[u32] {
        &self.leading
    }

    fn leading_ids(&self) -> Result<Vec<u32>, SegmentError> {
        let ids =
            |added| self.full.encode_fast("a", added).map_err(|source| SegmentError::Tokenise { source });
        let (with, without) = (ids(true)?, ids(false)?);
        let (with, without) = (with.get_ids(), without.get_ids());
        let start = with.windows(without.len().max(1)).position(|window| window == without);
        Ok(start.map_or(Vec::new(), |start| with[..start].to_vec()))
    }

    /// The ids of `text[range]`, tokenised apart from what is around it. `user` are the spans of `text` in which
    /// control tokens are ordinary text: sorted, disjoint.
    pub(crate) fn encode(
        &self,
        text: &str,
        range: Range<usize>,
        user: &[Range<usize>],
    ) -> Result<Vec<u32>, SegmentError> {
        let found = self.scan(text, range.clone(), user);
        if found.iter().all(|(_, control)| control.is_some()) {
            return encode_with(&self.full, &text[range]);
        }
        let (mut ids, mut at) = (Vec::new(), range.start);
        for (place, control) in found {
            let Some(control) = control else { continue };
            ids.extend(self.ordinary(&text[at..place.start])?);
            ids.push(control.id);
            at = place.end;
        }
        ids.extend(self.ordinary(&text[at..range.end])?);
        Ok(ids)
    }

    /// Where the template's own control tokens stand in `text`, without those that take white space with them:
    /// before all of these a text can be cut without a change to its tokens.
    pub(crate) fn controls(&self, text: &str, user: &[Range<usize>]) -> Vec<Range<usize>> {
        let found = self.scan(text, 0..text.len(), user);
        let clean = |control: Option<&Control>| control.is_some_and(|control| !control.strips);
        found.into_iter().filter(|(_, control)| clean(*control)).map(|(place, _)| place).collect()
    }

    /// Whether `text` spells a control token.
    pub(crate) fn spells_control(&self, text: &str) -> bool {
        !self.scan(text, 0..text.len(), &[]).is_empty()
    }

    /// Byte ranges of the tokens of `text`, control tokens taken as ordinary text.
    pub(crate) fn offsets(&self, text: &str) -> Result<Vec<Range<usize>>, SegmentError> {
        let encoding = self.plain.encode(text, false).map_err(|source| SegmentError::Tokenise { source })?;
        Ok(encoding.get_offsets().iter().map(|(start, end)| *start..*end).collect())
    }

    /// Spelt control tokens in order, forged ones without their control.
    fn scan(
        &self,
        text: &str,
        range: Range<usize>,
        user: &[Range<usize>],
    ) -> Vec<(Range<usize>, Option<&Control>)> {
        let mut starts = [false; 256];
        for control in &self.controls {
            starts[usize::from(control.text.as_bytes()[0])] = true;
        }
        let (mut found, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let rest = &text.as_bytes()[at..range.end];
            let control = if starts[usize::from(rest[0])] {
                self.controls.iter().find(|control| rest.starts_with(control.text.as_bytes()))
            } else {
                None
            };
            let Some(control) = control else {
                at += 1;
                continue;
            };
            let place = at..at + control.text.len();
            let next = user.partition_point(|span| span.end <= place.start);
            let forged = user.get(next).is_some_and(|span| span.start < place.end);
            // A forged one may overlap a true one behind it.
            at += if forged { 1 } else { control.text.len() };
            found.push((place, (!forged).then_some(control)));
        }
        found
    }

    fn ordinary(&self, text: &str) -> Result<Vec<u32>, SegmentError> {
        let ids = encode_with(&self.plain, text)?;
        match ids.iter().find(|id| self.controls.iter().any(|control| control.id == **id)) {
            None => Ok(ids),
            Some(_) => Err(SegmentError::invalid(
                "messages",
                "spells a control token, which this tokenizer cannot avoid",
            )),
        }
    }

    /// The id of a token by its text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.full.token_to_id(token)
    }

    /// The bytes a token stands for; for a control token its text. `None` for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.full.id_to_token(id)?;
        let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
        Some(bytes.unwrap_or_else(|| token.into_bytes()))
    }

    /// Whether a token is one that answers leave out: end of turn and its like.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        self.full.get_vocab(true).into_keys().map(|token| token.chars().count()).max().unwrap_or(1)
    }

    /// One more than the highest id.
    pub(crate) fn size(&self) -> usize {
        self.full.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }
}

fn encode_with(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, SegmentError> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|source| SegmentError::Tokenise { source })?;
    Ok(encoding.get_ids().to_vec())
}

/// What a tokenizer must be for its pieces to be tokenised apart and its ids to be bytes.
fn check(json: &Value) -> Result<(), (&'static str, &'static str)> {
    let find = |value: &Value, list: &str| -> Option<Value> {
        let is_byte_level = |value: &Value| value["type"] == "ByteLevel";
        match value {
            value if is_byte_level(value) => Some(value.clone()),
            value => value[list].as_array()?.iter().find(|value| is_byte_level(value)).cloned(),
        }
    };
    if find(&json["decoder"], "decoders").is_none() {
        return Err(("decoder", "must be byte-level: others are not supported"));
    }
    match find(&json["pre_tokenizer"], "pretokenizers") {
        None => Err(("pre_tokenizer", "must be byte-level: others are not supported")),
        Some(level) if level["add_prefix_space"] == true => {
            Err(("pre_tokenizer", "adds a space to each text: prompts could not be cut"))
        }
        Some(_) => Ok(()),
    }
}

/// The byte that a character of a byte-level vocabulary stands for (GPT-2's table).
fn byte_of(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}
