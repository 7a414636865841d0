//! What templates expect of Python: methods and filters with its idea of white space, JSON as its
//! `json.dumps` writes it, `None`, `True` and floats as it prints them.

use std::io;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// `str.isspace`: Unicode's White_Space, and four separators that are not in it.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sides {
    Left,
    Right,
    Both,
}

fn strip(text: &str, characters: Option<&str>, sides: Sides) -> String {
    let belongs = |c: char| characters.map_or_else(|| is_python_space(c), |set| set.contains(c));
    let text = if sides == Sides::Right { text } else { text.trim_start_matches(belongs) };
    let text = if sides == Sides::Left { text } else { text.trim_end_matches(belongs) };
    text.to_owned()
}

/// The filter `trim`.
pub(super) fn trim(value: &Value, characters: Option<String>) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    strip(&text, characters.as_deref(), Sides::Both)
}

/// Methods of Python's strings, lists and dicts.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let text = value.as_str();
    let sides = match (name, text) {
        ("strip", _) => Sides::Both,
        ("lstrip", _) => Sides::Left,
        ("rstrip", _) => Sides::Right,
        ("removeprefix" | "removesuffix" | "partition" | "rpartition", Some(text)) => {
            let (part,): (&str,) = from_args(arguments)?;
            return Ok(around(text, name, part));
        }
        _ => {
            return minijinja_contrib::pycompat::unknown_method_callback(
                state, value, name, arguments,
            );
        }
    };
    let text = text.ok_or(ErrorKind::UnknownMethod)?;
    let (characters,): (Option<&str>,) = from_args(arguments)?;
    Ok(Value::from(strip(text, characters, sides)))
}

/// Methods of a string with a part of it.
fn around(text: &str, name: &str, part: &str) -> Value {
    let three = |split: Option<(&str, &str)>, whole: [&str; 3]| {
        let parts = split.map_or(whole, |(before, behind)| [before, part, behind]);
        Value::from(parts.map(Value::from).to_vec())
    };
    match name {
        "removeprefix" => Value::from(text.strip_prefix(part).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(part).unwrap_or(text)),
        "rpartition" => three(text.rsplit_once(part), ["", "", text]),
        _ => three(text.split_once(part), [text, "", ""]),
    }
}

/// The test `sequence`: what has a length and items, as texts and dicts have.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Bytes)
}

/// The filter `escape`, as markupsafe escapes.
pub(super) fn escape(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A float as Python's `repr` writes it: the shortest digits that are read as the same, with an exponent
/// below 1e-4 and from 1e16 on.
fn float(x: f64) -> String {
    let magnitude = x.abs();
    if x.is_nan() {
        return "nan".to_owned();
    }
    if magnitude.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').expect("it was written with one");
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The float that a value is.
fn float_of(value: &Value) -> Option<f64> {
    let is_float = value.is_number() && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// Writes a value into the text as Python's `str` does.
pub(super) fn print(
    output: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    if let Some(x) = float_of(value) {
        return output.write_str(&float(x)).map_err(Error::from);
    }
    let word = match bool::try_from(value.clone()) {
        Ok(true) if !value.is_number() => "True",
        Ok(false) if !value.is_number() => "False",
        Ok(_) | Err(_) if value.is_none() => "None",
        Ok(_) | Err(_) => return minijinja::escape_formatter(output, state, value),
    };
    output.write_str(word).map_err(Error::from)
}

/// `json.dumps(…, ensure_ascii=False, indent=…)`: with a space after commas and colons, or each value on a
/// line of its own.
#[derive(Default)]
struct PythonFormatter {
    indent: Option<usize>,
    depth: usize,
    is_empty: bool,
}

impl PythonFormatter {
    fn open<W: ?Sized + io::Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.is_empty) = (self.depth + 1, true);
        to.write_all(bracket)
    }

    fn separate<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.is_empty = false;
        match (first, self.indent) {
            (true, _) => {}
            (false, None) => to.write_all(b", ")?,
            (false, Some(_)) => to.write_all(b",")?,
        }
        self.break_line(to)
    }

    fn close<W: ?Sized + io::Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.break_line(to)?;
        }
        self.is_empty = false;
        to.write_all(bracket)
    }

    fn break_line<W: ?Sized + io::Write>(&self, to: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        write!(to, "\n{:1$}", "", indent * self.depth)
    }
}

impl Formatter for PythonFormatter {
    fn begin_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(to, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(to, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, to: &mut W, x: f64) -> io::Result<()> {
        to.write_all(float(x).as_bytes())
    }
}

/// The filter `tojson`, with the argument `indent`.
pub(super) fn to_json(
    value: &Value,
    indent: Option<usize>,
    named: Kwargs,
) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => named.get::<Option<usize>>("indent")?,
    };
    if named.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson: ensure_ascii is not supported",
        ));
    }
    named.assert_all_used()?;
    let mut bytes = Vec::new();
    let formatter = PythonFormatter { indent, ..PythonFormatter::default() };
    let written = value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter));
    written.map_err(|cause| Error::new(ErrorKind::BadSerialization, cause.to_string()))?;
    Ok(String::from_utf8(bytes).expect("JSON is UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let floats = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789.0, "123456789.0"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (1e16, "1e+16"),
            (1e20, "1e+20"),
            (-2.5e-10, "-2.5e-10"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ];
        for (x, expected) in floats {
            assert_eq!(float(x), expected);
        }
    }
}
