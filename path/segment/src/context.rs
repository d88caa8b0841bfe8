//! A conversation as the dictionaries that a chat template expects, with or without marks.

use hypic_domain::flow::Origin;
use hypic_domain::prompt::{Chat, Message, Role, Tool, ToolCall};
use serde_json::{Map, Value, json};

use crate::error::SegmentError;
use crate::mark::{DeclaredPart, Marks, is_plain_name};

/// How a conversation is turned into dictionaries.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// The template knows user content only as one string.
    pub(crate) joins_parts: bool,
    /// Leading system messages become one, for templates that know only one.
    pub(crate) merges_system: bool,
}

/// The variables of one rendering.
pub(crate) fn variables(
    chat: &Chat,
    shape: Shape,
    probes: &[String],
    marks: Option<&mut Marks>,
) -> Result<Map<String, Value>, SegmentError> {
    let mut context = Context { probes, marks };
    let leading = match shape.merges_system {
        true => chat.messages.iter().take_while(|message| message.role == Role::System).count(),
        false => 0,
    };
    let mut messages = Vec::with_capacity(chat.messages.len());
    if leading > 0 {
        messages.push(context.merged_system(&chat.messages[..leading]));
    }
    for (index, message) in chat.messages.iter().enumerate().skip(leading) {
        messages.push(context.message(index, message, shape)?);
    }
    let tools: Vec<Value> = chat.tools.iter().map(|tool| context.tool(tool)).collect();
    let mut all = Map::new();
    for (name, value) in &chat.variables {
        all.insert(name.clone(), context.value(value, None, false));
    }
    all.insert("messages".to_owned(), messages.into());
    all.insert("tools".to_owned(), if tools.is_empty() { Value::Null } else { tools.into() });
    all.insert("documents".to_owned(), Value::Null);
    all.insert("add_generation_prompt".to_owned(), chat.add_generation_prompt.into());
    Ok(all)
}

/// The arguments of a call as an object.
///
/// # Errors
/// `InvalidRequest` for anything but an object, a text that holds one, or nothing at all.
fn arguments(call: &ToolCall, param: impl Fn() -> String) -> Result<Map<String, Value>, SegmentError> {
    let parsed;
    let value = match &call.arguments {
        Value::String(text) if text.trim().is_empty() => &Value::Null,
        Value::String(text) => {
            parsed = serde_json::from_str(text)
                .map_err(|error| SegmentError::invalid(param(), format!("is not valid JSON: {error}")))?;
            &parsed
        }
        other => other,
    };
    match value {
        Value::Object(map) => Ok(map.clone()),
        Value::Null => Ok(Map::new()),
        _ => Err(SegmentError::invalid(param(), "must be a JSON object")),
    }
}

struct Context<'a> {
    probes: &'a [String],
    marks: Option<&'a mut Marks>,
}

