//! The state that all nodes agree on: a function of the entries applied, and of nothing else.
//!
//! Every entry is checked when it is applied, against the state it meets, whatever held when it was
//! proposed (rule R2). One that does not fit changes nothing, and the refusal names the reason.

mod access;
mod apply;
mod classes;
mod job;
mod plans;
mod refusal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_types::{ClusterId, Generation, Incarnation, NodeId, RunId, Step};

use crate::access::AccessRegistry;
use crate::checkpoint::{CheckpointRecord, PendingCheckpoint};
use crate::class::DeviceClass;
use crate::codec::{self, DecodeError, Format};
use crate::contact::{Contact, Contacts};
use crate::entry::ReadyRecord;
use crate::history::SealHistory;
use crate::job::{Job, JobPhase, JobSpec};
use crate::member::{Holder, LossReason, Member, MembershipStatus, Resources, Role};
use crate::plan::PlanRecord;
use crate::raft::SNAPSHOT_BYTES_MAX;
use crate::run::RunRecord;
use crate::validation::{Ledger, Seal, Turn};

pub use apply::StateChange;
pub use plans::{copied_layers, differing_layer};
pub use refusal::EntryRefusal;

/// Steps between a planned change's proposal and its first step, at most.
pub const PLANNED_AHEAD_MAX: u64 = 4;

/// How far a plan is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlanPhase {
    /// Holders load their layers; for each stage, the record of its holder once that is ready.
    Loading(Vec<Option<ReadyRecord>>),
    /// Every holder was ready, and the plan's program runs.
    Running,
    /// It ended with a rewind, and no other is adopted yet.
    Closed,
}

/// The plan in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanState {
    /// The plan as it was adopted.
    pub record: Arc<PlanRecord>,
    /// How far it is: it loads, runs, or is closed.
    pub phase: PlanPhase,
}

/// The replicated state of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The format of entries and snapshots. It is a snapshot's first byte ([`State::encode`]).
    #[serde(skip, default = "Format::oldest")]
    format: Format,
    cluster: ClusterId,
    applied: u64,
    members: BTreeMap<NodeId, Member>,
    quarantined: BTreeSet<NodeId>,
    access: AccessRegistry,
    /// Index of the last entry that changed the contacts.
    contacts_index: u64,
    job: Option<Job>,
    /// The last run that began. No number is given twice.
    run_last: RunId,
    /// Runs that ended before the job began, oldest first.
    ended: Vec<RunRecord>,
    /// What the job's first plan computed on.
    class: Option<DeviceClass>,
    plan: Option<PlanState>,
    next: Option<Arc<PlanRecord>>,
    /// The highest number given to a plan.
    generation: Generation,
    ledger: Ledger,
    history: SealHistory,
    last_seal: Option<Seal>,
    rewinds: u64,
    checkpoints: Vec<CheckpointRecord>,
    pending: Vec<PendingCheckpoint>,
    /// The version that becomes a checkpoint when it is the open one, because time has passed.
    due: Option<Step>,
}

