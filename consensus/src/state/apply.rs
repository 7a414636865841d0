//! Entries, one by one: members, the job, seals and checkpoints.

use std::sync::Arc;

use zbelastic_types::{Generation, NodeId, Step};

use super::{EntryRefusal, PlanPhase, State};
use crate::checkpoint::{CHECKPOINTS_MAX, LayerDigest, PENDING_MAX, PendingCheckpoint};
use crate::entry::{CHANGES_MAX, Entry, RewindReason};
use crate::history::History;
use crate::job::{CHECKPOINT_EVERY_MAX, Job, JobChange, JobPhase, JobRefusal};
use crate::member::{Holder, MEMBERS_MAX, Member, MemberChange, Role, Standing};
use crate::mutant::{self, Mutant};
use crate::plan::PlanRecord;
use crate::validation::{Ledger, Seal};

/// What an entry changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Members; those changes of the entry that fit.
    Members(Vec<MemberChange>),
    /// A plan begins to load now.
    Adopted(Arc<PlanRecord>),
    /// A plan begins at a later step.
    Planned(Arc<PlanRecord>),
    /// A holder is ready.
    Ready(Holder),
    /// The program runs.
    Resumed(Generation),
    /// A turn is sealed. If a planned change begins with the step that follows, it loads now.
    Sealed {
        /// The seal.
        seal: Seal,
        /// Whether the step was sealed before, and this only confirms it.
        is_repeated: bool,
        /// The plan that loads now.
        adopted: Option<Arc<PlanRecord>>,
    },
    /// Layers are durable.
    Durable {
        /// The version.
        version: Step,
    },
    /// A checkpoint is there; older ones are not referenced any more.
    Checkpoint {
        /// The version.
        version: Step,
        /// Versions that nobody will ask for again.
        dropped: Vec<Step>,
    },
    /// The run went back.
    Rewound {
        /// To this version.
        to: Step,
        /// Why.
        reason: RewindReason,
        /// Versions of checkpoints that it went past.
        dropped: Vec<Step>,
    },
    /// The job changed.
    Job(JobPhase),
}

