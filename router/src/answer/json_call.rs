//! The inside of `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, read while it arrives.

use serde_json::Value;

/// What the start of a call's JSON says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// Not known yet.
    More,
    /// A name, and an arguments object that begins at byte `at`.
    Streaming {
        /// The function.
        name: String,
        /// Where its arguments begin.
        at: usize,
    },
    /// A whole call of `end` bytes.
    Whole {
        /// The function.
        name: String,
        /// Its arguments as JSON text.
        arguments: String,
        /// Bytes of the call.
        end: usize,
    },
    /// No call.
    NoCall,
}

/// Reads the start of a call: an object whose keys may come in any order.
pub(super) fn head(text: &str) -> Head {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'{') {
        return Head::NoCall;
    }
    let (mut at, mut name, mut arguments) = (1, None, None);
    loop {
        at = skip_space(bytes, at);
        match bytes.get(at) {
            None => return Head::More,
            Some(b',') => at += 1,
            Some(b'}') => {
                let arguments = arguments.unwrap_or_else(|| "{}".to_owned());
                return name.map_or(Head::NoCall, |name| Head::Whole { name, arguments, end: at + 1 });
            }
            Some(b'"') => {
                let Some(key_end) = value_end(bytes, at) else { return Head::More };
                let key = &text[at..key_end];
                at = skip_space(bytes, key_end);
                match bytes.get(at) {
                    None => return Head::More,
                    Some(b':') => at = skip_space(bytes, at + 1),
                    Some(_) => return Head::NoCall,
                }
                let is_arguments = matches!(key, "\"arguments\"" | "\"parameters\"");
                if is_arguments
                    && bytes.get(at) == Some(&b'{')
                    && let Some(name) = name
                {
                    return Head::Streaming { name, at };
                }
                let Some(end) = value_end(bytes, at) else { return Head::More };
                if end == at {
                    return Head::NoCall;
                }
                let value = &text[at..end];
                at = end;
                if key == "\"name\"" {
                    match serde_json::from_str(value) {
                        Ok(Value::String(text)) => name = Some(text),
                        Ok(_) | Err(_) => return Head::NoCall,
                    }
                } else if is_arguments {
                    arguments = Some(whole_arguments(value));
                }
            }
            Some(_) => return Head::NoCall,
        }
    }
}

/// Arguments that are no object: null is none, a string holds the JSON.
fn whole_arguments(value: &str) -> String {
    match serde_json::from_str(value) {
        Ok(Value::Null) => "{}".to_owned(),
        Ok(Value::String(inner)) => inner,
        Ok(_) | Err(_) => value.to_owned(),
    }
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The end of the value that begins at `at`; `None` when it is not there yet.
fn value_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' | b'{' | b'[' => {
            let mut scanner = Scanner { depth: 0, in_string: false, escaped: false, opened: false };
            let end = at + scanner.scan_bytes(&bytes[at..]);
            scanner.closed().then_some(end)
        }
        // A number or a word ends where something else begins.
        _ => (at..bytes.len())
            .find(|&end| matches!(bytes[end], b',' | b'}' | b']') || bytes[end].is_ascii_whitespace()),
    }
}

/// Follows strings and brackets until the value in hand is closed.
#[derive(Debug)]
pub(super) struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    opened: bool,
}

impl Scanner {
    /// In front of an object.
    pub(super) fn before_object() -> Self {
        Self { depth: 0, in_string: false, escaped: false, opened: false }
    }

    /// Inside an object that is to be closed.
    pub(super) fn inside_object() -> Self {
        Self { depth: 1, in_string: false, escaped: false, opened: true }
    }

    /// Whether the value is complete.
    pub(super) fn closed(&self) -> bool {
        self.opened && self.depth == 0 && !self.in_string
    }

    /// Bytes of `text` that belong to the value.
    pub(super) fn scan(&mut self, text: &str) -> usize {
        self.scan_bytes(text.as_bytes())
    }

    fn scan_bytes(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => (self.in_string, self.opened) = (true, true),
                    b'{' | b'[' => (self.depth, self.opened) = (self.depth + 1, true),
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    b'<' => {
                        // No JSON has this here: the model forgot a bracket and goes on with its end tag.
                        (self.depth, self.opened) = (0, true);
                        return at;
                    }
                    _ => {}
                }
            }
            if self.closed() {
                return at + 1;
            }
        }
        bytes.len()
    }
}
