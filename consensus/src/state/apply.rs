//! Entries, one by one: members, the job, seals and checkpoints.

use std::sync::Arc;

use zbelastic_types::{Generation, NodeId, RunId, Step};

use super::{EntryRefusal, PlanPhase, State};
use crate::access::AccessOutcome;
use crate::checkpoint::{CHECKPOINTS_MAX, LayerDigest, PENDING_MAX, PendingCheckpoint};
use crate::codec::Format;
use crate::contact::Contact;
use crate::entry::{CHANGES_MAX, Entry, RewindReason};
use crate::job::{CHECKPOINT_EVERY_MAX, JobPhase, JobRefusal};
use crate::member::{
    Holder, LossReason, MEMBERS_MAX, Member, MemberChange, MembershipStatus, Role,
};
use crate::mutant::{self, Mutant};
use crate::plan::PlanRecord;
use crate::validation::Seal;

/// What an entry changed.
#[derive(Clone, Debug, PartialEq)]
pub enum StateChange {
    /// Members; those changes of the entry that fit.
    Members(Vec<MemberChange>),
    /// A plan begins to load now.
    Adopted(Arc<PlanRecord>),
    /// A plan begins at a later step.
    Planned(Arc<PlanRecord>),
    /// A holder is ready.
    Ready(Holder),
    /// The program of the plan with this number runs.
    Resumed(Generation),
    /// A turn is sealed. If a planned change begins with the step that follows, it loads now.
    Sealed {
        /// The seal that was applied.
        seal: Seal,
        /// Whether the step was sealed before, and this only confirms it.
        is_repeated: bool,
        /// The plan that loads now.
        adopted: Option<Arc<PlanRecord>>,
    },
    /// More layers of a version are durable.
    Durable {
        /// Version of the layers.
        version: Step,
    },
    /// The next version becomes a checkpoint.
    Kept {
        /// The version that follows the open one.
        version: Step,
    },
    /// A checkpoint is there; older ones are not referenced any more.
    Checkpoint {
        /// Version of the new checkpoint.
        version: Step,
        /// Versions of checkpoints that are not needed any more.
        dropped: Vec<Step>,
    },
    /// The run went back.
    Rewound {
        /// The version that the run went back to.
        to: Step,
        /// Whether state was lost, two copies differ, or a person ordered it.
        reason: RewindReason,
        /// Versions of checkpoints that it went past.
        dropped: Vec<Step>,
    },
    /// The job began, or its phase changed.
    Job {
        /// The phase that the job is in now.
        phase: JobPhase,
        /// Versions of checkpoints of the job before that are not needed any more: all but its
        /// last.
        dropped: Vec<Step>,
    },
    /// A run that ended is forgotten.
    Removed {
        /// The run that was removed.
        run: RunId,
    },
    /// Tokens, credentials or the authority changed.
    Access(AccessOutcome),
    /// Entries and snapshots have a newer format.
    Format(Format),
}

impl State {
    /// Applies the entry at `index`.
    ///
    /// # Errors
    /// If the entry does not fit the state it meets: nothing changes but the index.
    ///
    /// # Panics
    /// If an index is left out or comes twice (invariant S2).
    pub fn apply(&mut self, index: u64, entry: Entry) -> Result<StateChange, EntryRefusal> {
        self.pass(index);
        match entry {
            Entry::Members(changes) => self.apply_members(index, changes),
            Entry::Adopt(record) => self.apply_adopt(*record),
            Entry::Ready(ready) => self.apply_ready(ready),
            Entry::Resume { generation } => self.apply_resume(generation),
            Entry::Seal(seal) => self.apply_seal(seal),
            Entry::Durable { version, generation, holder, layers } => {
                self.apply_durable((version, generation), holder, &layers)
            }
            Entry::Keep { version } => self.apply_keep(version),
            Entry::Checkpoint { version } => self.apply_checkpoint(version),
            Entry::Rewind { generation, to, reason } => self.apply_rewind(generation, to, reason),
            Entry::Job(change) => self.apply_job(change),
            Entry::Access(change) => self.apply_access(index, change),
            Entry::Format(to) => self.apply_format(to),
        }
    }

