//! `/v1/chat/completions`.

use std::time::Instant;

use hypic_domain::prompt::{Chat as Conversation, Prompt};
use serde_json::{Map, Value, json};

use super::collect::Collected;
use super::fields::{Fields, wrong_type};
use super::options::{MOST_TOP, Options};
use super::shape::{Head, Shape};
use super::{messages, scores};
use crate::answer::markup::{Fragment, Reading};
use crate::answer::{Delta, Finish};
use crate::front::Question;
use crate::refusal::Refusal;

/// The chat endpoint.
pub(super) struct Chat;

impl Shape for Chat {
    const ENDPOINT: &'static str = "chat_completions";
    const ID: &'static str = "chatcmpl";
    const OBJECTS: (&'static str, &'static str) = ("chat.completion", "chat.completion.chunk");

    fn read(body: &Fields<'_>, arrived: Instant) -> Result<Question, Refusal> {
        let options = Options::read(body)?;
        let messages = messages::messages(body)?;
        let (tools, mut functions) = messages::tools(body)?;
        if !calls_allowed(body, !tools.is_empty())? {
            functions.clear();
        }
        let single_call = body.boolean("parallel_tool_calls")? == Some(false);
        let continue_final_message = body.boolean("continue_final_message")?.unwrap_or(false);
        let add_generation_prompt = body.boolean("add_generation_prompt")?.unwrap_or(!continue_final_message);
        let variables = match body.object("chat_template_kwargs")? {
            Some(variables) => {
                variables.entries().map(|(name, value)| (name.clone(), value.clone())).collect()
            }
            None => Map::new(),
        };
        let conversation =
            Conversation { messages, tools, add_generation_prompt, continue_final_message, variables };
        Ok(Question {
            prompt: Prompt::Chat(conversation),
            options,
            reading: Reading { functions, single_call, ..Reading::default() },
            logprobs: logprobs(body)?,
            arrived,
        })
    }

    fn delta(head: &Head, choice: u32, first: bool, delta: Delta) -> Value {
        let mut said = Map::new();
        if first {
            said.insert("role".to_owned(), json!("assistant"));
        }
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for fragment in delta.fragments {
            match fragment {
                Fragment::Content(text) => content.push_str(&text),
                Fragment::Reasoning(text) => reasoning.push_str(&text),
                Fragment::CallStart { index, name } => calls.push(json!({
                    "index": index, "id": call_id(head, choice, index), "type": "function",
                    "function": {"name": name, "arguments": ""},
                })),
                Fragment::CallArguments { index, text } => {
                    calls.push(json!({"index": index, "function": {"arguments": text}}));
                }
            }
        }
        if !reasoning.is_empty() {
            said.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if !content.is_empty() || (first && calls.is_empty() && reasoning.is_empty()) {
            said.insert("content".to_owned(), json!(content));
        }
        if !calls.is_empty() {
            said.insert("tool_calls".to_owned(), json!(calls));
        }
        let scores = (!delta.scores.is_empty()).then(|| scores::chat(&delta.scores));
        json!({"index": choice, "delta": said, "logprobs": scores, "finish_reason": null})
    }

    fn finished(choice: u32, first: bool, finish: Finish) -> Value {
        let delta = if first { json!({"role": "assistant", "content": ""}) } else { json!({}) };
        json!({"index": choice, "delta": delta, "logprobs": null, "finish_reason": finish.name()})
    }

    fn whole(head: &Head, choice: u32, collected: Collected, scored: bool) -> Value {
        let Collected { content, reasoning, calls, scores, finish } = collected;
        let content = if content.is_empty() && !calls.is_empty() { None } else { Some(content) };
        let mut message = json!({"role": "assistant", "content": content});
        if !reasoning.is_empty() {
            message["reasoning_content"] = json!(reasoning);
        }
        if !calls.is_empty() {
            let call = |(index, (name, arguments)): (usize, (String, String))| {
                json!({
                    "id": call_id(head, choice, index), "type": "function",
                    "function": {"name": name, "arguments": arguments},
                })
            };
            message["tool_calls"] = calls.into_iter().enumerate().map(call).collect();
        }
        let scores = scored.then(|| scores::chat(&scores));
        json!({
            "index": choice, "message": message, "logprobs": scores,
            "finish_reason": finish.map(Finish::name),
        })
    }
}

/// The same in every delta and in the whole answer.
fn call_id(head: &Head, choice: u32, index: usize) -> String {
    format!("call_{}_{choice}_{index}", head.request)
}

/// Reads `tool_choice`. A call cannot be forced: that needs constrained drawing.
fn calls_allowed(body: &Fields<'_>, has_tools: bool) -> Result<bool, Refusal> {
    let refuse = |message: &str| Err(Refusal::bad("tool_choice", message));
    match body.value("tool_choice") {
        None => Ok(has_tools),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(has_tools),
            "none" => Ok(false),
            "required" => refuse("'tool_choice' can be 'auto' or 'none'; a call cannot be forced"),
            _ => refuse("'tool_choice' must be 'auto' or 'none'"),
        },
        Some(Value::Object(_)) => refuse("'tool_choice' can be 'auto' or 'none'; a call cannot be forced"),
        Some(other) => Err(wrong_type("tool_choice".to_owned(), "a string", other)),
    }
}

