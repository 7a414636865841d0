//! Losses and joins in a soak: a worker is lost with its disk, and the next time another one comes in its place.

use std::time::Duration;

use chaos_tests::random::{DrawPurpose, Draws};

use super::CHURN_WORKERS_MIN;

/// A change of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerChange {
    /// The worker at this place is killed, and its disk is gone.
    Loss {
        /// The place, by its number.
        place: usize,
    },
    /// A new worker joins with an empty disk, at the place of the one that was lost.
    Join {
        /// The place, by its number.
        place: usize,
    },
}

/// Which worker is lost when, and when another one joins.
#[derive(Debug)]
pub(super) struct WorkerChurn {
    every: Duration,
    draws: Draws,
    /// When the last change was, since the begin, and how many checkpoints were complete then.
    last: (Duration, u64),
    /// The place of the worker that was lost.
    vacant: Option<usize>,
}

impl WorkerChurn {
    /// A change after each `every`; which worker is lost follows from the seed.
    pub(super) fn new(every: Duration, seed: u64) -> Self {
        let draws = Draws::new(seed, DrawPurpose::Targets);
        Self { every, draws, last: (Duration::ZERO, 0), vacant: None }
    }

    /// The change that is due at a time since the begin, if one is. It waits until a checkpoint is complete since the
    /// last one: the run has gone on, and its pieces do not lie on the disk that goes next alone.
    pub(super) fn due(
        &mut self,
        now: Duration,
        checkpoints: u64,
        running: &[usize],
    ) -> Option<WorkerChange> {
        let is_due = now >= self.last.0 + self.every && checkpoints > self.last.1;
        if !is_due || (self.vacant.is_none() && running.len() < CHURN_WORKERS_MIN as usize) {
            return None;
        }
        self.last = (now, checkpoints);
        if let Some(place) = self.vacant.take() {
            return Some(WorkerChange::Join { place });
        }
        let place = *self.draws.pick(running);
        self.vacant = Some(place);
        Some(WorkerChange::Loss { place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_joins_take_turns_each_behind_a_checkpoint() {
        let second = Duration::from_secs;
        let mut churn = WorkerChurn::new(second(10), 7);
        assert_eq!(churn.due(second(9), 3, &[3, 4]), None, "it is not time");
        assert_eq!(churn.due(second(10), 0, &[3, 4]), None, "no checkpoint is complete");
        assert_eq!(churn.due(second(10), 1, &[3]), None, "it is the last worker");
        let Some(WorkerChange::Loss { place }) = churn.due(second(12), 1, &[3, 4]) else {
            panic!("a loss is due");
        };
        let left = if place == 3 { 4 } else { 3 };
        assert_eq!(churn.due(second(21), 2, &[left]), None, "it is not time");
        assert_eq!(churn.due(second(22), 1, &[left]), None, "no checkpoint is complete since");
        assert_eq!(churn.due(second(22), 2, &[left]), Some(WorkerChange::Join { place }));
        let again = churn.due(second(32), 3, &[3, 4]);
        assert!(matches!(again, Some(WorkerChange::Loss { .. })), "{again:?}");
    }
}
