//! The faults that had an effect on the cluster: the excuses for events that must not happen
//! otherwise. Each excuse ends with its cause:
//!
//! | what happened | what it excuses | until |
//! |---|---|---|
//! | a worker's process ended, or the log declared the worker lost | L3: the run goes back for a layer that all its holders lost so | a plan that is adopted later runs |
//! | a gradient that is not finite was reported | N5: that very turn is dropped, or run again; N1: the run is held for its step, if every attempt had one | the run goes back |
//! | a wrong sum or a wrong state was reported | N1: the run is held because two nodes contradicted each other in more plans than are allowed to a pair | a node is sent away as not trusted |
//! | a bit of a layer's state flipped | L3: the run goes back for that layer | the run goes back, or a plan is adopted while no worker holds that state any more |
//! | a worker could not read a piece of a checkpoint, and reported it | L3, N1: that checkpoint is given up, once this was so in as many plans as a leader tries | a plan runs, or the checkpoint is agreed on again |
//!
//! A new cluster begins without any.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::duty::PAIR_CONTRADICTIONS_MAX;
use zbelastic_consensus::validation::Turn;
use zbelastic_types::{Generation, LayerId, NodeId, Step};

use super::missed_reads::MissedReads;
use crate::numeric_faults::NumericFault;
use crate::queue::VirtualTime;

/// The faults that had an effect, and still excuse what must not happen otherwise.
#[derive(Debug, Default)]
pub struct DamageRecord {
    /// When a node's process last ended, or the log last declared it lost.
    gone_at: BTreeMap<NodeId, VirtualTime>,
    /// When a bit of a node's state flipped last.
    flipped_at: BTreeMap<NodeId, VirtualTime>,
    /// Layers with a flipped bit that was reported and is not mended.
    flipped: BTreeSet<LayerId>,
    /// Turns since the run last went back in which a gradient that is not finite was reported.
    marked: BTreeSet<Turn>,
    /// The plans in which each node reported wrong numbers since one was last sent away.
    wrong: BTreeMap<NodeId, BTreeSet<Generation>>,
    /// The plan from which the run last went back: reports of it change nothing any more.
    rewound: Option<Generation>,
    /// The checkpoints that could not be read.
    pub reads: MissedReads,
}

impl DamageRecord {
    /// A node's process ended, or the log declared the node lost: nothing is requested of it any
    /// more.
    pub fn gone(&mut self, node: NodeId, now: VirtualTime) {
        self.gone_at.insert(node, now);
    }

    /// A fault of numbers changed the numbers that a node reports of a turn; the layer with a
    /// flipped bit in its state, if there is one.
    pub fn spoiled(
        &mut self,
        (node, now): (NodeId, VirtualTime),
        turn: Turn,
        fault: NumericFault,
        flipped: Option<LayerId>,
    ) {
        if self.rewound.is_some_and(|rewound| turn.generation <= rewound) {
            return;
        }
        match fault {
            NumericFault::Mark(..) => {
                self.marked.insert(turn);
                return;
            }
            NumericFault::SumFactor(_) => {}
            NumericFault::StateFlip(_) => {
                self.flipped.extend(flipped);
                self.flipped_at.insert(node, now);
            }
        }
        self.wrong.entry(node).or_default().insert(turn.generation);
    }

    /// A plan is adopted while workers hold these layers with a flipped bit. A leader forgets what
    /// it found under the plan before.
    pub fn adopted(&mut self, held: &BTreeSet<LayerId>) {
        self.flipped.retain(|layer| held.contains(layer));
    }

    /// The run went back from the plan of this generation: nothing in memory is believed.
    pub(super) fn rewound(&mut self, generation: Option<Generation>) {
        self.rewound = self.rewound.max(generation);
        self.flipped.clear();
        self.marked.clear();
    }

    /// A node is not trusted any more: its contradictions speak against no other node.
    pub(super) fn sent_away(&mut self) {
        self.wrong.clear();
    }

    /// Whether a node's process ended at this moment or later, or the node was declared lost.
    pub(super) fn is_gone_since(&self, node: NodeId, since: VirtualTime) -> bool {
        self.gone_at.get(&node).is_some_and(|at| *at >= since)
    }

    /// Whether `witness` is gone since a bit of the node's state flipped.
    #[must_use]
    pub fn is_witness_lost(&self, node: NodeId, witness: NodeId) -> bool {
        let flipped_at = self.flipped_at.get(&node);
        flipped_at.is_some_and(|flipped_at| self.is_gone_since(witness, *flipped_at))
    }

    /// Whether a gradient that is not finite was reported for this turn.
    pub(super) fn is_marked(&self, turn: Turn) -> bool {
        self.marked.contains(&turn)
    }

    /// Attempts of a step, since the run last went back, for which a gradient that is not finite
    /// was reported.
    #[must_use]
    pub fn marks_of(&self, step: Step) -> usize {
        self.marked.iter().filter(|turn| turn.step == step).count()
    }

    /// Whether a layer has a flipped bit that was reported and is not mended.
    pub(super) fn is_flipped(&self, layer: LayerId) -> bool {
        self.flipped.contains(&layer)
    }

