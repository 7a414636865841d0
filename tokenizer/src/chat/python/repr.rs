//! Values as Python's `str` and `repr` write them.

use std::borrow::Cow;

use minijinja::value::ValueKind;
use minijinja::{Error, Output, State, Value};

use super::characters::UNPRINTABLE;
use super::collections::{DictView, is_list};

/// A float as Python's `repr` writes it: the shortest digits that are read as the same, with an exponent
/// below 1e-4 and from 1e16 on.
pub(super) fn float(x: f64) -> String {
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
pub(super) fn float_of(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// `str(value)`. What is undefined has no text.
pub(super) fn text_of(value: &Value) -> Cow<'_, str> {
    match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None if value.is_undefined() => Cow::Borrowed(""),
        None => Cow::Owned(repr(value)),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    let mut written = String::new();
    write(&mut written, value);
    written
}

fn write(to: &mut String, value: &Value) {
    let view = value.downcast_object_ref::<DictView>();
    if let Some(text) = value.as_str() {
        write_text(to, text);
    } else if let Some(x) = float_of(value) {
        to.push_str(&float(x));
    } else if value.is_undefined() {
        to.push_str("Undefined");
    } else if value.is_tuple() {
        let end = if value.len() == Some(1) { ",)" } else { ")" };
        write_items(to, "(", value, end);
    } else if let Some(view) = view {
        to.push_str(view.name());
        write_items(to, "([", value, "])");
    } else if is_list(value) {
        write_items(to, "[", value, "]");
    } else if value.kind() == ValueKind::Map {
        write_dict(to, value);
    } else {
        // `True`, `None`, integers, and what has no text of its own.
        to.push_str(&value.to_string());
    }
}

fn write_items(to: &mut String, begin: &str, value: &Value, end: &str) {
    to.push_str(begin);
    for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
        to.push_str(if index == 0 { "" } else { ", " });
        write(to, &item);
    }
    to.push_str(end);
}

fn write_dict(to: &mut String, value: &Value) {
    to.push('{');
    let pairs = value.as_object().and_then(|dict| dict.try_iter_pairs());
    for (index, (key, value)) in pairs.into_iter().flatten().enumerate() {
        to.push_str(if index == 0 { "" } else { ", " });
        write(to, &key);
        to.push_str(": ");
        write(to, &value);
    }
    to.push('}');
}

fn write_text(to: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    to.push(quote);
    for c in text.chars() {
        let escaped = match c {
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\\' => "\\\\".to_owned(),
            c if c == quote => format!("\\{c}"),
            c if UNPRINTABLE.contains(c) => match u32::from(c) {
                code @ ..=0xff => format!("\\x{code:02x}"),
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            },
            c => {
                to.push(c);
                continue;
            }
        };
        to.push_str(&escaped);
    }
    to.push(quote);
}

/// Writes a value into the text as Python's `str` does.
pub(super) fn print(
    output: &mut Output<'_>,
    _: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    output.write_str(&text_of(value)).map_err(Error::from)
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
