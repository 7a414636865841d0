//! S1, S6: sealed history is one, grows by one, and is never lost.

use std::ops::Range;

use zbelastic_consensus::history::SealHistory;
use zbelastic_consensus::validation::{Seal, Verdict};
use zbelastic_types::{Digest, Step};

use super::FirstFailure;
use crate::failure::Invariant;
use crate::reference::LifeReference;
use crate::reference_sums::ReferenceSums;

/// The seals that were ever acknowledged, and the undisturbed run as far.
pub(super) struct HistoryChecker {
    reference: LifeReference,
    /// Final seals, by step: all that were ever acknowledged.
    acked: Vec<Seal>,
    /// The most that there ever were: a new cluster may go on from an earlier version.
    acked_most: u64,
    /// The versions that a cluster before had sealed, behind the one that the next went on from.
    sealed_anew: Range<u64>,
}

impl HistoryChecker {
    pub(super) fn new(reference: LifeReference) -> Self {
        Self { reference, acked: Vec::new(), acked_most: 0, sealed_anew: 0..0 }
    }

    /// How many steps are sealed.
    pub(super) fn sealed(&self) -> u64 {
        self.acked.len() as u64
    }

    /// How many steps were ever sealed, in whatever cluster.
    pub(super) fn sealed_most(&self) -> u64 {
        self.acked_most
    }

    /// Whether a cluster before had sealed this version, and this one went on from an older one.
    pub(super) fn is_sealed_anew(&self, version: Step) -> bool {
        self.sealed_anew.contains(&version.0)
    }

    /// Whether the log has a step.
    pub(super) fn is_logged(&self, step: Step) -> bool {
        step.0 < self.sealed()
    }

    /// The digests of a version in the undisturbed run, if it is that far.
    pub(super) fn version(&self, version: Step) -> Option<&[Digest]> {
        self.reference.version(version)
    }

    /// The seals before the last one, the newest first.
    pub(super) fn before_last(&self) -> impl Iterator<Item = &Seal> {
        self.acked.iter().rev().skip(1)
    }

    /// Whether the step before the last one was dropped.
    pub(super) fn was_skipped(&self) -> bool {
        self.before_last().next().is_some_and(|seal| seal.verdict == Verdict::Skip)
    }

    /// S1: steps are sealed in order, each once; a repetition holds the same (S6).
    pub(super) fn check_order(&self, failure: &mut FirstFailure, seal: &Seal, is_repeated: bool) {
        let step = seal.turn.step.0;
        let head = self.sealed();
        if !seal.verdict.is_final() {
            if step > head {
                failure
                    .set(Invariant::S1, || format!("step {step} is run before {head} is sealed"));
            }
            return;
        }
        if is_repeated {
            if !self.agrees(seal) {
                failure.set(Invariant::S6, || format!("step {step} was sealed otherwise before"));
            }
        } else if step < head {
            failure
                .set(Invariant::S6, || format!("step {step} is sealed again, its seal was lost"));
        } else if step > head {
            failure.set(Invariant::S1, || format!("step {step} is sealed, {head} is not"));
        }
    }

    /// A step is sealed for good. Yields its sums in the undisturbed run.
    pub(super) fn acknowledge(&mut self, seal: &Seal) -> ReferenceSums {
        self.acked.push(*seal);
        self.acked_most = self.acked_most.max(self.sealed());
        self.reference.advance(seal)
    }

    /// A new cluster goes on from this version: the steps that were sealed after it are to be
    /// sealed again.
    pub(super) fn rewind(&mut self, version: Step) {
        self.sealed_anew = version.next().0..self.acked_most + 1;
        self.acked.truncate(version.index());
        self.reference.rewind(&self.acked);
    }

    /// The end: the seals that the log remembers are those that were acknowledged.
    pub(super) fn audit(&self, failure: &mut FirstFailure, base: Step, history: &[Seal]) {
        let head = base.0 + history.len() as u64;
        let acked = self.sealed();
        if head != acked {
            failure.set(Invariant::S6, || format!("the log ends at {head}, acknowledged: {acked}"));
        }
        if let Some(seal) = history.iter().find(|seal| !self.agrees(seal)) {
            failure.set(Invariant::S6, || format!("{} is not what was acknowledged", seal.turn));
        }
    }

    fn agrees(&self, seal: &Seal) -> bool {
        let known = self.acked.get(seal.turn.step.index());
        known.is_some_and(|known| SealHistory::agrees(known, seal))
    }
}
