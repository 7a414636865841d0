//! The duties of a leader: pure decisions over the state and the messages since its election.
//!
//! Nothing here is agreed on, and nothing is kept: a new leader begins without any reports. Workers
//! resend their reports until they are agreed, so a new leader receives them too.

mod awaited;
mod blame;
mod changes;
mod checkpoint_timer;
mod draft;
mod ephemeral;
mod faults;
mod heartbeats;
mod in_force;
mod inbox;
mod keepers;
mod leaving;
mod loading;
mod measurement;
mod planning;
mod refusal;
mod restore;
mod returns;
mod saved;
mod sealing;
mod seating;
mod space;
#[cfg(test)]
mod tests;
mod unplaced;
mod watch;
mod window;

use std::collections::BTreeSet;
use std::sync::Arc;

use zbelastic_schedule::{Program, Window};
use zbelastic_types::{LayerRange, NodeId, Step};

use changes::PendingChanges;
use checkpoint_timer::CheckpointTimer;
use draft::Planning;
use ephemeral::EphemeralAbsences;
use leaving::{decide_drained, decide_saved};
use loading::LoadReports;
use saved::SavedLayers;
use unplaced::UnplacedCheckpoints;
use watch::{DutyWatch, ProposalLane};

use crate::access::AccessChange;
use crate::entry::Entry;
use crate::job::{HaltReason, JobChange, JobSpec};
use crate::member::{Holder, LossReason, MemberChange, Resources};
use crate::plan::PlanReason;
use crate::pre_copy::PreCopyPlan;
use crate::state::{EntryRefusal, State};
use crate::validation::Seal;

pub use awaited::{AwaitedAnswer, AwaitedMember, AwaitedMembers};
pub use blame::{DOUBT_SEALS_MAX, PAIR_CONTRADICTIONS_MAX};
pub use checkpoint_timer::COST_SHARE;
pub use ephemeral::EPHEMERAL_TICKS_MAX;
pub use faults::PLANS_FAILED_MAX;
pub use in_force::PlanInForce;
pub use inbox::HELD_VERSIONS_MAX;
pub use keepers::copies;
pub use measurement::PlanMeasurement;
pub use planning::PlanNeed;
pub use refusal::InputRefusal;
pub use restore::{LayerInventory, RestorePoint, restore_point};
pub use returns::{AwaitedReturn, AwaitedReturns};
pub use sealing::{Contradiction, OpenTurnReports, RECOMPUTE_REPLAYS_MAX, WithheldReason};
pub use seating::least_moved;
pub use space::HeldForSpace;
pub use window::{STEPS_BEFORE_SWITCH, switched_window};

/// Times for which a leader waits, in its own ticks.
#[derive(Clone, Copy, Debug)]
pub struct DutyTiming {
    /// Ticks without a heartbeat until a member is lost, as long as no job sets its own number.
    pub lost_after_ticks: u32,
    /// Ticks without progress until a plan, an awaited answer or copying ahead is given up (rule
    /// R10). It does not limit the time of work; it is long beside the time between heartbeats,
    /// which report progress.
    pub progress_ticks: u32,
    /// Ticks for which an inventory waits for all workers though each layer is held by one that has
    /// answered: with more answers there are more sources. A layer that none of them holds is
    /// waited for without a limit (rule R9).
    pub inventory_ticks: u32,
}

/// A request to the solver for a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct SolveRequest {
    /// To be given back with the answer.
    pub number: u64,
    /// Configuration of the job that the plan is for.
    pub spec: Arc<JobSpec>,
    /// The nodes that may hold a stage, in the order of stages, preferred ones first.
    pub nodes: Vec<(NodeId, Resources)>,
    /// Whether steps run ahead of the verdict on the one before.
    pub window: Window,
    /// The plan in force, if it may go on without moving a layer.
    pub in_force: Option<PlanInForce>,
}

/// The answer: a plan without names.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSolution {
    /// The lowered program; it may have fewer stages than nodes were offered.
    pub program: Program,
    /// The layers of each chunk.
    pub chunks: Vec<LayerRange>,
    /// The node at each stage, as its index among the nodes of the request. Not always the first
    /// ones: a node with too little memory for a stage is left out.
    pub stage_nodes: Vec<usize>,
    /// Ticks after which one of its operations hangs.
    pub op_ticks_max: u32,
}

/// Why the solver found no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no plan for {nodes} nodes: {reason}")]
pub struct PlanUnsolvable {
    /// Number of nodes in the request.
    pub nodes: usize,
    /// The reason, as text for people.
    pub reason: String,
}