impl State {
    /// The state of a cluster that has just been made.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self {
            format: Format::NEWEST,
            cluster,
            applied: 0,
            members: BTreeMap::new(),
            quarantined: BTreeSet::new(),
            access: AccessRegistry::default(),
            contacts_index: 0,
            job: None,
            run_last: RunId(0),
            ended: Vec::new(),
            class: None,
            plan: None,
            next: None,
            generation: Generation(0),
            ledger: Ledger::new(Generation(0), Step(0), 0),
            history: SealHistory::default(),
            last_seal: None,
            rewinds: 0,
            checkpoints: Vec::new(),
            pending: Vec::new(),
            due: None,
        }
    }

    /// The same in another format.
    #[must_use]
    pub fn in_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// The format that entries and snapshots are written in.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The bytes of a snapshot, in the format that is agreed on.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode_in(self.format, self)
    }

    /// The state of a snapshot, for a program that reads no newer format than `newest`.
    ///
    /// # Errors
    /// If the bytes are more than a snapshot has, in a format that is not read, or no state.
    pub fn decode(newest: Format, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (format, state): (_, Self) = codec::decode_up_to(newest, bytes, SNAPSHOT_BYTES_MAX)?;
        Ok(state.in_format(format))
    }

    /// The same, with its first controllers. Their numbers are not given again.
    #[must_use]
    pub fn with_controllers(
        mut self,
        controllers: impl IntoIterator<Item = (NodeId, Contact)>,
    ) -> Self {
        let resources = Resources::NONE;
        for (node, contact) in controllers {
            self.access.reserve(node);
            let controller = Member {
                incarnation: Incarnation(0),
                boot: 0,
                role: Role::Controller,
                resources,
                contact,
                status: MembershipStatus::Present,
            };
            self.members.insert(node, controller);
        }
        self
    }

    /// The state of a new cluster that goes on from a checkpoint of another one, whose voters are
    /// gone for good. Members and plans are not kept.
    #[must_use]
    pub fn recovered(cluster: ClusterId, spec: Arc<JobSpec>, checkpoint: CheckpointRecord) -> Self {
        let mut state = Self::new(cluster);
        let is_done = checkpoint.version.0 >= spec.step_count;
        let phase = if is_done { JobPhase::Done } else { JobPhase::Running };
        state.run_last = spec.run;
        state.job = Some(Job { spec, phase });
        state.generation = checkpoint.ledger.open_turn().generation;
        state.ledger = checkpoint.ledger.clone();
        state.history = SealHistory::starting_at(checkpoint.version);
        state.checkpoints = vec![checkpoint];
        state
    }

    /// The same with its job held or ended, if it was so: only a person lets it go on.
    #[must_use]
    pub fn held_as(mut self, phase: JobPhase) -> Self {
        match (phase, &mut self.job) {
            (JobPhase::Paused | JobPhase::Halted(_) | JobPhase::Stopped, Some(job)) => {
                job.phase = phase;
            }
            (JobPhase::Running | JobPhase::Done, _) | (_, None) => {}
        }
        self
    }

    /// The same with a job that has computed on this class of devices, as far as that is known: its
    /// bits are of no other.
    #[must_use]
    pub fn of_class(mut self, class: Option<DeviceClass>) -> Self {
        let kind = self.job().map(|job| job.spec.device);
        self.class = class.filter(|class| Some(class.kind()) == kind);
        self
    }

    /// The same with the runs that ended before the job began, and the last number that a run was
    /// given.
    #[must_use]
    pub fn with_ended(mut self, ended: Vec<RunRecord>, last: RunId) -> Self {
        self.run_last = self.run_last.max(last);
        self.ended = ended;
        self
    }

    /// The last number that a run was given.
    #[must_use]
    pub fn run_last(&self) -> RunId {
        self.run_last
    }

    /// The cluster that the state belongs to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The index of the last entry applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// All members, lost ones included, by node.
    #[must_use]
    pub fn members(&self) -> &BTreeMap<NodeId, Member> {
        &self.members
    }

    /// Nodes that are not admitted again.
    #[must_use]
    pub fn quarantined(&self) -> &BTreeSet<NodeId> {
        &self.quarantined
    }

    /// Whether a node that is authorized and requests admission with this start would be admitted.
    #[must_use]
    pub fn admits(&self, node: NodeId, boot: u64) -> bool {
        let is_new = self.members.get(&node).is_none_or(|member| boot > member.boot);
        is_new && !self.quarantined.contains(&node) && self.has_member_capacity(node)
    }

    /// The last job that began and was not removed, with its phase.
    #[must_use]
    pub fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    /// The number that the next run takes.
    #[must_use]
    pub fn run_next(&self) -> RunId {
        self.run_last.next()
    }

    /// Runs that ended before the job began, oldest first. Each is kept until it is removed.
    #[must_use]
    pub fn ended(&self) -> &[RunRecord] {
        &self.ended
    }

    /// The job's configuration, if it is under way and not held.
    #[must_use]
    pub fn running_spec(&self) -> Option<&Arc<JobSpec>> {
        let job = self.job.as_ref().filter(|job| job.phase == JobPhase::Running);
        job.map(|job| &job.spec)
    }

    /// Whether a job is under way whose steps are all sealed, so that nothing is missing but the
    /// checkpoint behind the last one.
    #[must_use]
    pub fn is_all_sealed(&self) -> bool {
        let spec = self.job.as_ref().and_then(|job| job.under_way().ok());
        spec.is_some_and(|spec| self.open_turn().step.0 >= spec.step_count)
    }

    /// The plan in force.
    #[must_use]
    pub fn plan(&self) -> Option<&PlanState> {
        self.plan.as_ref()
    }

    /// The plan that follows at a later step.
    #[must_use]
    pub fn next_plan(&self) -> Option<&Arc<PlanRecord>> {
        self.next.as_ref()
    }

    /// The number of the plan in force.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.plan.as_ref().map_or(self.generation, |plan| plan.record.generation)
    }

    /// The number the next plan takes.
    #[must_use]
    pub fn generation_next(&self) -> Generation {
        self.generation.next()
    }

    /// What follows from the seals.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The turn that waits for its seal.
    #[must_use]
    pub fn open_turn(&self) -> Turn {
        self.ledger.open_turn()
    }

    /// Final seals, as far back as they are kept.
    #[must_use]
    pub fn history(&self) -> &SealHistory {
        &self.history
    }

    /// Whether another step can be sealed: one can be remembered, or forgotten because a checkpoint
    /// lies behind it, or the run goes back to none.
    #[must_use]
    pub fn can_remember_seal(&self) -> bool {
        let is_asked = self.job.as_ref().is_some_and(|job| job.spec.schedules_checkpoints());
        let newest = self.checkpoints.last().map(|checkpoint| checkpoint.version);
        !self.history.is_full() || !is_asked || newest.is_some_and(|v| v > self.history.base())
    }

    /// The last seal applied.
    #[must_use]
    pub fn last_seal(&self) -> Option<&Seal> {
        self.last_seal.as_ref()
    }

    /// How often the run went back. What was held before it did is not believed.
    #[must_use]
    pub fn rewinds(&self) -> u64 {
        self.rewinds
    }

    /// Checkpoints, oldest first.
    #[must_use]
    pub fn checkpoints(&self) -> &[CheckpointRecord] {
        &self.checkpoints
    }

    /// Checkpoints under way, oldest first.
    #[must_use]
    pub fn pending(&self) -> &[PendingCheckpoint] {
        &self.pending
    }

    /// The version that becomes a checkpoint when it is the open one, whatever the configuration
    /// says.
    #[must_use]
    pub fn due(&self) -> Option<Step> {
        self.due
    }

    /// Whether this life of this node is counted on.
    #[must_use]
    pub fn is_live(&self, holder: Holder) -> bool {
        self.members
            .get(&holder.node)
            .is_some_and(|member| member.is_live() && member.incarnation == holder.incarnation)
    }

    /// The life of a node that is counted on.
    #[must_use]
    pub fn holder_of(&self, node: NodeId) -> Option<Holder> {
        let member = self.members.get(&node).filter(|member| member.is_live())?;
        Some(Holder { node, incarnation: member.incarnation })
    }

    /// Workers that are counted on, in the order of their ids.
    pub fn live_workers(&self) -> impl Iterator<Item = (Holder, &Member)> {
        let live = self.members.iter().filter(|(_, m)| m.is_live() && m.role == Role::Worker);
        live.map(|(node, m)| (Holder { node: *node, incarnation: m.incarnation }, m))
    }

    /// Where members that are counted on are reached.
    #[must_use]
    pub fn contacts(&self) -> Contacts {
        let live = self.members.iter().filter(|(_, member)| member.is_live());
        let members = live.map(|(node, member)| (*node, (member.role, member.contact.clone())));
        let banned = self.access.revoked().collect();
        let rotation = self.access.rotation().cloned();
        Contacts { index: self.contacts_index, members: members.collect(), banned, rotation }
    }

    /// Index of the last entry that changed the contacts.
    #[must_use]
    pub fn contacts_index(&self) -> u64 {
        self.contacts_index
    }

    /// Controllers that are counted on.
    pub fn controllers(&self) -> impl Iterator<Item = NodeId> {
        self.members.keys().copied().filter(|node| self.is_controller(*node))
    }

    /// The first holder of the plan in force that is not counted on any more.
    #[must_use]
    pub fn lost_holder(&self) -> Option<Holder> {
        let plan = self.plan.as_ref()?;
        plan.record.stages.iter().copied().find(|holder| !self.is_live(*holder))
    }

    /// Number of holders in the plan in force that are about to go.
    #[must_use]
    pub fn draining_holders(&self) -> u32 {
        let Some(plan) = &self.plan else { return 0 };
        let is_draining = |holder: &&Holder| {
            let member = self.members.get(&holder.node);
            member.is_some_and(|member| member.status == MembershipStatus::Draining)
        };
        plan.record.stages.iter().filter(is_draining).count() as u32
    }

    /// Whether a worker is about to go, and too few stay to go on without: unless it is written,
    /// what is sealed here would be lost with the workers that hold it.
    #[must_use]
    pub fn is_left_alone(&self) -> bool {
        let Some(spec) = self.running_spec() else { return false };
        let mut staying = 0;
        let mut leaving = 0;
        for (_, member) in self.fitting_workers() {
            match member.status {
                MembershipStatus::Present => staying += 1,
                MembershipStatus::Draining => leaving += 1,
                MembershipStatus::Lost(_) => {}
            }
        }
        leaving > 0 && staying < spec.workers_min
    }

    /// Whether a holder in the plan in force went after what it held was saved: no node holds what
    /// it reported since.
    #[must_use]
    pub fn has_drained_holder(&self) -> bool {
        let Some(plan) = &self.plan else { return false };
        plan.record.stages.iter().any(|holder| {
            let member = self.members.get(&holder.node);
            match member.map(|member| member.status) {
                Some(MembershipStatus::Lost(reason)) => reason == LossReason::Drained,
                Some(MembershipStatus::Present | MembershipStatus::Draining) => false,
                None => true,
            }
        })
    }

    /// Whether the version that is open is a checkpoint.
    #[must_use]
    pub fn is_at_checkpoint(&self) -> bool {
        let open = self.open_turn().step;
        self.checkpoints.last().is_some_and(|last| last.version == open)
    }

    /// Whether the version that is open is a checkpoint, or is being written.
    #[must_use]
    pub fn is_being_kept(&self) -> bool {
        let open = self.open_turn().step;
        self.is_at_checkpoint() || self.pending.iter().any(|pending| pending.version == open)
    }

    /// Whether the plan's program runs, and all holders in it are there.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let is_running = self.plan.as_ref().is_some_and(|plan| plan.phase == PlanPhase::Running);
        is_running && self.lost_holder().is_none()
    }

    /// The incarnation an entry at `index` gives.
    #[must_use]
    pub(crate) const fn incarnation_at(index: u64) -> Incarnation {
        Incarnation(index)
    }
}
