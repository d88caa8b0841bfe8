//! Values as Python prints them: `str()`, `json.dumps` and `strftime`.

use std::fmt::Write;
use std::time::SystemTime;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::mark::around_object;

/// A JSON value as the template sees it, keys in order.
pub(crate) fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (None, Some(whole)) => Value::from(whole),
            (None, None) => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(value).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, item)| (key.as_str(), value(item)))),
    }
}

/// `str(value)`; an undefined value is empty, as Jinja prints it.
pub(crate) fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => repr(value),
    }
}

fn repr(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number => number(value)?,
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = value.try_iter()?.map(|item| repr(&item)).collect::<Result<_, _>>()?;
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                items.push(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            }
            format!("{{{}}}", items.join(", "))
        }
        _ => value.to_string(),
    })
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() { Ok(value.to_string()) } else { Ok(float(f64::try_from(value.clone())?)) }
}

/// `repr` of a float: shortest digits that read back the same; an exponent below 1e-4 and from 1e16.
fn float(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// `json.dumps(value, ensure_ascii=False, indent, separators, sort_keys)`. With `marked`, the outermost
/// objects get marks around them.
pub(crate) fn dumps(value: &Value, args: &[Value], options: &Kwargs, marked: bool) -> Result<String, Error> {
    let unsupported = |what| Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"));
    // The order of transformers' filter: ensure_ascii, indent, separators, sort_keys.
    let option = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = options.get(name)?;
        Ok(named.or_else(|| args.get(place).cloned()).filter(|value| !value.is_none()))
    };
    let ascii = option(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = option(1, "indent")?.map(usize::try_from).transpose()?;
    let sort = option(3, "sort_keys")?.is_some_and(|value| value.is_true());
    let separators = match option(2, "separators")? {
        Some(pair) => {
            let part = |index| -> Result<String, Error> {
                let part = pair.get_item_by_index(index)?;
                part.as_str().map(str::to_owned).ok_or_else(|| unsupported("separators must be two strings"))
            };
            (part(0)?, part(1)?)
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    options.assert_all_used()?;
    let writer = Writer { ascii, indent, sort, separators, marked };
    let mut out = String::new();
    writer.value(&mut out, value, 0, true)?;
    Ok(out)
}

struct Writer {
    ascii: bool,
    indent: Option<usize>,
    sort: bool,
    separators: (String, String),
    marked: bool,
}

impl Writer {
    fn value(&self, out: &mut String, value: &Value, depth: usize, outer: bool) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.block(out, ('[', ']'), depth, &items, |out, item| {
                    self.value(out, item, depth + 1, outer)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                let mut object = String::new();
                self.block(&mut object, ('{', '}'), depth, &keys, |out, key| {
                    match key.as_str() {
                        Some(text) => self.string(out, text),
                        None => {
                            out.push('"');
                            self.value(out, key, depth, false)?;
                            out.push('"');
                        }
                    }
                    out.push_str(&self.separators.1);
                    self.value(out, &value.get_item(key)?, depth + 1, false)
                })?;
                out.push_str(&if self.marked && outer { around_object(&object) } else { object });
            }
            kind => {
                let reason = format!("tojson: a value of kind {kind} is not JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }
        Ok(())
    }

    fn block(
        &self,
        out: &mut String,
        (open, close): (char, char),
        depth: usize,
        items: &[Value],
        write: impl Fn(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |out: &mut String, depth: usize| {
            if let (Some(indent), false) = (self.indent, items.is_empty()) {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.separators.0);
            }
            new_line(out, depth + 1);
            write(out, item)?;
        }
        new_line(out, depth);
        out.push(close);
        Ok(())
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `datetime.strftime(format)` in UTC.
pub(crate) fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    let refuse = |source: Box<dyn std::error::Error + Send + Sync>| {
        let reason = format!("strftime_now cannot print '{format}': {source}");
        Error::new(ErrorKind::InvalidOperation, reason)
    };
    let items =
        time::format_description::parse_strftime_borrowed(format).map_err(|source| refuse(source.into()))?;
    time::OffsetDateTime::from(now).format(&items).map_err(|source| refuse(source.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (value, printed) in [
            (1.0, "1.0"),
            (1e3, "1000.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (1e-4, "0.0001"),
            (-2.5e100, "-2.5e+100"),
            (-0.0, "-0.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
        ] {
            assert_eq!(float(value), printed);
        }
    }

    #[test]
    fn values_print_as_in_python() {
        let printed = value(&serde_json::json!({"a": [1, true, null, "it's"], "b": 1.5}));
        assert_eq!(text(&printed).unwrap(), r#"{'a': [1, True, None, "it's"], 'b': 1.5}"#);
    }

    #[test]
    fn a_date_prints_as_in_python() {
        let leap = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_709_210_096);
        assert_eq!(strftime(leap, "%Y-%m-%d, %d %B %Y").unwrap(), "2024-02-29, 29 February 2024");
    }
}
