//! The invariants, checked after every event. One checker for each kind of promise, in a file of
//! its own, which owns the state that it remembers; shared state is passed to them.

mod checkpoints;
mod damage;
mod entries;
mod frames;
mod history;
mod leaders;
mod missed_reads;
mod plans;
mod rewinds;
mod states;
#[cfg(test)]
mod tests;
mod verdicts;

use std::sync::Arc;

use zbelastic_consensus::checkpoint::{CheckpointRecord, LayerDigest};
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::member::{Holder, LossReason, MemberChange};
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::state::StateChange;
use zbelastic_consensus::validation::{Seal, Turn, Verdict};
use zbelastic_trainer::plan::Plan;
use zbelastic_types::{Generation, LayerId, NodeId, Step};

pub use self::checkpoints::named_pieces;
pub use self::damage::DamageRecord;
use self::entries::EntryChecker;
use self::history::HistoryChecker;
use self::leaders::LeaderChecker;
pub use self::missed_reads::MissedReads;
use self::plans::PlanChecker;
use self::rewinds::RewindChecker;
use self::verdicts::VerdictChecker;
use crate::failure::{Invariant, LifeFailure};
use crate::queue::VirtualTime;
use crate::reference::LifeReference;
use crate::store::SimulatedStore;

/// The first invariant that is broken; any failure behind it follows from it.
#[derive(Default)]
struct FirstFailure(Option<LifeFailure>);

impl FirstFailure {
    fn set(&mut self, invariant: Invariant, message: impl FnOnce() -> String) {
        self.0.get_or_insert_with(|| LifeFailure::safety(invariant, message()));
    }
}

/// Passes each observation to the checkers that it concerns, and keeps the first failure.
pub struct InvariantChecker {
    /// The faults that were injected into the cluster.
    pub damage: DamageRecord,
    entries: EntryChecker,
    history: HistoryChecker,
    leaders: LeaderChecker,
    plans: PlanChecker,
    rewinds: RewindChecker,
    verdicts: VerdictChecker,
    progressed_at: VirtualTime,
    failure: FirstFailure,
}

impl InvariantChecker {
    /// A checker that has seen nothing yet.
    #[must_use]
    pub fn new(reference: LifeReference, spec: Arc<JobSpec>) -> Self {
        Self {
            damage: DamageRecord::default(),
            entries: EntryChecker::default(),
            history: HistoryChecker::new(reference),
            leaders: LeaderChecker::default(),
            plans: PlanChecker::default(),
            rewinds: RewindChecker::default(),
            verdicts: VerdictChecker::new(spec),
            progressed_at: VirtualTime(0),
            failure: FirstFailure::default(),
        }
    }

    /// The first thing that is wrong, once.
    pub fn take_failure(&mut self) -> Option<LifeFailure> {
        self.failure.0.take()
    }