    fn apply_format(&mut self, found: Format) -> Result<StateChange, EntryRefusal> {
        let agreed = self.format;
        if found <= agreed {
            return Err(EntryRefusal::Format { agreed, found });
        }
        self.format = found;
        Ok(StateChange::Format(found))
    }

    /// Counts an index that holds nothing for this state.
    ///
    /// # Panics
    /// If an index is left out or comes twice (invariant S2).
    pub fn pass(&mut self, index: u64) {
        assert!(index > self.applied, "S2: entry {index} comes after {}", self.applied);
        self.applied = index;
    }

    fn apply_members(
        &mut self,
        index: u64,
        changes: Vec<MemberChange>,
    ) -> Result<StateChange, EntryRefusal> {
        let mut fitting = Vec::new();
        for change in changes.into_iter().take(CHANGES_MAX) {
            if self.change_member(index, &change) {
                fitting.push(change);
            }
        }
        if fitting.is_empty() {
            return Err(EntryRefusal::Members);
        }
        Ok(StateChange::Members(fitting))
    }

    fn change_member(&mut self, index: u64, change: &MemberChange) -> bool {
        match change {
            MemberChange::Admit { node, boot, role, resources, contact } => {
                if !self.admits(*node, *boot) || !self.authorizes(*node, *role, contact) {
                    return false;
                }
                self.evict_lost_member(*node);
                let member = Member {
                    incarnation: Self::incarnation_at(index),
                    boot: *boot,
                    role: *role,
                    resources: *resources,
                    contact: contact.clone(),
                    status: MembershipStatus::Present,
                };
                self.members.insert(*node, member);
                self.contacts_index = index;
                true
            }
            MemberChange::Lost { holder, reason } => {
                self.is_live(*holder) && self.lose(index, holder.node, *reason)
            }
            MemberChange::Drain { holder } => {
                self.is_live(*holder) && self.set_status(holder.node, MembershipStatus::Draining)
            }
            MemberChange::Moved { holder, contact } => {
                let is_fitting = self.is_live(*holder) && contact.check().is_ok();
                is_fitting && self.set_contact(index, holder.node, contact)
            }
        }
    }

    /// Counts on a member no more. Yields whether it may be done without.
    pub(super) fn lose(&mut self, index: u64, node: NodeId, reason: LossReason) -> bool {
        match reason {
            LossReason::Removed if self.check_not_last(node).is_err() => return false,
            LossReason::Removed | LossReason::Untrusted { .. } => self.access.revoke(node),
            LossReason::Drained => self.access.forget_ephemeral(node),
            LossReason::Closed
            | LossReason::Silent { .. }
            | LossReason::OpOverdue { .. }
            | LossReason::NoProgress { .. }
            | LossReason::Superseded
            | LossReason::OutOfMemory => {}
        }
        if reason.is_for_good() {
            self.quarantined.insert(node);
        }
        self.contacts_index = index;
        self.set_status(node, MembershipStatus::Lost(reason))
    }

    fn set_contact(&mut self, index: u64, node: NodeId, contact: &Contact) -> bool {
        let member = self.members.get_mut(&node).expect("looked up before");
        let is_new = member.contact != *contact;
        if is_new {
            member.contact = contact.clone();
            self.contacts_index = index;
        }
        is_new
    }

    pub(super) fn set_status(&mut self, node: NodeId, status: MembershipStatus) -> bool {
        let member = self.members.get_mut(&node).expect("looked up before");
        let is_new = member.status != status;
        member.status = status;
        is_new
    }

