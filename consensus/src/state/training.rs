//! The training: the job with its plans, its sealed steps and its checkpoints.
//!
//! Each of the four parts owns its fields; here is the code that concerns more than one of them.
//! Whether a holder is counted on is the membership's to say, which is an argument.

mod job;
mod steps;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_types::Generation;

use super::checkpoints::CheckpointRegistry;
use super::membership::ClusterMembership;
use super::plans::PlanSlots;
use super::runs::RunRegistry;
use super::seals::SealedSteps;
use super::{EntryRefusal, StateChange};
use crate::checkpoint::CheckpointRecord;
use crate::class::DeviceClass;
use crate::job::{CHECKPOINT_EVERY_MAX, Job, JobPhase, JobSpec};
use crate::member::{Holder, Member, MembershipStatus, Role};
use crate::plan::{PlanRecord, PlanRefusal};

/// The job with its plans, its sealed steps and its checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    pub(super) runs: RunRegistry,
    pub(super) plans: PlanSlots,
    pub(super) seals: SealedSteps,
    pub(super) checkpoints: CheckpointRegistry,
}

impl Training {
    /// No job, and none before it.
    pub(super) fn new() -> Self {
        Self {
            runs: RunRegistry::new(),
            plans: PlanSlots::after(Generation(0)),
            seals: SealedSteps::new(Generation(0)),
            checkpoints: CheckpointRegistry::default(),
        }
    }

    /// A job that goes on from a checkpoint of another cluster, without its plans.
    pub(super) fn recovered(spec: Arc<JobSpec>, checkpoint: CheckpointRecord) -> Self {
        let is_done = checkpoint.version.0 >= spec.step_count;
        let phase = if is_done { JobPhase::Done } else { JobPhase::Running };
        let mut training = Self::new();
        training.runs = RunRegistry::of(Job { spec, phase });
        training.plans = PlanSlots::after(checkpoint.ledger.open_turn().generation);
        training.seals.begin_at(checkpoint.version, checkpoint.ledger.clone());
        training.checkpoints.begin_with(checkpoint);
        training
    }

    /// The job, and the runs that ended before it.
    #[must_use]
    pub fn runs(&self) -> &RunRegistry {
        &self.runs
    }

    /// The plan in force and the planned change.
    #[must_use]
    pub fn plans(&self) -> &PlanSlots {
        &self.plans
    }

    /// The steps that were sealed.
    #[must_use]
    pub fn seals(&self) -> &SealedSteps {
        &self.seals
    }

    /// The checkpoints that are there, and those under way.
    #[must_use]
    pub fn checkpoints(&self) -> &CheckpointRegistry {
        &self.checkpoints
    }

    /// Whether a job is under way with all of its steps sealed, so that nothing is missing but the
    /// checkpoint behind the last one.
    #[must_use]
    pub fn is_all_sealed(&self) -> bool {
        let job = self.runs.under_way();
        job.is_ok_and(|job| self.seals.open_turn().step.0 >= job.spec.step_count)
    }

    /// Whether another step can be sealed: one can be remembered, or forgotten because a checkpoint
    /// lies behind it, or the run goes back to none.
    #[must_use]
    pub fn can_remember_seal(&self) -> bool {
        let history = &self.seals.history;
        let newest = self.checkpoints.newest().map(|checkpoint| checkpoint.version);
        !history.is_full()
            || !self.runs.schedules_checkpoints()
            || newest.is_some_and(|version| version > history.base())
    }

    /// Whether the version that is open is a checkpoint.
    #[must_use]
    pub fn is_at_checkpoint(&self) -> bool {
        let open = self.seals.open_turn().step;
        self.checkpoints.newest().is_some_and(|newest| newest.version == open)
    }

    /// Whether the version that is open is a checkpoint, or is being written.
    #[must_use]
    pub fn is_being_kept(&self) -> bool {
        self.is_at_checkpoint() || self.checkpoints.is_pending(self.seals.open_turn().step)
    }

    /// Whether a worker is about to go, and too few stay to go on without: unless it is written,
    /// the steps sealed here would be lost with the workers that hold it.
    pub(super) fn is_left_alone(&self, membership: &ClusterMembership) -> bool {
        let Some(spec) = self.runs.running_spec() else { return false };
        let mut staying = 0;
        let mut leaving = 0;
        for (_, member) in self.fitting_workers(membership) {
            match member.status {
                MembershipStatus::Present => staying += 1,
                MembershipStatus::Draining => leaving += 1,
                MembershipStatus::Lost(_) => {}
            }
        }
        leaving > 0 && staying < spec.workers_min
    }

