//! The filter `tojson` that transformers puts in place of Jinja's: `json.dumps`.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::arguments::{Arguments, refused};
use super::collections::is_list;
use super::repr::{float, float_of};

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
    fn of(arguments: &[Value]) -> Result<Self, Error> {
        let arguments = Arguments::of("tojson", arguments, 4)?;
        let indent = match arguments.value(1, "indent")? {
            Some(indent) if indent.as_str().is_some() => indent.as_str().map(str::to_owned),
            _ => {
                let count = arguments.integer(1, "indent")?;
                count.map(|count| " ".repeat(usize::try_from(count).unwrap_or(0)))
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

    fn write(&self, to: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            self.write_text(to, text);
        } else if let Some(word) = word(value) {
            to.push_str(&word);
        } else if is_list(value) {
            let items = value.try_iter()?.map(|item| (None, item));
            self.write_all(to, ["[", "]"], items.collect(), depth)?;
        } else if value.kind() == ValueKind::Map {
            let pairs = value.as_object().and_then(|dict| dict.try_iter_pairs());
            let pairs = pairs.into_iter().flatten();
            let mut pairs: Vec<_> = pairs.map(|(key, value)| (Some(key), value)).collect();
            if self.is_sorted {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            self.write_all(to, ["{", "}"], pairs, depth)?;
        } else {
            return Err(refused(format!("tojson: {} is no value of JSON", value.kind())));
        }
        Ok(())
    }

    /// What is in brackets: values, of an object with their keys.
    fn write_all(
        &self,
        to: &mut String,
        [begin, end]: [&str; 2],
        values: Vec<(Option<Value>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        let is_empty = values.is_empty();
        to.push_str(begin);
        for (index, (key, value)) in values.into_iter().enumerate() {
            to.push_str(if index == 0 { "" } else { &self.comma });
            self.break_line(to, depth + 1);
            if let Some(key) = key {
                self.write_text(to, &key_text(&key)?);
                to.push_str(&self.colon);
            }
            self.write(to, &value, depth + 1)?;
        }
        if !is_empty {
            self.break_line(to, depth);
        }
        to.push_str(end);
        Ok(())
    }

    fn break_line(&self, to: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            to.push('\n');
            (0..depth).for_each(|_| to.push_str(indent));
        }
    }

    fn write_text(&self, to: &mut String, text: &str) {
        to.push('"');
        for c in text.chars() {
            match c {
                '"' => to.push_str("\\\""),
                '\\' => to.push_str("\\\\"),
                '\n' => to.push_str("\\n"),
                '\r' => to.push_str("\\r"),
                '\t' => to.push_str("\\t"),
                '\u{8}' => to.push_str("\\b"),
                '\u{c}' => to.push_str("\\f"),
                ' '..='~' => to.push(c),
                '\u{7f}'.. if !self.is_ascii => to.push(c),
                other => {
                    let mut units = [0; 2];
                    for unit in other.encode_utf16(&mut units) {
                        to.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        to.push('"');
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
    _: &mut State<'_, '_>,
    value: &Value,
    arguments: &[Value],
) -> Result<Value, Error> {
    let mut written = String::new();
    JsonStyle::of(arguments)?.write(&mut written, value, 0)?;
    Ok(Value::from(written))
}
