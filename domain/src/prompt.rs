//! A prompt as a client sends it, before any template.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is to be answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, rendered by the model's chat template.
    Chat(Chat),
    /// Plain text; a separator string in it marks segments.
    Text(String),
    /// Token ids as they are: one live piece.
    Ids(Vec<u32>),
}

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    /// Turns, oldest first.
    pub messages: Vec<Message>,
    /// Tool schemas as the client sent them, keys in order.
    pub tools: Vec<Tool>,
    /// Open a new assistant turn at the end.
    pub add_generation_prompt: bool,
    /// Leave the last assistant turn open and continue it.
    pub continue_final_message: bool,
    /// Further variables for the template (`chat_template_kwargs`).
    pub variables: serde_json::Map<String, Value>,
}

/// A tool schema with its cut mark.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The schema, as in the request's `tools[i]` without our marks.
    pub schema: Value,
    /// `cache_control` stood on it.
    pub marked: bool,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Leading instructions; `developer` is read as this.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

/// One turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// Text parts in order. A plain string is one part; null, absent and empty content have none.
    pub content: Vec<TextPart>,
    /// Calls of an assistant turn.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool's result answers.
    pub tool_call_id: Option<String>,
    /// `name` of the message, for templates that print it.
    pub name: Option<String>,
    /// Reasoning text of an earlier assistant turn, where the client sends it back.
    pub reasoning: Option<String>,
}

/// A text part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPart {
    /// The text.
    pub text: String,
    /// `cache_control` stood on it: cut after it.
    pub marked: bool,
}

/// A tool call in the history: the arguments are an object already.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The id that the tool's result names.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments, keys in order.
    pub arguments: Value,
}
