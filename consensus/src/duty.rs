//! What a leader does about the state: pure decisions over what it received since its election.
//!
//! Nothing here is agreed on, and nothing is kept: a new leader begins without any reports. Workers
//! resend their reports until they are agreed, so a new leader receives them too.

mod awaited;
mod blame;
mod checkpoint_timer;
mod draft;
mod ephemeral;
mod heartbeats;
mod inbox;
mod leaving;
mod measurement;
mod planning;
mod refusal;
mod restore;
mod sealing;
mod seating;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_schedule::{Program, Window};
use zbelastic_types::{Generation, LayerId, LayerRange, NodeId, StageIndex, Step};

use crate::access::AccessChange;
use crate::checkpoint::LayerDigest;
use crate::entry::{Entry, ReadyRecord};
use crate::job::{HaltReason, JobChange, JobSpec};
use crate::member::{Holder, LossReason, MemberChange, Resources};
use crate::plan::{LayerSource, PlanReason};
use crate::state::{EntryRefusal, State};
use crate::validation::Turn;

pub use awaited::{AwaitedAnswer, AwaitedMember};
pub use blame::{DOUBT_SEALS_MAX, PAIR_CONTRADICTIONS_MAX};
pub use checkpoint_timer::COST_SHARE;
pub use ephemeral::EPHEMERAL_TICKS_MAX;
pub use inbox::HELD_VERSIONS_MAX;
pub use measurement::PlanMeasurement;
pub use planning::PlanNeed;
pub use refusal::InputRefusal;
pub use restore::{LayerInventory, RestorePoint, restore_point};
pub use sealing::{Contradiction, OpenTurnReports, RECOMPUTE_REPLAYS_MAX, WithheldReason};
pub use seating::least_moved;
pub use window::{STEPS_BEFORE_SWITCH, switched_window};

/// Times for which a leader waits, in its own ticks.
#[derive(Clone, Copy, Debug)]
pub struct DutyTiming {
    /// Ticks without a heartbeat until a member is lost, as long as no job sets its own number.
    pub lost_after_ticks: u32,
    /// Ticks without progress until a plan, an awaited answer or copying ahead is given up (rule
    /// R10). It does not limit how long work may take; it is long beside the time between
    /// heartbeats, which report progress.
    pub progress_ticks: u32,
    /// Ticks for which an inventory waits for all workers though each layer is held by one that has
    /// answered: with more answers there are more sources. A layer that none of them holds is
    /// waited for as long as it takes (rule R9).
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
}

/// The answer: a plan without names.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSolution {
    /// The lowered program; it may have fewer stages than nodes were offered.
    pub program: Program,
    /// The layers of each chunk.
    pub chunks: Vec<LayerRange>,
    /// The node at each stage, as its index among the nodes of the request. Not always the first
    /// ones: a node whose memory does not hold a stage is left out.
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

/// What a decision leads to.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaderAction {
    /// Propose this entry to the log.
    Propose(Entry),
    /// Request a plan from the solver.
    Solve(SolveRequest),
    /// Request from all workers an inventory of the layers that they hold.
    RequestInventory,
    /// Send all workers what is to be copied ahead.
    SendPreCopy,
    /// Go on without the plan that was requested, and report why.
    ReportNoPlan(NoPlan),
}

/// What is proposed at most once at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ProposalLane {
    Members,
    Plan,
    Seal(Turn),
    Ready(Generation, NodeId),
    Durable(Step, NodeId),
    Keep,
    Checkpoint(Step),
    Job,
    Access,
    Format,
}

/// Plans that could not load from a checkpoint, until another one is gone back to.
pub const PLANS_FAILED_MAX: usize = 3;

