//! Durations, sizes and names as typed.

use std::time::Duration;

use zbelastic_consensus::contact::{ContactRefusal, check_name};
use zbelastic_types::Bytes;

use crate::api::NAME_BYTES_MAX;
use crate::config::parse_size;

/// Units of time, in milliseconds; the longer names first, so that `ms` is not read as `m`.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
/// The longest time that makes sense anywhere: ten years.
const DURATION_MS_MAX: u64 = 3_650 * 86_400_000;

/// Most characters of a name: what certificates and the log take, less what `init` puts behind the
/// cluster's name for its first controller.
const NODE_NAME_MAX: usize = 63 - "-1".len();

/// Why a text is no duration, size or name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is no duration.
    #[error("expected a duration such as 500ms, 90s, 15m, 24h or 7d, or several as 1h30m")]
    Duration,
    /// The unit is missing.
    #[error(
        "{number} of what? expected a unit, as in {number}s, {number}m, {number}h or {number}d"
    )]
    Unit {
        /// The number that was typed without a unit.
        number: String,
    },
    /// It takes longer than ten years.
    #[error("longer than ten years")]
    Long,
    /// It is no time at all.
    #[error("expected more than no time at all")]
    ZeroDuration,
    /// It is no size.
    #[error("expected a size such as 10GiB, 512MiB or plain bytes")]
    Size,
    /// Thousands instead of 1024.
    #[error("expected a size such as 10GiB: units are of 1024, {written}iB instead of {written}B")]
    DecimalSize {
        /// Letter of the unit that was typed.
        written: char,
    },
    /// It is no name.
    #[error(
        "expected a name of 1 to {NODE_NAME_MAX} of the characters a-z, 0-9 and -, that begins \
         with a letter or digit"
    )]
    Name,
    /// A name that would be read as a number.
    #[error("a name of digits alone would be read as a node's number")]
    DigitsName,
    /// A note is too long.
    #[error("{found} bytes, at most {NAME_BYTES_MAX}")]
    Note {
        /// Length of the note, in bytes.
        found: usize,
    },
}

/// `500ms`, `90s`, `1h30m`.
///
/// # Errors
/// If it is none.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(QuantityError::Duration);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        if number.is_empty() {
            return Err(QuantityError::Duration);
        }
        if after.is_empty() {
            return Err(QuantityError::Unit { number: number.to_owned() });
        }
        let unit = UNITS.into_iter().find(|(name, _)| {
            let beyond = after.strip_prefix(name);
            beyond.is_some_and(|beyond| !beyond.starts_with(|c: char| c.is_alphabetic()))
        });
        let (name, scale) = unit.ok_or(QuantityError::Duration)?;
        let number: u64 = number.parse().map_err(|_| QuantityError::Long)?;
        let part = number.checked_mul(scale).ok_or(QuantityError::Long)?;
        total = total.checked_add(part).ok_or(QuantityError::Long)?;
        rest = &after[name.len()..];
    }
    if total > DURATION_MS_MAX {
        return Err(QuantityError::Long);
    }
    Ok(Duration::from_millis(total))
}

/// A duration that is not nothing.
///
/// # Errors
/// If it is none, or nothing.
pub fn parse_duration_above_zero(text: &str) -> Result<Duration, QuantityError> {
    let duration = parse_duration(text)?;
    if duration.is_zero() { Err(QuantityError::ZeroDuration) } else { Ok(duration) }
}

/// A duration with the largest units that lose nothing: what [`parse_duration`] reads back as the
/// same.
#[must_use]
pub fn duration_word(duration: Duration) -> String {
    let total = duration.as_millis() as u64;
    let fits = |scale: u64| total >= scale && total.is_multiple_of(scale);
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    match units.into_iter().find(|(_, scale)| fits(*scale)) {
        Some((name, scale)) => format!("{}{name}", total / scale),
        None => format!("{total}ms"),
    }
}

/// `10GiB`, `512MiB`, `4096`.
///
/// # Errors
/// If it is none.
pub fn parse_bytes(text: &str) -> Result<Bytes, QuantityError> {
    let text = text.trim();
    let letter = text.strip_suffix('B').and_then(|text| text.chars().next_back());
    match (parse_size(text), letter) {
        (Some(size), _) => Ok(size),
        (None, Some(written @ ('K' | 'M' | 'G' | 'T'))) => {
            Err(QuantityError::DecimalSize { written })
        }
        (None, Some(_) | None) => Err(QuantityError::Size),
    }
}

