//! The station: one model's text files, and requests cut by them.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hypic_domain::flow::{Origin, Piece, Request, SegmentedRequest};
use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::prompt::{Chat, Prompt, Role};
use hypic_domain::serving::ModelFile;
use hypic_domain::unit::Tokens;

use crate::checkpoint::Checkpoint;
use crate::cut::{Cut, Marked, cut};
use crate::error::SegmentError;
use crate::memo::Memo;
use crate::template::{ChatTemplate, Clock};
use crate::tokenise::Tokeniser;

/// Normal forms of Unicode write three letters of a text as one at most.
const NORMALISED: usize = 3;
/// Snapshots may stand at no more boundaries than this.
const BOUNDARIES: usize = 64;

/// Cuts the requests of one model.
pub struct Segmenter {
    model: ModelFile,
    tokeniser: Arc<Tokeniser>,
    templates: Vec<(String, ChatTemplate)>,
    context: Tokens,
    /// Bytes of text that a token stands for at most.
    token_bytes: usize,
    vocab: usize,
    end_ids: Vec<u32>,
    untracked: AtomicU64,
    memo: Memo,
}

/// How cutting a prompt changed its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutChanges {
    /// Cuts in the prompt.
    pub cuts: usize,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Tokens of it that the same text, tokenised as a whole, does not have at that place.
    pub changed: usize,
}

impl Segmenter {
    /// Reads the text files of a checkpoint. `clock` serves templates that print a date.
    ///
    /// # Errors
    /// All but the per-request ones: each names the file and what is wrong with it.
    pub fn load(folder: &Path, model: &ModelFile, clock: &Clock) -> Result<Self, SegmentError> {
        let checkpoint = Checkpoint::read(folder)?;
        let file = folder.join("tokenizer.json");
        let tokeniser = Tokeniser::load(&file)?;
        let refuse = |field, reason| SegmentError::RefuseSetting { file: file.clone(), field, reason };
        if tokeniser.size() > checkpoint.vocab {
            let reason = format!("has ids up to {}, the model only {}", tokeniser.size(), checkpoint.vocab);
            return Err(refuse("vocab", reason));
        }
        let mut end_ids = checkpoint.eos;
        if let Some(text) = checkpoint.specials.get("eos_token").and_then(|text| text.as_str()) {
            let id = tokeniser.id(text);
            end_ids.push(id.ok_or_else(|| refuse("eos_token", format!("'{text}' is no token of it")))?);
        }
        end_ids.sort_unstable();
        end_ids.dedup();
        let mut templates = Vec::new();
        for (name, source) in checkpoint.templates {
            let specials = checkpoint.specials.clone();
            let template = ChatTemplate::compile(&source, &checkpoint.template_file, specials, clock)?;
            templates.push((name, template));
        }
        Ok(Self {
            model: model.clone(),
            token_bytes: NORMALISED * tokeniser.longest(),
            tokeniser: Arc::new(tokeniser),
            templates,
            context: checkpoint.context,
            vocab: checkpoint.vocab,
            end_ids,
            untracked: AtomicU64::new(0),
            memo: Memo::default(),
        })
    }

    /// Cuts one request.
    ///
    /// # Errors
    /// The per-request ones, for all of which [`SegmentError::is_clients`] holds, and `Tokenise`.
    pub fn segment(&self, request: Request, identity: &Identity) -> Result<SegmentedRequest, SegmentError> {
        let param = if matches!(request.prompt, Prompt::Chat(_)) { "messages" } else { "prompt" };
        // An answer has one token at least, unless the request itself wants none.
        let asked = request.sampling.max_tokens;
        let requested = if asked == Tokens(u32::MAX) { Tokens(1) } else { asked };
        let pieces = match &request.prompt {
            Prompt::Ids(ids) => vec![self.ids_piece(ids)?],
            prompt => {
                let marked = self.marked(prompt)?;
                // Far too long a text is not worth the memory that its tokens take. Its bytes are no count: what fits
                // without the answer is counted.
                let least = marked.text.len() / self.token_bytes;
                if least as u64 > u64::from(self.context.0) {
                    return Err(self.too_long(param, least, requested, false));
                }
                self.text_pieces(&marked, prompt, identity, &request.scope)?
            }
        };
        let tokens = pieces.iter().map(|piece| piece.ids.len()).sum();
        if tokens as u64 + u64::from(requested.0) > u64::from(self.context.0) {
            return Err(self.too_long(param, tokens, requested, true));
        }
        let boundaries = self.boundaries(&pieces, identity, &request.scope);
        Ok(SegmentedRequest { request, pieces, boundaries })
    }

    /// The refusal of a prompt of so many tokens.
    fn too_long(
        &self,
        param: &'static str,
        tokens: usize,
        requested: Tokens,
        is_counted: bool,
    ) -> SegmentError {
        let prompt = Tokens(u32::try_from(tokens).unwrap_or(u32::MAX));
        SegmentError::ContextLength { param, limit: self.context, prompt, requested, is_counted }
    }

