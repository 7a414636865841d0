//! Points in time as metadata services write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// As in `2026-11-21T16:22:00Z`. Parts of a second are left out.
pub(super) fn parse_iso(text: &str) -> Option<SystemTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    utc_time(year, month, day, time.split_once('.').map_or(time, |(whole, _)| whole))
}

/// As in `Sat, 21 Nov 2026 16:22:00 GMT`.
pub(super) fn parse_http(text: &str) -> Option<SystemTime> {
    let mut words = text.strip_suffix(" GMT")?.split_whitespace();
    let mut next = || words.next();
    let (_weekday, day, month, year, time) = (next()?, next()?, next()?, next()?, next()?);
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    utc_time(number(year)?, month, number(day)?, time)
}

fn number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let parts: Option<Vec<u64>> = text.split(between).map(number).collect();
    parts?.try_into().ok()
}

fn utc_time(year: u64, month: u64, day: u64, time: &str) -> Option<SystemTime> {
    let [hour, minute, second] = numbers(time, ':')?;
    let is_date = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=month_days(year, month)).contains(&day);
    // A leap second is the last of its minute, and counts as the next one.
    let is_time = hour < 24 && minute < 60 && second <= 60;
    if !is_date || !is_time {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * SECONDS_PER_DAY;
    let seconds = seconds + (hour * 60 + minute) * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    let months: u64 = (1..month).map(|month| month_days(year, month)).sum();
    years + months + day - 1
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{parse_http, parse_iso};

    #[test]
    fn both_ways_to_write_a_moment_agree_with_the_calendar() {
        let check = |iso: &str, http: &str, seconds: u64| {
            let expected = Some(UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!(parse_iso(iso), expected, "{iso}");
            assert_eq!(parse_http(http), expected, "{http}");
        };
        check("1970-01-01T00:00:00Z", "Thu, 01 Jan 1970 00:00:00 GMT", 0);
        check("2000-02-29T23:59:59Z", "Tue, 29 Feb 2000 23:59:59 GMT", 951_868_799);
        check("2000-03-01T00:00:00.250Z", "Wed, 1 Mar 2000 00:00:00 GMT", 951_868_800);
        check("2026-11-21T12:01:03Z", "Sat, 21 Nov 2026 12:01:03 GMT", 1_795_262_463);
        check("2100-03-01T00:00:00Z", "Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400);
    }

    #[test]
    fn what_is_no_moment_is_none() {
        let wrong = [
            "",
            "now",
            "2026-11-21",
            "2026-11-21T12:01:03",
            "2026-11-21T12:01:03+02:00",
            "1969-12-31T23:59:59Z",
            "10000-01-01T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T12:60:00Z",
            "2026-11-21T12:01:61Z",
            "2026-11-+1T12:01:03Z",
            "99999999999999999999-01-01T00:00:00Z",
        ];
        for text in wrong {
            assert_eq!(parse_iso(text), None, "{text}");
        }
        for text in ["Sat, 21 Nov 2026 12:01:03", "Sat, 21 Now 2026 12:01:03 GMT", " GMT"] {
            assert_eq!(parse_http(text), None, "{text}");
        }
    }
}
