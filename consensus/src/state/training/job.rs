//! The job: start, hold and end.

use std::sync::Arc;

use zbelastic_types::{RunId, Step};

use super::Training;
use crate::job::{JobChange, JobPhase, JobRefusal, JobSpec};
use crate::state::{EntryRefusal, StateChange};

impl Training {
    /// Whether a change of the job would be accepted now.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_job(&self, change: &JobChange) -> Result<(), JobRefusal> {
        self.runs.check(change, &self.checkpoints)
    }

    pub(in crate::state) fn apply_job(
        &mut self,
        change: JobChange,
    ) -> Result<StateChange, EntryRefusal> {
        self.check_job(&change)?;
        if let JobChange::Remove(run) = change {
            return Ok(self.remove_run(run));
        }
        let (phase, dropped) = match change {
            JobChange::Start(spec) => (JobPhase::Running, self.start(spec)),
            // The operator who pauses a run may switch all of its nodes off.
            JobChange::Pause => {
                self.keep_open_version();
                (JobPhase::Paused, Vec::new())
            }
            JobChange::Continue => (JobPhase::Running, Vec::new()),
            JobChange::Halt(reason) => (JobPhase::Halted(reason), Vec::new()),
            JobChange::Stop => {
                self.drop_plan();
                (JobPhase::Stopped, Vec::new())
            }
            JobChange::Remove(_) => unreachable!("removed above"),
        };
        self.runs.job.as_mut().expect("checked before").phase = phase;
        Ok(StateChange::Job { phase, dropped })
    }

    /// The job before leaves its last checkpoint, and the numbers of its plans, which are never
    /// given again. Yields the versions of its other checkpoints.
    fn start(&mut self, spec: Arc<JobSpec>) -> Vec<Step> {
        let origin = spec.from.and_then(|from| self.runs.ended_with(from.run, &self.checkpoints));
        let origin = origin.map(|(_, checkpoint)| checkpoint.clone());
        let has_own = self.runs.own_checkpoint(&self.checkpoints).is_some();
        self.drop_steps();
        let newest = self.checkpoints.take_newest();
        self.runs.end(newest.filter(|_| has_own));
        let dropped = self.checkpoints.clear();
        if let Some(origin) = origin {
            self.seals.begin_at(origin.version, origin.ledger.clone());
            self.seals.ledger.adopt(self.plans.generation_last());
            self.checkpoints.begin_with(origin);
        }
        self.runs.begin(spec);
        dropped
    }

    fn remove_run(&mut self, run: RunId) -> StateChange {
        if !self.runs.remove_ended(run) {
            self.drop_steps();
            self.runs.end(None);
            self.checkpoints.clear();
        }
        StateChange::Removed { run }
    }

    /// The steps of the job are not known any more.
    fn drop_steps(&mut self) {
        if self.runs.job.is_some() {
            self.drop_plan();
        }
        self.seals.restart(self.plans.generation_last());
    }

    /// No plan is in force, and the layers that workers hold are not trusted any more: they drop
    /// them.
    fn drop_plan(&mut self) {
        self.plans.clear();
        self.seals.drop_held();
        self.checkpoints.give_up_pending();
    }
}