    /// The text of a chat as the template renders it, or of a plain completion without its separators.
    ///
    /// # Errors
    /// As for [`segment`](Self::segment); `InvalidRequest` for ids, which have no text of record.
    pub fn render(&self, prompt: &Prompt) -> Result<String, SegmentError> {
        Ok(self.marked(prompt)?.text)
    }

    /// How the cuts of a chat or a plain completion change its tokens against the whole text's.
    ///
    /// # Errors
    /// As for [`segment`](Self::segment).
    pub fn cut_changes(&self, prompt: &Prompt) -> Result<CutChanges, SegmentError> {
        let marked = self.marked(prompt)?;
        let cuts = cut(&self.tokeniser, &marked, &self.model, &Memo::default(), &Scope::PUBLIC)?;
        let whole = self.tokeniser.encode(&marked.text, 0..marked.text.len(), &marked.user)?;
        let whole: HashSet<(usize, u32)> = self.placed(&whole).into_iter().collect();
        let ids: Vec<u32> = cuts.iter().flat_map(|cut| cut.ids.iter().copied()).collect();
        let changed = self.placed(&ids).iter().filter(|token| !whole.contains(token)).count();
        Ok(CutChanges { cuts: cuts.len() - 1, tokens: ids.len(), changed })
    }

    /// Ids with the byte each begins at.
    fn placed(&self, ids: &[u32]) -> Vec<(usize, u32)> {
        let place = |at: &mut usize, id: &u32| {
            let start = *at;
            *at += self.tokeniser.token_bytes(*id).map_or(0, |bytes| bytes.len());
            Some((start, *id))
        };
        ids.iter().scan(0, place).collect()
    }

    /// The tokenizer, for [`crate::Detokeniser`] and for the bytes of tokens.
    pub fn tokeniser(&self) -> &Arc<Tokeniser> {
        &self.tokeniser
    }

    /// Ids that end an answer: those of `generation_config.json`, else of `config.json`, and the tokenizer's
    /// end of turn. Sorted.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Longest prompt and answer together.
    pub fn context(&self) -> Tokens {
        self.context
    }

    /// Rows of the model's embedding: every id is below.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Chats so far that stayed uncut because the template changes marked strings.
    pub fn untracked(&self) -> u64 {
        self.untracked.load(Ordering::Relaxed)
    }

    fn ids_piece(&self, ids: &[u32]) -> Result<Piece, SegmentError> {
        if ids.is_empty() {
            return Err(SegmentError::invalid("prompt", "is empty"));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab) {
            return Err(SegmentError::invalid("prompt", format!("has the id {id}, which is no token")));
        }
        Ok(Piece { ids: ids.to_vec(), origin: Origin::Query, key: None })
    }

    fn text_pieces(
        &self,
        marked: &Marked,
        prompt: &Prompt,
        identity: &Identity,
        scope: &Scope,
    ) -> Result<Vec<Piece>, SegmentError> {
        let mut pieces: Vec<Piece> = cut(&self.tokeniser, marked, &self.model, &self.memo, scope)?
            .into_iter()
            .map(|Cut { ids, origin, live, .. }| {
                let key = (!live).then(|| SegmentKey::derive(identity, scope, &ids));
                Piece { ids, origin, key }
            })
            .collect();
        // A template writes its own beginning of text.
        let leading = self.tokeniser.leading();
        let begins = pieces.first().is_some_and(|first| first.ids.starts_with(leading));
        if matches!(prompt, Prompt::Text(_)) && !begins {
            match pieces.first_mut().filter(|first| first.key.is_none()) {
                Some(first) => drop(first.ids.splice(0..0, leading.iter().copied())),
                None => {
                    pieces.insert(0, Piece { ids: leading.to_vec(), origin: Origin::Template, key: None })
                }
            }
        }
        Ok(pieces)
    }

    fn marked(&self, prompt: &Prompt) -> Result<Marked, SegmentError> {
        match prompt {
            Prompt::Chat(chat) => self.chat(chat),
            Prompt::Text(text) => self.separated(text),
            Prompt::Ids(_) => Err(SegmentError::invalid("prompt", "is ids, not text")),
        }
    }

    /// A plain completion: what separators part are segments, but for the last.
    fn separated(&self, text: &str) -> Result<Marked, SegmentError> {
        let mut marked = Marked::default();
        let separator = self.model.separator.as_str();
        let whole = [text];
        let spans: Vec<&str> =
            if separator.is_empty() { whole.into() } else { text.split(separator).collect() };
        for span in spans.into_iter().filter(|span| !span.is_empty()) {
            let start = marked.text.len();
            marked.text.push_str(span);
            marked.parts.push((Origin::Marked, start..marked.text.len()));
        }
        marked.query = marked.parts.pop().map(|(_, query)| query.start);
        if marked.query.is_none() {
            return Err(SegmentError::invalid("prompt", "is empty"));
        }
        Ok(marked)
    }

