//! Reads the Qwen formats out of a model's text while it arrives: `<think>…</think>`, and tool calls as
//! `<tool_call>{json}</tool_call>` or `<tool_call><function=name><parameter=x>…`.
//!
//! Any split of a text into pieces gives the same joined result. What turns out to be no call of a
//! declared function is text.

use std::collections::BTreeMap;

use serde_json::Value;

use super::json_call::{self, Head};
use super::stop::partial_suffix;
use super::xml_call;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// What an answer consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// Place among the calls of this answer.
        index: usize,
        /// The declared function.
        name: String,
    },
    /// More of a call's arguments: JSON text.
    CallArguments {
        /// Place among the calls of this answer.
        index: usize,
        /// The piece.
        text: String,
    },
}

/// How an answer's text is to be read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Declared functions and the schemas of their parameters; empty: calls are text.
    pub functions: BTreeMap<String, Value>,
    /// The prompt ended inside an open `<think>`.
    pub thinking: bool,
    /// Nothing is read: all of it is content (plain completions).
    pub plain: bool,
    /// The answer ends with its first call.
    pub single_call: bool,
}

#[derive(Debug)]
enum State {
    /// Nothing but white space so far.
    Opening,
    Reasoning,
    Content,
    /// `<tool_call>` is at the start of `held`; not known yet whether it is a call.
    CallHead,
    /// Inside the arguments object of a JSON call.
    JsonArguments(json_call::Scanner),
    /// Behind the arguments, inside the outer object.
    JsonRest(json_call::Scanner),
    /// Inside `<function=…>`; whether a parameter was written.
    XmlParameters(String, bool),
    /// A call is complete, its end tag may follow.
    CallTail,
}

/// The reader of one choice.
#[derive(Debug)]
pub struct Markup {
    reading: Reading,
    state: State,
    held: String,
    /// White space at the start of what follows is markup's, not the text's.
    trim: bool,
    calls: usize,
    complete: usize,
}

impl Markup {
    /// A reader at the start of an answer.
    pub fn new(reading: Reading) -> Self {
        let state = match (reading.plain, reading.thinking) {
            (true, _) => State::Content,
            (false, true) => State::Reasoning,
            (false, false) => State::Opening,
        };
        let trim = !reading.plain && reading.thinking;
        Self { reading, state, held: String::new(), trim, calls: 0, complete: 0 }
    }

    /// Calls begun so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Whether the answer is to end here because its only allowed call is complete.
    pub fn is_over(&self) -> bool {
        self.reading.single_call && self.complete > 0
    }

    /// Takes the next text.
    pub fn push(&mut self, text: &str, out: &mut Vec<Fragment>) {
        self.held.push_str(text);
        while !self.is_over() && self.advance(out) {}
    }

    /// The end of the answer: what was held back is given out, except the markup of a call that was cut.
    pub fn finish(&mut self, out: &mut Vec<Fragment>) {
        if self.is_over() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        match &mut self.state {
            State::Reasoning => emit(out, Fragment::Reasoning(held)),
            State::Opening | State::Content => {
                let text = if self.trim { held.trim_start() } else { &held };
                emit(out, Fragment::Content(text.to_owned()));
            }
            State::CallHead
            | State::JsonArguments(_)
            | State::JsonRest(_)
            | State::XmlParameters(..)
            | State::CallTail => {}
        }
    }

    /// One step; false when more text is needed.
    fn advance(&mut self, out: &mut Vec<Fragment>) -> bool {
        match &mut self.state {
            State::Opening => self.opening(),
            State::Reasoning => self.reasoning(out),
            State::Content => self.content(out),
            State::CallHead => self.call_head(out),
            State::JsonArguments(scanner) => {
                let end = scanner.scan(&self.held);
                let text: String = self.held.drain(..end).collect();
                let closed = scanner.closed();
                emit(out, Fragment::CallArguments { index: self.calls - 1, text });
                if closed {
                    self.state = State::JsonRest(json_call::Scanner::inside_object());
                }
                closed
            }
            State::JsonRest(scanner) => {
                let end = scanner.scan(&self.held);
                self.held.drain(..end);
                let closed = scanner.closed();
                if closed {
                    self.end_call();
                }
                closed
            }
            State::XmlParameters(..) => self.xml_parameters(out),
            State::CallTail => self.call_tail(),
        }
    }

