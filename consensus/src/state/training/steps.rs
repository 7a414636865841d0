//! Steps: sealed, kept as checkpoints, and rewound.

use zbelastic_types::{Generation, Step};

use super::Training;
use crate::checkpoint::LayerDigest;
use crate::entry::RewindReason;
use crate::job::{JobPhase, JobRefusal, JobSpec};
use crate::member::Holder;
use crate::mutant::{self, Mutant};
use crate::state::membership::ClusterMembership;
use crate::state::{EntryRefusal, PlanPhase, StateChange};
use crate::validation::{Ledger, Seal};

impl Training {
    pub(in crate::state) fn apply_seal(
        &mut self,
        mut seal: Seal,
    ) -> Result<StateChange, EntryRefusal> {
        let spec = self.runs.under_way()?.spec.clone();
        if self.is_all_sealed() {
            return Err(JobRefusal::Done.into());
        }
        let generation = self.plans.generation();
        let plan = self.plans.current().ok_or(EntryRefusal::NotRunning { generation })?;
        let open = self.seals.open_turn();
        if mutant::is(Mutant::R2GenerationUnchecked) && seal.turn.step == open.step {
            seal.turn = open;
        } else if plan.phase != PlanPhase::Running {
            // A seal of the plan before is distinguished from one that comes too early (rule R2).
            if seal.turn.generation != generation {
                let expected = generation;
                let found = seal.turn.generation;
                return Err(EntryRefusal::OtherGeneration { expected, found });
            }
            return Err(EntryRefusal::NotRunning { generation });
        }
        let is_repeated = self.seals.apply(seal, self.can_remember_seal())?;
        if seal.verdict.is_final() {
            self.open_checkpoint(&spec);
        }
        let adopted = self.begin_planned();
        Ok(StateChange::Sealed { seal, is_repeated, adopted })
    }

    /// Begins to collect a checkpoint, if the version that is open now is to become one.
    fn open_checkpoint(&mut self, spec: &JobSpec) {
        // A seal that was under way when the run was held leads to the version that is held.
        let is_held = self.runs.job().is_some_and(|job| job.phase == JobPhase::Paused);
        let version = self.seals.open_turn().step;
        let is_due = self.checkpoints.take_due(version);
        if spec.checkpoints(version) || is_held || is_due {
            self.keep_open_version();
        }
    }

    /// The version that is open becomes a checkpoint, unless it is one, or nothing was trained.
    pub(super) fn keep_open_version(&mut self) {
        let version = self.seals.open_turn().step;
        if version > Step(0) {
            self.checkpoints.begin(version, &self.seals.ledger);
        }
    }

    /// The version that follows the open one becomes a checkpoint. It is not the open one: a worker
    /// may have left that behind when it receives this. A worker that learns that the next version
    /// is sealed has been sent this entry before, or is with the same briefing.
    pub(in crate::state) fn apply_keep(
        &mut self,
        version: Step,
        membership: &ClusterMembership,
    ) -> Result<StateChange, EntryRefusal> {
        let spec = &self.runs.under_way()?.spec;
        if spec.checkpoint_ticks == 0 && !self.is_left_alone(membership) {
            return Err(EntryRefusal::NoCheckpoint { version });
        }
        let expected = self.seals.open_turn().step.next();
        if version != expected {
            return Err(EntryRefusal::NotNext { expected, found: version });
        }
        if !self.plans.is_in_running_phase() {
            return Err(EntryRefusal::NotRunning { generation: self.plans.generation() });
        }
        self.checkpoints.set_due(version);
        Ok(StateChange::Kept { version })
    }

    pub(in crate::state) fn apply_durable(
        &mut self,
        (version, generation): (Step, Generation),
        holder: Holder,
        layers: &[LayerDigest],
        membership: &ClusterMembership,
    ) -> Result<StateChange, EntryRefusal> {
        let layer_count = self.runs.spec()?.layer_count();
        if !membership.is_live(holder) {
            return Err(EntryRefusal::NotAHolder { holder });
        }
        self.checkpoints.note_durable((version, generation), layers, layer_count)?;
        Ok(StateChange::Durable { version })
    }

    pub(in crate::state) fn apply_checkpoint(
        &mut self,
        version: Step,
    ) -> Result<StateChange, EntryRefusal> {
        let spec = self.runs.spec()?.clone();
        self.checkpoints.complete(version, spec.layer_count())?;
        // The job is done with the checkpoint behind its last step: without it no node would have
        // the trained weights once its workers are gone.
        if self.is_all_sealed() && self.is_at_checkpoint() {
            self.runs.job.as_mut().expect("it is under way").phase = JobPhase::Done;
        }
        let dropped = self.checkpoints.drop_surplus(spec.checkpoints_kept);
        if !dropped.is_empty() {
            self.seals.history.forget_before(self.checkpoints.durable()[0].version);
        }
        Ok(StateChange::Checkpoint { version, dropped })
    }

    /// Checks that the run may be rewound by an operator, to this version.
    ///
    /// # Errors
    /// If the job is not held, or has no such checkpoint; the beginning can always be gone back to,
    /// which of a branch is its parent's checkpoint.
    pub fn check_restore(&self, to: Step) -> Result<(), EntryRefusal> {
        self.runs.check_held()?;
        self.ledger_at(self.plans.generation(), to).map(|_| ())
    }

    /// The ledger as it stood at a version that can be gone back to.
    fn ledger_at(&self, generation: Generation, to: Step) -> Result<Ledger, EntryRefusal> {
        let open = self.seals.open_turn().step;
        if to > open {
            return Err(EntryRefusal::AheadOfLedger { to, open });
        }
        match self.checkpoints.at(to) {
            Some(checkpoint) => Ok(checkpoint.ledger.clone()),
            // A branch has no other beginning than its parent's checkpoint.
            None if to == Step(0) && self.runs.begins_at_zero() => {
                Ok(Ledger::new(generation, to, 0))
            }
            None => Err(EntryRefusal::NoCheckpoint { version: to }),
        }
    }

    pub(in crate::state) fn apply_rewind(
        &mut self,
        generation: Generation,
        to: Step,
        reason: RewindReason,
    ) -> Result<StateChange, EntryRefusal> {
        self.runs.under_way()?;
        let expected = self.plans.generation();
        if generation != expected {
            return Err(EntryRefusal::OtherGeneration { expected, found: generation });
        }
        let ledger = self.ledger_at(generation, to)?;
        match reason {
            RewindReason::LayerLost { .. } | RewindReason::StateDiffers { .. } => {
                let base = self.seals.history.base();
                if to < base {
                    return Err(EntryRefusal::Forgotten { to, base });
                }
            }
            // The operator who commands it wants to go on from there, and drops the steps sealed
            // since.
            RewindReason::Ordered => {
                self.check_restore(to)?;
                self.seals.history.forget_from(to);
            }
        }
        let dropped = self.checkpoints.rewind(to);
        self.seals.rewind(generation, ledger);
        self.plans.close();
        Ok(StateChange::Rewound { to, reason, dropped })
    }
}
