//! Kinds of values of keys, and the form in which they are kept.

use std::fmt;
use std::time::Duration;

use zbelastic_types::Bytes;
use zbelastic_wording::{duration_word, parse_duration};

use super::value::ConfigValue;

/// The kind of value that a key accepts.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// A text that is not empty.
    Text,
    /// A list of such texts; one text counts as a list of one.
    Texts,
    /// A list of these words, each once at most; one word counts as a list of one.
    Words(fn() -> Vec<&'static str>),
    /// One of these words; an integer counts as its digits.
    Word(fn() -> Vec<&'static str>),
    /// A boolean: true or false.
    Flag,
    /// A whole number, both ends included.
    Count(u64, u64),
    /// A number within a range.
    Number(NumberRange),
    /// Two numbers, each within a range.
    Pair(NumberRange),
    /// An amount of memory; the empty text for none.
    Size,
    /// A duration, both ends included, in milliseconds.
    Time(u64, u64),
}

/// Which numbers. All are finite, in single precision as well, the type of the arithmetic.
#[derive(Clone, Copy, Debug)]
pub enum NumberRange {
    /// Above 0, in single precision as well.
    AboveZero,
    /// From 0, without an upper limit.
    FromZero,
    /// 0 or more, below 1.
    BelowOne,
    /// From 0 to this.
    UpTo(f64),
}

impl NumberRange {
    fn contains(self, number: f64) -> bool {
        let single = number as f32;
        single.is_finite()
            && match self {
                Self::AboveZero => single > 0.0,
                Self::FromZero => number >= 0.0,
                // Rounded to single precision it must not become 1.
                Self::BelowOne => number >= 0.0 && single < 1.0,
                Self::UpTo(max) => (0.0..=max).contains(&number),
            }
    }
}

impl ValueKind {
    /// `value` in the form that the key's reader expects, or `None` if it is not of this kind:
    /// numbers as [`ConfigValue::Number`], sizes in bytes, words as [`ConfigValue::Text`], lists as
    /// lists.
    #[must_use]
    pub fn accept(self, value: &ConfigValue) -> Option<ConfigValue> {
        match self {
            Self::Text => is_text(value).then(|| value.clone()),
            Self::Texts => texts(value),
            Self::Words(words) => list_of_words(value, &words()),
            Self::Word(words) => word(value, &words()),
            Self::Flag => matches!(value, ConfigValue::Flag(_)).then(|| value.clone()),
            Self::Count(min, max) => count(value, min, max),
            Self::Number(range) => number(value, range),
            Self::Pair(range) => pair(value, range),
            Self::Size => size(value),
            Self::Time(min, max) => time(value, min, max),
        }
    }

    /// The words that may stand here, if these are few.
    #[must_use]
    pub fn words(self) -> Vec<&'static str> {
        match self {
            Self::Word(words) => words(),
            Self::Flag => vec!["true", "false"],
            Self::Text
            | Self::Texts
            | Self::Words(_)
            | Self::Count(..)
            | Self::Number(_)
            | Self::Pair(_)
            | Self::Size
            | Self::Time(..) => Vec::new(),
        }
    }
}

fn is_text(value: &ConfigValue) -> bool {
    matches!(value, ConfigValue::Text(text) if !text.is_empty())
}

fn texts(value: &ConfigValue) -> Option<ConfigValue> {
    let ConfigValue::List(items) = value else {
        return is_text(value).then(|| ConfigValue::List(vec![value.clone()]));
    };
    items.iter().all(is_text).then(|| value.clone())
}

fn list_of_words(value: &ConfigValue, words: &[&str]) -> Option<ConfigValue> {
    let list = texts(value)?;
    let ConfigValue::List(items) = &list else { return None };
    let is_word = |(at, item): (usize, &ConfigValue)| {
        word(item, words).is_some() && !items[..at].contains(item)
    };
    items.iter().enumerate().all(is_word).then_some(list)
}

fn word(value: &ConfigValue, words: &[&str]) -> Option<ConfigValue> {
    let word = match value {
        ConfigValue::Text(text) => text.clone(),
        ConfigValue::Whole(number) => number.to_string(),
        ConfigValue::Number(_)
        | ConfigValue::Flag(_)
        | ConfigValue::List(_)
        | ConfigValue::Other(_) => return None,
    };
    words.contains(&word.as_str()).then_some(ConfigValue::Text(word))
}