    fn chat(&self, chat: &Chat) -> Result<Marked, SegmentError> {
        check(chat)?;
        let named = |name| self.templates.iter().find(|(own, _)| own == name);
        let template = if chat.tools.is_empty() { None } else { named("tool_use") };
        let Some((_, template)) = template.or_else(|| named("default")) else {
            return Err(SegmentError::invalid("messages", "needs a chat template, and the model has none"));
        };
        let rendered = template.render(chat)?;
        let Some(tracking) = rendered.tracking else {
            self.untracked.fetch_add(1, Ordering::Relaxed);
            // Nobody knows who wrote what: then only a text without control tokens is safe.
            if strings(chat).any(|text| self.tokeniser.spells_control(text)) {
                let reason = "spells a control token, and the model's chat template cannot be followed";
                return Err(SegmentError::invalid("messages", reason));
            }
            return Ok(Marked { text: rendered.text, ..Marked::default() });
        };
        // The question is the last part of the last user turn.
        let last = chat.messages.iter().rposition(|message| message.role == Role::User);
        let query = tracking.parts.iter().rposition(|(part, _)| {
            part.origin == Origin::Part && part.message.is_some() && part.message == last
        });
        let mut marked = Marked { text: rendered.text, user: tracking.user, ..Marked::default() };
        let mut turn = None;
        for (place, (part, span)) in tracking.parts.into_iter().enumerate() {
            if part.message.is_some() && part.message != turn {
                turn = part.message;
                marked.turns.push(span.start);
            }
            if Some(place) == query {
                marked.query = Some(span.start);
            } else {
                marked.parts.push((part.origin, span));
            }
        }
        Ok(marked)
    }

    /// Ends of pieces, the last excepted, at which an exact snapshot may stand.
    fn boundaries(&self, pieces: &[Piece], identity: &Identity, scope: &Scope) -> Vec<(Tokens, SegmentKey)> {
        let ids: Vec<u32> = pieces.iter().flat_map(|piece| piece.ids.iter().copied()).collect();
        let mut ends: Vec<usize> = Vec::new();
        for piece in pieces {
            ends.push(ends.last().copied().unwrap_or(0) + piece.ids.len());
        }
        ends.pop();
        ends.retain(|end| *end >= (self.model.snapshot_min.0 as usize).max(1));
        // Too many: the longest stays, and the others spread evenly.
        let count = ends.len();
        let kept = (1..=count.min(BOUNDARIES)).map(|place| ends[place * count / count.min(BOUNDARIES) - 1]);
        kept.map(|end| {
            (Tokens(end as u32), SegmentKey::derive_snapshot(identity, scope, &ids[..end], "exact"))
        })
        .collect()
    }
}

/// Refuses conversations that no template can answer.
fn check(chat: &Chat) -> Result<(), SegmentError> {
    let Some(last) = chat.messages.last() else {
        return Err(SegmentError::invalid("messages", "is empty"));
    };
    if !chat.continue_final_message {
        return Ok(());
    }
    let refuse = |reason| Err(SegmentError::invalid("continue_final_message", reason));
    if chat.add_generation_prompt {
        return refuse("contradicts 'add_generation_prompt': a turn is continued or opened, not both");
    }
    if last.role != Role::Assistant {
        return refuse("needs an assistant message at the end");
    }
    if !last.tool_calls.is_empty() {
        return refuse("cannot continue a message with tool calls");
    }
    if last.content.iter().all(|part| part.text.trim().is_empty()) {
        return refuse("cannot continue an empty message");
    }
    Ok(())
}

/// Every string of a chat that a template could print.
fn strings(chat: &Chat) -> impl Iterator<Item = &str> {
    fn leaves<'a>(value: &'a serde_json::Value, out: &mut Vec<&'a str>) {
        match value {
            serde_json::Value::String(text) => out.push(text),
            serde_json::Value::Array(items) => items.iter().for_each(|item| leaves(item, out)),
            serde_json::Value::Object(map) => {
                for (key, item) in map {
                    out.push(key);
                    leaves(item, out);
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    chat.tools.iter().for_each(|tool| leaves(&tool.schema, &mut out));
    chat.variables.values().for_each(|value| leaves(value, &mut out));
    for message in &chat.messages {
        out.extend(message.content.iter().map(|part| part.text.as_str()));
        out.extend(
            message.tool_call_id.iter().chain(&message.name).chain(&message.reasoning).map(String::as_str),
        );
        for call in &message.tool_calls {
            out.extend([call.id.as_str(), call.name.as_str()]);
            leaves(&call.arguments, &mut out);
        }
    }
    out.into_iter()
}
