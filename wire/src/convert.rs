//! Wire to domain and back. Every field is taken apart by name: a new one that nobody converts does not
//! compile. What arrives is checked here and nowhere else.

pub mod fleet;
pub mod index;
pub mod order;
pub mod sampling;
pub mod token;
pub mod tuple;

use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::unit::Millis;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};

use crate::Error;

/// A key from its 32 bytes.
///
/// # Errors
/// Another length.
pub fn key(field: &'static str, bytes: &[u8]) -> Result<SegmentKey, Error> {
    digest(field, bytes).map(SegmentKey)
}

/// An identity from its 32 bytes.
///
/// # Errors
/// Another length.
pub fn identity(bytes: &[u8]) -> Result<Identity, Error> {
    digest("identity", bytes).map(Identity)
}

/// A scope from its 32 bytes.
///
/// # Errors
/// Another length.
pub fn scope(bytes: &[u8]) -> Result<Scope, Error> {
    digest("scope", bytes).map(Scope)
}

/// A value that travels as JSON because people read it too.
///
/// # Errors
/// Text that does not parse.
pub fn from_json<T: DeserializeOwned>(field: &'static str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|source| Error::ReadJson { field, source })
}

/// The JSON of a value.
///
/// # Errors
/// A value that JSON cannot hold.
pub fn to_json<T: Serialize>(field: &'static str, value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|source| Error::WriteJson { field, source })
}

fn digest(field: &'static str, bytes: &[u8]) -> Result<[u8; 32], Error> {
    bytes.try_into().map_err(|_| Error::ReadDigest { field, len: bytes.len() })
}

/// A unit variant from its serde name: the names in files, answers and on the wire are one table.
fn from_name<'a, T: Deserialize<'a>>(field: &'static str, name: &'a str) -> Result<T, Error> {
    let text: StrDeserializer<'a, serde::de::value::Error> = name.into_deserializer();
    T::deserialize(text).map_err(|_| Error::ReadName { field, value: name.chars().take(64).collect() })
}

/// The serde name of a unit variant.
///
/// # Errors
/// A value that is no unit variant.
pub fn to_name<T: Serialize>(field: &'static str, value: &T) -> Result<String, Error> {
    match serde_json::to_value(value).map_err(|source| Error::WriteJson { field, source })? {
        serde_json::Value::String(name) => Ok(name),
        other => Err(Error::ReadName { field, value: other.to_string() }),
    }
}

fn finite(field: &'static str, value: f32) -> Result<f32, Error> {
    if value.is_finite() { Ok(value) } else { Err(Error::ReadNumber { field, value: value.to_string() }) }
}

/// A duration in milliseconds: finite and not negative.
fn millis(field: &'static str, value: f64) -> Result<Millis, Error> {
    if value.is_finite() && value >= 0.0 {
        Ok(Millis(value))
    } else {
        Err(Error::ReadNumber { field, value: value.to_string() })
    }
}

fn narrow<T: TryFrom<u64>>(field: &'static str, value: u64) -> Result<T, Error> {
    T::try_from(value).map_err(|_| Error::ReadNumber { field, value: value.to_string() })
}

#[cfg(test)]
mod tests;