fn count(value: &ConfigValue, min: u64, max: u64) -> Option<ConfigValue> {
    let ConfigValue::Whole(number) = value else { return None };
    (i128::from(min)..=i128::from(max)).contains(number).then_some(ConfigValue::Whole(*number))
}

fn number(value: &ConfigValue, range: NumberRange) -> Option<ConfigValue> {
    let number = match value {
        ConfigValue::Whole(number) => *number as f64,
        ConfigValue::Number(number) => *number,
        ConfigValue::Text(_)
        | ConfigValue::Flag(_)
        | ConfigValue::List(_)
        | ConfigValue::Other(_) => return None,
    };
    range.contains(number).then_some(ConfigValue::Number(number))
}

fn pair(value: &ConfigValue, range: NumberRange) -> Option<ConfigValue> {
    let ConfigValue::List(items) = value else { return None };
    let [first, second] = items.as_slice() else { return None };
    Some(ConfigValue::List(vec![number(first, range)?, number(second, range)?]))
}

fn size(value: &ConfigValue) -> Option<ConfigValue> {
    let bytes = match value {
        ConfigValue::Text(text) if text.is_empty() => 0,
        ConfigValue::Text(text) => parse_size(text)?.0,
        ConfigValue::Whole(number) => u64::try_from(*number).ok().filter(|bytes| *bytes > 0)?,
        ConfigValue::Number(_)
        | ConfigValue::Flag(_)
        | ConfigValue::List(_)
        | ConfigValue::Other(_) => return None,
    };
    Some(ConfigValue::Whole(bytes.into()))
}

/// Kept in milliseconds. A whole number has no unit, so it is refused as ambiguous.
fn time(value: &ConfigValue, min: u64, max: u64) -> Option<ConfigValue> {
    let ConfigValue::Text(text) = value else { return None };
    let milliseconds = parse_duration(text).ok()?.as_millis() as u64;
    (min..=max).contains(&milliseconds).then_some(ConfigValue::Whole(milliseconds.into()))
}

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// `10GiB`, `1.5 MiB`, `4096`: a number of at least one byte and a unit, or plain bytes.
#[must_use]
pub fn parse_size(text: &str) -> Option<Bytes> {
    let unit = UNITS.into_iter().find(|(name, _)| text.ends_with(name));
    let (name, scale) = unit.unwrap_or(("", 1));
    let digits = text.strip_suffix(name)?.trim();
    if !digits.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let bytes = match digits.parse::<u64>() {
        Ok(whole) => whole.checked_mul(scale)?,
        Err(_) => (digits.parse::<f64>().ok()? * scale as f64) as u64,
    };
    (1..u64::MAX).contains(&bytes).then_some(Bytes(bytes))
}