    /// How many steps are sealed.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.history.sealed()
    }

    /// When a step was last sealed for the first time.
    #[must_use]
    pub fn progressed_at(&self) -> VirtualTime {
        self.progressed_at
    }

    /// The verdict before the last one.
    #[must_use]
    pub fn verdict_before(&self) -> Option<Verdict> {
        self.verdicts.before()
    }

    /// The plan that was loaded before this one.
    #[must_use]
    pub fn plan_before(&self, plan: &PlanRecord) -> Option<Arc<PlanRecord>> {
        self.plans.plan_before(plan)
    }

    /// Whether a plan was never resumed.
    #[must_use]
    pub fn was_loading(&self, generation: Generation) -> bool {
        self.plans.was_loading(generation)
    }

    /// The holders of copies of a layer that this node owns in the last plan that ran.
    pub fn witnesses(&self, node: NodeId, layer: LayerId) -> impl Iterator<Item = Holder> + '_ {
        self.rewinds.witnesses(node, layer)
    }

    /// A majority of the voters is gone: nothing after `last_index` may be agreed on. An entry that
    /// was proposed before may be, by answers that were in flight.
    pub fn quorum_is_lost(&mut self, last_index: u64) {
        self.entries.quorum_is_lost(last_index);
    }

    /// Fewer voters are up than agree on anything, and this turn is open.
    pub fn quorum_is_down(&mut self, open: Turn) {
        self.leaders.quorum_is_down(open);
    }

    /// Whether that was so while this turn was open.
    #[must_use]
    pub fn was_quorum_down(&self, turn: Turn) -> bool {
        self.leaders.was_quorum_down(turn)
    }

    /// A new cluster goes on from this version: the steps that were sealed after it are to be
    /// sealed again.
    pub fn recovered_from(&mut self, version: Step) {
        self.history.rewind(version);
        self.verdicts.rewind();
        self.entries = EntryChecker::default();
        self.leaders = LeaderChecker::default();
        self.plans = PlanChecker::default();
        self.rewinds = RewindChecker::recovered(version);
        self.damage = DamageRecord::default();
    }

    /// Whether a cluster that is gone had sealed this version, and the one that there is now seals
    /// it anew, perhaps otherwise.
    #[must_use]
    pub fn is_sealed_anew(&self, version: Step) -> bool {
        self.history.is_sealed_anew(version)
    }

    /// An entry changed nothing somewhere, and why.
    pub fn refused(&mut self, index: u64, refusal: &str) {
        self.entries.check_same(&mut self.failure, index, refusal, None);
    }

    /// An entry was applied somewhere. Yields whether it was the first time.
    pub fn applied(
        &mut self,
        now: VirtualTime,
        index: u64,
        change: &StateChange,
        state: Option<u64>,
    ) -> bool {
        let failure = &mut self.failure;
        if !self.entries.check_same(failure, index, &format!("{change:?}"), state) {
            return false;
        }
        self.entries.check_possible(failure, index);
        match change {
            StateChange::Sealed { seal, is_repeated, adopted } => {
                self.check_seal(now, seal, *is_repeated);
                if let Some(plan) = adopted {
                    self.plans.adopted(&mut self.failure, plan, now);
                }
            }
            StateChange::Planned(plan) => self.plans.planned(failure, plan),
            StateChange::Adopted(plan) => self.plans.adopted(failure, plan, now),
            StateChange::Resumed(generation) => {
                self.rewinds.resumed(self.plans.resumed(*generation));
                self.damage.reads.resumed();
            }
            StateChange::Rewound { to, reason, dropped } => {
                self.check_rewind(*to, *reason, dropped)
            }
            StateChange::Members(changes) => self.note_members(now, changes),
            StateChange::Checkpoint { version, .. } => self.damage.reads.agreed(*version),
            StateChange::Ready(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => {}
        }
        true
    }

    fn check_seal(&mut self, now: VirtualTime, seal: &Seal, is_repeated: bool) {
        let Self { damage, history, plans, verdicts, failure, .. } = self;
        let is_final = seal.verdict.is_final();
        if is_final {
            self.progressed_at = now;
        }
        verdicts.note(seal.verdict);
        plans.check_sealed(failure, seal.turn);
        history.check_order(failure, seal, is_repeated);
        if failure.0.is_some() || is_repeated {
            return;
        }
        verdicts.check_verdict(failure, damage, seal, history.is_logged(seal.turn.step));
        if is_final {
            let sums = history.acknowledge(seal);
            verdicts.check_sums(failure, history, seal, sums);
        }
    }

    fn check_rewind(&mut self, to: Step, reason: RewindReason, dropped: &[Step]) {
        self.rewinds.check(&mut self.failure, &self.damage, (to, reason), dropped);
        self.verdicts.rewind();
        self.damage.rewound(self.plans.newest());
    }

    fn note_members(&mut self, now: VirtualTime, changes: &[MemberChange]) {
        for change in changes {
            let MemberChange::Lost { holder, reason } = change else { continue };
            self.damage.gone(holder.node, now);
            if let LossReason::Untrusted { .. } = reason {
                self.damage.sent_away();
            }
        }
    }

    /// N1: the run is held for want of a version to go back to. It remembers the steps from `base`
    /// on, and has checkpoints of these versions: it cannot go back to its beginning, and none of
    /// them could be read.
    pub fn held_with_nothing_left(&mut self, base: Step, versions: &[Step]) {
        let reads = &self.damage.reads;
        let left = versions.iter().find(|version| !reads.is_given_up(**version)).copied();
        let left = left.or((base == Step(0)).then_some(base));
        if let Some(left) = left {
            self.failure.set(Invariant::N1, || {
                format!("the run is held, and can go back to version {left}")
            });
        }
    }

    /// A leader counted the message of a holder that is no member any more.
    pub fn note_counted(&mut self, sender: Option<Holder>) {
        self.failure.set(Invariant::S3, || {
            format!("a message of {sender:?} was counted, and it is fenced")
        });
    }

    /// A runtime accepted a frame while it had this plan.
    pub fn processed(
        &mut self,
        generation: Generation,
        sender: Holder,
        plan: Option<(Generation, Vec<Holder>)>,
    ) {
        frames::check_processed(&mut self.failure, (generation, sender), plan);
    }

    /// A runtime runs a program.
    pub fn runs(&mut self, record: &PlanRecord, plan: &Plan) {
        self.plans.runs(&mut self.failure, record, plan);
    }

    /// A node became the leader of a term.
    pub fn leads(&mut self, node: NodeId, term: u64) {
        self.leaders.leads(&mut self.failure, node, term);
    }

    /// A node holds these layers at a version, and breaks this invariant if they are wrong: N2 if a
    /// step was just rolled back there, else N1.
    pub fn holds(
        &mut self,
        invariant: Invariant,
        node: NodeId,
        version: Step,
        layers: &[LayerDigest],
    ) {
        states::check_held(&mut self.failure, &self.history, invariant, (node, version), layers);
    }

    /// A life of a node ends, and leaves a layer at this version; whether the node is a member of
    /// the cluster that there is now. The bits are compared when they are reported.
    pub fn keeps(&mut self, node: NodeId, version: Step, is_member: bool) {
        states::check_kept(&mut self.failure, &self.history, (node, version), is_member);
    }

    /// A checkpoint is referred to: it names the undisturbed run's bits, and the pieces that it
    /// names can be read. A piece that a fault damaged need not be readable.
    pub fn checkpoint(&mut self, store: &SimulatedStore, record: &CheckpointRecord) {
        checkpoints::check_checkpoint(&mut self.failure, &self.history, store, record);
    }

    /// Whether every layer of a version is in the store, with the undisturbed run's bits.
    #[must_use]
    pub fn is_restorable(&self, store: &SimulatedStore, version: Step) -> bool {
        checkpoints::is_restorable(&self.history, store, version)
    }

    /// The end: the seals that the log remembers are those that were acknowledged.
    pub fn audit(&mut self, base: Step, history: &[Seal]) {
        self.history.audit(&mut self.failure, base, history);
    }
}
