//! The station against transformers, against the evaluation prompts, and against reported faults.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hypic_domain::flow::{Mode, Origin, Piece, Request, SegmentedRequest};
use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::prompt::{Chat, Message, Prompt, Role, TextPart, Tool, ToolCall};
use hypic_domain::sampling::Sampling;
use hypic_domain::serving::ModelFile;
use hypic_domain::unit::Tokens;
use hypic_segment::{Clock, Detokeniser, SegmentError, Segmenter};
use serde_json::{Value, json};

#[path = "station/faults.rs"]
mod faults;
#[path = "station/goldens.rs"]
mod goldens;
#[path = "station/load.rs"]
mod load;
#[path = "station/pieces.rs"]
mod pieces;

const IDENTITY: Identity = Identity([3; 32]);

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/models/hypic-tiny")
}

fn fixture(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// hypic-tiny's model file.
fn model() -> ModelFile {
    ModelFile {
        segment_min: Tokens(16),
        ..serde_json::from_value(json!({"name": "m", "path": "."})).unwrap()
    }
}

fn clock() -> Clock {
    Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_210_096))
}

/// hypic-tiny's text files with some of them changed.
fn checkpoint(edit: impl FnOnce(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::write(folder.path().join(file), fs::read(tiny().join(file)).unwrap()).unwrap();
    }
    edit(folder.path());
    folder
}

fn edit_json(file: PathBuf, edit: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    edit(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

fn load_tiny() -> Segmenter {
    Segmenter::load(&tiny(), &model(), &clock()).unwrap()
}

fn load_template(source: &str) -> Result<Segmenter, SegmentError> {
    let folder = checkpoint(|folder| fs::write(folder.join("chat_template.jinja"), source).unwrap());
    Segmenter::load(folder.path(), &model(), &clock())
}

fn part(text: &str) -> TextPart {
    TextPart { text: text.to_owned(), marked: false }
}

fn says(role: Role, texts: &[&str]) -> Message {
    Message {
        role,
        content: texts.iter().map(|text| part(text)).collect(),
        tool_calls: Vec::new(),
        tool_call_id: None,
        name: None,
        reasoning: None,
    }
}

fn chat(messages: Vec<Message>) -> Chat {
    Chat { messages, add_generation_prompt: true, ..Chat::default() }
}

fn request(prompt: Prompt) -> Request {
    Request {
        id: "r".into(),
        tenant: "t".into(),
        scope: Scope([9; 32]),
        model: "m".into(),
        mode: Mode::Pic,
        prompt,
        sampling: Sampling::default(),
        deadline: None,
    }
}

fn segment(segmenter: &Segmenter, prompt: Prompt) -> Result<SegmentedRequest, SegmentError> {
    let segmented = segmenter.segment(request(prompt), &IDENTITY)?;
    assert!(segmented.pieces.last().unwrap().key.is_none(), "the last piece is live");
    assert!(segmented.pieces.iter().all(|piece| !piece.ids.is_empty()));
    Ok(segmented)
}

fn segment_chat(segmenter: &Segmenter, chat: Chat) -> SegmentedRequest {
    segment(segmenter, Prompt::Chat(chat)).unwrap()
}

fn ids(pieces: &[Piece]) -> Vec<u32> {
    pieces.iter().flat_map(|piece| piece.ids.clone()).collect()
}

fn decode(segmenter: &Segmenter, ids: &[u32]) -> String {
    let mut detokeniser = Detokeniser::new(Arc::clone(segmenter.tokeniser()), false);
    let mut text: String = ids.iter().map(|id| detokeniser.push(*id)).collect();
    text.push_str(&detokeniser.finish());
    text
}

/// A conversation in OpenAI's JSON, as the router would read it.
fn from_openai(value: &Value) -> Chat {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let message = |message: &Value| Message {
        role: serde_json::from_value(message["role"].clone()).unwrap(),
        content: match &message["content"] {
            Value::String(text) if text.is_empty() => Vec::new(),
            Value::String(text) => vec![part(text)],
            Value::Array(parts) => parts
                .iter()
                .map(|part| TextPart {
                    text: part["text"].as_str().unwrap().to_owned(),
                    marked: part.get("cache_control").is_some(),
                })
                .collect(),
            _ => Vec::new(),
        },
        tool_calls: message["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| ToolCall {
                id: text(&call["id"]).unwrap(),
                name: text(&call["function"]["name"]).unwrap(),
                arguments: call["function"]["arguments"].clone(),
            })
            .collect(),
        tool_call_id: text(&message["tool_call_id"]),
        name: text(&message["name"]),
        reasoning: text(&message["reasoning_content"]),
    };
    Chat {
        messages: value["messages"].as_array().unwrap().iter().map(message).collect(),
        tools: (value["tools"].as_array().into_iter().flatten())
            .map(|schema| Tool { schema: schema.clone(), marked: false })
            .collect(),
        add_generation_prompt: value["add_generation_prompt"].as_bool().unwrap_or(true),
        continue_final_message: value["continue_final_message"].as_bool().unwrap_or(false),
        variables: value["variables"].as_object().cloned().unwrap_or_default(),
    }
}
