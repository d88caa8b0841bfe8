//! The inside of `<tool_call><function=name><parameter=x>value</parameter></function></tool_call>`.

use serde_json::Value;

/// How a call in this form begins.
pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// What comes next inside a function.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// Not known yet.
    More,
    /// A whole parameter of `len` bytes.
    Parameter {
        /// Its name.
        name: &'a str,
        /// Its text.
        value: &'a str,
        /// Bytes of all of it.
        len: usize,
    },
    /// No further parameter; `len` bytes close the function.
    End {
        /// Bytes of the end.
        len: usize,
    },
}

/// The name in `<function=name>` and the length of that tag; `None` when it is not there yet.
pub(super) fn function(text: &str) -> Option<(&str, usize)> {
    let rest = text.strip_prefix(FUNCTION)?;
    let end = rest.find('>')?;
    Some((rest[..end].trim(), FUNCTION.len() + end + 1))
}

/// The next parameter, or the end.
pub(super) fn parameter(text: &str) -> Next<'_> {
    let body = text.trim_start();
    let space = text.len() - body.len();
    let begins = |tag: &str| body.len() < tag.len() && tag.starts_with(body);
    if body.is_empty() || begins(PARAMETER) || begins(FUNCTION_END) {
        return Next::More;
    }
    if body.starts_with(FUNCTION_END) {
        return Next::End { len: space + FUNCTION_END.len() };
    }
    let Some(rest) = body.strip_prefix(PARAMETER) else {
        // Neither a parameter nor the end tag: the call ends here, what follows is text again.
        return Next::End { len: space };
    };
    let Some(name_end) = rest.find('>') else { return Next::More };
    let Some(value_len) = rest[name_end + 1..].find(PARAMETER_END) else { return Next::More };
    let value = &rest[name_end + 1..name_end + 1 + value_len];
    let len = space + PARAMETER.len() + name_end + 1 + value_len + PARAMETER_END.len();
    // The template puts the value on lines of its own.
    let value = value.strip_prefix('\n').unwrap_or(value);
    let value = value.strip_suffix('\n').unwrap_or(value);
    Next::Parameter { name: rest[..name_end].trim(), value, len }
}

/// A parameter's text as JSON: as the function's schema says, a string where it says nothing that fits.
pub(super) fn value(schema: Option<&Value>, parameter: &str, text: &str) -> Value {
    let kind = schema
        .and_then(|schema| schema.pointer("/properties"))
        .and_then(|properties| properties.get(parameter))
        .and_then(|property| property.get("type"));
    if kind.and_then(Value::as_str) == Some("string") {
        return Value::from(text);
    }
    serde_json::from_str(text.trim()).unwrap_or_else(|_| Value::from(text))
}