    /// The class that a plan made now is for: the job's, or that of the first worker with devices
    /// of the job's kind, one that stays if there is one.
    #[must_use]
    pub fn class_for_plan(&self, membership: &ClusterMembership) -> Option<DeviceClass> {
        let kind = self.runs.job()?.spec.device;
        let first = |stays: bool| {
            let is_it = |(_, member): &(Holder, &Member)| {
                let is_staying = member.status == MembershipStatus::Present;
                member.resources.class.kind() == kind && (is_staying || !stays)
            };
            membership.live_workers().find(is_it).map(|(_, member)| member.resources.class)
        };
        self.runs.class.or_else(|| first(true)).or_else(|| first(false))
    }

    /// Workers that a plan of the job may seat.
    pub fn fitting_workers<'a>(
        &self,
        membership: &'a ClusterMembership,
    ) -> impl Iterator<Item = (Holder, &'a Member)> + use<'a> {
        let class = self.class_for_plan(membership);
        membership.live_workers().filter(move |(_, member)| Some(member.resources.class) == class)
    }

    /// The class that all stages of a plan compute on.
    ///
    /// # Errors
    /// With the first stage's holder that is not of the job's class: of its kind, if it has none
    /// yet.
    fn class_of_plan(
        &self,
        record: &PlanRecord,
        membership: &ClusterMembership,
    ) -> Result<DeviceClass, PlanRefusal> {
        let refusal = |holder: &Holder| PlanRefusal::Class { holder: *holder };
        let class_of = |holder: &Holder| {
            let member = membership.members().get(&holder.node);
            member.map(|member| member.resources.class).ok_or_else(|| refusal(holder))
        };
        let first = &record.stages[0];
        let class = self.runs.class.map_or_else(|| class_of(first), Ok)?;
        if self.runs.job().is_none_or(|job| job.spec.device != class.kind()) {
            return Err(refusal(first));
        }
        for holder in &record.stages {
            if class_of(holder)? != class {
                return Err(refusal(holder));
            }
        }
        Ok(class)
    }

    /// Checks that a plan fits the job, the open step and the members.
    pub(super) fn check_adopt(
        &self,
        record: &PlanRecord,
        membership: &ClusterMembership,
    ) -> Result<(), EntryRefusal> {
        let spec = &self.runs.under_way()?.spec;
        let open = self.seals.open_turn().step;
        self.plans.check_next(record, open, membership)?;
        let is_worker = |holder: &&Holder| {
            let member = membership.members().get(&holder.node);
            membership.is_live(**holder) && member.is_some_and(|member| member.role == Role::Worker)
        };
        if let Some(holder) = record.stages.iter().find(|holder| !is_worker(holder)) {
            return Err(PlanRefusal::Holder { holder: *holder }.into());
        }
        record.check(spec)?;
        self.class_of_plan(record, membership)?;
        Ok(())
    }

    pub(super) fn apply_adopt(
        &mut self,
        record: PlanRecord,
        membership: &ClusterMembership,
    ) -> Result<StateChange, EntryRefusal> {
        self.check_adopt(&record, membership)?;
        self.runs.class = self.class_of_plan(&record, membership).ok();
        let record = Arc::new(record);
        if record.from_step > self.seals.open_turn().step {
            self.plans.plan_next(record.clone());
            return Ok(StateChange::Planned(record));
        }
        self.load(record.clone());
        Ok(StateChange::Adopted(record))
    }

    fn load(&mut self, record: Arc<PlanRecord>) {
        // R2: from here on nothing of an earlier generation is applied.
        self.seals.ledger.adopt(record.generation);
        self.renew_checkpoint();
        self.plans.load(record);
    }

    /// Begins to load the planned change, if its step is the open one.
    fn begin_planned(&mut self) -> Option<Arc<PlanRecord>> {
        let record = self.plans.take_due(self.seals.open_turn().step)?;
        self.load(record.clone());
        Some(record)
    }

    /// A plan's holders write the version it begins with, if those of the plan before have begun to
    /// and cannot end it, or if so much was sealed since the last checkpoint that one is due.
    fn renew_checkpoint(&mut self) {
        let version = self.seals.open_turn().step;
        let is_due = self.seals.history.seals().len() >= CHECKPOINT_EVERY_MAX as usize;
        let is_renewed = self.checkpoints.renew(version, &self.seals.ledger);
        if !is_renewed && is_due && self.runs.schedules_checkpoints() {
            self.checkpoints.begin(version, &self.seals.ledger);
        }
    }
}