/// A name of a cluster or a node.
///
/// # Errors
/// If it is none.
pub fn parse_name(text: &str) -> Result<String, QuantityError> {
    let is_letter = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_fitting = text.bytes().all(|letter| is_letter(letter) || letter == b'-');
    let begins = text.bytes().next().is_some_and(is_letter);
    if !begins || text.len() > NODE_NAME_MAX || !is_fitting {
        return Err(QuantityError::Name);
    }
    if text.bytes().all(|letter| letter.is_ascii_digit()) {
        return Err(QuantityError::DigitsName);
    }
    Ok(text.to_owned())
}

/// A zone, as a cloud or a person calls it.
///
/// # Errors
/// If it is empty, too long, or of other letters than a node's name.
pub fn parse_zone(text: &str) -> Result<String, ContactRefusal> {
    check_name(text)?;
    Ok(text.to_owned())
}

/// A note that a person makes.
///
/// # Errors
/// If it is too long.
pub fn parse_note(text: &str) -> Result<String, QuantityError> {
    let found = text.len();
    if found > NAME_BYTES_MAX { Err(QuantityError::Note { found }) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zbelastic_types::Bytes;

    use super::*;

    #[test]
    fn durations_have_units() {
        let check = |text: &str, milliseconds: u64| {
            let found = parse_duration(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found, Duration::from_millis(milliseconds), "{text}");
            assert_eq!(parse_duration(&duration_word(found)), Ok(found));
        };
        check("0s", 0);
        check("500ms", 500);
        check("90s", 90_000);
        check(" 15m ", 900_000);
        check("1h30m", 5_400_000);
        check("24h", 86_400_000);
        check("7d", 7 * 86_400_000);
        check("3650d", DURATION_MS_MAX);
        assert_eq!(duration_word(Duration::from_secs(7200)), "2h");
    }

    #[test]
    fn what_is_no_duration_is_explained() {
        let wrong = |text: &str| parse_duration(text).expect_err(text);
        assert_eq!(wrong("24"), QuantityError::Unit { number: "24".to_owned() });
        assert_eq!(wrong("1h30"), QuantityError::Unit { number: "30".to_owned() });
        for text in ["", "h", "-1s", "1.5h", "5 minutes", "5min", "1w", "s5"] {
            assert_eq!(wrong(text), QuantityError::Duration, "{text}");
        }
        for text in ["3651d", "99999999999999999999s", "9999999999999999d"] {
            assert_eq!(wrong(text), QuantityError::Long, "{text}");
        }
        assert_eq!(parse_duration_above_zero("0s"), Err(QuantityError::ZeroDuration));
        assert_eq!(parse_duration_above_zero("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn sizes_are_of_1024() {
        assert_eq!(parse_bytes("10GiB"), Ok(Bytes(10 << 30)));
        assert_eq!(parse_bytes("4096"), Ok(Bytes(4096)));
        assert_eq!(parse_bytes("10GB"), Err(QuantityError::DecimalSize { written: 'G' }));
        for text in ["", "0", "lots", "GiB", "-1", "B"] {
            assert_eq!(parse_bytes(text), Err(QuantityError::Size), "{text}");
        }
    }

    #[test]
    fn names_are_plain() {
        let longest = "a".repeat(NODE_NAME_MAX);
        for name in ["a", "gpu-7-rack-2", "7b", "a-", longest.as_str()] {
            assert_eq!(parse_name(name), Ok(name.to_owned()));
        }
        let longer = "a".repeat(NODE_NAME_MAX + 1);
        let controls = ["a\n", "a\u{1b}[2J", "a\0"];
        let others = ["", "-a", "A", "a b", "a_b", "a.b", "zürich", "w😀", "../x", "<b>", "o'k"];
        for name in others.into_iter().chain(controls).chain([longer.as_str()]) {
            assert_eq!(parse_name(name), Err(QuantityError::Name), "{name}");
        }
        assert_eq!(parse_name("12"), Err(QuantityError::DigitsName));
        let longest = "a".repeat(NAME_BYTES_MAX);
        let longer = "a".repeat(NAME_BYTES_MAX + 1);
        assert!(parse_note(&longest).is_ok());
        assert_eq!(parse_note(&longer), Err(QuantityError::Note { found: NAME_BYTES_MAX + 1 }));
    }
}
