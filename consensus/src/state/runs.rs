//! Runs: the job, and the runs that ended before it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_types::RunId;

use super::checkpoints::CheckpointRegistry;
use crate::checkpoint::CheckpointRecord;
use crate::class::DeviceClass;
use crate::job::{Job, JobChange, JobPhase, JobRefusal, JobSpec, RunOrigin};
use crate::run::RUNS_MAX;
use crate::run_record::RunRecord;

/// The job, and the runs that ended before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRegistry {
    pub(super) job: Option<Job>,
    /// The last run that began. No number is given twice.
    last: RunId,
    /// Runs that ended before the job began, oldest first.
    ended: Vec<RunRecord>,
    /// The class of the devices of the job's first plan.
    pub(super) class: Option<DeviceClass>,
}

impl RunRegistry {
    /// No run.
    pub(super) const fn new() -> Self {
        Self { job: None, last: RunId(0), ended: Vec::new(), class: None }
    }

    /// The job alone, and no run after it.
    pub(super) fn of(job: Job) -> Self {
        Self { last: job.spec.run, job: Some(job), ended: Vec::new(), class: None }
    }

    /// Adds runs that ended before the job began, and the last number that a run was given.
    pub(super) fn restore_ended(&mut self, ended: Vec<RunRecord>, last: RunId) {
        self.last = self.last.max(last);
        self.ended = ended;
    }

    /// The last job that began and was not removed, with its phase.
    #[must_use]
    pub fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    /// The last number that a run was given.
    #[must_use]
    pub fn run_last(&self) -> RunId {
        self.last
    }

    /// The number of the next run.
    #[must_use]
    pub fn run_next(&self) -> RunId {
        self.last.next()
    }

    /// Runs that ended before the job began, oldest first. Each is kept until it is removed.
    #[must_use]
    pub fn ended(&self) -> &[RunRecord] {
        &self.ended
    }

    /// The class that the job computes on, once it has had a plan.
    #[must_use]
    pub fn class(&self) -> Option<DeviceClass> {
        self.class
    }

    /// The job's configuration, if it is under way and not held.
    #[must_use]
    pub fn running_spec(&self) -> Option<&Arc<JobSpec>> {
        let job = self.job.as_ref().filter(|job| job.phase == JobPhase::Running);
        job.map(|job| &job.spec)
    }

    /// The job's configuration.
    pub(super) fn spec(&self) -> Result<&Arc<JobSpec>, JobRefusal> {
        self.job.as_ref().map(|job| &job.spec).ok_or(JobRefusal::Missing)
    }

    /// The job, if there are steps to seal.
    pub(super) fn under_way(&self) -> Result<&Job, JobRefusal> {
        let job = self.job.as_ref().ok_or(JobRefusal::Missing)?;
        job.under_way()?;
        Ok(job)
    }

    /// Whether the job is held, by order or because going on would be wrong.
    ///
    /// # Errors
    /// If it is not, or has ended.
    pub fn check_held(&self) -> Result<(), JobRefusal> {
        match self.under_way()?.phase {
            JobPhase::Paused | JobPhase::Halted(_) => Ok(()),
            JobPhase::Running | JobPhase::Done | JobPhase::Stopped => Err(JobRefusal::NotHeld),
        }
    }