/// The duties of a leader.
#[derive(Debug)]
pub struct Duties {
    timing: DutyTiming,
    now: u64,
    heartbeats: heartbeats::HeartbeatMonitor,
    absences: ephemeral::EphemeralAbsences,
    changes: Vec<MemberChange>,
    open_turn: Option<OpenTurnReports>,
    planning: draft::Planning,
    measured: measurement::MeasuredSpeeds,
    ready: BTreeMap<StageIndex, ReadyRecord>,
    /// The holders that reported, of the plan that loads, that a layer does not come.
    load_failures: BTreeSet<Holder>,
    saved: BTreeMap<(Step, NodeId), (Holder, Vec<LayerDigest>)>,
    checkpoint_timer: checkpoint_timer::CheckpointTimer,
    /// Why the plan of this generation must go, if it must.
    trouble: Option<(Generation, PlanReason)>,
    /// A layer whose states differ between two holders, or from its checkpoint, and in which plan.
    differing: Option<(Generation, LayerId)>,
    /// Checkpoints that could not be read, and in which plans.
    unread: BTreeMap<Step, BTreeSet<Generation>>,
    blame: blame::Blame,
    /// The plan in which two holders contradicted each other; they do so until there is another.
    contradicted: Option<Generation>,
    in_flight: BTreeMap<u64, ProposalLane>,
    /// When something last moved: a seal, or a plan.
    progress_at: u64,
    /// When members last changed.
    members_changed: u64,
}

impl Duties {
    /// The duties of a leader that has received no reports yet.
    #[must_use]
    pub fn new(state: &State, timing: DutyTiming) -> Self {
        let mut watch = heartbeats::HeartbeatMonitor::default();
        watch.begin(state, 0);
        Self {
            timing,
            now: 0,
            heartbeats: watch,
            absences: ephemeral::EphemeralAbsences::default(),
            changes: Vec::new(),
            open_turn: None,
            planning: draft::Planning::default(),
            measured: measurement::MeasuredSpeeds::default(),
            ready: BTreeMap::new(),
            load_failures: BTreeSet::new(),
            saved: BTreeMap::new(),
            checkpoint_timer: checkpoint_timer::CheckpointTimer::default(),
            trouble: None,
            differing: None,
            unread: BTreeMap::new(),
            blame: blame::Blame::default(),
            contradicted: None,
            in_flight: BTreeMap::new(),
            progress_at: 0,
            members_changed: 0,
        }
    }

    /// A tick of the leader's clock.
    pub fn handle_tick(&mut self, state: &State) {
        self.now += 1;
        self.absences.handle_tick(state, self.now);
        let mut lost = self.heartbeats.overdue(state, self.now, self.lost_after_ticks(state));
        lost.extend(self.without_progress(state));
        for (holder, reason) in lost {
            self.note_change(MemberChange::Lost { holder, reason });
        }
    }

    /// An entry was proposed and got this index.
    pub fn on_proposed(&mut self, index: u64, entry: &Entry) {
        let lane = lane_of(entry);
        self.in_flight.insert(index, lane);
    }

