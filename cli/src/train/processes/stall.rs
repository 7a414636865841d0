//! When a run of processes on this machine is given up: never because something lasts long, only
//! because nothing makes progress. Progress is the work that workers report: operations that run,
//! bytes of layers that come, layers that become durable.

use std::time::{Duration, Instant};

use zbelastic_api::{JobPhaseStatus, LongActivity, StatusReport};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

/// Nothing has changed for so long: longer than the loss of a node is noticed, a controller
/// elected, a process started again and a connection dialled, one after the other, on a machine
/// with too few cores.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The same while workers are missing, which may be starting on devices: drivers, contexts and
/// kernels that are compiled need minutes there, and no progress of that is reported.
pub(super) const STARTUP_STALL_TIMEOUT: Duration = Duration::from_secs(600);
/// No worker has evaluated for so long and no loss came: the worker that would report it is gone.
/// The two reports may overtake each other by less than a heartbeat.
const EVALUATION_GONE: Duration = Duration::from_secs(5);
/// Plans under which the last checkpoint is tried in vain, each by its holders, before it is given
/// up: the disks of the first one may have been full, those of the third one are everybody's.
const PLANS_IN_VAIN_MAX: u64 = 3;

/// The last observed value, and since when it holds.
pub(super) struct StallTimer<T> {
    seen: Option<T>,
    since: Instant,
}

impl<T: PartialEq> StallTimer<T> {
    pub(super) const fn begin(now: Instant) -> Self {
        Self { seen: None, since: now }
    }

    /// How long nothing has changed.
    pub(super) fn observe(&mut self, seen: T, now: Instant) -> Duration {
        if self.seen.as_ref() != Some(&seen) {
            (self.seen, self.since) = (Some(seen), now);
        }
        now.duration_since(self.since)
    }
}

/// Counts that change while anything makes progress.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProgressSnapshot {
    step: u64,
    layers_durable: u32,
    /// The work of each worker, and its current activity.
    work: Vec<Option<(u64, Option<LongActivity>)>>,
    is_waiting: bool,
}

impl ProgressSnapshot {
    pub(super) fn of(status: &StatusReport) -> Self {
        let work = |work: zbelastic_api::WorkStatus| (work.done, work.activity);
        let job = status.job.as_ref();
        let saving = job.and_then(|job| job.saving.as_ref());
        Self {
            step: job.map_or(0, |job| job.step),
            layers_durable: saving.map_or(0, |saving| saving.layers_durable),
            work: status.members.iter().map(|member| member.work.map(work)).collect(),
            is_waiting: job.is_some_and(|job| matches!(job.phase, JobPhaseStatus::Waiting { .. })),
        }
    }
}

/// Why a run is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GiveUpReason {
    /// Nothing has made progress for so long, while it waited for this.
    Stalled {
        reason: String,
        /// How long nothing has made progress.
        limit: Duration,
    },
    /// The checkpoint that it ends with does not become durable.
    Checkpoint {
        /// Version of the checkpoint: the step it was made after.
        step: u64,
        /// Under how many plans it was written, or for how long nothing moved.
        why: String,
    },
}

/// Watches a run for progress.
pub(super) struct StallWatch {
    progress: StallTimer<ProgressSnapshot>,
    evaluating: StallTimer<bool>,
    final_checkpoint: Option<FinalCheckpointProgress>,
}

/// The last checkpoint, as it is being written.
struct FinalCheckpointProgress {
    /// The plan under which more of it became durable than ever before.
    best_generation: u64,
    best_layers: u32,
}

impl StallWatch {
    pub(super) const fn begin(now: Instant) -> Self {
        Self {
            progress: StallTimer::begin(now),
            evaluating: StallTimer::begin(now),
            final_checkpoint: None,
        }
    }