/// Why a plan that is needed is not proposed. None is requested again until members, the open step
/// or the plan in force change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlan {
    /// The solver found none.
    #[error(transparent)]
    Unsolvable(#[from] PlanUnsolvable),
    /// The plan that was found would be refused when it is applied.
    #[error("the plan that was found would be refused: {0}")]
    Refused(EntryRefusal),
    /// The plan that was found does not fit into an entry of the log.
    #[error("the plan that was found takes {found} bytes, an entry holds {bytes_max}")]
    TooLarge {
        /// Bytes of its entry.
        found: usize,
        /// Bytes an entry holds.
        bytes_max: usize,
    },
}

impl NoPlan {
    /// The name under which the refusal is counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Unsolvable(_) => "plan-unsolvable",
            Self::Refused(_) => "plan-refused",
            Self::TooLarge { .. } => "plan-too-large",
        }
    }
}

/// The action that a decision leads to.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaderAction {
    /// Propose this entry to the log.
    Propose(Entry),
    /// Request a plan from the solver.
    Solve(SolveRequest),
    /// Request from all workers an inventory of the layers that they hold.
    RequestInventory,
    /// Send all workers the layers that are to be copied ahead.
    SendPreCopy,
    /// Go on without the plan that was requested, and report why.
    ReportNoPlan(NoPlan),
}

/// The duties of a leader.
#[derive(Debug)]
pub struct Duties {
    watch: DutyWatch,
    absences: EphemeralAbsences,
    changes: PendingChanges,
    open_turn: Option<OpenTurnReports>,
    planning: Planning,
    loads: LoadReports,
    saved: SavedLayers,
    checkpoint_timer: CheckpointTimer,
    unplaced: UnplacedCheckpoints,
    /// Controllers whose logs find hardly any space, where the others would be no majority.
    full_logs: BTreeSet<NodeId>,
}

impl Duties {
    /// The duties of a leader that has received no reports yet.
    #[must_use]
    pub fn new(state: &State, timing: DutyTiming) -> Self {
        Self {
            watch: DutyWatch::new(state, timing),
            absences: EphemeralAbsences::default(),
            changes: PendingChanges::default(),
            open_turn: None,
            planning: Planning::default(),
            loads: LoadReports::default(),
            saved: SavedLayers::default(),
            checkpoint_timer: CheckpointTimer::default(),
            unplaced: UnplacedCheckpoints::default(),
            full_logs: BTreeSet::new(),
        }
    }

    /// A tick of the leader's clock.
    pub fn handle_tick(&mut self, state: &State) {
        self.watch.now += 1;
        self.absences.handle_tick(state, self.watch.now);
        self.unplaced.handle_tick(self.watch.now, state.open_turn().step);
        // A step that is held back is not one that stalls: the wait for progress begins behind it.
        if self.held_for_space().is_some()
            && self.withheld(state).is_some_and(|reason| reason.is_for_space())
        {
            self.watch.note_progress();
        }
        let mut lost = self.watch.overdue(state);
        lost.extend(self.without_progress(state));
        for (holder, reason) in lost {
            self.changes.note(MemberChange::Lost { holder, reason });
        }
    }

    /// An entry was proposed and got this index.
    pub fn on_proposed(&mut self, index: u64, entry: &Entry) {
        self.watch.note_proposed(index, entry);
    }

