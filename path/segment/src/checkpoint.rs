//! What the station reads of a checkpoint's small files.

use std::fs;
use std::path::{Path, PathBuf};

use hypic_domain::unit::Tokens;
use serde_json::{Map, Value};

use crate::error::SegmentError;

const SPECIALS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A checkpoint's text settings.
pub(crate) struct Checkpoint {
    /// Longest prompt and answer together.
    pub(crate) context: Tokens,
    /// Rows of the model's embedding: every id is below.
    pub(crate) vocab: usize,
    /// Ids of `generation_config.json`, else of `config.json`.
    pub(crate) eos: Vec<u32>,
    /// Special tokens by the name a template knows them by.
    pub(crate) specials: Map<String, Value>,
    /// Chat templates by name; `default` is the one for all that have no other.
    pub(crate) templates: Vec<(String, String)>,
    /// The file that holds them.
    pub(crate) template_file: PathBuf,
}

impl Checkpoint {
    /// Reads `config.json`, `generation_config.json`, `tokenizer_config.json` and `chat_template.jinja`; only
    /// the first must be there. A template file wins over the one in the tokenizer's configuration. Sampling
    /// defaults of `generation_config.json` are not used.
    ///
    /// # Errors
    /// `ReadFile`, `ParseFile` and `RefuseSetting` name the file.
    pub(crate) fn read(folder: &Path) -> Result<Self, SegmentError> {
        let config_file = folder.join("config.json");
        let config = read_json(&config_file)?.ok_or_else(|| SegmentError::ReadFile {
            file: config_file.clone(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        // Models with other inputs keep the language model's settings one level down.
        let setting = |field| config.get(field).or_else(|| config.get("text_config")?.get(field));
        let count = |field: &'static str| {
            setting(field)
                .and_then(Value::as_u64)
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0)
                .ok_or_else(|| SegmentError::RefuseSetting {
                    file: config_file.clone(),
                    field,
                    reason: "must be a whole number above zero".to_owned(),
                })
        };
        let context = Tokens(count("max_position_embeddings")?);
        let vocab = count("vocab_size")? as usize;

        let generation_file = folder.join("generation_config.json");
        let generation = read_json(&generation_file)?;
        let eos = match generation.as_ref().and_then(|generation| generation.get("eos_token_id")) {
            Some(Value::Null) | None => end_ids(setting("eos_token_id"), vocab, &config_file)?,
            ids => end_ids(ids, vocab, &generation_file)?,
        };

        let tokenizer_file = folder.join("tokenizer_config.json");
        let tokenizer = read_json(&tokenizer_file)?.unwrap_or_default();
        let mut specials = Map::new();
        for name in SPECIALS {
            let token = tokenizer.get(name);
            let text = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
            if let Some(text) = text {
                specials.insert(name.to_owned(), text.into());
            }
        }
        let template_file = folder.join("chat_template.jinja");
        let (templates, template_file) = match read(&template_file)? {
            Some(source) => (vec![("default".to_owned(), source)], template_file),
            None => (templates(tokenizer.get("chat_template"), &tokenizer_file)?, tokenizer_file),
        };
        Ok(Self { context, vocab, eos, specials, templates, template_file })
    }
}

/// One id, a list of ids, or none.
fn end_ids(value: Option<&Value>, vocab: usize, file: &Path) -> Result<Vec<u32>, SegmentError> {
    let ids = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().collect(),
        Some(id) => vec![id],
    };
    let id = |id: &Value| {
        let known = id.as_u64().filter(|id| (*id as usize) < vocab);
        known.map(|id| id as u32).ok_or_else(|| SegmentError::RefuseSetting {
            file: file.to_owned(),
            field: "eos_token_id",
            reason: format!("holds {id}, which is no token id below {vocab}"),
        })
    };
    ids.into_iter().map(id).collect()
}

/// A template, or a list of `{name, template}`.
fn templates(value: Option<&Value>, file: &Path) -> Result<Vec<(String, String)>, SegmentError> {
    let named = |entry: &Value| {
        Some((entry.get("name")?.as_str()?.to_owned(), entry.get("template")?.as_str()?.to_owned()))
    };
    let found = match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(source)) => Some(vec![("default".to_owned(), source.clone())]),
        Some(Value::Array(entries)) => entries.iter().map(named).collect(),
        Some(_) => None,
    };
    found.ok_or_else(|| SegmentError::RefuseSetting {
        file: file.to_owned(),
        field: "chat_template",
        reason: "must be a text or a list of names and templates".to_owned(),
    })
}

fn read_json(file: &Path) -> Result<Option<Value>, SegmentError> {
    let Some(text) = read(file)? else { return Ok(None) };
    match serde_json::from_str(&text) {
        Ok(value) => Ok(Some(value)),
        Err(source) => Err(SegmentError::ParseFile { file: file.to_owned(), source }),
    }
}

fn read(file: &Path) -> Result<Option<String>, SegmentError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SegmentError::ReadFile { file: file.to_owned(), source }),
    }
}
