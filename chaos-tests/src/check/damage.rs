//! The faults that had an effect on the cluster: the excuses for events that must not happen
//! otherwise.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::validation::Turn;
use zbelastic_types::{NodeId, Step};

use crate::numeric_faults::NumericFault;
use crate::queue::VirtualTime;

/// The faults that had an effect so far.
#[derive(Debug, Default)]
pub struct DamageRecord {
    /// Until when something last kept a node from its work, or removed the state that it holds.
    disturbed_until: BTreeMap<NodeId, VirtualTime>,
    /// When a bit of a node's state flipped last.
    flipped_at: BTreeMap<NodeId, VirtualTime>,
    /// Turns in which a gradient that is not finite was reported.
    marked: BTreeSet<Turn>,
    /// Wrong sums that were reported.
    wrong_sums: u64,
    /// Bits of states that flipped, and rewinds that were attributed to one.
    flips: u64,
    flips_found: u64,
    /// Whether a piece of a checkpoint was damaged.
    is_store_damaged: bool,
    /// Reads of a piece that came to nothing.
    reads_failed: usize,
    /// Reads since a plan last ran that came to nothing because nobody ran who keeps the piece.
    keepers_away: usize,
}

impl DamageRecord {
    /// Something keeps a node from its work until then, or removed the state that it holds.
    pub fn disturbed(&mut self, node: NodeId, until: VirtualTime) {
        let known = self.disturbed_until.entry(node).or_insert(until);
        *known = (*known).max(until);
    }

    /// A fault of numbers changed the numbers that a node reports of a turn.
    pub fn spoiled(&mut self, node: NodeId, now: VirtualTime, turn: Turn, fault: NumericFault) {
        match fault {
            NumericFault::Mark(..) => {
                self.marked.insert(turn);
            }
            NumericFault::SumFactor(_) => self.wrong_sums += 1,
            NumericFault::StateFlip(_) => {
                self.flips += 1;
                self.flipped_at.insert(node, now);
            }
        }
    }

    /// A piece of a checkpoint was damaged.
    pub fn store_damaged(&mut self) {
        self.is_store_damaged = true;
    }

    /// A piece of a checkpoint could not be read this time.
    pub fn read_failed(&mut self) {
        self.reads_failed += 1;
    }

    /// A piece could not be read this time, for no process ran on the machines that keep it.
    pub fn keepers_away(&mut self) {
        self.keepers_away += 1;
    }

    /// A plan runs: nobody was away for too long.
    pub fn keepers_are_back(&mut self) {
        self.keepers_away = 0;
    }

    /// How often a piece could not be read.
    #[must_use]
    pub fn reads_failed(&self) -> usize {
        self.reads_failed + self.keepers_away
    }

    /// Whether something happened to a node at this moment or later.
    pub(super) fn is_disturbed_since(&self, node: NodeId, since: VirtualTime) -> bool {
        self.disturbed_until.get(&node).is_some_and(|until| *until >= since)
    }

    /// Whether something happened to `witness` since a bit of the node's state flipped.
    #[must_use]
    pub fn is_witness_lost(&self, node: NodeId, witness: NodeId) -> bool {
        let flipped_at = self.flipped_at.get(&node);
        flipped_at.is_some_and(|flipped_at| self.is_disturbed_since(witness, *flipped_at))
    }

    /// Whether a gradient that is not finite was reported for this turn.
    pub(super) fn is_marked(&self, turn: Turn) -> bool {
        self.marked.contains(&turn)
    }

    /// Attempts of a step for which a gradient that is not finite was reported.
    #[must_use]
    pub fn marks_of(&self, step: Step) -> usize {
        self.marked.iter().filter(|turn| turn.step == step).count()
    }

    /// Whether a state was wrong at some time.
    pub(super) fn has_flipped(&self) -> bool {
        self.flips > 0
    }

    /// Whether two nodes may have reported one thing differently.
    #[must_use]
    pub fn is_contradicted(&self) -> bool {
        self.wrong_sums + self.flips > 0
    }

    pub(super) fn is_store_damaged(&self) -> bool {
        self.is_store_damaged || self.reads_failed() > 0
    }

    /// Attributes a rewind to a flipped bit. Yields whether there is one left.
    pub(super) fn take_flip(&mut self) -> bool {
        let is_there = self.flips_found < self.flips;
        self.flips_found += u64::from(is_there);
        is_there
    }
}
