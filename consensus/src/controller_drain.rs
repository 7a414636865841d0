//! Until when a controller that was told to go stays: workers that drain need it to save what they
//! hold, and a checkpoint that no controller agrees on is none.

use zbelastic_types::Step;

use crate::job::JobPhase;
use crate::member::MembershipStatus;
use crate::state::State;
use crate::training_status::TrainingStatus;

/// Ticks in which workers report that they drain: a shutdown sends its signal to all processes of a
/// cluster within that.
const REPORT_TICKS: u32 = 200;
/// Ticks in which they save and go: the longest notice that a cloud gives.
const SAVE_TICKS_MAX: u32 = 12_000;
/// Ticks for which it stays once they are gone by what is agreed: they learn it by the answer to a
/// heartbeat, of which there are more than ten in these.
const FAREWELL_TICKS: u32 = 100;
/// Without a leader for so long, longer than elections take, nothing more is saved.
const LEADERLESS_TICKS_MAX: u32 = 200;

/// How the wait of a controller that was told to go ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerDrainEnd {
    /// Nothing is lost when it exits: the newest sealed version is durable, or others hold it.
    Safe,
    /// The newest sealed version is held by no worker that stays, and is not durable.
    Unsaved(Step),
}

/// The wait of a controller that was told to go.
#[derive(Debug, Default)]
pub struct ControllerDrain {
    /// Ticks since it was told.
    ticks: u32,
    /// Ticks for which it stays after workers needed it.
    farewell: u32,
}

impl ControllerDrain {
    /// It was told, or a tick passed since. Yields the end of the wait, if it is over. `is_majority_left`:
    /// whether a majority of the voters goes on without this node.
    pub fn note(
        &mut self,
        state: &State,
        status: &TrainingStatus,
        is_majority_left: bool,
    ) -> Option<ControllerDrainEnd> {
        let workers = WorkerCounts::of(state);
        let (is_job_open, is_job_kept) =
            state.job().map_or((false, false), |job| match job.phase {
                JobPhase::Running | JobPhase::Paused => (true, true),
                // No step is computed any more, and nothing is saved.
                JobPhase::Halted(_) => (false, true),
                JobPhase::Done | JobPhase::Stopped => (false, false),
            });
        let is_leaderless = matches!(
            status, TrainingStatus::NoQuorum { ticks } if *ticks > LEADERLESS_TICKS_MAX
        );
        // With a majority of controllers left, others save; unless all are told to go, as the
        // workers are that the run cannot do without.
        let is_needed = workers.leaving > 0 && (!is_majority_left || state.is_left_alone());
        let is_early = self.ticks < REPORT_TICKS && workers.staying > 0;
        let may_wait = is_job_open && !is_leaderless && self.ticks < SAVE_TICKS_MAX;
        self.ticks += 1;
        self.farewell = if is_needed { FAREWELL_TICKS } else { self.farewell.saturating_sub(1) };
        if may_wait && (is_early || self.farewell > 0) {
            return None;
        }
        let is_durable = state.pending().is_empty() && state.training().is_at_checkpoint();
        let has_steps = is_job_kept && state.open_turn().step > Step(0);
        let is_lost = has_steps && !is_durable && (is_needed || workers.staying == 0);
        Some(if is_lost {
            ControllerDrainEnd::Unsaved(state.open_turn().step)
        } else {
            ControllerDrainEnd::Safe
        })
    }
}

/// Numbers of live workers.
struct WorkerCounts {
    staying: usize,
    leaving: usize,
}

impl WorkerCounts {
    fn of(state: &State) -> Self {
        let workers = || state.live_workers();
        let leaving =
            workers().filter(|(_, member)| member.status == MembershipStatus::Draining).count();
        Self { staying: workers().count() - leaving, leaving }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;
    use crate::fixture::{FixtureLog, spec};
    use crate::job::JobChange;
    use crate::member::{LossReason, MemberChange};

    const LED: TrainingStatus = TrainingStatus::NoJob;
    const SAFE: Option<ControllerDrainEnd> = Some(ControllerDrainEnd::Safe);

    /// Two workers hold a version that is no checkpoint.
    fn running() -> FixtureLog {
        let mut log = FixtureLog::running(spec(), &[1, 2]);
        log.keep(3);
        log
    }

    fn drain(log: &mut FixtureLog, node: u64) {
        let holder = log.holder(node);
        log.apply(Entry::Members(vec![MemberChange::Drain { holder }]));
    }

    fn leave(log: &mut FixtureLog, node: u64) {
        let holder = log.holder(node);
        let reason = LossReason::Drained;
        log.apply(Entry::Members(vec![MemberChange::Lost { holder, reason }]));
    }

    /// Reports of workers had their time.
    fn waited(log: &FixtureLog) -> ControllerDrain {
        let mut drain = ControllerDrain::default();
        assert!((0..REPORT_TICKS).all(|_| drain.note(&log.state, &LED, false).is_none()));
        drain
    }

    #[test]
    fn a_controller_stays_until_the_workers_that_drain_with_it_have_saved_and_are_gone() {
        for is_majority_left in [false, true] {
            let mut log = running();
            let mut wait = waited(&log);
            drain(&mut log, 1);
            drain(&mut log, 2);
            assert_eq!(wait.note(&log.state, &LED, is_majority_left), None, "all go: none is left");
            log.keep(1);
            log.checkpoint(4, 1);
            assert_eq!(wait.note(&log.state, &LED, is_majority_left), None, "they were not told");
            leave(&mut log, 1);
            leave(&mut log, 2);
            let mut end = || wait.note(&log.state, &LED, is_majority_left);
            assert!((1..FAREWELL_TICKS).all(|_| end().is_none()), "they are answered");
            assert_eq!(end(), SAFE);
        }
    }

    #[test]
    fn a_controller_goes_where_workers_stay_or_other_controllers_do() {
        let mut log = running();
        assert_eq!(waited(&log).note(&log.state, &LED, false), SAFE, "nobody drains");
        let mut wait = waited(&log);
        drain(&mut log, 1);
        assert_eq!(wait.note(&log.state, &LED, true), SAFE, "others agree on the handover");
        assert_eq!(wait.note(&log.state, &LED, false), None);
        log.apply(Entry::Job(JobChange::Stop));
        assert_eq!(wait.note(&log.state, &LED, false), SAFE, "there is no run to save");
        let idle = FixtureLog::empty();
        assert_eq!(ControllerDrain::default().note(&idle.state, &LED, false), SAFE);
    }

    #[test]
    fn a_wait_in_vain_ends_and_says_what_is_in_no_checkpoint() {
        let mut log = running();
        drain(&mut log, 1);
        drain(&mut log, 2);
        let unsaved = Some(ControllerDrainEnd::Unsaved(log.state.open_turn().step));
        let mut wait = ControllerDrain::default();
        assert!((0..SAVE_TICKS_MAX).all(|_| wait.note(&log.state, &LED, false).is_none()));
        assert_eq!(wait.note(&log.state, &LED, false), unsaved);
        let mut wait = ControllerDrain::default();
        let mut alone = |ticks| wait.note(&log.state, &TrainingStatus::NoQuorum { ticks }, false);
        assert_eq!(alone(LEADERLESS_TICKS_MAX), None);
        assert_eq!(alone(LEADERLESS_TICKS_MAX + 1), unsaved);
        leave(&mut log, 1);
        leave(&mut log, 2);
        let mut wait = ControllerDrain::default();
        assert_eq!(wait.note(&log.state, &LED, false), unsaved, "nobody has it");
    }
}
