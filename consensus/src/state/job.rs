//! The job: start, hold, rewind and end.

use std::sync::Arc;

use zbelastic_types::{Generation, RunId, Step};

use super::{EntryRefusal, PlanPhase, State, StateChange};
use crate::checkpoint::CheckpointRecord;
use crate::class::DeviceClass;
use crate::entry::RewindReason;
use crate::history::SealHistory;
use crate::job::{Job, JobChange, JobPhase, JobRefusal, JobSpec, RunOrigin};
use crate::run::{RUNS_MAX, RunRecord};
use crate::validation::Ledger;

impl State {
    /// Whether a change of the job would be accepted now.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_job(&self, change: &JobChange) -> Result<(), JobRefusal> {
        match change {
            JobChange::Start(spec) => {
                spec.check()?;
                self.check_start(spec)
            }
            JobChange::Pause => match self.job_under_way()?.phase {
                JobPhase::Halted(reason) => Err(JobRefusal::Halted { reason }),
                JobPhase::Running | JobPhase::Paused | JobPhase::Done | JobPhase::Stopped => Ok(()),
            },
            JobChange::Continue | JobChange::Halt(_) | JobChange::Stop => {
                self.job_under_way().map(|_| ())
            }
            JobChange::Remove(run) => self.check_remove(*run),
        }
    }

    /// Another job may begin when there is none, or when the last one ended, under a name that no
    /// run has: what is kept of a run stays.
    fn check_start(&self, spec: &JobSpec) -> Result<(), JobRefusal> {
        let name = &spec.name;
        let taken = || JobRefusal::NameTaken { name: name.clone() };
        if self.ended.iter().any(|ended| ended.spec.name == *name) {
            return Err(taken());
        }
        self.check_origin(spec)?;
        let Some(job) = &self.job else { return Ok(()) };
        let is_same = job.spec.config == spec.config;
        // Of a run without a checkpoint nothing is left that could be kept.
        let is_kept = self.own_checkpoint().is_some();
        match job.phase {
            JobPhase::Done if is_same => Err(JobRefusal::Done),
            JobPhase::Stopped | JobPhase::Done if is_kept && job.spec.name == *name => Err(taken()),
            JobPhase::Stopped | JobPhase::Done if is_kept && self.ended.len() >= RUNS_MAX => {
                Err(JobRefusal::TooManyRuns)
            }
            JobPhase::Stopped | JobPhase::Done => Ok(()),
            JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) if is_same => {
                Err(JobRefusal::Same)
            }
            JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) => Err(JobRefusal::UnderWay),
        }
    }

    /// A branch goes on from what is kept of a run that is over, with the same layers.
    fn check_origin(&self, spec: &JobSpec) -> Result<(), JobRefusal> {
        let Some(RunOrigin { run, version, .. }) = spec.from else { return Ok(()) };
        let (parent, checkpoint) =
            self.ended_with(run).ok_or(JobRefusal::Origin { run, version })?;
        let layers = |spec: &JobSpec| (spec.layer_tensors.clone(), spec.layer_bytes.clone());
        if checkpoint.version != version {
            Err(JobRefusal::Origin { run, version })
        } else if layers(parent) != layers(spec) {
            Err(JobRefusal::OtherModel { run })
        } else {
            Ok(())
        }
    }

    /// A run that is over and the checkpoint that is kept of it, or will be when another begins.
    #[must_use]
    pub fn ended_with(&self, run: RunId) -> Option<(&Arc<JobSpec>, &CheckpointRecord)> {
        let known = self.ended.iter().find(|ended| ended.run() == run);
        let known = known.map(|ended| (&ended.spec, &ended.checkpoint));
        let job = self.job.as_ref().filter(|job| job.spec.run == run && job.under_way().is_err());
        known.or_else(|| Some((&job?.spec, self.own_checkpoint()?)))
    }

    /// The last checkpoint of the job that it wrote itself: what a branch begins with is its
    /// parent's.
    fn own_checkpoint(&self) -> Option<&CheckpointRecord> {
        let spec = &self.job.as_ref()?.spec;
        self.checkpoints.last().filter(|last| spec.run_of(last.version) == spec.run)
    }

    fn check_remove(&self, run: RunId) -> Result<(), JobRefusal> {
        if let Some(job) = &self.job
            && job.spec.from.is_some_and(|from| from.run == run)
            && self.own_checkpoint().is_none()
            && job.under_way().is_ok()
        {
            return Err(JobRefusal::Needed { name: job.spec.name.clone() });
        }
        if self.ended.iter().any(|ended| ended.run() == run) {
            return Ok(());
        }
        let job = self.job.as_ref().filter(|job| job.spec.run == run);
        match job.ok_or(JobRefusal::NoRun { run })?.under_way() {
            Ok(_) => Err(JobRefusal::UnderWay),
            Err(_) => Ok(()),
        }
    }

    /// The job, if there are steps to seal.
    fn job_under_way(&self) -> Result<&Job, JobRefusal> {
        let job = self.job.as_ref().ok_or(JobRefusal::Missing)?;
        job.under_way()?;
        Ok(job)
    }

    pub(super) fn apply_job(&mut self, change: JobChange) -> Result<StateChange, EntryRefusal> {
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
        self.job.as_mut().expect("checked before").phase = phase;
        Ok(StateChange::Job { phase, dropped })
    }

    /// What is left of the job before is its last checkpoint, and the numbers of its plans, which
    /// are never given again. Yields the versions of its other checkpoints.
    fn start(&mut self, mut spec: Arc<JobSpec>) -> Vec<Step> {
        self.run_last = self.run_next();
        Arc::make_mut(&mut spec).run = self.run_last;
        let origin = spec.from.and_then(|from| self.ended_with(from.run));
        let origin = origin.map(|(_, checkpoint)| checkpoint.clone());
        let has_own = self.own_checkpoint().is_some();
        let (before, class, last) = self.end_job();
        let kept = last.filter(|_| has_own);
        if let (Some(Job { spec, phase }), Some(checkpoint)) = (before, kept) {
            self.ended.push(RunRecord { spec, phase, class, checkpoint });
        }
        let dropped = self.checkpoints.drain(..).map(|checkpoint| checkpoint.version).collect();
        if let Some(origin) = origin {
            self.ledger = origin.ledger.clone();
            self.ledger.adopt(self.generation);
            self.history = SealHistory::starting_at(origin.version);
            self.checkpoints.push(origin);
        }
        self.job = Some(Job { spec, phase: JobPhase::Running });
        dropped
    }

    /// There is no job any more. Yields what it was, with its last checkpoint.
    fn end_job(&mut self) -> (Option<Job>, Option<DeviceClass>, Option<CheckpointRecord>) {
        if self.job.is_some() {
            self.drop_plan();
        }
        self.ledger = Ledger::new(self.generation, Step(0), 0);
        self.history = SealHistory::default();
        (self.job.take(), self.class.take(), self.checkpoints.pop())
    }

    fn remove_run(&mut self, run: RunId) -> StateChange {
        let count = self.ended.len();
        self.ended.retain(|ended| ended.run() != run);
        if self.ended.len() == count {
            self.end_job();
            self.checkpoints.clear();
        }
        StateChange::Removed { run }
    }

    /// No plan is in force, and what workers hold is not believed any more: they drop it.
    fn drop_plan(&mut self) {
        (self.plan, self.next, self.last_seal) = (None, None, None);
        self.pending.clear();
        self.due = None;
        self.rewinds += 1;
    }

    /// Whether the job is held, by order or because going on would be wrong.
    ///
    /// # Errors
    /// If it is not, or has ended.
    pub fn check_held(&self) -> Result<(), JobRefusal> {
        match self.job_under_way()?.phase {
            JobPhase::Paused | JobPhase::Halted(_) => Ok(()),
            JobPhase::Running | JobPhase::Done | JobPhase::Stopped => Err(JobRefusal::NotHeld),
        }
    }

    /// Checks that the run may be rewound by an operator, to this version.
    ///
    /// # Errors
    /// If the job is not held, or has no such checkpoint; the beginning can always be gone back to,
    /// which of a branch is its parent's checkpoint.
    pub fn check_restore(&self, to: Step) -> Result<(), EntryRefusal> {
        self.check_held()?;
        self.ledger_at(self.generation(), to).map(|_| ())
    }

    fn begins_at_zero(&self) -> bool {
        self.job.as_ref().is_none_or(|job| job.spec.from.is_none())
    }

    /// The ledger as it stood at a version that can be gone back to.
    fn ledger_at(&self, generation: Generation, to: Step) -> Result<Ledger, EntryRefusal> {
        let open = self.open_turn().step;
        if to > open {
            return Err(EntryRefusal::AheadOfLedger { to, open });
        }
        match self.checkpoints.iter().find(|found| found.version == to) {
            Some(checkpoint) => Ok(checkpoint.ledger.clone()),
            // A branch has no other beginning than its parent's checkpoint.
            None if to == Step(0) && self.begins_at_zero() => Ok(Ledger::new(generation, to, 0)),
            None => Err(EntryRefusal::NoCheckpoint { version: to }),
        }
    }

    pub(super) fn apply_rewind(
        &mut self,
        generation: Generation,
        to: Step,
        reason: RewindReason,
    ) -> Result<StateChange, EntryRefusal> {
        self.job_under_way()?;
        let expected = self.generation();
        if generation != expected {
            return Err(EntryRefusal::OtherGeneration { expected, found: generation });
        }
        let ledger = self.ledger_at(generation, to)?;
        match reason {
            RewindReason::LayerLost { .. } | RewindReason::StateDiffers { .. } => {
                let base = self.history.base();
                if to < base {
                    return Err(EntryRefusal::Forgotten { to, base });
                }
            }
            // The operator who commands it wants to go on from there, whatever was sealed since.
            RewindReason::Ordered => {
                self.check_restore(to)?;
                self.history.forget_from(to);
            }
        }
        let mut dropped = Vec::new();
        self.checkpoints.retain(|found| {
            if found.version > to {
                dropped.push(found.version);
            }
            found.version <= to
        });
        self.pending.retain(|pending| pending.version <= to);
        self.ledger = ledger;
        self.ledger.adopt(generation);
        self.rewinds += 1;
        (self.next, self.due) = (None, None);
        if let Some(plan) = &mut self.plan {
            plan.phase = PlanPhase::Closed;
        }
        Ok(StateChange::Rewound { to, reason, dropped })
    }
}
