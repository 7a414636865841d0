//! How long a run of processes of this machine waits for what its cluster says it waits for. Nobody else
//! will come: what is still missing after the limit is missing for good.

use std::time::{Duration, Instant};

use crate::api::JobPhaseStatus;
use crate::failure::{Detail, Failure, FailureCode};

/// Devices take a minute or two to start, and a worker that is lost is started again: no worker that
/// comes at all needs a tenth of it.
pub(super) const WAITING_MAX: Duration = Duration::from_secs(600);

/// Since when a run waits, and how long it may.
pub(super) struct Patience {
    limit: Duration,
    since: Option<Instant>,
}

/// A run that has waited for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InVain {
    /// For what.
    pub(super) reason: String,
    /// How long.
    pub(super) limit: Duration,
}

impl Patience {
    /// That waits for so long, and does not wait yet.
    pub(super) const fn new(limit: Duration) -> Self {
        Self { limit, since: None }
    }

    /// Looks at what a run does now. Anything but waiting begins it anew, also waiting for something else
    /// that was interrupted.
    ///
    /// # Errors
    /// If it has waited for the limit, without a look between at which it did not.
    pub(super) fn look(&mut self, phase: &JobPhaseStatus, now: Instant) -> Result<(), InVain> {
        match phase {
            JobPhaseStatus::Waiting { reason } => {
                let since = *self.since.get_or_insert(now);
                if now.duration_since(since) >= self.limit {
                    return Err(InVain { reason: reason.to_string(), limit: self.limit });
                }
            }
            JobPhaseStatus::Running
            | JobPhaseStatus::Paused
            | JobPhaseStatus::Done
            | JobPhaseStatus::Halted { .. }
            | JobPhaseStatus::Stopped => self.since = None,
        }
        Ok(())
    }
}

impl InVain {
    /// As a person is told, with the last words of whoever should have come.
    pub(super) fn failure(&self, last_words: Vec<Detail>) -> Failure {
        let Self { reason, limit } = self;
        let mut failure = Failure::new(FailureCode::WrongState, format!("the run waits: {reason}"));
        failure.details = vec![
            Detail::new(format!("nothing has changed for {} s", limit.as_secs()))
                .why("all workers are processes of this machine, so nobody else will come")
                .hint(
                    "what they say below; a smaller train.microbatch, or fewer --workers, if it is \
                     memory",
                ),
        ];
        failure.details.extend(last_words);
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    fn waiting() -> JobPhaseStatus {
        JobPhaseStatus::Waiting { reason: "1 of 2 workers are there".into() }
    }

    /// Looks at these phases, a second after the other.
    fn look(phases: &[JobPhaseStatus]) -> Vec<bool> {
        let (mut patience, began) = (Patience::new(LIMIT), Instant::now());
        let looked = (0..).zip(phases).map(|(second, phase)| {
            patience.look(phase, began + Duration::from_secs(second)).is_ok()
        });
        looked.collect()
    }

    #[test]
    fn a_run_that_waits_in_vain_ends_at_the_limit_and_not_before() {
        let waits = [const { JobPhaseStatus::Running }].into_iter();
        let phases: Vec<_> = waits.chain((0..4).map(|_| waiting())).collect();
        assert_eq!(look(&phases), [true, true, true, true, false]);
    }

    #[test]
    fn whoever_goes_on_meanwhile_has_all_its_patience_again() {
        let mut phases: Vec<_> = (0..7).map(|_| waiting()).collect();
        phases[2] = JobPhaseStatus::Running;
        assert_eq!(look(&phases), [true, true, true, true, true, true, false]);
    }

    #[test]
    fn what_it_waited_for_and_who_did_not_come_is_told() {
        let mut patience = Patience::new(LIMIT);
        let began = Instant::now();
        assert_eq!(patience.look(&waiting(), began), Ok(()));
        let in_vain = patience.look(&waiting(), began + LIMIT).expect_err("so long");
        let failure = in_vain.failure(vec![Detail::new("worker 2 said: no memory")]);
        assert_eq!(failure.code, FailureCode::WrongState);
        let text = failure.to_string();
        let words = ["the run waits: 1 of 2 workers", "for 3 s", "nobody else", "no memory"];
        for word in words {
            assert!(text.contains(word), "no {word} in: {text}");
        }
    }
}