    /// Checks the present activity of a run.
    ///
    /// # Errors
    /// If it waits, or writes its last checkpoint, and nothing has made progress for the limit.
    pub(super) fn check(
        &mut self,
        status: &StatusReport,
        now: Instant,
    ) -> Result<(), GiveUpReason> {
        let still = self.progress.observe(ProgressSnapshot::of(status), now);
        let Some(job) = &status.job else { return Ok(()) };
        if job.step >= job.step_count || matches!(job.phase, JobPhaseStatus::Paused) {
            return self.check_checkpoint(status, still);
        }
        self.final_checkpoint = None;
        match &job.phase {
            JobPhaseStatus::Waiting { reason } if still >= STARTUP_STALL_TIMEOUT => {
                Err(GiveUpReason::Stalled { reason: reason.clone(), limit: STARTUP_STALL_TIMEOUT })
            }
            JobPhaseStatus::Waiting { .. }
            | JobPhaseStatus::Running
            | JobPhaseStatus::Paused
            | JobPhaseStatus::Done
            | JobPhaseStatus::Halted { .. }
            | JobPhaseStatus::Stopped => Ok(()),
        }
    }

    fn check_checkpoint(
        &mut self,
        status: &StatusReport,
        still: Duration,
    ) -> Result<(), GiveUpReason> {
        let Some(job) = status.job.as_ref().filter(|job| !job.phase.is_over()) else {
            return Ok(());
        };
        let layers = job.saving.as_ref().map_or(0, |saving| saving.layers_durable);
        let generation = status.plan.as_ref().map_or(0, |plan| plan.generation);
        let keeping = self.final_checkpoint.get_or_insert(FinalCheckpointProgress {
            best_generation: generation,
            best_layers: layers,
        });
        if layers > keeping.best_layers {
            (keeping.best_generation, keeping.best_layers) = (generation, layers);
        }
        let plans = generation.saturating_sub(keeping.best_generation);
        let why = if still >= STALL_TIMEOUT {
            format!("nothing has become durable for {} s", STALL_TIMEOUT.as_secs())
        } else if plans >= PLANS_IN_VAIN_MAX {
            format!("{plans} plans have tried to write it")
        } else {
            return Ok(());
        };
        Err(GiveUpReason::Checkpoint { step: job.step, why })
    }

    /// Whether a loss on held-out text may still be reported.
    pub(super) fn is_evaluated(&mut self, status: &StatusReport, now: Instant) -> bool {
        let is_at_it = |member: &zbelastic_api::MemberStatus| {
            let activity = member.work.and_then(|work| work.activity);
            matches!(activity, Some(LongActivity::Evaluating { .. }))
        };
        let is_evaluating = status.members.iter().any(is_at_it);
        let still = self.evaluating.observe(is_evaluating, now);
        is_evaluating || still < EVALUATION_GONE
    }
}

