//! When a node that runs opens a store of checkpoints again that is closed: a write to it failed, its
//! index was found damaged, or it could not be opened before.
//!
//! A damaged store is put aside and another one is begun in its place, as at a start
//! ([`crate::store_opening`]). The pause doubles with each attempt until a store stands open for the
//! longest one: neither a disk that refuses everything nor one that damages each store is opened in a
//! loop. No attempt is the last: after a disk is mounted, or the stores that lie aside are removed, the
//! node need not be started again.

use std::time::Duration;

use zbelastic_consensus::mutant::{self, Mutant};

use crate::store_opening::{StoreOpeningAction, StoreOpeningFault, after_fault};

/// From the first attempt to open a store again to the second. Where somebody still reads from it, an
/// attempt waits some seconds for the lock.
pub const REOPEN_PAUSE_MIN: Duration = Duration::from_secs(10);
/// From one attempt to the next at most, and how long a store stands open until the pause is short
/// again.
pub const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(600);

/// The attempts to open the store in a folder again. Times are since any moment, the same for all calls.
#[derive(Clone, Debug, Default)]
pub struct StoreReopening {
    /// Attempts since a store stood open for the longest pause.
    attempts: u32,
    /// When the next attempt is due.
    next_at: Duration,
    /// When the last attempt opened a store.
    opened_at: Option<Duration>,
    /// The fault of the attempts since then that was reported.
    reported: Option<StoreOpeningFault>,
}

/// The decision about a store that could not be opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreReopeningAction {
    /// The store is put aside under this number, and another store is begun.
    BeginAnew {
        /// From 1 to [`crate::store_opening::ASIDE_MAX`].
        aside: u32,
    },
    /// The node goes on without a store until the next attempt.
    StayClosed {
        /// Whether that is reported: it is closed since this attempt, or for another reason.
        is_news: bool,
    },
}

impl StoreReopening {
    /// Of a store that could not be opened for this fault, which was reported.
    #[must_use]
    pub const fn of_closed(fault: StoreOpeningFault) -> Self {
        Self { attempts: 0, next_at: Duration::ZERO, opened_at: None, reported: Some(fault) }
    }

    /// The store is closed, or has stopped, and its disk has space. Yields whether an attempt to open it
    /// is made now, and counts it.
    pub fn is_due(&mut self, now: Duration) -> bool {
        if self.opened_at.take().is_some_and(|at| now >= at + REOPEN_PAUSE_MAX) {
            self.attempts = 0;
        }
        if now < self.next_at {
            return false;
        }
        let pause =
            REOPEN_PAUSE_MIN.saturating_mul(1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX));
        self.attempts = self.attempts.saturating_add(1);
        self.next_at = now + pause.min(REOPEN_PAUSE_MAX);
        true
    }

    /// The attempt opened the store, or another one in its place.
    pub const fn note_open(&mut self, now: Duration) {
        self.opened_at = Some(now);
        self.reported = None;
    }

    /// The attempt failed. `is_taken` returns whether a store put aside has this number.
    pub fn after_fault(
        &mut self,
        fault: StoreOpeningFault,
        is_taken: impl Fn(u32) -> bool,
    ) -> StoreReopeningAction {
        match after_fault(fault, false, is_taken) {
            StoreOpeningAction::BeginAnew { aside }
                if !mutant::is(Mutant::M66DamageStaysClosed) =>
            {
                StoreReopeningAction::BeginAnew { aside }
            }
            StoreOpeningAction::BeginAnew { .. }
            | StoreOpeningAction::GoWithout
            | StoreOpeningAction::Refuse => {
                StoreReopeningAction::StayClosed { is_news: self.note_closed(fault) }
            }
        }
    }

    /// The store stays closed for this fault. Yields whether that is news.
    pub fn note_closed(&mut self, fault: StoreOpeningFault) -> bool {
        self.reported.replace(fault) != Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_opening::ASIDE_MAX;

    const DAMAGE: StoreOpeningFault = StoreOpeningFault::Damage;
    const IO: StoreOpeningFault = StoreOpeningFault::Io;

    /// The seconds from `from` on, up to `until`, at which an attempt is made.
    fn attempts(reopening: &mut StoreReopening, from: u64, until: u64) -> Vec<u64> {
        (from..until).filter(|second| reopening.is_due(Duration::from_secs(*second))).collect()
    }

    #[test]
    fn the_first_attempt_is_made_at_once_and_the_pause_doubles_up_to_the_longest() {
        let mut reopening = StoreReopening::default();
        let expected = [5, 15, 35, 75, 155, 315, 635, 1235, 1835, 2435];
        assert_eq!(attempts(&mut reopening, 5, 3000), expected);
        // An attempt a second for a year.
        let year = attempts(&mut reopening, 3000, 31_536_000).len();
        assert!(year > 52_000 && year < 53_000, "{year}");
        reopening.attempts = u32::MAX;
        let now = Duration::from_secs(40_000_000);
        assert!(reopening.is_due(now) && !reopening.is_due(now));
        assert!(reopening.is_due(now + REOPEN_PAUSE_MAX));
    }

    #[test]
    fn a_store_that_does_not_stay_open_is_opened_ever_more_rarely_and_one_that_does_at_once() {
        let mut reopening = StoreReopening::default();
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let begun = now;
            while !reopening.is_due(now) {
                now += Duration::from_secs(1);
            }
            pauses.push((now - begun).as_secs());
            reopening.note_open(now);
        }
        assert_eq!(pauses, [0, 10, 20, 40]);
        // It stops again just before it has stood open for long enough, and once it has.
        let mut early = reopening.clone();
        let last = now + REOPEN_PAUSE_MAX - Duration::from_secs(1);
        assert!(early.is_due(last), "the pause is over as well");
        assert!(!early.is_due(last + Duration::from_secs(79)), "it is longer than ever");
        let later = now + REOPEN_PAUSE_MAX;
        assert!(reopening.is_due(later) && reopening.is_due(later + REOPEN_PAUSE_MIN));
    }

    #[test]
    fn damage_is_put_aside_until_too_much_lies_there() {
        let mut reopening = StoreReopening::default();
        let closed = |is_news| StoreReopeningAction::StayClosed { is_news };
        for taken in 0..ASIDE_MAX {
            let action = reopening.after_fault(DAMAGE, |number| number <= taken);
            assert_eq!(action, StoreReopeningAction::BeginAnew { aside: taken + 1 });
            reopening.note_open(Duration::ZERO);
        }
        assert_eq!(reopening.after_fault(DAMAGE, |_| true), closed(true));
        assert_eq!(reopening.after_fault(DAMAGE, |_| true), closed(false));
        // Somebody removed one.
        let action = reopening.after_fault(DAMAGE, |number| number != 2);
        assert_eq!(action, StoreReopeningAction::BeginAnew { aside: 2 });
    }

    #[test]
    fn each_reason_to_stay_closed_is_reported_once() {
        let mut reopening = StoreReopening::of_closed(IO);
        let closed = |is_news| StoreReopeningAction::StayClosed { is_news };
        let mut check = |fault, is_news| {
            assert_eq!(reopening.after_fault(fault, |_| true), closed(is_news), "{fault:?}");
        };
        check(IO, false);
        check(StoreOpeningFault::Place, true);
        check(StoreOpeningFault::Place, false);
        check(StoreOpeningFault::Store, true);
        reopening.note_open(Duration::ZERO);
        assert!(reopening.note_closed(StoreOpeningFault::Store), "it was open in between");
        // A store that was begun in the place of a damaged one could not be opened.
        assert!(!reopening.note_closed(StoreOpeningFault::Store));
    }
}
