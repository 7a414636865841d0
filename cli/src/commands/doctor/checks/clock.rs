//! Whether the time of day can be true. Certificates are valid from one time to another, and nodes
//! compare theirs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::commands::doctor::facts::ClockFacts;
use crate::commands::doctor::finding::{DoctorCheck, DoctorFinding, Obstacle, Severity};

/// The beginning of 2026: this program is younger.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);
/// The beginning of 2100.
const LATEST: Duration = Duration::from_secs(4_102_444_800);
/// Difference that clocks of two nodes may have.
const DIFFERENCE_MAX: Duration = Duration::from_secs(5 * 60);
/// A clock that is not set is wrong by a second after a day, at 10 parts in a million.
const SYNC_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const SET_IT: &str = "set the clock, and keep it set: timedatectl set-ntp true";

pub(super) fn check_clock(facts: &ClockFacts) -> DoctorFinding {
    let ClockFacts { now, synced, newest_file } = *facts;
    let wrong = |what: String| {
        DoctorFinding::new(DoctorCheck::Clock, Severity::Error(Obstacle::WrongState), what)
            .why("certificates are not valid then, and nodes refuse each other")
            .hint(SET_IT)
    };
    if now < UNIX_EPOCH + EARLIEST {
        return wrong("it is before 2026".to_owned());
    }
    if now >= UNIX_EPOCH + LATEST {
        return wrong("it is after 2099".to_owned());
    }
    let ahead = newest_file.and_then(|file| file.duration_since(now).ok());
    if let Some(ahead) = ahead.filter(|ahead| *ahead > DIFFERENCE_MAX) {
        let ahead = age_text(ahead);
        return wrong(format!("a file of the data folder is from {ahead} after now"));
    }
    check_sync(now, synced)
}

fn check_sync(now: SystemTime, synced: Option<SystemTime>) -> DoctorFinding {
    let Some(synced) = synced else {
        return DoctorFinding::new(
            DoctorCheck::Clock,
            Severity::Note,
            "plausible; no time synchronization is visible",
        )
        .why(format!("clocks of two nodes may differ by {}", age_text(DIFFERENCE_MAX)));
    };
    // A synchronisation from later than now was a moment ago, or the clock was set back since.
    let age = now.duration_since(synced).unwrap_or_default();
    let what = format!("set {} ago", age_text(age));
    if age > SYNC_AGE_MAX {
        return DoctorFinding::new(DoctorCheck::Clock, Severity::Warning, what)
            .why(format!("clocks of two nodes may differ by {}", age_text(DIFFERENCE_MAX)))
            .hint(SET_IT);
    }
    DoctorFinding::fine(DoctorCheck::Clock, what)
}

/// In the largest unit of which there are two.
fn age_text(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(length, _)| seconds >= 2 * length);
    let (length, name) = unit.unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / length)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::{
        ClockFacts, DIFFERENCE_MAX, EARLIEST, LATEST, Obstacle, SYNC_AGE_MAX, Severity, age_text,
        check_clock,
    };

    const NOW: Duration = Duration::from_secs(1_795_262_463);
    const SECOND: Duration = Duration::from_secs(1);

    fn level(now: Duration, synced: Option<Duration>, newest_file: Option<Duration>) -> Severity {
        let time = |since: Duration| -> SystemTime { UNIX_EPOCH + since };
        let synced = synced.map(time);
        let newest_file = newest_file.map(time);
        check_clock(&ClockFacts { now: time(now), synced, newest_file }).level
    }

    #[test]
    fn a_clock_tells_a_time_of_this_century() {
        let error = Severity::Error(Obstacle::WrongState);
        assert_eq!(level(EARLIEST - SECOND, None, None), error);
        assert_eq!(level(EARLIEST, None, None), Severity::Note);
        assert_eq!(level(LATEST - SECOND, None, None), Severity::Note);
        assert_eq!(level(LATEST, None, None), error);
    }

    #[test]
    fn files_are_not_from_the_future() {
        let synced = Some(NOW);
        let error = Severity::Error(Obstacle::WrongState);
        assert_eq!(level(NOW, synced, Some(NOW - SECOND)), Severity::Fine);
        assert_eq!(level(NOW, synced, Some(NOW + DIFFERENCE_MAX)), Severity::Fine);
        assert_eq!(level(NOW, synced, Some(NOW + DIFFERENCE_MAX + SECOND)), error);
    }

    #[test]
    fn a_clock_should_be_set_every_day() {
        assert_eq!(level(NOW, Some(NOW - SYNC_AGE_MAX), None), Severity::Fine);
        assert_eq!(level(NOW, Some(NOW - SYNC_AGE_MAX - SECOND), None), Severity::Warning);
        assert_eq!(level(NOW, Some(NOW + SECOND), None), Severity::Fine);
        assert_eq!(level(NOW, None, None), Severity::Note);
    }

    #[test]
    fn ages_are_printed_in_units_of_which_there_are_two() {
        let check = |seconds, expected: &str| {
            assert_eq!(age_text(Duration::from_secs(seconds)), expected);
        };
        check(0, "0 seconds");
        check(119, "119 seconds");
        check(120, "2 minutes");
        check(7199, "119 minutes");
        check(7200, "2 hours");
        check(172_800, "2 days");
    }
}
