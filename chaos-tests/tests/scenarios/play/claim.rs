//! What must have come of a play.

use std::collections::BTreeSet;

use chaos_tests::digest_reference::{DigestReference, GradientAddends};
use zbelastic_consensus::member::{Holder, LossReason, MemberChange};
use zbelastic_consensus::plan::{PlanRecord, Promise};
use zbelastic_consensus::state::{EntryRefusal, StateChange, copied_layers};
use zbelastic_consensus::validation::{Seal, SealRefusal};
use zbelastic_trainer::elastic::LayerCopy;
use zbelastic_trainer::stage::SealedState;
use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use super::Play;
use super::cast::STEPS;

/// Floats of weights and moments of a layer of the model in hashes.
const LAYER_FLOATS: usize = 9;

/// What must have come of a play.
#[derive(Clone, Copy, Debug)]
pub enum PlayClaim {
    /// Every seal has the bits it has if nothing happens, and every layer ends as in a serial run.
    SameAsUndisturbed,
    /// No step was begun more than once.
    NoRollback,
    /// These steps were begun more than once, and no others.
    Redone(&'static [u64]),
    /// The steps begun more than once are those behind a verdict of this name.
    RedoneAfter(&'static str),
    /// So many plans were adopted.
    Plans(usize),
    /// The plans promised this about a copy of each update, one after the other.
    Promises(&'static [Promise]),
    /// The newest checkpoint is this version.
    Checkpoint(u64),
    /// The run never went back to a checkpoint.
    NoRewind,
    /// It went back once, to this version.
    RewoundTo(u64),
    /// These steps were sealed again, with the bits they had been sealed with.
    SealedAgain(&'static [u64]),
    /// A step was sealed by the entry at this index.
    SealedAt { step: u64, index: u64 },
    /// A step was not sealed by the entry at this index.
    NotSealedAt { step: u64, index: u64 },
    /// The verdicts on a step, one after the other.
    Verdicts(u64, &'static [&'static str]),
    /// A seal of another plan was in the log and changed nothing when it was applied (rule R2).
    LateSealIgnored,
    /// Something was dropped under this word.
    Refused(&'static str),
    /// A node was admitted so often.
    Admitted(NodeId, usize),
    /// All layers that moved since the first plan moved ahead of a plan, and no more of them than
    /// any seating of the same stages would have moved.
    MovedAhead,
    /// Layers moved when a plan began.
    MovedAtOnce,
    /// A node is counted on no more, for it was to go.
    Drained(NodeId),
    /// A node was found to be wrong, and is not admitted again.
    Quarantined(NodeId),
}

impl Play {
    /// # Panics
    /// If the claim does not hold.
    pub fn expect(&self, claim: PlayClaim) {
        let record = &self.record;
        match claim {
            PlayClaim::SameAsUndisturbed => self.expect_same(),
            PlayClaim::NoRollback => {
                assert_eq!(record.redone(), [0; 0], "steps begun more than once")
            }
            PlayClaim::Redone(steps) => {
                assert_eq!(record.redone(), steps, "steps begun more than once");
            }
            PlayClaim::RedoneAfter(name) => {
                let seals = record.seals().map(|(_, seal, _)| seal);
                let overruled = seals.filter(|seal| seal.verdict.name() == name);
                let behind: Vec<u64> = overruled.map(|seal| seal.turn.step.0 + 1).collect();
                assert_eq!(record.redone(), behind, "steps begun more than once");
            }
            PlayClaim::Plans(count) => assert_eq!(self.plans().len(), count, "plans adopted"),
            PlayClaim::Promises(promises) => {
                let found: Vec<_> = self.plans().iter().map(|plan| plan.promise).collect();
                assert_eq!(found, promises, "promises of the plans");
            }
            PlayClaim::Checkpoint(version) => {
                assert_eq!(self.checkpoint(), Some(version), "the newest checkpoint");
            }
            PlayClaim::NoRewind => assert_eq!(self.rewinds(), [0; 0], "versions gone back to"),
            PlayClaim::RewoundTo(version) => assert_eq!(self.rewinds(), [version], "gone back to"),
            PlayClaim::SealedAgain(steps) => {
                let again = record.seals().filter(|(_, _, is_repeated)| *is_repeated);
                let found: Vec<u64> = again.map(|(_, seal, _)| seal.turn.step.0).collect();
                assert_eq!(found, steps, "steps sealed again");
            }
            PlayClaim::SealedAt { step, index } => assert_eq!(self.sealed_at(step), [index]),
            PlayClaim::NotSealedAt { step, index } => assert_ne!(self.sealed_at(step), [index]),
            PlayClaim::Verdicts(step, names) => {
                let of_step = record.seals().filter(|(_, seal, _)| seal.turn.step == Step(step));
                let found: Vec<_> = of_step.map(|(_, seal, _)| seal.verdict.name()).collect();
                let all: Vec<_> = self.final_seals().iter().map(|s| s.verdict.name()).collect();
                assert_eq!(found, names, "verdicts on step {step}, of {all:?}");
            }
            PlayClaim::LateSealIgnored => self.expect_late_seal_ignored(),
            PlayClaim::Refused(name) => {
                let found = record.refusals();
                assert!(record.refusals_of(name) > 0, "nothing was {name}, but {found:?}");
            }
            PlayClaim::Admitted(node, count) => {
                assert_eq!(self.admissions(node), count, "admissions of node {node}");
            }
            PlayClaim::MovedAhead => self.expect_moved_ahead(),
            PlayClaim::MovedAtOnce => {
                assert!(record.floats_sent().1 > 0, "nothing moved when a plan began");
            }
            PlayClaim::Drained(node) => {
                let is_it = |change: &MemberChange| match change {
                    MemberChange::Lost { holder, reason: LossReason::Drained } => {
                        holder.node == node
                    }
                    MemberChange::Lost { .. }
                    | MemberChange::Admit { .. }
                    | MemberChange::Moved { .. }
                    | MemberChange::Drain { .. } => false,
                };
                assert!(self.member_changes().any(is_it), "node {node} is counted on");
            }
            PlayClaim::Quarantined(node) => self.expect_quarantined(node),
        }
    }

    /// Steps that were begun more than once.
    pub fn redone(&self) -> Vec<u64> {
        self.record.redone()
    }

    fn expect_same(&self) {
        let expected = Play::undisturbed(self.cast.clone());
        let found: Vec<Seal> = self.final_seals();
        for (found, expected) in found.iter().zip(expected.final_seals()) {
            let turn = expected.turn;
            let expected = Seal { turn: found.turn, reason: found.reason, ..expected };
            assert_eq!(*found, expected, "sealed otherwise than if nothing happens: {turn}");
        }
        assert_eq!(found.len() as u64, STEPS, "every step is sealed once");
        let addends =
            GradientAddends::of(self.script.spec.microbatch_count, &self.script.stage.plan);
        let mut reference = DigestReference::with_addends(self.script.shape.clone(), addends);
        for seal in &found {
            let sums = reference.advance(seal);
            assert_eq!(sums.loss_sum.to_bits(), seal.loss_sum_bits, "loss of {}", seal.turn);
        }
        let end = reference.version(Step(STEPS)).expect("it went that far");
        let mut layers = 0;
        for (node, active) in self.active_stages() {
            for (layer, digest) in active.engine().executor().digests() {
                assert_eq!(digest, end[layer.index()], "layer {layer} on worker {node}");
                layers += 1;
            }
            for copy in active.copies() {
                let layer = copy.layer();
                assert_eq!(copy.digest(), end[layer.index()], "copy of {layer} on worker {node}");
            }
        }
        assert_eq!(layers, end.len(), "every layer has one owner");
    }

    /// Every plan but the first is compared with all orders of its holders. All layers of the model
    /// in hashes are of one size.
    fn expect_moved_ahead(&self) {
        let plans = self.plans();
        let least: usize = plans.windows(2).map(|pair| least_moved(pair[0], pair[1])).sum();
        let (ahead, at_once) = self.record.floats_sent();
        assert_eq!(at_once, 0, "floats moved when a plan began");
        assert!(ahead > 0, "something had to move");
        let ratio = ahead as f64 / (least * LAYER_FLOATS) as f64;
        assert!(ratio <= 1.1, "{ahead} floats moved, {ratio} times as many as had to");
    }

    /// What became of each step in the end, the first time that it was sealed.
    fn final_seals(&self) -> Vec<Seal> {
        let first = self
            .record
            .seals()
            .filter(|(_, seal, is_repeated)| seal.verdict.is_final() && !is_repeated);
        first.map(|(_, seal, _)| *seal).collect()
    }

    fn sealed_at(&self, step: u64) -> Vec<u64> {
        let of_step = self.record.seals().filter(|(_, seal, _)| seal.turn.step == Step(step));
        of_step.map(|(index, _, _)| index).collect()
    }

    fn plans(&self) -> Vec<&PlanRecord> {
        let plans = self.record.changes().filter_map(|(_, change)| match change {
            StateChange::Adopted(plan) => Some(&**plan),
            StateChange::Sealed { adopted, .. } => adopted.as_deref(),
            StateChange::Members(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => None,
        });
        plans.collect()
    }

    fn rewinds(&self) -> Vec<u64> {
        let rewinds = self.record.changes().filter_map(|(_, change)| match change {
            StateChange::Rewound { to, .. } => Some(to.0),
            StateChange::Members(_)
            | StateChange::Adopted(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Sealed { .. }
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => None,
        });
        rewinds.collect()
    }

    fn member_changes(&self) -> impl Iterator<Item = &MemberChange> {
        let changes = self.record.changes().map(|(_, change)| match change {
            StateChange::Members(changes) => &changes[..],
            StateChange::Adopted(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Sealed { .. }
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => &[],
        });
        changes.flatten()
    }

    fn admissions(&self, of: NodeId) -> usize {
        let is_it = |change: &&MemberChange| match change {
            MemberChange::Admit { node, .. } => *node == of,
            MemberChange::Lost { .. } | MemberChange::Drain { .. } | MemberChange::Moved { .. } => {
                false
            }
        };
        self.member_changes().filter(is_it).count()
    }

    fn expect_quarantined(&self, node: NodeId) {
        let is_untrusted = |change: &MemberChange| match change {
            MemberChange::Lost { holder, reason: LossReason::Untrusted { .. } } => {
                holder.node == node
            }
            MemberChange::Lost { .. }
            | MemberChange::Admit { .. }
            | MemberChange::Drain { .. }
            | MemberChange::Moved { .. } => false,
        };
        assert!(self.member_changes().any(is_untrusted), "node {node} is not found to be wrong");
        let state = self.state().expect("a controller is up");
        assert!(state.membership().quarantined().contains(&node), "node {node} may come back");
    }

    fn expect_late_seal_ignored(&self) {
        let is_late = |(entry, refusal): &(&str, EntryRefusal)| {
            let is_other = matches!(
                refusal,
                EntryRefusal::OtherGeneration { .. }
                    | EntryRefusal::Seal(SealRefusal::OtherGeneration { .. })
            );
            *entry == "seal" && is_other
        };
        let found: Vec<_> = self.record.ignored_entries().collect();
        assert!(found.iter().any(|ignored| is_late(ignored)), "no late seal in {found:?}");
    }
}

/// Layers that have to move from one plan to the next at least, whichever holder stands at which
/// stage.
fn least_moved(before: &PlanRecord, next: &PlanRecord) -> usize {
    let needed = |plan: &PlanRecord, stage: StageIndex| -> BTreeSet<LayerId> {
        plan.layers_of(stage).chain(copied_layers(plan, stage)).collect()
    };
    let held = |holder: Holder| {
        before.stage_of(holder).map_or_else(BTreeSet::new, |stage| needed(before, stage))
    };
    let held: Vec<_> = next.stages.iter().map(|holder| held(*holder)).collect();
    let needed: Vec<_> = next.stage_indices().map(|stage| needed(next, stage)).collect();
    orders(held.len())
        .into_iter()
        .map(|order| {
            let assignments = needed.iter().zip(&order);
            assignments.map(|(needed, from)| needed.difference(&held[*from]).count()).sum()
        })
        .min()
        .expect("there is an order")
}

/// All orders of so many.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
    let with = |order: Vec<usize>| {
        (0..count).map(move |at| {
            let mut order = order.clone();
            order.insert(at, last);
            order
        })
    };
    orders(last).into_iter().flat_map(with).collect()
}