    fn opening(&mut self) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() || (text.len() < THINK.len() && THINK.starts_with(text)) {
            return false;
        }
        if let Some(rest) = text.strip_prefix(THINK) {
            self.held = rest.to_owned();
            self.trim = true;
            self.state = State::Reasoning;
        } else {
            self.state = State::Content;
        }
        true
    }

    fn reasoning(&mut self, out: &mut Vec<Fragment>) -> bool {
        self.trim_held();
        let found = self.held.find(THINK_END);
        let end = found.unwrap_or_else(|| safe_len(&self.held, THINK_END));
        let mut text: String = self.held.drain(..end).collect();
        if found.is_some() {
            text.truncate(text.trim_end().len());
            self.held.drain(..THINK_END.len());
            self.trim = true;
            self.state = State::Content;
        } else if !text.is_empty() {
            self.trim = false;
        }
        emit(out, Fragment::Reasoning(text));
        found.is_some()
    }

    fn content(&mut self, out: &mut Vec<Fragment>) -> bool {
        if self.reading.plain || self.reading.functions.is_empty() {
            self.trim_held();
            self.trim &= self.held.is_empty();
            emit(out, Fragment::Content(std::mem::take(&mut self.held)));
            return false;
        }
        self.trim_held();
        let found = self.held.find(CALL);
        // The white space before a call belongs to the markup; it stays held until the call is known.
        let end = match found {
            Some(at) => self.held[..at].trim_end().len(),
            None => safe_len(&self.held, CALL),
        };
        let text: String = self.held.drain(..end).collect();
        if !text.is_empty() {
            self.trim = false;
        }
        emit(out, Fragment::Content(text));
        if found.is_some() {
            self.state = State::CallHead;
        }
        found.is_some()
    }

    fn call_head(&mut self, out: &mut Vec<Fragment>) -> bool {
        let Some(tag) = self.held.find(CALL) else { return self.reject_call(out) };
        let start = tag + CALL.len();
        let body = self.held[start..].trim_start();
        let body_at = self.held.len() - body.len();
        if body.is_empty() || (body.len() < xml_call::FUNCTION.len() && xml_call::FUNCTION.starts_with(body))
        {
            return false;
        }
        if body.starts_with(xml_call::FUNCTION) {
            return match xml_call::function(body) {
                None => false,
                Some((name, len)) if self.reading.functions.contains_key(name) => {
                    let name = name.to_owned();
                    self.held.drain(..body_at + len);
                    self.start_call(name.clone(), out);
                    self.state = State::XmlParameters(name, false);
                    true
                }
                Some(_) => self.reject_call(out),
            };
        }
        match json_call::head(body) {
            Head::More => false,
            Head::Streaming { name, at } if self.reading.functions.contains_key(&name) => {
                self.held.drain(..body_at + at);
                self.start_call(name, out);
                self.state = State::JsonArguments(json_call::Scanner::before_object());
                true
            }
            Head::Whole { name, arguments, end } if self.reading.functions.contains_key(&name) => {
                self.held.drain(..body_at + end);
                self.start_call(name, out);
                emit(out, Fragment::CallArguments { index: self.calls - 1, text: arguments });
                self.end_call();
                true
            }
            Head::Streaming { .. } | Head::Whole { .. } | Head::NoCall => self.reject_call(out),
        }
    }

    /// What looked like a call is text; reading goes on behind its tag.
    fn reject_call(&mut self, out: &mut Vec<Fragment>) -> bool {
        let end = self.held.find(CALL).map_or(self.held.len(), |tag| tag + CALL.len());
        let text: String = self.held.drain(..end).collect();
        emit(out, Fragment::Content(text));
        self.trim = false;
        self.state = State::Content;
        true
    }

    fn xml_parameters(&mut self, out: &mut Vec<Fragment>) -> bool {
        let State::XmlParameters(name, written) = &mut self.state else { return false };
        let index = self.calls - 1;
        match xml_call::parameter(&self.held) {
            xml_call::Next::More => false,
            xml_call::Next::Parameter { name: parameter, value, len } => {
                let schema = self.reading.functions.get(name.as_str());
                let open = if *written { ", " } else { "{" };
                let value = xml_call::value(schema, parameter, value);
                let text = format!("{open}{}: {value}", Value::from(parameter));
                *written = true;
                self.held.drain(..len);
                emit(out, Fragment::CallArguments { index, text });
                true
            }
            xml_call::Next::End { len } => {
                let text = if *written { "}" } else { "{}" };
                emit(out, Fragment::CallArguments { index, text: text.to_owned() });
                self.held.drain(..len);
                self.end_call();
                true
            }
        }
    }

    fn call_tail(&mut self) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() || (text.len() < CALL_END.len() && CALL_END.starts_with(text)) {
            return false;
        }
        self.held = text.strip_prefix(CALL_END).unwrap_or(text).to_owned();
        self.trim = true;
        self.state = State::Content;
        true
    }

    fn start_call(&mut self, name: String, out: &mut Vec<Fragment>) {
        out.push(Fragment::CallStart { index: self.calls, name });
        self.calls += 1;
    }

    fn end_call(&mut self) {
        self.complete += 1;
        self.state = State::CallTail;
    }

    fn trim_held(&mut self) {
        if self.trim {
            let cut = self.held.len() - self.held.trim_start().len();
            self.held.drain(..cut);
        }
    }
}

/// Bytes of `text` that are surely neither part of `tag` nor white space that stands before it.
fn safe_len(text: &str, tag: &str) -> usize {
    text[..text.len() - partial_suffix(text, tag)].trim_end().len()
}

/// Pushes a fragment that says something.
fn emit(out: &mut Vec<Fragment>, fragment: Fragment) {
    let empty = match &fragment {
        Fragment::Content(text) | Fragment::Reasoning(text) | Fragment::CallArguments { text, .. } => {
            text.is_empty()
        }
        Fragment::CallStart { .. } => false,
    };
    if !empty {
        out.push(fragment);
    }
}

#[cfg(test)]
mod tests;