impl State {
    /// Applies the entry at `index`.
    ///
    /// # Errors
    /// If the entry does not fit the state it meets: nothing changes but the index.
    ///
    /// # Panics
    /// If an index is left out or comes twice (invariant S2).
    pub fn apply(&mut self, index: u64, entry: Entry) -> Result<Change, EntryRefusal> {
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
            Entry::Checkpoint { version } => self.apply_checkpoint(version),
            Entry::Rewind { generation, to, reason } => self.apply_rewind(generation, to, reason),
            Entry::Job(change) => self.apply_job(change),
        }
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
    ) -> Result<Change, EntryRefusal> {
        let mut fitting = Vec::new();
        for change in changes.into_iter().take(CHANGES_MAX) {
            if self.change_member(index, &change) {
                fitting.push(change);
            }
        }
        if fitting.is_empty() {
            return Err(EntryRefusal::Members);
        }
        Ok(Change::Members(fitting))
    }

    fn change_member(&mut self, index: u64, change: &MemberChange) -> bool {
        match change {
            MemberChange::Admit { node, boot, role, resources } => {
                if !self.admits(*node, *boot) {
                    return false;
                }
                self.make_room_for(*node);
                let member = Member {
                    incarnation: Self::incarnation_at(index),
                    boot: *boot,
                    role: *role,
                    resources: *resources,
                    standing: Standing::Present,
                };
                self.members.insert(*node, member);
                true
            }
            MemberChange::Lost { holder, reason } => {
                if !self.is_live(*holder) {
                    return false;
                }
                if reason.is_for_good() {
                    self.quarantined.insert(holder.node);
                }
                self.set_standing(holder.node, Standing::Lost(*reason))
            }
            MemberChange::Drain { holder } => {
                self.is_live(*holder) && self.set_standing(holder.node, Standing::Draining)
            }
        }
    }

    fn set_standing(&mut self, node: NodeId, standing: Standing) -> bool {
        let member = self.members.get_mut(&node).expect("looked up before");
        let is_new = member.standing != standing;
        member.standing = standing;
        is_new
    }

    pub(super) fn has_room_for(&self, node: NodeId) -> bool {
        let is_full = self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&node);
        !is_full || self.oldest_lost().is_some()
    }

    /// Forgets a member that is lost, if it must.
    fn make_room_for(&mut self, node: NodeId) {
        if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&node) {
            let oldest = self.oldest_lost().expect("there is room");
            self.members.remove(&oldest);
        }
    }

    /// Who is lost and stands in no plan; of several the one that came first.
    fn oldest_lost(&self) -> Option<NodeId> {
        let plans = self.plan.iter().map(|plan| &plan.record).chain(&self.next);
        let named: Vec<NodeId> =
            plans.flat_map(|plan| plan.stages.iter().map(|holder| holder.node)).collect();
        let lost = self.members.iter().filter(|(_, member)| !member.is_live());
        let free = lost.filter(|(node, _)| !named.contains(node));
        free.min_by_key(|(_, member)| member.incarnation).map(|(node, _)| *node)
    }

    fn apply_job(&mut self, change: JobChange) -> Result<Change, EntryRefusal> {
        let phase = match change {
            JobChange::Start(spec) => {
                spec.check()?;
                if self.job.as_ref().is_some_and(|job| job.phase != JobPhase::Done) {
                    return Err(JobRefusal::UnderWay.into());
                }
                self.start(spec);
                JobPhase::Running
            }
            JobChange::Pause => {
                if let JobPhase::Halted(reason) = self.job_to_hold()?.phase {
                    return Err(JobRefusal::Halted { reason }.into());
                }
                JobPhase::Paused
            }
            JobChange::Continue => JobPhase::Running,
            JobChange::Halt(reason) => JobPhase::Halted(reason),
        };
        self.job_to_hold()?.phase = phase;
        Ok(Change::Job(phase))
    }

    /// The job, if there are steps to seal.
    fn job_to_hold(&mut self) -> Result<&mut Job, JobRefusal> {
        let job = self.job.as_mut().ok_or(JobRefusal::Missing)?;
        job.under_way()?;
        Ok(job)
    }

    fn start(&mut self, spec: Arc<crate::job::JobSpec>) {
        self.job = Some(Job { spec, phase: JobPhase::Running });
        self.ledger = Ledger::new(self.generation, Step(0), 0);
        self.history = History::default();
        (self.plan, self.next, self.last_seal) = (None, None, None);
        self.checkpoints.clear();
        self.pending.clear();
    }

    fn apply_seal(&mut self, seal: Seal) -> Result<Change, EntryRefusal> {
        let spec = self.job.as_ref().ok_or(JobRefusal::Missing)?.under_way()?.clone();
        let plan =
            self.plan.as_ref().ok_or(EntryRefusal::NotRunning { generation: self.generation })?;
        let generation = plan.record.generation;
        let mut seal = seal;
        if mutant::is(Mutant::R2GenerationUnchecked) && seal.turn.step == self.open_turn().step {
            seal.turn = self.open_turn();
        } else if plan.phase != PlanPhase::Running {
            // A seal of the plan before is told apart from one that comes too early (rule R2).
            if seal.turn.generation != generation {
                let (expected, found) = (generation, seal.turn.generation);
                return Err(EntryRefusal::OtherGeneration { expected, found });
            }
            return Err(EntryRefusal::NotRunning { generation });
        }
        self.ledger.check(&seal)?;
        self.history.check(&seal)?;
        self.ledger.apply(&seal).expect("checked above");
        let is_repeated = seal.verdict.is_final() && seal.turn.step < self.history.head();
        self.remember(seal);
        self.last_seal = Some(seal);
        if seal.verdict.is_final() {
            self.open_checkpoint(&spec);
        }
        if self.open_turn().step.0 >= spec.step_count {
            self.job.as_mut().expect("there is one").phase = JobPhase::Done;
        }
        let adopted = self.begin_planned();
        Ok(Change::Sealed { seal, is_repeated, adopted })
    }

    /// Keeps a seal that is final and new, in place of the oldest if there is no room.
    fn remember(&mut self, seal: Seal) {
        let is_new = seal.verdict.is_final() && seal.turn.step >= self.history.head();
        if is_new && self.history.is_full() && self.has_room_for_seal() {
            self.history.forget_oldest();
        }
        self.history.push(seal);
    }

    /// Begins to collect a checkpoint, if the version that is open now is to become one.
    fn open_checkpoint(&mut self, spec: &crate::job::JobSpec) {
        let version = self.open_turn().step;
        let is_under_way = self.pending.iter().any(|found| found.version == version);
        if spec.checkpoints(version) && !is_under_way {
            self.await_checkpoint(version);
        }
    }

    /// A plan's holders write the version it begins with, if those of the plan before have begun to
    /// and cannot end it, or if so much was sealed since the last checkpoint that one is due.
    pub(super) fn renew_checkpoint(&mut self) {
        let version = self.open_turn().step;
        let is_asked = self.job.as_ref().is_some_and(|job| job.spec.checkpoint_every > 0);
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
        let (layers, ledger) = (Default::default(), self.ledger.clone());
        self.pending.push(PendingCheckpoint { version, layers, ledger });
    }

    fn apply_durable(
        &mut self,
        (version, generation): (Step, Generation),
        holder: Holder,
        layers: &[LayerDigest],
    ) -> Result<Change, EntryRefusal> {
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
        Ok(Change::Durable { version })
    }

    fn apply_checkpoint(&mut self, version: Step) -> Result<Change, EntryRefusal> {
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
        let kept = (spec.checkpoints_kept as usize).min(CHECKPOINTS_MAX);
        let surplus = self.checkpoints.len().saturating_sub(kept);
        let dropped = self.checkpoints.drain(..surplus).map(|found| found.version).collect();
        if surplus > 0 {
            self.history.forget_before(self.checkpoints[0].version);
        }
        Ok(Change::Checkpoint { version, dropped })
    }

    fn apply_rewind(
        &mut self,
        generation: Generation,
        to: Step,
        reason: RewindReason,
    ) -> Result<Change, EntryRefusal> {
        self.job.as_ref().ok_or(JobRefusal::Missing)?.under_way()?;
        let expected = self.generation();
        if generation != expected {
            return Err(EntryRefusal::OtherGeneration { expected, found: generation });
        }
        let open = self.open_turn().step;
        if to > open {
            return Err(EntryRefusal::AheadOfLedger { to, open });
        }
        let checkpoint = self.checkpoints.iter().find(|found| found.version == to);
        let ledger = match checkpoint {
            Some(checkpoint) => checkpoint.ledger.clone(),
            None if to == Step(0) => Ledger::new(generation, to, 0),
            None => return Err(EntryRefusal::NoCheckpoint { version: to }),
        };
        let base = self.history.base();
        if to < base {
            return Err(EntryRefusal::Forgotten { to, base });
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
        self.next = None;
        if let Some(plan) = &mut self.plan {
            plan.phase = PlanPhase::Closed;
        }
        Ok(Change::Rewound { to, reason, dropped })
    }

    /// Whether a node may vote.
    #[must_use]
    pub fn is_controller(&self, node: NodeId) -> bool {
        let member = self.members.get(&node);
        member.is_some_and(|member| member.is_live() && member.role == Role::Controller)
    }
}
