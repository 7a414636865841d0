//! The state that all nodes agree on: a function of the entries applied, and of nothing else.
//!
//! Every entry is checked when it is applied, against the state it meets, not the one at its
//! proposal (rule R2). One that does not fit changes nothing, and the refusal names the reason.
//!
//! [`State`] has two parts: the members with their credentials ([`ClusterMembership`]), and the job
//! with its plans, seals and checkpoints ([`Training`]).

mod access;
mod apply;
mod checkpoints;
mod membership;
mod plans;
mod refusal;
mod runs;
mod seals;
#[cfg(test)]
mod tests;
mod training;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_types::{ClusterId, Generation, NodeId, RunId};

use crate::access::{AccessRegistry, Credential};
use crate::checkpoint::{CheckpointRecord, PendingCheckpoint};
use crate::class::DeviceClass;
use crate::codec::{self, DecodeError, Format};
use crate::contact::Contact;
use crate::history::SealHistory;
use crate::job::{Job, JobPhase, JobSpec};
use crate::member::{Holder, Member};
use crate::plan::PlanRecord;
use crate::raft::SNAPSHOT_BYTES_MAX;
use crate::run_record::RunRecord;
use crate::validation::{Ledger, Turn};

pub use apply::StateChange;
pub use checkpoints::CheckpointRegistry;
pub use membership::ClusterMembership;
pub use plans::{PlanPhase, PlanSlots, PlanState, copied_layers, differing_layer};
pub use refusal::EntryRefusal;
pub use runs::RunRegistry;
pub use seals::SealedSteps;
pub use training::Training;

/// Steps between a planned change's proposal and its first step, at most.
pub const PLANNED_AHEAD_MAX: u64 = 4;

/// The replicated state of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The format of entries and snapshots. It is a snapshot's first byte ([`State::encode`]).
    #[serde(skip, default = "Format::oldest")]
    format: Format,
    cluster: ClusterId,
    applied: u64,
    membership: ClusterMembership,
    training: Training,
}

impl State {
    /// The state of a cluster that has just been made.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        let membership = ClusterMembership::default();
        Self { format: Format::NEWEST, cluster, applied: 0, membership, training: Training::new() }
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
        for (node, contact) in controllers {
            self.membership.found(node, contact);
        }
        self
    }

    /// The same, with credentials that the cluster begins with. Their numbers are not given again.
    #[must_use]
    pub fn with_credentials(
        mut self,
        credentials: impl IntoIterator<Item = (NodeId, Credential)>,
    ) -> Self {
        for (node, credential) in credentials {
            self.membership.access.grant(node, credential);
        }
        self
    }

    /// The state of a new cluster that goes on from a checkpoint of another one after its voters
    /// are gone for good. Members and plans are not kept.
    #[must_use]
    pub fn recovered(cluster: ClusterId, spec: Arc<JobSpec>, checkpoint: CheckpointRecord) -> Self {
        Self { training: Training::recovered(spec, checkpoint), ..Self::new(cluster) }
    }

    /// The same with its job held or ended, if it was so: only a person lets it go on.
    #[must_use]
    pub fn held_as(mut self, phase: JobPhase) -> Self {
        match (phase, &mut self.training.runs.job) {
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
        self.training.runs.class = class.filter(|class| Some(class.kind()) == kind);
        self
    }

    /// The same with the runs that ended before the job began, and the last number that a run was
    /// given.
    #[must_use]
    pub fn with_ended(mut self, ended: Vec<RunRecord>, last: RunId) -> Self {
        self.training.runs.restore_ended(ended, last);
        self
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

    /// The members, with their credentials and contacts.
    #[must_use]
    pub fn membership(&self) -> &ClusterMembership {
        &self.membership
    }

    /// The job, with its plans, seals and checkpoints.
    #[must_use]
    pub fn training(&self) -> &Training {
        &self.training
    }

    /// All members, lost ones included, by node.
    #[must_use]
    pub fn members(&self) -> &BTreeMap<NodeId, Member> {
        self.membership.members()
    }

    /// Tokens, credentials and the last change of authority, as agreed.
    #[must_use]
    pub fn access(&self) -> &AccessRegistry {
        self.membership.access()
    }

    /// Whether this life of this node is counted on.
    #[must_use]
    pub fn is_live(&self, holder: Holder) -> bool {
        self.membership.is_live(holder)
    }

    /// The life of a node that is counted on.
    #[must_use]
    pub fn holder_of(&self, node: NodeId) -> Option<Holder> {
        self.membership.holder_of(node)
    }

    /// Workers that are counted on, in the order of their ids.
    pub fn live_workers(&self) -> impl Iterator<Item = (Holder, &Member)> {
        self.membership.live_workers()
    }

    /// Controllers that are counted on.
    pub fn controllers(&self) -> impl Iterator<Item = NodeId> {
        self.membership.controllers()
    }

    /// The last job that began and was not removed, with its phase.
    #[must_use]
    pub fn job(&self) -> Option<&Job> {
        self.training.runs.job()
    }

    /// The job's configuration, if it is under way and not held.
    #[must_use]
    pub fn running_spec(&self) -> Option<&Arc<JobSpec>> {
        self.training.runs.running_spec()
    }

    /// Runs that ended before the job began, oldest first. Each is kept until it is removed.
    #[must_use]
    pub fn ended(&self) -> &[RunRecord] {
        self.training.runs.ended()
    }

    /// The plan in force.
    #[must_use]
    pub fn plan(&self) -> Option<&PlanState> {
        self.training.plans.current()
    }

    /// The plan that follows at a later step.
    #[must_use]
    pub fn next_plan(&self) -> Option<&Arc<PlanRecord>> {
        self.training.plans.next()
    }

    /// The number of the plan in force.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.training.plans.generation()
    }

    /// The ledger that follows from the seals.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        self.training.seals.ledger()
    }

    /// The turn that waits for its seal.
    #[must_use]
    pub fn open_turn(&self) -> Turn {
        self.training.seals.open_turn()
    }

    /// Final seals, as far back as they are kept.
    #[must_use]
    pub fn history(&self) -> &SealHistory {
        self.training.seals.history()
    }

    /// Checkpoints, oldest first.
    #[must_use]
    pub fn checkpoints(&self) -> &[CheckpointRecord] {
        self.training.checkpoints.durable()
    }

    /// Checkpoints under way, oldest first.
    #[must_use]
    pub fn pending(&self) -> &[PendingCheckpoint] {
        self.training.checkpoints.pending()
    }

    /// Workers that a plan of the job may seat.
    pub fn fitting_workers(&self) -> impl Iterator<Item = (Holder, &Member)> {
        self.training.fitting_workers(&self.membership)
    }

    /// The first holder of the plan in force that is not counted on any more.
    #[must_use]
    pub fn lost_holder(&self) -> Option<Holder> {
        self.training.plans.lost_holder(&self.membership)
    }

    /// Whether the plan's program runs, and all holders in it are there.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.training.plans.is_running(&self.membership)
    }

    /// Whether a worker is about to go, and too few stay to go on without: unless it is written,
    /// the steps sealed here would be lost with the workers that hold it.
    #[must_use]
    pub fn is_left_alone(&self) -> bool {
        self.training.is_left_alone(&self.membership)
    }

    /// Whether a plan would be accepted now.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_adopt(&self, record: &PlanRecord) -> Result<(), EntryRefusal> {
        self.training.check_adopt(record, &self.membership)
    }
}
