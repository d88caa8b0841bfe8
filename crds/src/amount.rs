//! Sizes and CPU shares as Kubernetes writes them: `1Gi`, `500m`, `4`.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A quantity: a plain number or a string with a suffix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

/// Suffixes and their powers: decimal of 10, binary of 2.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

impl Amount {
    /// Whole bytes, rounded up; nothing for text that is no quantity, is negative or beyond 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.scaled(0)
    }

    /// Thousandths, rounded up: what amounts of CPU are compared by.
    pub fn millis(&self) -> Option<u64> {
        self.scaled(3)
    }

    /// The amount times ten to the `shift`.
    fn scaled(&self, shift: i32) -> Option<u64> {
        let text = self.0.trim();
        if let Some((number, power)) =
            BINARY.iter().find_map(|(suffix, power)| Some((text.strip_suffix(suffix)?, power)))
        {
            return scale(number, 1_u128 << power, shift);
        }
        if let Some((number, exponent)) =
            text.split_once(['e', 'E']).filter(|(_, exponent)| !exponent.is_empty())
        {
            return scale(number, 1, exponent.parse::<i32>().ok()?.checked_add(shift)?);
        }
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let (_, power) = DECIMAL.iter().find(|(suffix, _)| *suffix == &text[digits.len()..])?;
        scale(digits, 1, *power + shift)
    }

    /// The same as the API's own type.
    pub fn quantity(&self) -> Quantity {
        Quantity(self.0.clone())
    }
}

/// `number · factor · 10^power`, rounded up.
fn scale(number: &str, factor: u128, power: i32) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.strip_prefix('+').unwrap_or(whole);
    if whole.len() + fraction.len() == 0 || fraction.len() > 18 {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let value = digits.parse::<u128>().ok()?.checked_mul(factor)?;
    let power = power - i32::try_from(fraction.len()).ok()?;
    let ten = 10_u128.checked_pow(power.unsigned_abs())?;
    let scaled = if power < 0 { value.div_ceil(ten) } else { value.checked_mul(ten)? };
    u64::try_from(scaled).ok()
}

impl From<&str> for Amount {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Amount;
            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a quantity such as 1Gi, 500m or 4")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount(text.to_owned()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 32,
            "pattern": r"^\+?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let bytes = |text: &str| Amount::from(text).bytes();
        for (text, expected) in [
            ("0", 0),
            ("17179869184", 17_179_869_184),
            ("1Ki", 1024),
            ("1.5Gi", 3 << 29),
            ("2Ti", 2 << 40),
            ("1k", 1000),
            ("1.5M", 1_500_000),
            ("100m", 1),
            ("1500m", 2),
            ("1e6", 1_000_000),
            ("1.25E3", 1250),
            ("2E", 2_000_000_000_000_000_000),
            ("+4", 4),
            (".5Ki", 512),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
        for text in ["", "Gi", "-1", "1 Gi", "1gi", "1Q", "1e", "1e99", "9999999Ei", "0x10", ".", "1.2.3"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_and_strings_are_both_taken() {
        let read = |json: &str| serde_json::from_str::<Amount>(json).map(|amount| amount.0).ok();
        assert_eq!(read("4"), Some("4".to_owned()));
        assert_eq!(read("\"500m\""), Some("500m".to_owned()));
        assert_eq!(read("1.5"), None);
        assert_eq!(read("true"), None);
    }
}