    /// Entries up to `index` are applied; the last one with this result.
    pub fn on_applied(
        &mut self,
        state: &State,
        index: u64,
        entry: &Entry,
        result: Result<(), &EntryRefusal>,
    ) {
        self.in_flight = self.in_flight.split_off(&(index + 1));
        if let (Entry::Rewind { .. }, Ok(())) = (entry, result) {
            self.differing = None;
        }
        match entry {
            Entry::Members(_) | Entry::Access(AccessChange::Revoked { .. }) => {
                self.members_changed = self.now;
                self.heartbeats.track_members(state, self.now);
                self.changes.retain(|change| is_pending(state, change));
            }
            Entry::Seal(_) if result.is_ok() => {
                self.progress_at = self.now;
                self.blame.on_sealed();
            }
            Entry::Ready(_) if result.is_ok() => self.progress_at = self.now,
            // Behind the last step nothing else is left that could move.
            Entry::Durable { .. } if result.is_ok() && state.training().is_all_sealed() => {
                self.progress_at = self.now;
            }
            // What is refused once is refused again. The worker may send its report again.
            Entry::Ready(refused) => self.ready.retain(|_, ready| ready != refused),
            Entry::Durable { version, holder, .. } if result.is_err() => {
                self.saved.remove(&(*version, holder.node));
            }
            Entry::Adopt(_) | Entry::Rewind { .. } | Entry::Resume { .. } | Entry::Job(_)
                if result.is_ok() =>
            {
                self.progress_at = self.now;
                self.load_failures.clear();
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
            // Whatever came of it: if it was refused, it is counted anew.
            Entry::Access(AccessChange::Forgotten { node }) => self.absences.restart_count(*node),
        }
        if result.is_ok() {
            self.forgive_checkpoints(state, entry);
            self.time_checkpoints(state, entry);
        }
        if let Err(EntryRefusal::DigestsDiffer { layer }) = result {
            self.note_digests_differ(state, *layer);
        }
        let generation = state.generation();
        self.ready.retain(|_, ready| ready.generation == generation);
        let is_pending = |version: Step| state.pending().iter().any(|p| p.version == version);
        self.saved.retain(|(version, _), _| is_pending(*version));
        self.checkpoint_timer.retain(is_pending);
        self.trouble = self.trouble.take().filter(|(of, _)| *of == generation);
        self.differing = self.differing.filter(|(of, _)| *of == generation);
    }

    /// The next thing to do, until there is none. Each is returned once: what is proposed is
    /// remembered by [`Self::on_proposed`].
    pub fn decide(&mut self, state: &State) -> Option<LeaderAction> {
        self.decide_entry(state).or_else(|| self.decide_plan(state))
    }

    /// The next thing to do that is no plan. Whether one is needed does not follow from reports of
    /// a step, and takes a look at all members.
    pub fn decide_entry(&mut self, state: &State) -> Option<LeaderAction> {
        if let Some(entry) = self.decide_members(state) {
            return Some(LeaderAction::Propose(entry));
        }
        self.decide_ready(state)
            .or_else(|| self.decide_seal(state))
            .or_else(|| self.decide_durable(state))
            .or_else(|| self.decide_timed_checkpoint(state))
            .or_else(|| self.decide_forgotten())
            .map(LeaderAction::Propose)
    }

    /// Why the open turn is not sealed.
    #[must_use]
    pub fn withheld(&self, state: &State) -> Option<WithheldReason> {
        let sealing = self.open_turn.as_ref()?;
        sealing.decide(state).err()
    }

    /// Ticks for which a member may be silent.
    fn lost_after_ticks(&self, state: &State) -> u32 {
        state.job().map_or(self.timing.lost_after_ticks, |job| job.spec.lost_after_ticks)
    }

    fn is_in_flight(&self, lane: ProposalLane) -> bool {
        self.in_flight.values().any(|found| *found == lane)
    }

    /// Whether an entry that raises the format is proposed and not applied yet.
    #[must_use]
    pub(crate) fn is_raising_format(&self) -> bool {
        self.is_in_flight(ProposalLane::Format)
    }

    fn decide_forgotten(&self) -> Option<Entry> {
        let is_free = !self.is_in_flight(ProposalLane::Access);
        self.absences.decide(self.now).filter(|_| is_free)
    }

    fn decide_members(&mut self, state: &State) -> Option<Entry> {
        if self.changes.is_empty() || self.is_in_flight(ProposalLane::Members) {
            return None;
        }
        self.changes.retain(|change| is_pending(state, change));
        (!self.changes.is_empty()).then(|| Entry::Members(self.changes.clone()))
    }

    fn decide_ready(&mut self, state: &State) -> Option<Entry> {
        let slots = match &state.plan()?.phase {
            crate::state::PlanPhase::Loading(slots) => slots,
            crate::state::PlanPhase::Running | crate::state::PlanPhase::Closed => return None,
        };
        let generation = state.generation();
        let is_new = |(stage, ready): &(&StageIndex, &ReadyRecord)| {
            ready.generation == generation
                && slots[stage.index()].is_none()
                && !self.is_in_flight(ProposalLane::Ready(generation, ready.holder.node))
        };
        if let Some((_, ready)) = self.ready.iter().find(is_new) {
            return Some(Entry::Ready(ready.clone()));
        }
        let is_complete = slots.iter().all(Option::is_some) && state.lost_holder().is_none();
        let is_sound = self.trouble.is_none() && self.differing.is_none();
        let is_free = !self.is_in_flight(ProposalLane::Plan) && is_sound;
        (is_complete && is_free).then_some(Entry::Resume { generation })
    }

    fn decide_seal(&mut self, state: &State) -> Option<Entry> {
        let sealing = self.open_turn.as_ref()?;
        let turn = state.open_turn();
        let is_known = self.contradicted == Some(turn.generation);
        if sealing.turn() != turn || self.is_in_flight(ProposalLane::Seal(turn)) || is_known {
            return None;
        }
        match sealing.decide(state) {
            Ok(seal) => Some(Entry::Seal(seal)),
            Err(WithheldReason::DiffersFromLog { step }) => {
                let is_free = !self.is_in_flight(ProposalLane::Job);
                let halt = JobChange::Halt(HaltReason::DiffersFromLog { step });
                is_free.then_some(Entry::Job(halt))
            }
            Err(WithheldReason::Sums(Contradiction { layer, pairs })) => {
                self.note_trouble(state, PlanReason::Contradiction { layer });
                self.decide_blame(state, &pairs)
            }
            Err(WithheldReason::State(Contradiction { layer, pairs })) => {
                self.differing = Some((state.generation(), layer));
                self.decide_blame(state, &pairs)
            }
            Err(
                WithheldReason::Reports
                | WithheldReason::NotHeld { .. }
                | WithheldReason::NotAttested { .. }
                | WithheldReason::CheckpointOverdue
                | WithheldReason::Leaving
                | WithheldReason::NotRunning,
            ) => None,
        }
    }

    /// A node that contradicts several others is at fault. If one pair contradicts each other again
    /// and again, it cannot be known which of the two is.
    fn decide_blame(&mut self, state: &State, pairs: &[(Holder, Holder)]) -> Option<Entry> {
        self.contradicted = Some(state.generation());
        let (one, other) = self.blame.mark_one(pairs.iter().map(|(a, b)| (a.node, b.node)))?;
        let at_fault = self.blame.at_fault(|node| state.holder_of(node).is_some());
        if let Some((node, partners)) = at_fault
            && let Some(holder) = state.holder_of(node)
        {
            self.blame.clear();
            let reason = LossReason::Untrusted { partners };
            self.note_change(MemberChange::Lost { holder, reason });
            return self.decide_members(state);
        }
        let is_stuck = self.blame.is_stuck(one, other);
        let is_free = !self.is_in_flight(ProposalLane::Job);
        (is_stuck && is_free).then_some(Entry::Job(JobChange::Halt(HaltReason::Untrusted)))
    }

    fn decide_durable(&mut self, state: &State) -> Option<Entry> {
        let layer_count = state.job()?.spec.layer_count();
        for pending in state.pending() {
            let version = pending.version;
            let is_complete = pending.layers.len() == layer_count as usize;
            if is_complete && !self.is_in_flight(ProposalLane::Checkpoint(version)) {
                return Some(Entry::Checkpoint { version });
            }
        }
        let is_new = |((version, node), (_, layers)): &(&(Step, NodeId), &(Holder, Vec<_>))| {
            let pending = state.pending().iter().find(|pending| pending.version == *version);
            let is_missing = |(layer, _): &(LayerId, _)| {
                pending.is_some_and(|pending| !pending.layers.contains_key(layer))
            };
            layers.iter().any(is_missing)
                && !self.is_in_flight(ProposalLane::Durable(*version, *node))
        };
        let ((version, _), (holder, layers)) = self.saved.iter().find(is_new)?;
        let (version, holder, layers) = (*version, *holder, layers.clone());
        let pending = state.pending().iter().find(|pending| pending.version == version)?;
        let generation = pending.generation();
        Some(Entry::Durable { version, generation, holder, layers })
    }

    /// Notes a change to be agreed on. One that finds no room is noted when it is reported again.
    fn note_change(&mut self, change: MemberChange) {
        if self.is_noted(&change) {
            return;
        }
        // Of two reasons for one loss the first would be applied: it must be the one that counts.
        if let MemberChange::Lost { holder, .. } = change {
            self.changes.retain(|noted| match noted {
                MemberChange::Lost { holder: known, .. } => *known != holder,
                MemberChange::Admit { .. }
                | MemberChange::Drain { .. }
                | MemberChange::Moved { .. } => true,
            });
        }
        if self.changes.len() < crate::entry::CHANGES_MAX {
            self.changes.push(change);
        }
    }

    /// Whether a change waits that has the same outcome. Why a member is lost does not matter,
    /// unless it is not to come back.
    fn is_noted(&self, change: &MemberChange) -> bool {
        self.changes.iter().any(|noted| match (noted, change) {
            (
                MemberChange::Admit { node: known, boot: latest, .. },
                MemberChange::Admit { node, boot, .. },
            ) => known == node && latest >= boot,
            (
                MemberChange::Lost { holder: known, reason: why },
                MemberChange::Lost { holder, reason },
            ) => known == holder && (why.is_for_good() || !reason.is_for_good()),
            (MemberChange::Drain { holder: known }, MemberChange::Drain { holder }) => {
                known == holder
            }
            (MemberChange::Moved { .. }, MemberChange::Moved { .. }) => noted == change,
            (
                MemberChange::Admit { .. }
                | MemberChange::Lost { .. }
                | MemberChange::Drain { .. }
                | MemberChange::Moved { .. },
                MemberChange::Admit { .. }
                | MemberChange::Lost { .. }
                | MemberChange::Drain { .. }
                | MemberChange::Moved { .. },
            ) => false,
        })
    }

    fn note_trouble(&mut self, state: &State, reason: PlanReason) {
        self.trouble.get_or_insert((state.generation(), reason));
    }

    /// Checkpoints that are not to be gone back to.
    fn bad_checkpoints(&self) -> BTreeSet<Step> {
        let failed = self.unread.iter().filter(|(_, plans)| plans.len() >= PLANS_FAILED_MAX);
        failed.map(|(version, _)| *version).collect()
    }

    /// What was read, or is written anew, can be read; and the operator who orders the run to go on
    /// may have repaired what could not be.
    fn forgive_checkpoints(&mut self, state: &State, entry: &Entry) {
        match entry {
            Entry::Checkpoint { version } => {
                self.unread.remove(version);
            }
            Entry::Resume { .. } => {
                let plan = state.plan().map(|plan| plan.record.clone());
                self.unread.retain(|version, _| {
                    let is_it = |source: &LayerSource| source.is_checkpoint(*version);
                    !plan.iter().any(|plan| plan.sources.iter().any(is_it))
                });
            }
            // Versions of another run are other checkpoints.
            Entry::Job(JobChange::Continue | JobChange::Start(_)) => self.unread.clear(),
            Entry::Members(_)
            | Entry::Adopt(_)
            | Entry::Ready(_)
            | Entry::Seal(_)
            | Entry::Durable { .. }
            | Entry::Keep { .. }
            | Entry::Rewind { .. }
            | Entry::Job(_)
            | Entry::Access(_)
            | Entry::Format(_) => {}
        }
    }

    /// Two workers loaded the same layer with different bits, or one not what the checkpoint has.
    fn note_digests_differ(&mut self, state: &State, layer: LayerId) {
        self.differing = Some((state.generation(), layer));
        self.ready.clear();
    }
}

/// Whether a change would still change something.
fn is_pending(state: &State, change: &MemberChange) -> bool {
    match change {
        MemberChange::Admit { node, boot, role, contact, .. } => {
            state.membership().admits(*node, *boot, state.training().plans())
                && state.membership().authorizes(*node, *role, contact)
        }
        MemberChange::Lost { holder, .. } => state.is_live(*holder),
        MemberChange::Drain { holder } => {
            let member = state.members().get(&holder.node);
            state.is_live(*holder)
                && member.is_some_and(|m| m.status == crate::member::MembershipStatus::Present)
        }
        MemberChange::Moved { holder, contact } => {
            let member = state.members().get(&holder.node);
            state.is_live(*holder) && member.is_some_and(|m| m.contact != *contact)
        }
    }
}

fn lane_of(entry: &Entry) -> ProposalLane {
    match entry {
        Entry::Members(_) => ProposalLane::Members,
        Entry::Adopt(_) | Entry::Resume { .. } | Entry::Rewind { .. } => ProposalLane::Plan,
        Entry::Ready(ready) => ProposalLane::Ready(ready.generation, ready.holder.node),
        Entry::Seal(seal) => ProposalLane::Seal(seal.turn),
        Entry::Durable { version, holder, .. } => ProposalLane::Durable(*version, holder.node),
        Entry::Keep { .. } => ProposalLane::Keep,
        Entry::Checkpoint { version } => ProposalLane::Checkpoint(*version),
        Entry::Job(_) => ProposalLane::Job,
        Entry::Access(_) => ProposalLane::Access,
        Entry::Format(_) => ProposalLane::Format,
    }
}
