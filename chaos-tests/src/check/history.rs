//! S1, S2, S6, L3: sealed history is one, grows by one, and is never lost.

use zbelastic_consensus::Holder;
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::history::SealHistory;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::validation::Seal;
use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use super::InvariantChecker;
use crate::digest_model::mix_bytes;
use crate::failure::Invariant;

impl InvariantChecker {
    /// S2: what comes of an index is the same everywhere. Yields whether it is the first time.
    pub(super) fn check_same(&mut self, index: u64, what: &str, state: Option<u64>) -> bool {
        let found = mix_bytes(what.as_bytes());
        let before = self.seen.get(&index).copied();
        let known_state = before.and_then(|(_, known)| known).or(state);
        self.seen.insert(index, (found, known_state));
        let is_same_state = state.is_none() || state == known_state;
        match before {
            None => true,
            Some((known, _)) if known == found && is_same_state => false,
            Some(_) => {
                self.fail(Invariant::S2, || format!("#{index} is not the same: {what}"));
                false
            }
        }
    }

    /// S1: steps are sealed in order, each once; a repetition holds the same (S6).
    pub(super) fn check_order(&mut self, seal: &Seal, is_repeated: bool) {
        let step = seal.turn.step.0;
        let head = self.acked.len() as u64;
        if !seal.verdict.is_final() {
            if step > head {
                self.fail(Invariant::S1, || format!("step {step} is run before {head} is sealed"));
            }
            return;
        }
        if is_repeated {
            let known = self.acked.get(step as usize);
            if !known.is_some_and(|known| SealHistory::agrees(known, seal)) {
                self.fail(Invariant::S6, || format!("step {step} was sealed otherwise before"));
            }
        } else if step < head {
            self.fail(Invariant::S6, || format!("step {step} is sealed again, its seal was lost"));
        } else if step > head {
            self.fail(Invariant::S1, || format!("step {step} is sealed, {head} is not"));
        }
    }

    /// L3: a run goes back only for a layer that all its holders have lost, or for a state that is
    /// wrong.
    pub(super) fn check_rewind(&mut self, reason: RewindReason) {
        let is_excused = match reason {
            RewindReason::LayerLost { layer } => self.is_lost(layer),
            RewindReason::StateDiffers { .. } => self.take_flip(),
            // No operator orders it in a life.
            RewindReason::Ordered => false,
        };
        if !is_excused {
            self.fail(Invariant::L3, || format!("the run goes back without need: {reason:?}"));
        }
    }

    /// The holders of copies of a layer that this node owns in the last plan that ran.
    pub fn witnesses(&self, node: NodeId, layer: LayerId) -> impl Iterator<Item = Holder> + '_ {
        let plan = self.ran.iter().map(|(plan, _)| plan);
        plan.flat_map(move |plan| {
            let stage = stage_of(plan, layer);
            let is_owner = plan.stages[stage.index()].node == node;
            plan.copy_holders(stage).filter(move |_| is_owner)
        })
    }

    /// Whether something happened to every holder of a layer when the last plan ran. A run that
    /// went back since has its layers from the store.
    fn is_lost(&self, layer: LayerId) -> bool {
        let Some((plan, since)) = self.ran.as_ref().filter(|_| !self.is_rewound) else {
            return self.is_store_damaged();
        };
        let stage = stage_of(plan, layer);
        plan.holders_of(stage).all(|holder| self.is_disturbed_since(holder.node, *since))
    }

    /// The end: what the log remembers is what was acknowledged.
    pub fn audit(&mut self, base: Step, history: &[Seal]) {
        let head = base.0 + history.len() as u64;
        if head != self.acked.len() as u64 {
            let acked = self.acked.len();
            self.fail(Invariant::S6, || format!("the log ends at {head}, acknowledged: {acked}"));
        }
        let differing = history.iter().find(|seal| {
            let known = self.acked.get(seal.turn.step.index());
            !known.is_some_and(|known| SealHistory::agrees(known, seal))
        });
        if let Some(seal) = differing.copied() {
            self.fail(Invariant::S6, || format!("{} is not what was acknowledged", seal.turn));
        }
    }
}

fn stage_of(plan: &PlanRecord, layer: LayerId) -> StageIndex {
    let mut stages = plan.stage_indices();
    let stage = stages.find(|stage| plan.layers_of(*stage).any(|of| of == layer));
    stage.expect("every layer stands somewhere")
}
