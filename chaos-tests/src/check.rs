//! What must hold, looked at after every event. One file for each kind of promise.

mod checkpoints;
mod damage;
mod frames;
mod history;
mod leaders;
mod plans;
mod states;
#[cfg(test)]
mod tests;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::state::StateChange;
use zbelastic_consensus::validation::{Seal, Turn, Verdict};
use zbelastic_types::{Generation, NodeId, Step};

pub use self::checkpoints::named_pieces;
use self::damage::DamageRecord;
use crate::failure::{Invariant, LifeFailure};
use crate::queue::VirtualTime;
use crate::reference::LifeReference;

/// What was seen, and what is wrong with it.
pub struct InvariantChecker {
    reference: LifeReference,
    spec: Arc<JobSpec>,
    /// Final seals, by step: what was ever acknowledged.
    acked: Vec<Seal>,
    /// What was applied at each index, and the state after it.
    seen: BTreeMap<u64, (u64, Option<u64>)>,
    leaders: BTreeMap<u64, NodeId>,
    plans: BTreeMap<Generation, Arc<PlanRecord>>,
    /// Plans that were begun to load, and when.
    adopted: BTreeMap<Generation, VirtualTime>,
    resumed: BTreeSet<Generation>,
    /// The last plan that ran, and when it was adopted.
    ran: Option<(Arc<PlanRecord>, VirtualTime)>,
    /// Whether the run went back since.
    is_rewound: bool,
    damage: DamageRecord,
    verdicts: (Option<Verdict>, Option<Verdict>),
    /// Replays of the open step so far.
    replays: u32,
    /// The turn that was open when a majority of the voters was down last.
    quorum_lost_in: Option<Turn>,
    /// The last entry that any leader had proposed when a majority of the voters went for good.
    last_possible: Option<u64>,
    progressed_at: VirtualTime,
    failure: Option<LifeFailure>,
}

impl InvariantChecker {
    /// A checker that has seen nothing yet.
    #[must_use]
    pub fn new(reference: LifeReference, spec: Arc<JobSpec>) -> Self {
        Self {
            reference,
            spec,
            acked: Vec::new(),
            seen: BTreeMap::new(),
            leaders: BTreeMap::new(),
            plans: BTreeMap::new(),
            adopted: BTreeMap::new(),
            resumed: BTreeSet::new(),
            ran: None,
            is_rewound: false,
            damage: DamageRecord::default(),
            verdicts: (None, None),
            replays: 0,
            quorum_lost_in: None,
            last_possible: None,
            progressed_at: VirtualTime(0),
            failure: None,
        }
    }

    /// The first thing that is wrong, once.
    pub fn take_failure(&mut self) -> Option<LifeFailure> {
        self.failure.take()
    }

    /// How many steps are sealed.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.acked.len() as u64
    }

    /// When a step was last sealed for the first time.
    #[must_use]
    pub fn progressed_at(&self) -> VirtualTime {
        self.progressed_at
    }

    /// The verdict before the last one.
    #[must_use]
    pub fn verdict_before(&self) -> Option<Verdict> {
        self.verdicts.0
    }

    /// A majority of the voters is gone: nothing after `last_index` may be agreed on. What was
    /// proposed before may be, by answers that were in flight.
    pub fn quorum_is_lost(&mut self, last_index: u64) {
        self.last_possible = Some(last_index);
    }

    /// A new cluster goes on from this version: what was sealed after it is to be sealed again.
    pub fn recovered_from(&mut self, version: Step) {
        self.acked.truncate(version.index());
        self.reference.rewind(&self.acked);
        self.seen.clear();
        self.leaders.clear();
        self.plans.clear();
        self.adopted.clear();
        self.resumed.clear();
        (self.ran, self.is_rewound) = (None, false);
        (self.replays, self.quorum_lost_in) = (0, None);
        self.last_possible = None;
    }

    fn fail(&mut self, invariant: Invariant, message: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(LifeFailure::safety(invariant, message()));
        }
    }

    /// An entry changed nothing somewhere, and why.
    pub fn refused(&mut self, index: u64, refusal: &str) {
        self.check_same(index, refusal, None);
    }

    /// An entry was applied somewhere. Yields whether it was the first time.
    pub fn applied(
        &mut self,
        now: VirtualTime,
        index: u64,
        change: &StateChange,
        state: Option<u64>,
    ) -> bool {
        if !self.check_same(index, &format!("{change:?}"), state) {
            return false;
        }
        if self.last_possible.is_some_and(|last| index > last) {
            self.fail(Invariant::S6, || format!("#{index} agreed on without a majority"));
        }
        match change {
            StateChange::Sealed { seal, is_repeated, adopted } => {
                if seal.verdict.is_final() {
                    self.progressed_at = now;
                }
                self.check_seal(seal, *is_repeated);
                if let Some(plan) = adopted {
                    self.planned(plan);
                    self.adopted.insert(plan.generation, now);
                }
            }
            StateChange::Planned(plan) => self.planned(plan),
            StateChange::Adopted(plan) => {
                self.planned(plan);
                self.adopted.insert(plan.generation, now);
            }
            StateChange::Resumed(generation) => {
                self.resumed.insert(*generation);
                // A holder that is ready may die before the plan runs.
                let plan = self.plans.get(generation).zip(self.adopted.get(generation));
                self.ran = plan.map(|(plan, since)| (plan.clone(), *since));
                self.is_rewound = false;
            }
            StateChange::Rewound { reason, .. } => {
                self.check_rewind(*reason);
                (self.replays, self.is_rewound) = (0, true);
            }
            StateChange::Members(_)
            | StateChange::Ready(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => {}
        }
        true
    }
}
