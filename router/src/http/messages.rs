//! OpenAI messages and tools into a conversation.

use std::collections::BTreeMap;

use hypic_domain::prompt::{Message, Role, TextPart, Tool, ToolCall};
use serde_json::{Map, Value, json};

use super::fields::{Fields, cut, wrong_type};
use crate::refusal::Refusal;

/// Reads `messages`.
pub(super) fn messages(body: &Fields<'_>) -> Result<Vec<Message>, Refusal> {
    let Some(messages) = body.array("messages")? else {
        return Err(Refusal::bad("messages", "'messages' is required"));
    };
    if messages.is_empty() {
        return Err(Refusal::bad("messages", "'messages' must not be empty"));
    }
    let message = |(at, value)| message(&Fields::at(value, format!("messages[{at}]"))?);
    messages.iter().enumerate().map(message).collect()
}

fn message(fields: &Fields<'_>) -> Result<Message, Refusal> {
    let role = match fields.string("role")? {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        Some(other) => {
            return Err(Refusal::bad(fields.path("role"), format!("unknown role '{}'", cut(other))));
        }
        None => return Err(Refusal::bad(fields.path("role"), "every message needs a role")),
    };
    let content = match fields.value("content") {
        None if role == Role::Assistant => Vec::new(),
        None => return Err(Refusal::bad(fields.path("content"), "this message needs a content")),
        Some(value) => content(value, fields)?,
    };
    let tool_calls = match role {
        Role::Assistant => tool_calls(fields)?,
        Role::System | Role::User | Role::Tool => Vec::new(),
    };
    let reasoning = match fields.string("reasoning_content")? {
        Some(text) => Some(text),
        None => fields.string("reasoning")?,
    };
    Ok(Message {
        role,
        content,
        tool_calls,
        tool_call_id: fields.string("tool_call_id")?.map(str::to_owned),
        name: fields.string("name")?.map(str::to_owned),
        reasoning: reasoning.map(str::to_owned),
    })
}

/// A string is one part; an empty string or an empty array has none.
fn content(value: &Value, fields: &Fields<'_>) -> Result<Vec<TextPart>, Refusal> {
    let path = fields.path("content");
    match value {
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => {
            Ok(vec![TextPart { text: text.clone(), marked: fields.value("cache_control").is_some() }])
        }
        Value::Array(parts) => {
            let part = |(at, part)| text_part(&Fields::at(part, format!("{path}[{at}]"))?);
            parts.iter().enumerate().map(part).collect()
        }
        other => Err(wrong_type(path, "a string or an array of parts", other)),
    }
}

fn text_part(part: &Fields<'_>) -> Result<TextPart, Refusal> {
    match part.string("type")? {
        Some("text") => {}
        Some(other) => {
            let message = format!("parts of type '{}' are not supported, only 'text'", cut(other));
            return Err(Refusal::bad(part.path("type"), message));
        }
        None => return Err(Refusal::bad(part.path("type"), "every part needs a type")),
    }
    let Some(text) = part.string("text")? else {
        return Err(Refusal::bad(part.path("text"), "a text part needs a text"));
    };
    Ok(TextPart { text: text.to_owned(), marked: part.value("cache_control").is_some() })
}

fn tool_calls(fields: &Fields<'_>) -> Result<Vec<ToolCall>, Refusal> {
    let calls = fields.array("tool_calls")?.unwrap_or_default();
    let path = fields.path("tool_calls");
    let call = |(at, value)| {
        let call = Fields::at(value, format!("{path}[{at}]"))?;
        let Some(function) = call.object("function")? else {
            return Err(Refusal::bad(call.path("function"), "a tool call needs a function"));
        };
        let Some(name) = function.string("name")? else {
            return Err(Refusal::bad(function.path("name"), "a function needs a name"));
        };
        Ok(ToolCall {
            id: call.string("id")?.unwrap_or_default().to_owned(),
            name: name.to_owned(),
            arguments: arguments(function.value("arguments"), function.path("arguments"))?,
        })
    };
    calls.iter().enumerate().map(call).collect()
}

/// Templates expect an object; clients send it as a string, and nothing for no arguments.
fn arguments(value: Option<&Value>, path: String) -> Result<Value, Refusal> {
    let parsed = match value {
        None => return Ok(json!({})),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(json!({})),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map_err(|_| Refusal::bad(&path, format!("'{path}' must be the JSON text of an object")))?,
        Some(other) => other.clone(),
    };
    if parsed.is_object() { Ok(parsed) } else { Err(wrong_type(path, "an object", &parsed)) }
}