impl Context<'_> {
    fn declare(&mut self, origin: Origin, message: Option<usize>) -> Option<usize> {
        let required = matches!(origin, Origin::System | Origin::Part);
        self.marks.as_mut().map(|marks| marks.declare(DeclaredPart { origin, message, required }))
    }

    fn text(&mut self, text: &str, part: Option<usize>) -> String {
        self.mark(text, part, false)
    }

    fn mark(&mut self, text: &str, part: Option<usize>, rewritten: bool) -> String {
        match &mut self.marks {
            Some(marks) => marks.mark(text, part, self.probes, rewritten),
            None => text.to_owned(),
        }
    }

    /// A string that a template may compare: plain names stay as they are.
    fn name(&mut self, text: &str, part: Option<usize>) -> String {
        if is_plain_name(text) { text.to_owned() } else { self.text(text, part) }
    }

    /// Any JSON value; strings are `free` text, or may be names that a template compares.
    fn value(&mut self, value: &Value, part: Option<usize>, free: bool) -> Value {
        match value {
            Value::String(text) if free => self.text(text, part).into(),
            Value::String(text) => self.name(text, part).into(),
            Value::Array(items) => items.iter().map(|item| self.value(item, part, free)).collect(),
            Value::Object(map) => {
                let pairs =
                    map.iter().map(|(key, item)| (self.name(key, part), self.value(item, part, free)));
                Value::Object(pairs.collect())
            }
            other => other.clone(),
        }
    }

    fn tool(&mut self, tool: &Tool) -> Value {
        let part = self.declare(Origin::Tool, None);
        let mut schema = self.value(&tool.schema, part, false);
        // At least the name is marked, so that the object is known by it.
        for path in ["/function/name", "/name"] {
            if let (Some(Value::String(name)), Some(slot)) =
                (tool.schema.pointer(path), schema.pointer_mut(path))
            {
                *slot = self.text(name, part).into();
                break;
            }
        }
        schema
    }

    fn merged_system(&mut self, messages: &[Message]) -> Value {
        let texts: Vec<String> = messages
            .iter()
            .enumerate()
            .map(|(index, message)| self.joined(index, message, Origin::System))
            .collect();
        json!({ "role": "system", "content": texts.join("\n\n") })
    }

    /// All parts of a message as one string, each a declared part of its own.
    fn joined(&mut self, index: usize, message: &Message, origin: Origin) -> String {
        let mut text = String::new();
        for part in &message.content {
            let declared = self.declare(origin, Some(index));
            text.push_str(&self.text(&part.text, declared));
        }
        text
    }

    fn message(&mut self, index: usize, message: &Message, shape: Shape) -> Result<Value, SegmentError> {
        let mut map = Map::new();
        map.insert("role".to_owned(), role_name(message.role).into());
        match message.role {
            Role::System => {
                map.insert("content".to_owned(), self.joined(index, message, Origin::System).into());
            }
            Role::Tool => {
                map.insert("content".to_owned(), self.joined(index, message, Origin::ToolResult).into());
            }
            Role::User if message.content.len() <= 1 || shape.joins_parts => {
                map.insert("content".to_owned(), self.joined(index, message, Origin::Part).into());
            }
            Role::User => {
                let parts = message.content.iter().map(|part| {
                    let declared = self.declare(Origin::Part, Some(index));
                    json!({ "type": "text", "text": self.text(&part.text, declared) })
                });
                map.insert("content".to_owned(), parts.collect());
            }
            Role::Assistant => self.assistant(index, message, &mut map)?,
        }
        for (key, value) in [("tool_call_id", &message.tool_call_id), ("name", &message.name)] {
            if let Some(value) = value {
                map.insert(key.to_owned(), self.name(value, None).into());
            }
        }
        Ok(Value::Object(map))
    }

    /// A whole assistant turn is one declared part: reasoning, text and calls. A mark on a text part ends it
    /// and begins the next.
    fn assistant(
        &mut self,
        index: usize,
        message: &Message,
        map: &mut Map<String, Value>,
    ) -> Result<(), SegmentError> {
        let mut declared = self.declare(Origin::Turn, Some(index));
        if let Some(reasoning) = &message.reasoning {
            map.insert("reasoning_content".to_owned(), self.text(reasoning, declared).into());
        }
        let mut text = String::new();
        for part in &message.content {
            text.push_str(&self.mark(&part.text, declared, true));
            if part.marked {
                declared = self.declare(Origin::Turn, Some(index));
            }
        }
        map.insert("content".to_owned(), text.into());
        let mut calls = Vec::new();
        for (place, call) in message.tool_calls.iter().enumerate() {
            let arguments =
                arguments(call, || format!("messages[{index}].tool_calls[{place}].function.arguments"))?;
            let name = self.text(&call.name, declared);
            let arguments = self.value(&Value::Object(arguments), declared, true);
            let id = self.name(&call.id, None);
            calls.push(json!({
                "id": id, "type": "function", "function": { "name": name, "arguments": arguments },
            }));
        }
        if !calls.is_empty() {
            map.insert("tool_calls".to_owned(), calls.into());
        }
        Ok(())
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}
