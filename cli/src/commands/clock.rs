//! Times of day as people and logs read them: in UTC, for a cluster may span time zones.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// As in `2026-11-21 12:01:03Z`.
#[must_use]
pub fn date_text(at_ms: u64) -> String {
    let seconds = at_ms / 1000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// The time of day in UTC, as in `12:01:03.412`.
#[must_use]
pub fn time_text(at_ms: u64) -> String {
    let seconds = at_ms / 1000;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{:03}", at_ms % 1000)
}

/// Year, month and day of a day counted from 1970. Years are counted from March, so that the day
/// that is left out in most stands at the end.
fn civil(days: u64) -> (u64, u64, u64) {
    // Days from 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
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
