//! Points in time as metadata services write them.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

/// As in `2026-11-21T16:22:00Z`. Parts of a second are left out.
pub(super) fn parse_iso(text: &str) -> Option<SystemTime> {
    let in_utc = text.ends_with('Z').then_some(text)?;
    since_1970(OffsetDateTime::parse(in_utc, &Rfc3339).ok()?)
}

/// As in `Sat, 21 Nov 2026 16:22:00 GMT`.
pub(super) fn parse_http(text: &str) -> Option<SystemTime> {
    let in_utc = text.ends_with(" GMT").then_some(text)?;
    since_1970(OffsetDateTime::parse(in_utc, &Rfc2822).ok()?)
}

/// The whole second that a date is in, unless it is before 1970.
fn since_1970(date: OffsetDateTime) -> Option<SystemTime> {
    let second = SystemTime::from(date.truncate_to_second());
    (second >= UNIX_EPOCH).then_some(second)
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
        // A leap second counts as the one before it.
        check("2026-12-31T23:59:60Z", "Thu, 31 Dec 2026 23:59:60 GMT", 1_798_761_599);
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
            "2026-11-21T12:01:60Z",
            "2026-11-21T12:01:61Z",
            "2026-11-21T12:1:03Z",
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
