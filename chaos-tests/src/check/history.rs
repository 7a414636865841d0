//! S1, S2, S6, D1, L3: sealed history is one, grows by one, and is never lost.

use zbelastic_consensus::history::History;
use zbelastic_consensus::state::Change;
use zbelastic_consensus::validation::Seal;
use zbelastic_types::Step;

use super::Checker;
use crate::digest_model::mix_bytes;
use crate::failure::Invariant;

impl Checker {
    /// S2: what is applied at an index is the same everywhere. Yields whether it is the first time.
    pub(super) fn check_same(&mut self, index: u64, change: &Change, state: Option<u64>) -> bool {
        let found = mix_bytes(format!("{change:?}").as_bytes());
        let before = self.seen.get(&index).copied();
        let known_state = before.and_then(|(_, known)| known).or(state);
        self.seen.insert(index, (found, known_state));
        let is_same_state = state.is_none() || state == known_state;
        match before {
            None => true,
            Some((known, _)) if known == found && is_same_state => false,
            Some(_) => {
                self.fail(Invariant::S2, || format!("#{index} is not the same: {change:?}"));
                false
            }
        }
    }

    /// S1 and D1: steps are sealed in order, each once; a repetition says the same (S6).
    pub(super) fn check_order(&mut self, seal: &Seal, is_repeated: bool) {
        let (step, head) = (seal.turn.step.0, self.acked.len() as u64);
        if !seal.verdict.is_final() {
            if step > head {
                self.fail(Invariant::S1, || format!("step {step} is run before {head} is sealed"));
            }
            return;
        }
        if is_repeated {
            let known = self.acked.get(step as usize);
            if !known.is_some_and(|known| History::agrees(known, seal)) {
                self.fail(Invariant::S6, || format!("step {step} was sealed otherwise before"));
            }
        } else if step < head {
            self.fail(Invariant::S6, || format!("step {step} is sealed again, its seal was lost"));
        } else if step > head {
            self.fail(Invariant::S1, || format!("step {step} is sealed, {head} is not"));
        }
    }

    /// L3: a run goes back only if something happened that may cost a layer.
    pub(super) fn check_rewind(&mut self, change: &Change) {
        if self.disturbed.is_empty() && self.spec.attest_every == 0 {
            self.fail(Invariant::L3, || format!("nobody was disturbed, yet {change:?}"));
        }
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
            !known.is_some_and(|known| History::agrees(known, seal))
        });
        if let Some(seal) = differing.copied() {
            self.fail(Invariant::S6, || format!("{} is not what was acknowledged", seal.turn));
        }
    }
}
