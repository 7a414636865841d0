//! Times on the calendar, as certificates and tokens hold them.
//!
//! The calendar decides nothing in a run: terms and generations do. It decides how long a
//! certificate or a token is good for, and so how wrong a clock may be is written here once.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use time::UtcDateTime;

/// How far two clocks may be apart: the drift of a machine without time service in weeks.
pub const CLOCK_TOLERANCE_SECONDS: u64 = 5 * 60;

/// 9999-12-31 23:59:59 UTC, the last second of the calendar that is used here.
const YEAR_9999_END: u64 = 253_402_300_799;

/// A point in time: seconds since 1970 in UTC, without leap seconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixSeconds(pub u64);

impl UnixSeconds {
    /// The time of this machine's clock. A clock before 1970 counts as 1970.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(since.map_or(0, |since| since.as_secs()))
    }

    /// This many seconds later, at most the end of time.
    #[must_use]
    pub const fn plus(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// This many seconds earlier, at least 1970.
    #[must_use]
    pub const fn minus(self, seconds: u64) -> Self {
        Self(self.0.saturating_sub(seconds))
    }
}

/// As `2026-11-21 15:46:37 UTC`. A time after the year 9999 is written as its last second.
impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = UtcDateTime::from_unix_timestamp(self.0.min(YEAR_9999_END) as i64)
            .expect("a year of four digits");
        let (hour, minute, second) = date.as_hms();
        write!(f, "{} {hour:02}:{minute:02}:{second:02} UTC", date.date())
    }
}

/// From when to when something is good. Both ends are part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidityWindow {
    /// The first second of the window.
    pub not_before: UnixSeconds,
    /// The last second of the window.
    pub not_after: UnixSeconds,
}

/// E2010: a time that does not agree with this machine's clock. Either of the two may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum ClockFault {
    /// The certificate is from the future.
    #[error(
        "E2010 certificate not valid yet: this machine's clock says {now}, the clock that issued \
         the certificate said {issued}"
    )]
    NotValidYet {
        /// The time of this machine's clock.
        now: UnixSeconds,
        /// The issuer's clock when it issued the certificate.
        issued: UnixSeconds,
    },
    /// The certificate is from the past.
    #[error(
        "E2010 certificate expired: this machine's clock says {now}, the clock that issued the \
         certificate ({issued}) made it end at {ended}"
    )]
    Expired {
        /// The time of this machine's clock.
        now: UnixSeconds,
        /// The issuer's clock when it issued the certificate.
        issued: UnixSeconds,
        /// The last second the certificate was good.
        ended: UnixSeconds,
    },
    /// Two machines' clocks, read at about the same time.
    #[error("E2010 clocks differ: this machine's says {ours}, the other's says {theirs}")]
    Apart {
        /// The clock of the machine that reports the fault.
        ours: UnixSeconds,
        /// The clock of the other machine.
        theirs: UnixSeconds,
    },
}

impl ValidityWindow {
    /// The time to judge a certificate by: `now`, or the nearest end of the window if a clock that
    /// is tolerably wrong explains the difference.
    pub(super) fn tolerated(self, now: UnixSeconds) -> Result<UnixSeconds, ClockFault> {
        let Self { not_before: issued, not_after: ended } = self;
        if now.plus(CLOCK_TOLERANCE_SECONDS) < issued {
            return Err(ClockFault::NotValidYet { now, issued });
        }
        if now > ended.plus(CLOCK_TOLERANCE_SECONDS) || ended < issued {
            return Err(ClockFault::Expired { now, issued, ended });
        }
        Ok(now.clamp(issued, ended))
    }

    /// When to request the next certificate: after two thirds of the life of this one, so that a
    /// third is left to try again in.
    #[must_use]
    pub const fn renew_after(self) -> UnixSeconds {
        let life = self.not_after.0.saturating_sub(self.not_before.0);
        self.not_before.plus(life - life / 3)
    }
}

/// Whether two clocks, read at about the same time, agree well enough.
pub(super) fn check_apart(ours: UnixSeconds, theirs: UnixSeconds) -> Result<(), ClockFault> {
    if ours.0.abs_diff(theirs.0) > CLOCK_TOLERANCE_SECONDS {
        return Err(ClockFault::Apart { ours, theirs });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_on_a_calendar() {
        let check = |seconds, text: &str| assert_eq!(UnixSeconds(seconds).to_string(), text);
        check(0, "1970-01-01 00:00:00 UTC");
        check(951_782_400, "2000-02-29 00:00:00 UTC");
        check(1_709_164_800, "2024-02-29 00:00:00 UTC");
        check(1_709_251_199, "2024-02-29 23:59:59 UTC");
        check(1_709_251_200, "2024-03-01 00:00:00 UTC");
        check(1_735_689_599, "2024-12-31 23:59:59 UTC");
        check(4_107_542_400, "2100-03-01 00:00:00 UTC");
        check(YEAR_9999_END, "9999-12-31 23:59:59 UTC");
        check(u64::MAX, "9999-12-31 23:59:59 UTC");
    }

    #[test]
    fn five_minutes_of_a_wrong_clock_are_tolerated_and_a_second_more_is_not() {
        let (issued, ended) = (UnixSeconds(10_000), UnixSeconds(20_000));
        let window = ValidityWindow { not_before: issued, not_after: ended };
        assert_eq!(window.tolerated(UnixSeconds(15_000)), Ok(UnixSeconds(15_000)));
        assert_eq!(window.tolerated(UnixSeconds(9_700)), Ok(issued));
        assert_eq!(window.tolerated(UnixSeconds(20_300)), Ok(ended));
        let now = UnixSeconds(9_699);
        assert_eq!(window.tolerated(now), Err(ClockFault::NotValidYet { now, issued }));
        let now = UnixSeconds(20_301);
        assert_eq!(window.tolerated(now), Err(ClockFault::Expired { now, issued, ended }));
    }

    #[test]
    fn two_clocks_may_be_five_minutes_apart_either_way() {
        let ours = UnixSeconds(10_000);
        for theirs in [9_700, 10_300] {
            assert_eq!(check_apart(ours, UnixSeconds(theirs)), Ok(()));
        }
        for theirs in [9_699, 10_301] {
            let theirs = UnixSeconds(theirs);
            assert_eq!(check_apart(ours, theirs), Err(ClockFault::Apart { ours, theirs }));
        }
    }

    #[test]
    fn a_clock_that_is_wrong_by_an_hour_is_named_with_the_other() {
        let window =
            ValidityWindow { not_before: UnixSeconds(7200), not_after: UnixSeconds(93_600) };
        let fault = window.tolerated(UnixSeconds(3600)).unwrap_err().to_string();
        assert!(fault.contains("E2010"), "{fault}");
        assert!(fault.contains("1970-01-01 01:00:00 UTC"), "{fault}");
        assert!(fault.contains("1970-01-01 02:00:00 UTC"), "{fault}");
    }

    #[test]
    fn a_third_of_the_life_is_left_to_renew_in() {
        let window =
            ValidityWindow { not_before: UnixSeconds(1000), not_after: UnixSeconds(1000 + 86_400) };
        assert_eq!(window.renew_after(), UnixSeconds(1000 + 57_600));
    }
}
