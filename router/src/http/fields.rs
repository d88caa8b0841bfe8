//! Reads the fields of a JSON object so that every refusal names its field: null is absent, a whole float
//! is an integer, anything else of the wrong type is refused.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// One object of a request and the path that leads to it.
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The object at the top of a body.
    pub(crate) fn body(value: &'a Value) -> Result<Self, Refusal> {
        match value {
            Value::Object(object) => Ok(Self { object, path: String::new() }),
            _ => {
                Err(Refusal::BadRequest { message: "the body must be a JSON object".to_owned(), param: None })
            }
        }
    }

    /// `value` as the object at `path`.
    pub(crate) fn at(value: &'a Value, path: String) -> Result<Self, Refusal> {
        match value {
            Value::Object(object) => Ok(Self { object, path }),
            _ => Err(wrong_type(path, "an object", value)),
        }
    }

    /// The path of one field.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field, unless it is absent or null.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| wrong_type(self.path(name), "a string", value))
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong_type(self.path(name), "a boolean", value))
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a [Value]>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value
            .as_array()
            .map(|array| Some(array.as_slice()))
            .ok_or_else(|| wrong_type(self.path(name), "an array", value))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, Refusal> {
        self.value(name).map(|value| Fields::at(value, self.path(name))).transpose()
    }

    /// Refuses fields of an object of ours that have other names: nobody else gives them a meaning.
    pub(crate) fn only(&self, names: &[&str]) -> Result<(), Refusal> {
        let Some(other) = self.object.keys().find(|name| !names.contains(&name.as_str())) else {
            return Ok(());
        };
        let path = self.path(&cut(other));
        Err(Refusal::bad(
            &path,
            format!("'{path}' is not known; '{}' takes {}", self.path, names.join(" and ")),
        ))
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.iter()
    }

    /// An integer within `range`; a float counts when it is whole.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<i128>) -> Result<Option<i128>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(None) };
        integer(value, &self.path(name), range).map(Some)
    }

    /// A count that fits 32 bits.
    pub(crate) fn count(&self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, Refusal> {
        let range = i128::from(*range.start())..=i128::from(*range.end());
        // The range has been checked, so the cast keeps the value.
        Ok(self.integer(name, range)?.map(|value| value as u32))
    }

    /// A number within `range`.
    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(None) };
        number(value, self.path(name), range).map(Some)
    }
}

/// `value` as an integer within `range`.
pub(crate) fn integer(value: &Value, path: &str, range: RangeInclusive<i128>) -> Result<i128, Refusal> {
    let whole = match value {
        Value::Number(number) => number
            .as_i128()
            .or_else(|| number.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i128)),
        _ => None,
    };
    let whole = whole.ok_or_else(|| wrong_type(path.to_owned(), "an integer", value))?;
    if range.contains(&whole) {
        return Ok(whole);
    }
    let (low, high) = (range.start(), range.end());
    Err(Refusal::bad(path, format!("'{path}' must be between {low} and {high}")))
}

/// `value` as a number within `range`.
pub(crate) fn number(value: &Value, path: String, range: RangeInclusive<f64>) -> Result<f64, Refusal> {
    let number = value.as_f64().ok_or_else(|| wrong_type(path.clone(), "a number", value))?;
    if range.contains(&number) {
        return Ok(number);
    }
    let (low, high) = (range.start(), range.end());
    Err(Refusal::bad(path.clone(), format!("'{path}' must be between {low} and {high}")))
}

/// The refusal of a value that is of another type.
pub(crate) fn wrong_type(path: String, wanted: &str, value: &Value) -> Refusal {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Refusal::bad(path.clone(), format!("'{path}' must be {wanted}, not {found}"))
}

/// A client's text, short enough for a message.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn max_tokens(value: Value) -> Result<Option<u32>, Refusal> {
        let body = json!({ "max_tokens": value });
        Fields::body(&body)?.count("max_tokens", 1..=u32::MAX)
    }

    #[test]
    fn null_is_absent_and_a_whole_float_is_an_integer() {
        assert_eq!(max_tokens(Value::Null), Ok(None));
        assert_eq!(max_tokens(json!(8.0)), Ok(Some(8)));
        assert_eq!(max_tokens(json!(8)), Ok(Some(8)));
    }

    #[test]
    fn what_is_no_count_is_refused_by_name() {
        for value in [json!(8.5), json!(-1), json!(0), json!("8"), json!(1e30), json!(true), json!([1])] {
            let refusal = max_tokens(value.clone()).expect_err("not a count");
            assert_eq!(refusal.param(), Some("max_tokens"), "{value}");
        }
    }
}