    /// Entries up to `index` are applied; the last one with this result.
    pub fn on_applied(
        &mut self,
        state: &State,
        index: u64,
        entry: &Entry,
        result: Result<(), &EntryRefusal>,
    ) {
        self.watch.note_applied(index);
        if let (Entry::Rewind { .. }, Ok(())) = (entry, result) {
            self.planning.faults.forget_differing();
        }
        match entry {
            Entry::Members(_) | Entry::Access(AccessChange::Revoked { .. }) => {
                if self.watch.note_members(state) {
                    self.planning.unread.forgive();
                }
                self.changes.retain_pending(state);
            }
            Entry::Seal(_) if result.is_ok() => {
                self.watch.note_progress();
                self.planning.blame.on_sealed();
            }
            Entry::Ready(_) if result.is_ok() => self.watch.note_progress(),
            // Behind the last step nothing else is left that could move.
            Entry::Durable { .. } if result.is_ok() && state.training().is_all_sealed() => {
                self.watch.note_progress();
            }
            // An entry that is refused once is refused again. The worker may send its report again.
            Entry::Ready(refused) => self.loads.forget_refused(refused),
            Entry::Durable { version, holder, .. } if result.is_err() => {
                self.saved.forget(*version, holder.node);
            }
            Entry::Adopt(_) | Entry::Rewind { .. } | Entry::Resume { .. } | Entry::Job(_)
                if result.is_ok() =>
            {
                self.watch.note_plan();
                self.loads.forget_failed();
                self.planning.on_plan_changed();
            }
            Entry::Adopt(_)
            | Entry::Rewind { .. }
            | Entry::Resume { .. }
            | Entry::Job(_)
            | Entry::Seal(_)
            | Entry::Durable { .. }
            | Entry::Keep { .. }
            | Entry::Checkpoint { .. }
            | Entry::Format(_)
            | Entry::Access(
                AccessChange::TokenMade { .. }
                | AccessChange::TokenRevoked { .. }
                | AccessChange::TokenUsed { .. }
                | AccessChange::Renewed { .. }
                | AccessChange::Authority(_),
            ) => {}
            // Whether it was applied or refused: if it was refused, it is counted anew.
            Entry::Access(AccessChange::Forgotten { node }) => self.absences.restart_count(*node),
        }
        if result.is_ok() {
            self.planning.unread.on_applied(entry);
            self.checkpoint_timer.on_applied(state, entry, self.watch.now);
            self.unplaced.on_applied(state, entry);
        }
        if let Err(EntryRefusal::DigestsDiffer { layer }) = result {
            // Two workers loaded the same layer with different bits, or one not with those of its
            // checkpoint.
            self.planning.faults.note_differing(state.generation(), *layer);
            self.loads.forget_ready();
        }
        let generation = state.generation();
        self.loads.retain_ready(generation);
        let is_pending = |version: Step| state.pending().iter().any(|p| p.version == version);
        self.saved.retain(is_pending);
        self.checkpoint_timer.retain(is_pending);
        self.planning.faults.retain(generation);
    }

    /// The next thing to do, until there is none. Each is returned once: a proposal is remembered
    /// by [`Self::on_proposed`].
    pub fn decide(&mut self, state: &State) -> Option<LeaderAction> {
        self.decide_entry(state).or_else(|| self.decide_plan(state))
    }

    /// The next thing to do that is no plan. Whether one is needed does not follow from reports of
    /// a step, and all members are examined for it.
    pub fn decide_entry(&mut self, state: &State) -> Option<LeaderAction> {
        if let Some(entry) = self.changes.decide(state, &self.watch) {
            return Some(LeaderAction::Propose(entry));
        }
        let is_sound = self.planning.faults.is_sound();
        self.loads
            .decide(state, &self.watch, is_sound)
            .or_else(|| self.decide_seal(state))
            .or_else(|| self.saved.decide(state, &self.watch))
            .or_else(|| self.checkpoint_timer.decide(state, &self.watch))
            .or_else(|| self.unplaced.decide(state, &self.watch))
            .or_else(|| self.decide_forgotten())
            .map(LeaderAction::Propose)
    }

    fn decide_plan(&mut self, state: &State) -> Option<LeaderAction> {
        if self.watch.is_in_flight(ProposalLane::Plan) {
            return None;
        }
        let entry = self.planning.decide_rewind(state, &self.watch);
        if let Some(entry) = entry.or_else(|| decide_saved(state, &self.watch)) {
            return Some(LeaderAction::Propose(entry));
        }
        if let Some(change) = decide_drained(state, &self.watch) {
            self.changes.note(change);
            return self.changes.decide(state, &self.watch).map(LeaderAction::Propose);
        }
        self.planning.decide(state, &self.watch)
    }

    /// Why the open turn is not sealed.
    #[must_use]
    pub fn withheld(&self, state: &State) -> Option<WithheldReason> {
        let sealing = self.open_turn.as_ref()?;
        self.seal_of(sealing, state).err()
    }

    /// A layer of a checkpoint under way could be written nowhere.
    pub(crate) fn handle_unplaced(&mut self, state: &State, version: Step) {
        if state.pending().iter().any(|pending| pending.version == version) {
            self.unplaced.note_failed(version, self.watch.now);
        }
    }

    /// A node's disk has space again.
    pub(crate) fn handle_room(&mut self, state: &State) {
        self.unplaced.note_room(state.open_turn().step);
    }

    /// The logs of these controllers are nearly full, and the others would be no majority; none if that is over.
    pub(crate) fn handle_full_logs(&mut self, nodes: BTreeSet<NodeId>) {
        self.full_logs = nodes;
    }

    /// The data that no disk has space for, if steps are not sealed because of it.
    #[must_use]
    pub fn held_for_space(&self) -> Option<HeldForSpace> {
        if self.unplaced.is_holding() {
            return Some(HeldForSpace::Checkpoints);
        }
        (!self.full_logs.is_empty()).then_some(HeldForSpace::Logs)
    }

