//! Log probabilities in the two forms that OpenAI has for them. All numbers are finite.

use serde_json::{Map, Value, json};

use crate::answer::{Scored, ScoredToken};

/// The form of chat completions.
pub(super) fn chat(tokens: &[ScoredToken]) -> Value {
    let entry = |scored: &Scored| {
        let token = String::from_utf8_lossy(&scored.bytes);
        json!({"token": token, "logprob": scored.logprob, "bytes": scored.bytes})
    };
    let content = tokens.iter().map(|scored| {
        let mut value = entry(&scored.token);
        value["top_logprobs"] = scored.top.iter().map(entry).collect();
        value
    });
    json!({"content": content.collect::<Vec<_>>()})
}

/// The form of plain completions. The drawn token is always among the likeliest ones.
pub(super) fn completions(tokens: &[ScoredToken]) -> Value {
    let top = |scored: &ScoredToken| {
        let mut top: Map<String, Value> =
            scored.top.iter().map(|scored| (name(scored), json!(scored.logprob))).collect();
        top.entry(name(&scored.token)).or_insert_with(|| json!(scored.token.logprob));
        top
    };
    json!({
        "tokens": tokens.iter().map(|scored| name(&scored.token)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|scored| scored.token.logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": tokens.iter().map(|scored| scored.offset).collect::<Vec<_>>(),
    })
}

/// A token as text; one that is part of a character by its bytes.
fn name(scored: &Scored) -> String {
    match std::str::from_utf8(&scored.bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes: String = scored.bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{bytes}")
        }
    }
}
