//! The filters `int` and `float`: numbers of texts as Python reads them.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::arguments::{Arguments, refused};
use super::characters::is_space;
use super::repr::float_of;

/// A text of digits without the single underscores that may stand between them.
fn without_underscores(text: &str) -> Option<String> {
    let is_wrong = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    (!is_wrong).then(|| text.replace('_', ""))
}

/// `int(text, base)`.
fn integer_of(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        _ => ["+", "+"],
    };
    let behind = prefix.iter().find_map(|prefix| digits.strip_prefix(prefix));
    let digits = behind.map_or(digits, |digits| digits.strip_prefix('_').unwrap_or(digits));
    let digits = without_underscores(digits).filter(|digits| !digits.starts_with(['+', '-']))?;
    let is_base = (2..=36).contains(&base);
    is_base.then(|| i128::from_str_radix(&digits, base).ok()).flatten().map(|size| sign * size)
}

/// `float(text)`.
fn float_of_text(text: &str) -> Option<f64> {
    without_underscores(text.trim_matches(is_space))?.parse().ok()
}

/// The whole part of a float.
fn whole(x: f64) -> Option<Value> {
    const BEYOND: f64 = 1e38;
    #[expect(clippy::cast_possible_truncation, reason = "the whole part is what is asked for")]
    let whole = || Value::from(x as i128);
    (x.abs() < BEYOND).then(whole)
}

/// A number of a value, or what stands for it where there is none.
fn number(
    name: &str,
    value: &Value,
    otherwise: Option<Value>,
    of_text: impl Fn(&str) -> Option<Value>,
    of_float: impl Fn(f64) -> Option<Value>,
) -> Result<Value, Error> {
    let kind = value.kind();
    if kind == ValueKind::Undefined {
        return Err(refused(format!("{name}: the value is undefined")));
    }
    let found = match (value.as_str(), float_of(value)) {
        (Some(text), _) => of_text(text),
        (None, Some(x)) => of_float(x),
        (None, None) if kind == ValueKind::Bool => of_float(f64::from(u8::from(value.is_true()))),
        (None, None) if kind == ValueKind::Number => Some(value.clone()),
        (None, None) => None,
    };
    Ok(found.or(otherwise).unwrap_or_else(|| Value::from(0)))
}

pub(super) fn integer(
    _: &mut State<'_, '_>,
    value: &Value,
    arguments: &[Value],
) -> Result<Value, Error> {
    let arguments = Arguments::of("int", arguments, 2)?;
    let otherwise = arguments.value(0, "default")?;
    let base = arguments.integer(1, "base")?.unwrap_or(10);
    arguments.finish()?;
    let base = u32::try_from(base).unwrap_or(0);
    let of_text = |text: &str| {
        let integer = integer_of(text, base).map(Value::from);
        integer.or_else(|| float_of_text(text).and_then(whole))
    };
    number("int", value, otherwise, of_text, whole)
}

pub(super) fn float(
    _: &mut State<'_, '_>,
    value: &Value,
    arguments: &[Value],
) -> Result<Value, Error> {
    let arguments = Arguments::of("float", arguments, 1)?;
    let otherwise = arguments.value(0, "default")?.unwrap_or(Value::from(0.0));
    arguments.finish()?;
    // Of an integer the float of the same value.
    let as_float = f64::try_from(value.clone()).ok().filter(|_| value.kind() == ValueKind::Number);
    match as_float {
        Some(x) => Ok(Value::from(x)),
        None => {
            let of_text = |text: &str| float_of_text(text).map(Value::from);
            number("float", value, Some(otherwise), of_text, |x| Some(Value::from(x)))
        }
    }
}