    pub(super) fn has_member_capacity(&self, node: NodeId) -> bool {
        let is_full = self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&node);
        !is_full || self.oldest_lost().is_some()
    }

    /// Forgets a member that is lost, if it must.
    fn evict_lost_member(&mut self, node: NodeId) {
        if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&node) {
            let oldest = self.oldest_lost().expect("there is room");
            self.forget_member(oldest);
        }
    }

    /// A member that is lost and stands in no plan is not known any more. If it is ephemeral, its
    /// credential is forgotten too.
    pub(super) fn forget_member(&mut self, node: NodeId) {
        self.members.remove(&node);
        self.access.forget_ephemeral(node);
    }

    /// Whether a plan names a node.
    pub(super) fn is_named(&self, node: NodeId) -> bool {
        let plans = self.plan.iter().map(|plan| &plan.record).chain(&self.next);
        plans.flat_map(|plan| &plan.stages).any(|holder| holder.node == node)
    }

    /// The member that is lost and stands in no plan; of several the one that came first.
    fn oldest_lost(&self) -> Option<NodeId> {
        let lost = self.members.iter().filter(|(_, member)| !member.is_live());
        let free = lost.filter(|(node, _)| !self.is_named(**node));
        free.min_by_key(|(_, member)| member.incarnation).map(|(node, _)| *node)
    }

    fn apply_seal(&mut self, seal: Seal) -> Result<StateChange, EntryRefusal> {
        let spec = self.job.as_ref().ok_or(JobRefusal::Missing)?.under_way()?.clone();
        if self.is_all_sealed() {
            return Err(JobRefusal::Done.into());
        }
        let plan =
            self.plan.as_ref().ok_or(EntryRefusal::NotRunning { generation: self.generation })?;
        let generation = plan.record.generation;
        let mut seal = seal;
        if mutant::is(Mutant::R2GenerationUnchecked) && seal.turn.step == self.open_turn().step {
            seal.turn = self.open_turn();
        } else if plan.phase != PlanPhase::Running {
            // A seal of the plan before is distinguished from one that comes too early (rule R2).
            if seal.turn.generation != generation {
                let expected = generation;
                let found = seal.turn.generation;
                return Err(EntryRefusal::OtherGeneration { expected, found });
            }
            return Err(EntryRefusal::NotRunning { generation });
        }
        self.ledger.check(&seal)?;
        self.history.check(&seal)?;
        self.ledger.apply(&seal).expect("checked above");
        let is_repeated = seal.verdict.is_final() && seal.turn.step < self.history.head();
        self.record_seal(seal);
        self.last_seal = Some(seal);
        if seal.verdict.is_final() {
            self.open_checkpoint(&spec);
        }
        let adopted = self.begin_planned();
        Ok(StateChange::Sealed { seal, is_repeated, adopted })
    }

    /// Keeps a seal that is final and new, in place of the oldest if there is no room.
    fn record_seal(&mut self, seal: Seal) {
        let is_new = seal.verdict.is_final() && seal.turn.step >= self.history.head();
        if is_new && self.history.is_full() && self.can_remember_seal() {
            self.history.forget_oldest();
        }
        self.history.push(seal);
    }

    /// Begins to collect a checkpoint, if the version that is open now is to become one.
    fn open_checkpoint(&mut self, spec: &crate::job::JobSpec) {
        // A seal that was under way when the run was held leads to the version that is held.
        let is_held = self.job.as_ref().is_some_and(|job| job.phase == JobPhase::Paused);
        let version = self.open_turn().step;
        let is_due = self.due.take_if(|due| *due <= version) == Some(version);
        if spec.checkpoints(version) || is_held || is_due {
            self.keep_open_version();
        }
    }

    /// The version that is open becomes a checkpoint, unless it is one, or nothing was trained.
    pub(super) fn keep_open_version(&mut self) {
        let version = self.open_turn().step;
        let is_under_way = self.pending.iter().any(|found| found.version == version);
        if version > Step(0) && !is_under_way {
            self.await_checkpoint(version);
        }
    }

    /// A plan's holders write the version it begins with, if those of the plan before have begun to
    /// and cannot end it, or if so much was sealed since the last checkpoint that one is due.
    pub(super) fn renew_checkpoint(&mut self) {
        let version = self.open_turn().step;
        let is_asked = self.job.as_ref().is_some_and(|job| job.spec.schedules_checkpoints());
        let is_due = self.history.seals().len() >= CHECKPOINT_EVERY_MAX as usize;
        let position = self.pending.iter().position(|found| found.version == version);
        match position {
            Some(position) => self.pending[position].ledger = self.ledger.clone(),
            None if is_asked && is_due => self.await_checkpoint(version),
            None => {}
        }
    }

    fn await_checkpoint(&mut self, version: Step) {
        if self.checkpoints.iter().any(|found| found.version == version) {
            return;
        }
        if self.pending.len() == PENDING_MAX {
            self.pending.remove(0);
        }
        let layers = Default::default();
        let ledger = self.ledger.clone();
        self.pending.push(PendingCheckpoint { version, layers, ledger });
    }

    fn apply_durable(
        &mut self,
        (version, generation): (Step, Generation),
        holder: Holder,
        layers: &[LayerDigest],
    ) -> Result<StateChange, EntryRefusal> {
        let layer_count = self.job.as_ref().ok_or(JobRefusal::Missing)?.spec.layer_count();
        if !self.is_live(holder) {
            return Err(EntryRefusal::NotAHolder { holder });
        }
        let pending = self.pending.iter_mut().find(|pending| pending.version == version);
        let pending = pending.ok_or(EntryRefusal::NoCheckpoint { version })?;
        let expected = pending.generation();
        if generation != expected {
            return Err(EntryRefusal::OtherGeneration { expected, found: generation });
        }
        let mut durable = pending.layers.clone();
        for (layer, digest) in layers {
            let known = *durable.entry(*layer).or_insert(*digest);
            if layer.0 >= layer_count || known != *digest {
                return Err(EntryRefusal::DurableLayer { version, layer: *layer });
            }
        }
        pending.layers = durable;
        Ok(StateChange::Durable { version })
    }

    /// The version that follows the open one becomes a checkpoint. It is not the open one: a worker
    /// may have left that behind when it receives this. A worker that learns that the next version
    /// is sealed has been sent this entry before, or is with the same briefing.
    fn apply_keep(&mut self, version: Step) -> Result<StateChange, EntryRefusal> {
        let spec = self.job.as_ref().ok_or(JobRefusal::Missing)?.under_way()?;
        if spec.checkpoint_ticks == 0 && !self.is_left_alone() {
            return Err(EntryRefusal::NoCheckpoint { version });
        }
        let expected = self.open_turn().step.next();
        if version != expected {
            return Err(EntryRefusal::NotNext { expected, found: version });
        }
        if !self.plan.as_ref().is_some_and(|plan| plan.phase == PlanPhase::Running) {
            return Err(EntryRefusal::NotRunning { generation: self.generation() });
        }
        self.due = Some(version);
        Ok(StateChange::Kept { version })
    }

    fn apply_checkpoint(&mut self, version: Step) -> Result<StateChange, EntryRefusal> {
        let spec = self.job.as_ref().ok_or(JobRefusal::Missing)?.spec.clone();
        let pending = self.pending.iter().find(|pending| pending.version == version);
        let pending = pending.ok_or(EntryRefusal::NoCheckpoint { version })?;
        let expected = spec.layer_count();
        let Some(record) = pending.complete(expected) else {
            let found = pending.layers.len() as u32;
            return Err(EntryRefusal::Incomplete { version, expected, found });
        };
        self.pending.retain(|pending| pending.version > version);
        self.checkpoints.push(record);
        self.checkpoints.sort_by_key(|checkpoint| checkpoint.version);
        self.end_if_kept();
        let kept = (spec.checkpoints_kept as usize).min(CHECKPOINTS_MAX);
        let surplus = self.checkpoints.len().saturating_sub(kept);
        let dropped = self.checkpoints.drain(..surplus).map(|found| found.version).collect();
        if surplus > 0 {
            self.history.forget_before(self.checkpoints[0].version);
        }
        Ok(StateChange::Checkpoint { version, dropped })
    }

    /// The job is done with the checkpoint behind its last step: without it no node would have what
    /// was trained once its workers are gone.
    fn end_if_kept(&mut self) {
        let is_kept = self.checkpoints.last().is_some_and(|c| c.version == self.open_turn().step);
        if let Some(job) = self.job.as_mut().filter(|job| job.under_way().is_ok())
            && is_kept
            && self.ledger.open_turn().step.0 >= job.spec.step_count
        {
            job.phase = JobPhase::Done;
        }
    }

    /// Whether a node may vote.
    #[must_use]
    pub fn is_controller(&self, node: NodeId) -> bool {
        let member = self.members.get(&node);
        member.is_some_and(|member| member.is_live() && member.role == Role::Controller)
    }
}
