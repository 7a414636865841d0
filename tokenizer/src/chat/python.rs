//! What templates expect of Python: methods and filters with its idea of white space, JSON as its
//! `json.dumps` writes it, `None` and `True` as it prints them.

use std::io;

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

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
    let sides = match name {
        "strip" => Sides::Both,
        "lstrip" => Sides::Left,
        "rstrip" => Sides::Right,
        _ => {
            return minijinja_contrib::pycompat::unknown_method_callback(
                state, value, name, arguments,
            );
        }
    };
    let text = value.as_str().ok_or(ErrorKind::UnknownMethod)?;
    let (characters,): (Option<&str>,) = from_args(arguments)?;
    Ok(Value::from(strip(text, characters, sides)))
}

/// Writes a value into the text as Python's `str` does.
pub(super) fn print(
    output: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let word = match bool::try_from(value.clone()) {
        Ok(true) if !value.is_number() => "True",
        Ok(false) if !value.is_number() => "False",
        Ok(_) | Err(_) if value.is_none() => "None",
        Ok(_) | Err(_) => return minijinja::escape_formatter(output, state, value),
    };
    output.write_str(word).map_err(Error::from)
}

/// `json.dumps(…, ensure_ascii=False)`, which puts a space after commas and colons.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
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
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, PythonFormatter)),
        Some(width) => {
            let spaces = " ".repeat(width);
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
        }
    };
    written.map_err(|cause| Error::new(ErrorKind::BadSerialization, cause.to_string()))?;
    Ok(String::from_utf8(bytes).expect("JSON is UTF-8"))
}
