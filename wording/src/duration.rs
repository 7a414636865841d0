//! Durations as typed: 500ms, 90s, 1h30m.

use std::time::Duration;

/// Units of time, in milliseconds; the longer names first, so that `ms` is not read as `m`.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
/// The longest time that makes sense anywhere: ten years.
const DURATION_MS_MAX: u64 = 3_650 * 86_400_000;

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It is no duration.
    #[error("expected a duration such as 500ms, 90s, 15m, 24h or 7d, or several as 1h30m")]
    Form,
    /// The unit is missing.
    #[error(
        "{number} of what? expected a unit, as in {number}s, {number}m, {number}h or {number}d"
    )]
    Unit {
        /// The number that was typed without a unit.
        number: String,
    },
    /// It lasts longer than ten years.
    #[error("longer than ten years")]
    Long,
    /// It is no time at all.
    #[error("expected more than no time at all")]
    Zero,
}

/// `500ms`, `90s`, `1h30m`.
///
/// # Errors
/// If it is none.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(DurationError::Form);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        if number.is_empty() {
            return Err(DurationError::Form);
        }
        if after.is_empty() {
            return Err(DurationError::Unit { number: number.to_owned() });
        }
        let unit = UNITS.into_iter().find(|(name, _)| {
            let beyond = after.strip_prefix(name);
            beyond.is_some_and(|beyond| !beyond.starts_with(|c: char| c.is_alphabetic()))
        });
        let (name, scale) = unit.ok_or(DurationError::Form)?;
        let number: u64 = number.parse().map_err(|_| DurationError::Long)?;
        let part = number.checked_mul(scale).ok_or(DurationError::Long)?;
        total = total.checked_add(part).ok_or(DurationError::Long)?;
        rest = &after[name.len()..];
    }
    if total > DURATION_MS_MAX {
        return Err(DurationError::Long);
    }
    Ok(Duration::from_millis(total))
}

/// A duration that is not nothing.
///
/// # Errors
/// If it is none, or nothing.
pub fn parse_duration_above_zero(text: &str) -> Result<Duration, DurationError> {
    let duration = parse_duration(text)?;
    if duration.is_zero() { Err(DurationError::Zero) } else { Ok(duration) }
}

/// A duration with the largest units that lose nothing: the text that [`parse_duration`] reads back
/// as the same.
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

#[cfg(test)]
mod tests {
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
        assert_eq!(wrong("24"), DurationError::Unit { number: "24".to_owned() });
        assert_eq!(wrong("1h30"), DurationError::Unit { number: "30".to_owned() });
        for text in ["", "h", "-1s", "1.5h", "5 minutes", "5min", "1w", "s5"] {
            assert_eq!(wrong(text), DurationError::Form, "{text}");
        }
        for text in ["3651d", "99999999999999999999s", "9999999999999999d"] {
            assert_eq!(wrong(text), DurationError::Long, "{text}");
        }
        assert_eq!(parse_duration_above_zero("0s"), Err(DurationError::Zero));
        assert_eq!(parse_duration_above_zero("1ms"), Ok(Duration::from_millis(1)));
    }
}