    /// Whether two nodes may have contradicted each other in more plans than are allowed to a pair.
    /// What is found within one plan counts once.
    #[must_use]
    pub fn is_contradicted(&self) -> bool {
        let plans: Vec<_> = self.wrong.values().collect();
        let is_too_many = |count: usize| count > PAIR_CONTRADICTIONS_MAX as usize;
        plans.iter().enumerate().any(|(index, one)| {
            let with_others = plans[index + 1..].iter().any(|other| {
                let other = other.iter().filter(|generation| !one.contains(*generation));
                is_too_many(one.len() + other.count())
            });
            is_too_many(one.len()) || with_others
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use zbelastic_consensus::duty::PAIR_CONTRADICTIONS_MAX;
    use zbelastic_consensus::validation::Turn;
    use zbelastic_types::{Attempt, Generation, LayerId, NodeId, Step};

    use super::DamageRecord;
    use crate::numeric_faults::NumericFault;
    use crate::queue::VirtualTime;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);

    fn turn(generation: u64, attempt: u32, step: u64) -> Turn {
        let generation = Generation(generation);
        Turn { generation, attempt: Attempt(attempt), step: Step(step) }
    }

    /// A node reports wrong numbers under this plan.
    fn spoil(damage: &mut DamageRecord, node: NodeId, generation: u64, fault: NumericFault) {
        let layer = Some(LayerId(2));
        damage.spoiled((node, VirtualTime(7)), turn(generation, 0, 5), fault, layer);
    }

    #[test]
    fn a_flipped_bit_excuses_its_layer_until_it_is_given_up() {
        let flip = NumericFault::StateFlip(1);
        let flipped = || {
            let mut damage = DamageRecord::default();
            spoil(&mut damage, A, 3, flip);
            assert!(damage.is_flipped(LayerId(2)) && !damage.is_flipped(LayerId(1)));
            damage
        };
        let mut damage = flipped();
        damage.adopted(&BTreeSet::from([LayerId(2)]));
        assert!(damage.is_flipped(LayerId(2)), "a worker holds it still");
        damage.adopted(&BTreeSet::new());
        assert!(!damage.is_flipped(LayerId(2)), "nobody holds it");
        let mut damage = flipped();
        damage.rewound(Some(Generation(3)));
        assert!(!damage.is_flipped(LayerId(2)), "the run went back");
        spoil(&mut damage, A, 3, flip);
        assert!(!damage.is_flipped(LayerId(2)), "the report is of a plan that is given up");
        spoil(&mut damage, A, 4, flip);
        assert!(damage.is_flipped(LayerId(2)));
    }

    #[test]
    fn a_mark_excuses_its_turn_until_the_run_goes_back() {
        let mut damage = DamageRecord::default();
        for attempt in 0..3 {
            let mark = NumericFault::Mark(f32::NAN, 1);
            damage.spoiled((A, VirtualTime(7)), turn(1, attempt, 5), mark, None);
        }
        assert!(damage.is_marked(turn(1, 2, 5)) && !damage.is_marked(turn(1, 3, 5)));
        assert_eq!((damage.marks_of(Step(5)), damage.marks_of(Step(6))), (3, 0));
        assert!(!damage.is_contradicted(), "it is reported, and hidden from nobody");
        damage.rewound(Some(Generation(1)));
        assert_eq!(damage.marks_of(Step(5)), 0);
        assert!(!damage.is_marked(turn(1, 2, 5)));
    }

    #[test]
    fn a_pair_is_in_contradiction_after_as_many_plans_as_a_leader_counts() {
        let plans = u64::from(PAIR_CONTRADICTIONS_MAX);
        let sum = NumericFault::SumFactor(2.0);
        let mut damage = DamageRecord::default();
        for generation in 1..=plans {
            spoil(&mut damage, A, generation, sum);
            spoil(&mut damage, A, generation, sum);
            spoil(&mut damage, B, generation, sum);
        }
        assert!(!damage.is_contradicted(), "what is found within one plan counts once");
        spoil(&mut damage, B, plans + 1, sum);
        assert!(damage.is_contradicted(), "one of the two was wrong in each of these plans");
        damage.sent_away();
        assert!(!damage.is_contradicted());
        for generation in 0..plans {
            let node = [A, B, C][generation as usize % 3];
            spoil(&mut damage, node, 10 + generation, sum);
        }
        spoil(&mut damage, C, 20, sum);
        assert!(!damage.is_contradicted(), "three nodes are no pair");
    }

    #[test]
    fn a_worker_is_gone_from_its_end_on_and_not_before() {
        let mut damage = DamageRecord::default();
        damage.gone(B, VirtualTime(5));
        assert!(
            damage.is_gone_since(B, VirtualTime(5)) && !damage.is_gone_since(A, VirtualTime(0))
        );
        assert!(!damage.is_gone_since(B, VirtualTime(6)), "a plan was adopted since");
        assert!(!damage.is_witness_lost(A, B), "nothing flipped");
        spoil(&mut damage, A, 3, NumericFault::StateFlip(1));
        assert!(!damage.is_witness_lost(A, B), "it was gone before, and a plan ran since");
        damage.gone(B, VirtualTime(9));
        assert!(damage.is_witness_lost(A, B));
    }
}
