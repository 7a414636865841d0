//! Values as Python's `str` and `repr` write them.

use std::borrow::Cow;

use minijinja::value::ValueKind;
use minijinja::{Error, Output, State, Value};

use super::arguments::refused;
use super::bounded::Bounded;
use super::characters::UNPRINTABLE;
use super::collections::{DictView, is_list};

/// Most values that one may lie in to be written: more than JSON is read with, fewer than a thread's stack has
/// room for.
const DEPTH_MAX: usize = 256;

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
pub(super) fn text_of<'v>(state: &State<'_, '_>, value: &'v Value) -> Result<Cow<'v, str>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Cow::Borrowed(text));
    }
    let mut to = Bounded::new();
    write_text_of(&mut to, value)?;
    to.finish(state).map(Cow::Owned)
}

/// Writes `str(value)`.
pub(super) fn write_text_of(to: &mut Bounded, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => to.push_str(text),
        None if value.is_undefined() => Ok(()),
        None => write(to, value, 0),
    }
}

/// Writes `repr(value)`, of a value that lies in so many others.
pub(super) fn write(to: &mut Bounded, value: &Value, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    let view = value.downcast_object_ref::<DictView>();
    if let Some(text) = value.as_str() {
        write_text(to, text)
    } else if let Some(x) = float_of(value) {
        to.push_str(&float(x))
    } else if value.is_undefined() {
        to.push_str("Undefined")
    } else if value.is_tuple() {
        let end = if value.len() == Some(1) { ",)" } else { ")" };
        write_items(to, "(", value, end, depth)
    } else if let Some(view) = view {
        to.push_str(view.name())?;
        write_items(to, "([", value, "])", depth)
    } else if is_list(value) {
        write_items(to, "[", value, "]", depth)
    } else if value.kind() == ValueKind::Map {
        write_dict(to, value, depth)
    } else {
        // `True`, `None`, integers, and what has no text of its own.
        to.push_str(&value.to_string())
    }
}

/// Refuses a value that lies in too many others.
pub(super) fn check_depth(depth: usize) -> Result<(), Error> {
    let is_wrong = depth > DEPTH_MAX;
    let refuse = || refused(format!("a value lies in more than {DEPTH_MAX} others"));
    if is_wrong { Err(refuse()) } else { Ok(()) }
}

fn write_items(
    to: &mut Bounded,
    begin: &str,
    value: &Value,
    end: &str,
    depth: usize,
) -> Result<(), Error> {
    to.push_str(begin)?;
    for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
        to.push_str(if index == 0 { "" } else { ", " })?;
        write(to, &item, depth + 1)?;
    }
    to.push_str(end)
}

fn write_dict(to: &mut Bounded, value: &Value, depth: usize) -> Result<(), Error> {
    to.push('{')?;
    let pairs = value.as_object().and_then(|dict| dict.try_iter_pairs());
    for (index, (key, value)) in pairs.into_iter().flatten().enumerate() {
        to.push_str(if index == 0 { "" } else { ", " })?;
        write(to, &key, depth + 1)?;
        to.push_str(": ")?;
        write(to, &value, depth + 1)?;
    }
    to.push('}')
}

fn write_text(to: &mut Bounded, text: &str) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let escape = |c: char| match (c, u32::from(c)) {
        ('\n', _) => Some("\\n".to_owned()),
        ('\r', _) => Some("\\r".to_owned()),
        ('\t', _) => Some("\\t".to_owned()),
        ('\\', _) => Some("\\\\".to_owned()),
        (c, _) if c == quote => Some(format!("\\{c}")),
        (' '..='~', _) => None,
        (c, _) if !UNPRINTABLE.contains(c) => None,
        (_, code @ ..=0xff) => Some(format!("\\x{code:02x}")),
        (_, code @ ..=0xffff) => Some(format!("\\u{code:04x}")),
        (_, code) => Some(format!("\\U{code:08x}")),
    };
    to.push(quote)?;
    to.push_escaped(text, escape)?;
    to.push(quote)
}

/// Writes a value into the text as Python's `str` does.
pub(super) fn print(
    output: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    output.write_str(&text_of(state, value)?).map_err(Error::from)
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