impl GiveUpReason {
    /// The failure that is printed, with the last log lines of the processes.
    pub(super) fn failure(&self, last_words: Vec<FailureDetail>) -> CommandFailure {
        let mut failure = match self {
            Self::Stalled { reason, limit } => {
                let mut failure = CommandFailure::new(
                    FailureCode::WrongState,
                    format!("the run waits: {reason}"),
                );
                let detail = FailureDetail::new(format!(
                    "nothing has made progress for {} s",
                    limit.as_secs()
                ))
                .why("all workers are processes of this machine, so no other worker will join")
                .hint(
                    "what they say below; a smaller train.microbatch, or fewer --workers, \
                             if it is memory",
                );
                failure.details = vec![detail];
                failure
            }
            Self::Checkpoint { step, why } => {
                let what = format!("the checkpoint after step {step} could not be written: {why}");
                CommandFailure::new(FailureCode::OutOfResource, what)
            }
        };
        failure.details.extend(last_words);
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::{SavingStatus, WorkStatus, sample};

    /// Checks these reports, `step` apart in time.
    fn checks(reports: &[StatusReport], step: Duration) -> Vec<bool> {
        let began = Instant::now();
        let mut watch = StallWatch::begin(began);
        let numbered = (0u32..).zip(reports);
        numbered.map(|(n, status)| watch.check(status, began + step * n).is_ok()).collect()
    }

    fn status(phase: JobPhaseStatus, step: u64, done: u64) -> StatusReport {
        let mut status = sample::status();
        let job = status.job.as_mut().expect("a run");
        (job.phase, job.step, job.step_count) = (phase, step, 10);
        status.members[1].work = Some(WorkStatus { done, activity: None });
        status
    }

    fn waiting(done: u64) -> StatusReport {
        status(JobPhaseStatus::Waiting { reason: "1 of 2 workers are there".into() }, 3, done)
    }

    #[test]
    fn a_run_that_waits_and_makes_no_progress_is_given_up_at_the_limit_and_not_before() {
        let reports: Vec<_> = (0..4).map(|_| waiting(7)).collect();
        assert_eq!(checks(&reports, STARTUP_STALL_TIMEOUT / 3), [true, true, true, false]);
    }

    #[test]
    fn a_run_that_makes_progress_may_wait_for_ever() {
        let reports: Vec<_> = (0..9).map(waiting).collect();
        assert!(checks(&reports, STARTUP_STALL_TIMEOUT).iter().all(|is_ok| *is_ok));
        let mut reports: Vec<_> = (0..7).map(|_| waiting(7)).collect();
        reports[2] = status(JobPhaseStatus::Running, 4, 7);
        let expected = [true, true, true, true, true, true, false];
        assert_eq!(checks(&reports, STARTUP_STALL_TIMEOUT / 3), expected);
    }

    fn saving(layers_durable: u32, generation: u64, done: u64) -> StatusReport {
        let phase = JobPhaseStatus::Waiting { reason: "the last checkpoint is written".into() };
        let mut status = status(phase, 10, done);
        let job = status.job.as_mut().expect("a run");
        job.saving = Some(SavingStatus { step: 10, layers_durable, layers: 9 });
        status.plan.as_mut().expect("a plan").generation = generation;
        status
    }

    #[test]
    fn a_last_checkpoint_may_take_long_and_is_given_up_when_nothing_of_it_becomes_durable() {
        let slow: Vec<_> = (0..9).map(|layers| saving(layers, 1, 0)).collect();
        assert!(checks(&slow, STALL_TIMEOUT).iter().all(|is_ok| *is_ok), "a layer a minute");
        let stuck: Vec<_> = (0..4).map(|_| saving(5, 1, 0)).collect();
        assert_eq!(checks(&stuck, STALL_TIMEOUT / 3), [true, true, true, false]);
        let full: Vec<_> = (0..4).map(|generation| saving(5, generation, generation)).collect();
        assert_eq!(
            checks(&full, STALL_TIMEOUT / 9),
            [true, true, true, false],
            "disks that are full"
        );
    }

    #[test]
    fn held_out_text_is_waited_for_while_anybody_evaluates_it() {
        let began = Instant::now();
        let mut watch = StallWatch::begin(began);
        let at = |seconds| began + EVALUATION_GONE * seconds;
        let mut status = status(JobPhaseStatus::Done, 10, 0);
        let activity = Some(LongActivity::Evaluating { done: 1, total: 9 });
        status.members[2].work = Some(WorkStatus { done: 0, activity });
        assert!(watch.is_evaluated(&status, at(0)) && watch.is_evaluated(&status, at(100)));
        status.members[2].work = None;
        assert!(watch.is_evaluated(&status, at(101)), "its loss is on the way");
        assert!(!watch.is_evaluated(&status, at(102)));
    }

    #[test]
    fn what_it_waited_for_and_who_did_not_come_is_named() {
        let reason = "1 of 2 workers are there".to_owned();
        let give_up = GiveUpReason::Stalled { reason, limit: Duration::from_secs(3) };
        let failure = give_up.failure(vec![FailureDetail::new("worker 2 said: no memory")]);
        assert_eq!(failure.code, FailureCode::WrongState);
        let text = failure.to_string();
        let words = ["the run waits: 1 of 2 workers", "for 3 s", "no other worker", "no memory"];
        for word in words {
            assert!(text.contains(word), "no {word} in: {text}");
        }
    }
}
