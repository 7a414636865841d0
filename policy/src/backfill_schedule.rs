//! When a controller checks whether it has the pieces of runs that are over.

/// Ticks between two checks for pieces that are missing here, if nothing happened: ten minutes.
const LOOK_TICKS: u32 = 60_000;
/// Ticks to the next check after one that did not get every piece, doubled with each such: the
/// nodes that have it may not be connected yet. Ten seconds.
const RETRY_TICKS: u32 = 1000;

/// Ticks until the next check is due.
#[derive(Debug, Default)]
pub struct BackfillSchedule {
    ticks_left: u32,
    is_under_way: bool,
    /// Checks in a row that did not get every piece.
    missed: u32,
}

impl BackfillSchedule {
    /// A run ended, or another store was begun: the next tick checks.
    pub const fn request(&mut self) {
        self.ticks_left = 0;
    }

    /// A tick passes. Yields whether to check now.
    pub const fn is_due(&mut self) -> bool {
        if self.is_under_way {
            return false;
        }
        let is_due = self.ticks_left == 0;
        self.ticks_left = if is_due { LOOK_TICKS } else { self.ticks_left - 1 };
        is_due
    }

    /// The check begins: none is due until it is over.
    pub const fn begin(&mut self) {
        self.is_under_way = true;
    }

    /// A check is over. Yields whether it is time to warn that a piece is missing.
    pub fn end(&mut self, has_all: bool) -> bool {
        self.is_under_way = false;
        self.missed = if has_all { 0 } else { self.missed.saturating_add(1) };
        let retry = RETRY_TICKS.saturating_mul(1 << self.missed.saturating_sub(1).min(16));
        let wait = if has_all { LOOK_TICKS } else { retry.min(LOOK_TICKS) };
        self.ticks_left = self.ticks_left.min(wait);
        wait == LOOK_TICKS && !has_all
    }
}

#[cfg(test)]
mod tests {
    use super::{BackfillSchedule, LOOK_TICKS};

    #[test]
    fn a_backfill_is_due_at_the_start_then_rarely_and_whenever_a_run_ends() {
        let mut schedule = BackfillSchedule::default();
        assert!(schedule.is_due());
        let later = (0..LOOK_TICKS).filter(|_| schedule.is_due()).count();
        assert_eq!(later, 0);
        assert!(schedule.is_due());
        schedule.request();
        assert!(schedule.is_due());
        schedule.begin();
        schedule.request();
        assert!(!schedule.is_due(), "one at a time");
    }

    #[test]
    fn what_is_missed_is_fetched_again_soon_and_warned_of_once_it_stays_away() {
        let mut schedule = BackfillSchedule::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(schedule.is_due());
            schedule.begin();
            let is_reported = schedule.end(false);
            waits.push((schedule.ticks_left, is_reported));
            schedule.request();
        }
        assert_eq!(waits[..3], [(1000, false), (2000, false), (4000, false)]);
        assert_eq!(waits[6..], [(LOOK_TICKS, true); 2]);
        assert!(!schedule.end(true));
        assert_eq!(schedule.missed, 0);
    }
}
