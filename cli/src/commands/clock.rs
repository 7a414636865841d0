//! Times of day as people and logs read them: in UTC, for a cluster may span time zones.

use zbelastic_identity::UnixSeconds;

/// As in `2026-11-21 12:01:03Z`, in at most the year 9999.
#[must_use]
pub fn date_text(at_ms: u64) -> String {
    let text = UnixSeconds(at_ms / 1000).to_string();
    text.replace(" UTC", "Z")
}

/// The time of day in UTC, as in `12:01:03.412`.
#[must_use]
pub fn time_text(at_ms: u64) -> String {
    let seconds = at_ms / 1000;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{:03}", at_ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::{date_text, time_text};

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |seconds: u64, expected: &str| assert_eq!(date_text(seconds * 1000), expected);
        check(0, "1970-01-01 00:00:00Z");
        check(951_782_399, "2000-02-28 23:59:59Z");
        check(951_782_400, "2000-02-29 00:00:00Z");
        check(951_868_800, "2000-03-01 00:00:00Z");
        check(1_767_225_599, "2025-12-31 23:59:59Z");
        check(1_795_262_463, "2026-11-21 12:01:03Z");
        check(4_107_542_400, "2100-03-01 00:00:00Z");
        assert_eq!(time_text(86_400_000 + 3_723_004), "01:02:03.004");
    }
}
