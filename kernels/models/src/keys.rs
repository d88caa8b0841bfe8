//! Keys of `config.json`, each read with an error that names it.

use serde_json::{Map, Value};

use crate::error::LoadError;

/// What is wrong with a key.
pub(crate) fn key(key: impl Into<String>, reason: impl Into<String>) -> LoadError {
    LoadError::ReadKey { key: key.into(), reason: reason.into() }
}

/// A size: a whole number of 1 to 2^31.
pub(crate) fn size(config: &Map<String, Value>, name: &str) -> Result<usize, LoadError> {
    let value = config.get(name).ok_or_else(|| key(name, "missing"))?;
    match value.as_u64() {
        Some(size) if (1..=1 << 31).contains(&size) => Ok(size as usize),
        _ => Err(key(name, format!("{value} is no size"))),
    }
}

/// A finite number, where the key is there.
pub(crate) fn number(config: &Map<String, Value>, name: &str) -> Result<Option<f64>, LoadError> {
    match config.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(key(name, format!("{value} is no number"))),
        },
    }
}

/// True or false, where the key is there.
pub(crate) fn flag(config: &Map<String, Value>, name: &str) -> Result<Option<bool>, LoadError> {
    match config.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_bool().map(Some).ok_or_else(|| key(name, format!("{value} is no flag"))),
    }
}