fn logprobs(body: &Fields<'_>) -> Result<Option<u32>, Refusal> {
    let wanted = body.boolean("logprobs")?.unwrap_or(false);
    let top = body.count("top_logprobs", 0..=MOST_TOP)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, Some(count)) if count > 0 => {
            Err(Refusal::bad("top_logprobs", "'top_logprobs' needs 'logprobs' to be true"))
        }
        (false, _) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut body: Value) -> Result<Question, Refusal> {
        body["model"] = json!("hypic-tiny");
        if body.get("messages").is_none() {
            body["messages"] = json!([{"role": "user", "content": "x"}]);
        }
        Chat::read(&Fields::body(&body)?, Instant::now())
    }

    #[test]
    fn scores_follow_the_reference() {
        for (body, expected) in [
            (json!({}), Ok(None)),
            (json!({"logprobs": true}), Ok(Some(0))),
            (json!({"logprobs": true, "top_logprobs": 20}), Ok(Some(20))),
            (json!({"logprobs": true, "top_logprobs": 21}), Err(Some("top_logprobs"))),
            (json!({"top_logprobs": 2}), Err(Some("top_logprobs"))),
            (json!({"logprobs": 2}), Err(Some("logprobs"))),
        ] {
            let read = read(body.clone());
            let found = read.as_ref().map(|question| question.logprobs).map_err(Refusal::param);
            assert_eq!(found, expected, "{body}");
        }
    }

    #[test]
    fn calls_are_read_only_where_they_may_be_made() {
        let tools = json!([{"type": "function", "function": {"name": "add"}}]);
        let functions = |choice: Value| {
            read(json!({"tools": tools, "tool_choice": choice}))
                .map(|question| question.reading.functions.len())
        };
        assert_eq!(functions(Value::Null), Ok(1));
        assert_eq!(functions(json!("auto")), Ok(1));
        assert_eq!(functions(json!("none")), Ok(0));
        for forced in [json!("required"), json!({"type": "function", "function": {"name": "add"}}), json!(1)]
        {
            assert_eq!(functions(forced).expect_err("forced").param(), Some("tool_choice"));
        }
    }

    #[test]
    fn a_continued_message_opens_no_turn_unless_asked() {
        let flags = |body: Value| match read(body).expect("valid").prompt {
            Prompt::Chat(chat) => (chat.add_generation_prompt, chat.continue_final_message),
            other => panic!("{other:?}"),
        };
        assert_eq!(flags(json!({})), (true, false));
        assert_eq!(flags(json!({"continue_final_message": true})), (false, true));
        assert_eq!(
            flags(json!({"continue_final_message": true, "add_generation_prompt": true})),
            (true, true)
        );
    }
}
