//! What failures of holders cost: how long training stood still, which layers moved, and how many
//! steps were computed again.

use std::collections::VecDeque;
use std::time::Instant;

use zbelastic_timing::layer_moves::MovedLayers;
use zbelastic_types::{Bytes, Generation};

use crate::{FAILURES_MAX, FailureStatus};

/// The last failures, the newest last.
#[derive(Debug, Default)]
pub struct FailureLog {
    failures: VecDeque<FailureStatus>,
    /// Failures that wait for the next seal, with when they were agreed on. None waits that the log
    /// does not hold.
    open: VecDeque<(u64, Instant)>,
}

impl FailureLog {
    /// The failures, the newest last.
    #[must_use]
    pub fn statuses(&self) -> Vec<FailureStatus> {
        self.failures.iter().cloned().collect()
    }

    /// A holder was lost.
    pub fn note(&mut self, failure: FailureStatus, now: Instant) {
        self.open.push_back((failure.at_ms, now));
        self.failures.push_back(failure);
        while self.failures.len() > FAILURES_MAX {
            self.failures.pop_front();
        }
        while self.open.len() > FAILURES_MAX {
            self.open.pop_front();
        }
    }

    /// A plan was adopted: it is the one after each failure that waits. `least` are the fewest bytes
    /// that have to move for it.
    pub fn note_plan(&mut self, generation: Generation, least: Bytes) {
        for failure in self.open_failures() {
            failure.generation = Some(generation.0);
            failure.bytes_floor = least;
        }
    }

    /// The plan after failures runs, for which these layers moved.
    pub fn note_resumed(&mut self, generation: Generation, moved: MovedLayers) {
        let is_after = |failure: &&mut FailureStatus| failure.generation == Some(generation.0);
        for failure in self.failures.iter_mut().filter(is_after) {
            failure.layers_moved = moved.layers;
            failure.bytes_moved = Bytes(moved.bytes);
        }
    }

    /// So many steps are computed again, as a cost of each failure that has no seal after it yet.
    pub fn note_steps_lost(&mut self, lost: u64) {
        for failure in self.open_failures() {
            failure.steps_lost = failure.steps_lost.max(lost);
        }
    }

    /// A step was sealed: no failure waits any more.
    pub fn note_seal(&mut self, now: Instant) {
        for (at_ms, since) in self.open.drain(..) {
            for failure in self.failures.iter_mut().filter(|failure| failure.at_ms == at_ms) {
                let since = (now - since).as_secs_f64() * 1e3;
                failure.next_seal_ms.get_or_insert(since + failure.detected_ms.unwrap_or(0.0));
            }
        }
    }

    /// Failures that wait for the next seal.
    fn open_failures(&mut self) -> impl Iterator<Item = &mut FailureStatus> {
        let open = &self.open;
        let is_open =
            |failure: &&mut FailureStatus| open.iter().any(|(at_ms, _)| *at_ms == failure.at_ms);
        self.failures.iter_mut().filter(is_open)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zbelastic_timing::layer_moves::LayerMoves;
    use zbelastic_types::NodeId;

    use super::*;

    fn failure(at_ms: u64) -> FailureStatus {
        let lost = (NodeId(3), "three".to_owned(), "silent".to_owned());
        FailureStatus::new(at_ms, lost, Some(500.0))
    }

    #[test]
    fn a_failure_costs_what_is_done_until_the_next_seal() {
        let start = Instant::now();
        let mut log = FailureLog::default();
        log.note(failure(1000), start);
        log.note_plan(Generation(7), Bytes(40));
        log.note_steps_lost(3);
        log.note_steps_lost(2);
        let mut moves = LayerMoves::default();
        for bytes in [20, 30] {
            moves.note(Generation(7), bytes, Duration::ZERO, start);
        }
        log.note_resumed(Generation(7), moves.of(Generation(7)));
        log.note_seal(start + Duration::from_millis(1500));
        log.note_plan(Generation(8), Bytes(60));
        log.note_steps_lost(9);
        log.note_seal(start + Duration::from_millis(9000));
        let expected = FailureStatus {
            next_seal_ms: Some(2000.0),
            generation: Some(7),
            layers_moved: 2,
            bytes_moved: Bytes(50),
            bytes_floor: Bytes(40),
            steps_lost: 3,
            ..failure(1000)
        };
        assert_eq!(log.statuses(), [expected]);
    }

    #[test]
    fn failures_are_kept_up_to_a_number() {
        let mut log = FailureLog::default();
        let count = FAILURES_MAX as u64 + 5;
        (0..count).for_each(|at_ms| log.note(failure(at_ms), Instant::now()));
        assert_eq!((log.failures.len(), log.open.len()), (FAILURES_MAX, FAILURES_MAX));
        assert_eq!(log.statuses().last().map(|failure| failure.at_ms), Some(count - 1));
    }
}