    fn seal_of(&self, sealing: &OpenTurnReports, state: &State) -> Result<Seal, WithheldReason> {
        let seal = sealing.decide(state)?;
        // What was sealed before is sealed again: the run comes back to where it was.
        let is_new = sealing.turn().step >= state.history().head();
        match self.held_for_space().filter(|_| is_new) {
            None => Ok(seal),
            Some(HeldForSpace::Checkpoints) => {
                let last = state.checkpoints().last().map(|last| last.version);
                Err(WithheldReason::CheckpointsUnplaced { last })
            }
            Some(HeldForSpace::Logs) => {
                Err(WithheldReason::LogsFull { nodes: self.full_logs.clone() })
            }
        }
    }

    /// Why a plan is needed, if one is.
    #[must_use]
    pub fn need(&self, state: &State) -> Option<PlanNeed> {
        self.planning.need(state, &self.watch)
    }

    /// Whether a worker's inventory is to be requested.
    #[must_use]
    pub fn requests_inventory_of(&self, node: NodeId) -> bool {
        self.planning.requests_inventory_of(node)
    }

    /// The layers that are to be copied ahead of a plan that is being made.
    #[must_use]
    pub fn pre_copy(&self) -> Option<&Arc<PreCopyPlan>> {
        self.planning.pre_copy.as_ref()
    }

    /// Whether an entry that raises the format is proposed and not applied yet.
    #[must_use]
    pub(crate) fn is_raising_format(&self) -> bool {
        self.watch.is_in_flight(ProposalLane::Format)
    }

    fn decide_forgotten(&self) -> Option<Entry> {
        let is_free = !self.watch.is_in_flight(ProposalLane::Access);
        self.absences.decide(self.watch.now).filter(|_| is_free)
    }

    fn decide_seal(&mut self, state: &State) -> Option<Entry> {
        let sealing = self.open_turn.as_ref()?;
        let turn = state.open_turn();
        let is_known = self.planning.faults.is_contradicted(turn.generation);
        if sealing.turn() != turn || self.watch.is_in_flight(ProposalLane::Seal(turn)) || is_known {
            return None;
        }
        match self.seal_of(sealing, state) {
            Ok(seal) => Some(Entry::Seal(seal)),
            Err(WithheldReason::DiffersFromLog { step }) => {
                let is_free = !self.watch.is_in_flight(ProposalLane::Job);
                let halt = JobChange::Halt(HaltReason::DiffersFromLog { step });
                is_free.then_some(Entry::Job(halt))
            }
            Err(WithheldReason::Sums(Contradiction { layer, pairs })) => {
                let reason = PlanReason::Contradiction { layer };
                self.planning.faults.note_trouble(state.generation(), reason);
                self.decide_blame(state, &pairs)
            }
            Err(WithheldReason::State(Contradiction { layer, pairs })) => {
                self.planning.faults.note_differing(state.generation(), layer);
                self.decide_blame(state, &pairs)
            }
            Err(
                WithheldReason::Reports
                | WithheldReason::NotHeld { .. }
                | WithheldReason::NotAttested { .. }
                | WithheldReason::CheckpointOverdue
                | WithheldReason::CheckpointsUnplaced { .. }
                | WithheldReason::LogsFull { .. }
                | WithheldReason::Leaving
                | WithheldReason::NotRunning,
            ) => None,
        }
    }

    /// A node that contradicts several others is at fault. If one pair contradicts each other again
    /// and again, it cannot be known which of the two is.
    fn decide_blame(&mut self, state: &State, pairs: &[(Holder, Holder)]) -> Option<Entry> {
        self.planning.faults.note_contradicted(state.generation());
        let (one, other) =
            self.planning.blame.mark_one(pairs.iter().map(|(a, b)| (a.node, b.node)))?;
        let at_fault = self.planning.blame.at_fault(|node| state.holder_of(node).is_some());
        if let Some((node, partners)) = at_fault
            && let Some(holder) = state.holder_of(node)
        {
            self.planning.blame.clear();
            let reason = LossReason::Untrusted { partners };
            self.changes.note(MemberChange::Lost { holder, reason });
            return self.changes.decide(state, &self.watch);
        }
        let is_stuck = self.planning.blame.is_stuck(one, other);
        let is_free = !self.watch.is_in_flight(ProposalLane::Job);
        (is_stuck && is_free).then_some(Entry::Job(JobChange::Halt(HaltReason::Untrusted)))
    }
}
