//! The filter `tojson` that transformers puts in place of Jinja's: `json.dumps`.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::arguments::{Arguments, refused};
use super::bounded::Bounded;
use super::collections::is_list;
use super::repr::{check_depth, float, float_of};
use super::text;

/// How JSON is written.
struct JsonStyle {
    /// Whether characters that are not ASCII are escaped.
    is_ascii: bool,
    /// What stands in front of a value on a line of its own, once for each level.
    indent: Option<String>,
    comma: String,
    colon: String,
    is_sorted: bool,
}

impl JsonStyle {
    /// The arguments `ensure_ascii`, `indent`, `separators` and `sort_keys`, in this order.
    fn of(state: &State<'_, '_>, arguments: &[Value]) -> Result<Self, Error> {
        let arguments = Arguments::of("tojson", arguments, 4)?;
        let indent = match arguments.value(1, "indent")? {
            Some(indent) if indent.as_str().is_some() => indent.as_str().map(str::to_owned),
            _ => {
                let count = arguments.integer(1, "indent")?;
                count.map(|count| text::spaces(state, count)).transpose()?
            }
        };
        let comma = if indent.is_some() { "," } else { ", " };
        let [comma, colon] = match arguments.value(2, "separators")? {
            Some(separators) => {
                let parts: Vec<Value> = separators.try_iter()?.collect();
                let part = |at: usize| parts.get(at).and_then(Value::as_str).map(str::to_owned);
                let both = part(0).zip(part(1)).filter(|_| parts.len() == 2);
                let (comma, colon) =
                    both.ok_or_else(|| refused("tojson: separators are two texts"))?;
                [comma, colon]
            }
            None => [comma, ": "].map(str::to_owned),
        };
        let is_ascii = arguments.flag(0, "ensure_ascii")?;
        let is_sorted = arguments.flag(3, "sort_keys")?;
        arguments.finish()?;
        Ok(Self { is_ascii, indent, comma, colon, is_sorted })
    }

    fn write(&self, to: &mut Bounded, value: &Value, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        if let Some(text) = value.as_str() {
            self.write_text(to, text)
        } else if let Some(word) = word(value) {
            to.push_str(&word)
        } else if is_list(value) {
            let items = value.try_iter()?.map(|item| (None, item));
            self.write_all(to, ["[", "]"], items, depth)
        } else if value.kind() == ValueKind::Map {
            let pairs = value.as_object().and_then(|dict| dict.try_iter_pairs());
            let pairs = pairs.into_iter().flatten();
            let mut pairs: Vec<_> = pairs.map(|(key, value)| (Some(key), value)).collect();
            if self.is_sorted {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            self.write_all(to, ["{", "}"], pairs.into_iter(), depth)
        } else {
            Err(refused(format!("tojson: {} is no value of JSON", value.kind())))
        }
    }

    /// What is in brackets: values, of an object with their keys.
    fn write_all(
        &self,
        to: &mut Bounded,
        [begin, end]: [&str; 2],
        values: impl Iterator<Item = (Option<Value>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        let mut is_empty = true;
        to.push_str(begin)?;
        for (key, value) in values {
            to.push_str(if is_empty { "" } else { &self.comma })?;
            is_empty = false;
            self.break_line(to, depth + 1)?;
            if let Some(key) = key {
                self.write_text(to, &key_text(&key)?)?;
                to.push_str(&self.colon)?;
            }
            self.write(to, &value, depth + 1)?;
        }
        if !is_empty {
            self.break_line(to, depth)?;
        }
        to.push_str(end)
    }

    fn break_line(&self, to: &mut Bounded, depth: usize) -> Result<(), Error> {
        let Some(indent) = &self.indent else { return Ok(()) };
        to.push('\n')?;
        to.repeat(indent, depth)
    }

    fn write_text(&self, to: &mut Bounded, text: &str) -> Result<(), Error> {
        let escape = |c: char| match c {
            '"' => Some("\\\"".to_owned()),
            '\\' => Some("\\\\".to_owned()),
            '\n' => Some("\\n".to_owned()),
            '\r' => Some("\\r".to_owned()),
            '\t' => Some("\\t".to_owned()),
            '\u{8}' => Some("\\b".to_owned()),
            '\u{c}' => Some("\\f".to_owned()),
            ' '..='~' => None,
            '\u{7f}'.. if !self.is_ascii => None,
            other => {
                let mut units = [0; 2];
                let units = other.encode_utf16(&mut units).iter();
                Some(units.map(|unit| format!("\\u{unit:04x}")).collect())
            }
        };
        to.push('"')?;
        to.push_escaped(text, escape)?;
        to.push('"')
    }
}

/// The word of a number, a truth or nothing.
fn word(value: &Value) -> Option<String> {
    let kind = value.kind();
    let word = match float_of(value) {
        Some(x) if x.is_nan() => "NaN",
        Some(x) if x.is_infinite() => {
            if x > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            }
        }
        Some(x) => return Some(float(x)),
        None if kind == ValueKind::Number => return Some(value.to_string()),
        None if kind == ValueKind::None => "null",
        None if kind == ValueKind::Bool => {
            if value.is_true() {
                "true"
            } else {
                "false"
            }
        }
        None => return None,
    };
    Some(word.to_owned())
}

/// The text of a key: numbers, truths and nothing become one.
fn key_text(key: &Value) -> Result<String, Error> {
    let text = key.as_str().map(str::to_owned).or_else(|| word(key));
    text.ok_or_else(|| refused(format!("tojson: {} is no key of JSON", key.kind())))
}

/// The filter `tojson`.
pub(super) fn to_json(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: &[Value],
) -> Result<Value, Error> {
    let mut written = Bounded::new();
    JsonStyle::of(state, arguments)?.write(&mut written, value, 0)?;
    written.finish(state).map(Value::from)
}
