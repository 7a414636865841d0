//! What must hold, looked at after every event. One file for each kind of promise.

mod checkpoints;
mod frames;
mod history;
mod leaders;
mod plans;
mod states;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::state::Change;
use zbelastic_consensus::validation::{Seal, Verdict};
use zbelastic_types::{Generation, NodeId, Step};

use crate::failure::{Failure, Invariant};
use crate::queue::Moment;
use crate::reference::Reference;

/// What was seen, and what is wrong with it.
pub struct Checker {
    reference: Reference,
    spec: Arc<JobSpec>,
    /// Final seals, by step: what was ever acknowledged.
    acked: Vec<Seal>,
    /// What was applied at each index, and the state after it.
    seen: BTreeMap<u64, (u64, Option<u64>)>,
    leaders: BTreeMap<u64, NodeId>,
    plans: BTreeMap<Generation, Arc<PlanRecord>>,
    resumed: BTreeSet<Generation>,
    known_nodes: BTreeSet<NodeId>,
    refusals: BTreeMap<&'static str, u64>,
    disturbed: BTreeSet<NodeId>,
    verdicts: (Option<Verdict>, Option<Verdict>),
    is_leaderless: bool,
    was_leaderless: bool,
    /// The last entry that anybody had proposed when a majority of the voters went for good.
    last_possible: Option<u64>,
    moved_at: Moment,
    failure: Option<Failure>,
}

impl Checker {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(reference: Reference, spec: Arc<JobSpec>) -> Self {
        Self {
            reference,
            spec,
            acked: Vec::new(),
            seen: BTreeMap::new(),
            leaders: BTreeMap::new(),
            plans: BTreeMap::new(),
            resumed: BTreeSet::new(),
            known_nodes: BTreeSet::new(),
            refusals: BTreeMap::new(),
            disturbed: BTreeSet::new(),
            verdicts: (None, None),
            is_leaderless: false,
            was_leaderless: false,
            last_possible: None,
            moved_at: Moment(0),
            failure: None,
        }
    }

    /// The first thing that is wrong, once.
    pub fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// Steps sealed.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.acked.len() as u64
    }

    /// When a seal was last agreed on.
    #[must_use]
    pub fn moved_at(&self) -> Moment {
        self.moved_at
    }

    /// The verdict before the last one.
    #[must_use]
    pub fn verdict_before(&self) -> Option<Verdict> {
        self.verdicts.0
    }

    /// Whether the last seal belongs to the same plan as the one before it.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let mut last = self.acked.iter().rev().map(|seal| seal.turn.generation);
        last.next() == last.next()
    }

    /// An input was refused.
    pub fn refused(&mut self, name: &'static str) {
        *self.refusals.entry(name).or_default() += 1;
    }

    /// Something happened to a node that may cost it what it holds.
    pub fn disturbed(&mut self, node: NodeId) {
        self.disturbed.insert(node);
    }

    /// A majority of the voters is gone: nothing after `last_index` may be agreed on. What was
    /// proposed before may be, by answers that were on their way.
    pub fn quorum_is_lost(&mut self, last_index: u64) {
        self.last_possible = Some(last_index);
    }

    /// A node was admitted. Yields whether it had been a member before.
    pub fn admitted(&mut self, node: NodeId) -> bool {
        !self.known_nodes.insert(node)
    }

    /// A new cluster goes on from this version: what was sealed after it is to be sealed again.
    pub fn recovered_from(&mut self, version: Step) {
        self.acked.truncate(version.index());
        self.reference.rewind(&self.acked);
        self.seen.clear();
        self.leaders.clear();
        self.plans.clear();
        self.resumed.clear();
        self.last_possible = None;
    }

    fn fail(&mut self, invariant: Invariant, message: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(Failure::safety(invariant, message()));
        }
    }

    /// An entry was applied somewhere. Yields whether it was the first time.
    pub fn applied(
        &mut self,
        now: Moment,
        index: u64,
        change: &Change,
        state: Option<u64>,
    ) -> bool {
        if !self.check_same(index, change, state) {
            return false;
        }
        if self.last_possible.is_some_and(|last| index > last) {
            self.fail(Invariant::S6, || format!("#{index} agreed on without a majority"));
        }
        match change {
            Change::Sealed { seal, is_repeated, adopted } => {
                self.moved_at = now;
                self.check_seal(seal, *is_repeated);
                if let Some(plan) = adopted {
                    self.plans.insert(plan.generation, plan.clone());
                }
            }
            Change::Adopted(plan) | Change::Planned(plan) => self.adopted(plan),
            Change::Resumed(generation) => {
                self.resumed.insert(*generation);
            }
            Change::Rewound { .. } => self.check_rewind(change),
            Change::Members(_)
            | Change::Ready(_)
            | Change::Durable { .. }
            | Change::Checkpoint { .. }
            | Change::Job(_) => {}
        }
        true
    }
}