    /// Whether versions of the job become checkpoints by themselves.
    pub(super) fn schedules_checkpoints(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.spec.schedules_checkpoints())
    }

    /// Whether the job, if there is one, began without the layers of another run.
    pub(super) fn begins_at_zero(&self) -> bool {
        self.job.as_ref().is_none_or(|job| job.spec.from.is_none())
    }

    /// Checks that a change of the job fits.
    pub(super) fn check(
        &self,
        change: &JobChange,
        checkpoints: &CheckpointRegistry,
    ) -> Result<(), JobRefusal> {
        match change {
            JobChange::Start(spec) => {
                spec.check()?;
                self.check_start(spec, checkpoints)
            }
            JobChange::Pause => match self.under_way()?.phase {
                JobPhase::Halted(reason) => Err(JobRefusal::Halted { reason }),
                JobPhase::Running | JobPhase::Paused | JobPhase::Done | JobPhase::Stopped => Ok(()),
            },
            JobChange::Continue | JobChange::Halt(_) | JobChange::Stop => {
                self.under_way().map(|_| ())
            }
            JobChange::Remove(run) => self.check_remove(*run, checkpoints),
        }
    }

    /// Another job may begin when there is none, or when the last one ended, under a name that no
    /// run has: the record of a run stays.
    fn check_start(
        &self,
        spec: &JobSpec,
        checkpoints: &CheckpointRegistry,
    ) -> Result<(), JobRefusal> {
        let name = &spec.name;
        let taken = || JobRefusal::NameTaken { name: name.clone() };
        if self.ended.iter().any(|ended| ended.spec.name == *name) {
            return Err(taken());
        }
        self.check_origin(spec, checkpoints)?;
        let Some(job) = &self.job else { return Ok(()) };
        let is_same = job.spec.config == spec.config;
        // Of a run without a checkpoint nothing is left that could be kept.
        let is_kept = self.own_checkpoint(checkpoints).is_some();
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

    /// A branch goes on from the checkpoint of a run that is over, with the same layers.
    fn check_origin(
        &self,
        spec: &JobSpec,
        checkpoints: &CheckpointRegistry,
    ) -> Result<(), JobRefusal> {
        let Some(RunOrigin { run, version, .. }) = spec.from else { return Ok(()) };
        let (parent, checkpoint) =
            self.ended_with(run, checkpoints).ok_or(JobRefusal::Origin { run, version })?;
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
    pub(super) fn ended_with<'a>(
        &'a self,
        run: RunId,
        checkpoints: &'a CheckpointRegistry,
    ) -> Option<(&'a Arc<JobSpec>, &'a CheckpointRecord)> {
        let known = self.ended.iter().find(|ended| ended.run() == run);
        let known = known.map(|ended| (&ended.spec, &ended.checkpoint));
        let job = self.job.as_ref().filter(|job| job.spec.run == run && job.under_way().is_err());
        known.or_else(|| Some((&job?.spec, self.own_checkpoint(checkpoints)?)))
    }

    /// The last checkpoint of the job that it wrote itself: the checkpoint that a branch begins
    /// with is its parent's.
    pub(super) fn own_checkpoint<'a>(
        &self,
        checkpoints: &'a CheckpointRegistry,
    ) -> Option<&'a CheckpointRecord> {
        let spec = &self.job.as_ref()?.spec;
        checkpoints.newest().filter(|last| spec.run_of(last.version) == spec.run)
    }

    fn check_remove(&self, run: RunId, checkpoints: &CheckpointRegistry) -> Result<(), JobRefusal> {
        if let Some(job) = &self.job
            && job.spec.from.is_some_and(|from| from.run == run)
            && self.own_checkpoint(checkpoints).is_none()
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

    /// Begins a run with the next number.
    pub(super) fn begin(&mut self, mut spec: Arc<JobSpec>) {
        self.last = self.run_next();
        Arc::make_mut(&mut spec).run = self.last;
        self.job = Some(Job { spec, phase: JobPhase::Running });
    }

    /// Ends the job. It is kept with the checkpoint, if there is one.
    pub(super) fn end(&mut self, checkpoint: Option<CheckpointRecord>) {
        let class = self.class.take();
        if let (Some(Job { spec, phase }), Some(checkpoint)) = (self.job.take(), checkpoint) {
            self.ended.push(RunRecord { spec, phase, class, checkpoint });
        }
    }

    /// Forgets a run that ended before the job began. Yields whether it was one.
    pub(super) fn remove_ended(&mut self, run: RunId) -> bool {
        let count = self.ended.len();
        self.ended.retain(|ended| ended.run() != run);
        self.ended.len() < count
    }
}