/// A size with the largest unit that loses nothing: the text that [`ValueKind::Size`] reads back as
/// the same.
#[must_use]
pub fn size_text(size: Bytes) -> String {
    let fits = |scale: u64| size.0 >= scale && size.0.is_multiple_of(scale);
    match UNITS.into_iter().find(|(_, scale)| *scale > 1 && fits(*scale)) {
        Some((name, scale)) => format!("{}{name}", size.0 / scale),
        None => size.0.to_string(),
    }
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => write!(f, "a text that is not empty"),
            Self::Texts => write!(f, "a list of texts that are not empty"),
            Self::Words(words) => write!(f, "a list of {}", words().join(", ")),
            Self::Word(words) => {
                let words = words();
                write!(f, "one of {}", words.join(", "))
            }
            Self::Flag => write!(f, "true or false"),
            Self::Count(min, max) if *max == u64::MAX => write!(f, "a whole number from {min}"),
            Self::Count(min, max) => write!(f, "a whole number from {min} to {max}"),
            Self::Number(range) => write!(f, "a finite number {range}"),
            Self::Pair(range) => write!(f, "two finite numbers {range}"),
            Self::Size => write!(f, "a size such as \"10GiB\", \"512MiB\" or plain bytes"),
            Self::Time(min, max) => {
                let word = |time: &u64| duration_word(Duration::from_millis(*time));
                write!(f, "a duration from \"{}\" to \"{}\"", word(min), word(max))
            }
        }
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AboveZero => write!(f, "above 0"),
            Self::FromZero => write!(f, "from 0"),
            Self::BelowOne => write!(f, "from 0 to below 1"),
            Self::UpTo(max) => write!(f, "from 0 to {max}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ConfigValue, NumberRange, ValueKind, parse_size, size_text};
    use zbelastic_types::Bytes;

    /// `expected` is the accepted value as TOML, or empty if it is refused.
    fn check(kind: ValueKind, text: &str, expected: &str) {
        let found = kind.accept(&ConfigValue::parse(text).expect("TOML"));
        assert_eq!(found.map_or(String::new(), |value| value.to_string()), expected, "{text}");
    }

    #[test]
    fn numbers_are_finite_and_in_range() {
        let check = |range, text, expected| check(ValueKind::Number(range), text, expected);
        check(NumberRange::AboveZero, "1e-3", "0.001");
        check(NumberRange::AboveZero, "2", "2.0");
        for refused in ["0", "-1.0", "nan", "inf", "1e39", "1e-60", "\"1\"", "true"] {
            check(NumberRange::AboveZero, refused, "");
        }
        check(NumberRange::FromZero, "0", "0.0");
        check(NumberRange::FromZero, "-0.001", "");
        check(NumberRange::BelowOne, "0.999", "0.999");
        check(NumberRange::BelowOne, "1.0", "");
        check(NumberRange::BelowOne, "0.999999999999", "");
        check(NumberRange::UpTo(0.9), "0.9", "0.9");
        check(NumberRange::UpTo(0.9), "0.91", "");
    }

    #[test]
    fn counts_are_whole_and_in_range() {
        let check = |text, expected| check(ValueKind::Count(1, 8), text, expected);
        check("1", "1");
        check("8", "8");
        for refused in ["0", "9", "-1", "2.0", "\"2\"", "99999999999999999999"] {
            check(refused, "");
        }
    }

    #[test]
    fn lists_words_and_flags_are_what_they_are() {
        check(ValueKind::Texts, "[\"a\", \"b\"]", "[\"a\", \"b\"]");
        check(ValueKind::Texts, "\"a\"", "[\"a\"]");
        check(ValueKind::Texts, "[1]", "");
        check(ValueKind::Texts, "[\"\"]", "");
        check(ValueKind::Texts, "[]", "[]");
        check(ValueKind::Text, "\"\"", "");
        let words = ValueKind::Words(|| vec!["norm", "attention"]);
        check(words, "[\"attention\", \"norm\"]", "[\"attention\", \"norm\"]");
        check(words, "\"norm\"", "[\"norm\"]");
        check(words, "[]", "[]");
        check(words, "[\"norm\", \"norm\"]", "");
        check(words, "[\"dropout\"]", "");
        let word = ValueKind::Word(|| vec!["auto", "0", "1"]);
        check(word, "\"auto\"", "\"auto\"");
        check(word, "1", "\"1\"");
        check(word, "2", "");
        check(word, "true", "");
        check(ValueKind::Flag, "true", "true");
        check(ValueKind::Flag, "1", "");
        check(ValueKind::Pair(NumberRange::BelowOne), "[0.9, 0]", "[0.9, 0.0]");
        check(ValueKind::Pair(NumberRange::BelowOne), "[0.9]", "");
        check(ValueKind::Pair(NumberRange::BelowOne), "[0.9, nan]", "");
    }

    #[test]
    fn durations_have_units_and_ends() {
        let check =
            |text: &str, expected: &str| check(ValueKind::Time(100, 60_000), text, expected);
        check("\"100ms\"", "100");
        check("\"1s\"", "1000");
        check("\"1m\"", "60000");
        for refused in ["\"99ms\"", "\"61s\"", "\"500\"", "500", "\"\"", "\"soon\""] {
            check(refused, "");
        }
        let text = ValueKind::Time(100, 60_000).to_string();
        assert_eq!(text, "a duration from \"100ms\" to \"1m\"");
    }

    #[test]
    fn sizes_have_units() {
        let check = |text: &str, expected: &str| check(ValueKind::Size, text, expected);
        check("\"\"", "0");
        check("\"10GiB\"", "10737418240");
        check("\"1.5 KiB\"", "1536");
        check("\"64B\"", "64");
        check("\"4096\"", "4096");
        check("4096", "4096");
        let refused = ["0", "-1", "\"0KiB\"", "\"10GB\"", "\"-1KiB\"", "\"KiB\"", "\"1e3\"", "1.5"];
        for refused in refused {
            check(refused, "");
        }
        check("\"99999999999999TiB\"", "");
        for bytes in [1, 1023, 1024, 1536, 10 << 30, (10 << 30) + 1] {
            assert_eq!(parse_size(&size_text(Bytes(bytes))), Some(Bytes(bytes)));
        }
        assert_eq!(size_text(Bytes(512 << 20)), "512MiB");
    }
}