/// Reads `tools`: the schemas for the template, and by name those of the parameters.
pub(super) fn tools(body: &Fields<'_>) -> Result<(Vec<Tool>, BTreeMap<String, Value>), Refusal> {
    let (mut tools, mut functions) = (Vec::new(), BTreeMap::new());
    for (at, value) in body.array("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::at(value, format!("tools[{at}]"))?;
        if let Some(kind) = tool.string("type")?
            && kind != "function"
        {
            let message = format!("tools of type '{}' are not supported", cut(kind));
            return Err(Refusal::bad(tool.path("type"), message));
        }
        let Some(function) = tool.object("function")? else {
            return Err(Refusal::bad(tool.path("function"), "a tool needs a function"));
        };
        let name = function.string("name")?.unwrap_or_default();
        if name.is_empty() {
            return Err(Refusal::bad(function.path("name"), "a function needs a name"));
        }
        let parameters = function.value("parameters").cloned().unwrap_or(Value::Null);
        if functions.insert(name.to_owned(), parameters).is_some() {
            return Err(Refusal::bad(function.path("name"), format!("two tools are named '{}'", cut(name))));
        }
        // The mark is ours, not the template's.
        let unmarked = |object: &Map<String, Value>| {
            let kept = object.iter().filter(|(key, _)| *key != "cache_control");
            kept.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>()
        };
        tools.push(Tool {
            schema: value.as_object().map_or(Value::Null, |object| Value::Object(unmarked(object))),
            marked: tool.value("cache_control").is_some(),
        });
    }
    Ok((tools, functions))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages_value: Value) -> Result<Vec<Message>, Refusal> {
        let body = json!({ "messages": messages_value });
        messages(&Fields::body(&body)?)
    }

    #[test]
    fn a_string_and_a_one_part_array_are_the_same() {
        for role in ["system", "user", "assistant", "tool"] {
            let string = read(json!([{"role": role, "content": "A"}]));
            let array = read(json!([{"role": role, "content": [{"type": "text", "text": "A"}]}]));
            assert_eq!(string, array);
        }
    }

    #[test]
    fn parts_keep_their_order_and_marks() {
        let parts = json!([{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "B"}]);
        let read = read(json!([{"role": "tool", "content": parts}])).expect("parts");
        let part = |text: &str, marked| TextPart { text: text.to_owned(), marked };
        assert_eq!(read[0].content, [part("A", true), part("B", false)]);
    }

    #[test]
    fn null_absent_and_empty_content_of_an_assistant_are_the_same() {
        let null = read(json!([{"role": "assistant", "content": null}]));
        assert_eq!(null, read(json!([{"role": "assistant"}])));
        assert_eq!(null, read(json!([{"role": "assistant", "content": ""}])));
        assert_eq!(null, read(json!([{"role": "assistant", "content": []}])));
    }

    #[test]
    fn arguments_become_an_object() {
        for (given, wanted) in [
            (json!("{\"city\": \"Oslo\", \"n\": 1}"), json!({"city": "Oslo", "n": 1})),
            (json!({"city": "Oslo"}), json!({"city": "Oslo"})),
            (json!(""), json!({})),
            (Value::Null, json!({})),
        ] {
            assert_eq!(arguments(Some(&given).filter(|v| !v.is_null()), String::new()), Ok(wanted));
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        let call = |arguments: &str| {
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]}])
        };
        let part = |part: Value| json!([{"role": "user", "content": [part]}]);
        let arguments = "messages[1].tool_calls[0].function.arguments";
        for (body, param) in [
            (json!([]), "messages"),
            (json!([{"role": "function", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "Tool", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "", "content": "x"}]), "messages[0].role"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content"),
            (part(json!({"type": "image_url"})), "messages[0].content[0].type"),
            (part(json!({"text": "x"})), "messages[0].content[0].type"),
            (part(json!({"type": "text", "text": null})), "messages[0].content[0].text"),
            (call("[1]"), arguments),
            (call("\"x\""), arguments),
            (call("{bad"), arguments),
            (call("\"{}\""), arguments),
        ] {
            let refusal = read(body.clone()).expect_err("unreadable");
            assert_eq!(refusal.param(), Some(param), "{body}");
        }
    }

    #[test]
    fn a_mark_on_a_tool_is_not_part_of_its_schema() {
        let body = json!({"tools": [{"type": "function", "function": {"name": "f"}, "cache_control": {}}]});
        let (tools, functions) = tools(&Fields::body(&body).expect("object")).expect("tools");
        let schema = json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(tools, [Tool { schema, marked: true }]);
        assert_eq!(functions.into_keys().collect::<Vec<_>>(), ["f"]);
    }
}
