//! The job: it begins, is held, goes back and ends.

use std::sync::Arc;

use zbelastic_types::{Generation, Step};

use super::{Change, EntryRefusal, PlanPhase, State};
use crate::entry::RewindReason;
use crate::history::History;
use crate::job::{Job, JobChange, JobPhase, JobRefusal, JobSpec};
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
        }
    }

    /// Another job may begin when there is none, or when the last one ended. What is done is not
    /// begun again: its checkpoints would go.
    fn check_start(&self, spec: &JobSpec) -> Result<(), JobRefusal> {
        let Some(job) = &self.job else { return Ok(()) };
        let is_same = job.spec.config == spec.config;
        match job.phase {
            JobPhase::Stopped => Ok(()),
            JobPhase::Done if is_same => Err(JobRefusal::Done),
            JobPhase::Done => Ok(()),
            JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) if is_same => {
                Err(JobRefusal::Same)
            }
            JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) => Err(JobRefusal::UnderWay),
        }
    }

    /// The job, if there are steps to seal.
    fn job_under_way(&self) -> Result<&Job, JobRefusal> {
        let job = self.job.as_ref().ok_or(JobRefusal::Missing)?;
        job.under_way()?;
        Ok(job)
    }

    pub(super) fn apply_job(&mut self, change: JobChange) -> Result<Change, EntryRefusal> {
        self.check_job(&change)?;
        let (phase, dropped) = match change {
            JobChange::Start(spec) => (JobPhase::Running, self.start(spec)),
            // Whoever holds a run may switch all of it off.
            JobChange::Pause => {
                self.keep_open_version();
                (JobPhase::Paused, Vec::new())
            }
            JobChange::Continue => (JobPhase::Running, Vec::new()),
            JobChange::Halt(reason) => (JobPhase::Halted(reason), Vec::new()),
            JobChange::Stop => {
                self.let_go();
                (JobPhase::Stopped, Vec::new())
            }
        };
        self.job.as_mut().expect("checked before").phase = phase;
        Ok(Change::Job { phase, dropped })
    }

    /// Nothing of the job before is left but the numbers of its plans, which are never given again.
    /// Yields the versions of its checkpoints.
    fn start(&mut self, spec: Arc<JobSpec>) -> Vec<Step> {
        if self.job.is_some() {
            self.let_go();
        }
        self.job = Some(Job { spec, phase: JobPhase::Running });
        self.class = None;
        self.ledger = Ledger::new(self.generation, Step(0), 0);
        self.history = History::default();
        self.checkpoints.drain(..).map(|checkpoint| checkpoint.version).collect()
    }

    /// No plan is in force, and what workers hold is not believed any more: they drop it.
    fn let_go(&mut self) {
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

    /// Whether the run may be sent back by order, to this version.
    ///
    /// # Errors
    /// If the job is not held, or has no such checkpoint; the beginning can always be gone back to.
    pub fn check_restore(&self, to: Step) -> Result<(), EntryRefusal> {
        self.check_held()?;
        self.ledger_at(self.generation(), to).map(|_| ())
    }

    /// The ledger as it stood at a version that can be gone back to.
    fn ledger_at(&self, generation: Generation, to: Step) -> Result<Ledger, EntryRefusal> {
        let open = self.open_turn().step;
        if to > open {
            return Err(EntryRefusal::AheadOfLedger { to, open });
        }
        match self.checkpoints.iter().find(|found| found.version == to) {
            Some(checkpoint) => Ok(checkpoint.ledger.clone()),
            None if to == Step(0) => Ok(Ledger::new(generation, to, 0)),
            None => Err(EntryRefusal::NoCheckpoint { version: to }),
        }
    }

    pub(super) fn apply_rewind(
        &mut self,
        generation: Generation,
        to: Step,
        reason: RewindReason,
    ) -> Result<Change, EntryRefusal> {
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
            // Whoever orders it wants to go on from there, whatever was sealed since.
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
        Ok(Change::Rewound { to, reason, dropped })
    }
}
