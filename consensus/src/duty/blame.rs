//! Which node is at fault when two contradict each other: found out by pairing them with others.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::NodeId;

/// Contradictions of one pair until the run is held.
pub const PAIR_CONTRADICTIONS_MAX: u32 = 6;
/// Partners that a node must have contradicted to be the one at fault.
const PARTNERS_AT_FAULT: usize = 2;
/// Seals after which a contradiction is forgotten. A device that is broken shows it with every
/// other partner within a few; two bits that flipped so far apart have nothing to do with each
/// other.
pub const DOUBT_SEALS_MAX: u64 = 1024;

/// The contradictions between two nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PairContradictions {
    /// Number of their contradictions.
    count: u32,
    /// Seals before the last contradiction.
    at: u64,
}

/// The contradictions between nodes, by pair, the lower id first.
#[derive(Debug, Default)]
pub(super) struct Blame {
    pairs: BTreeMap<(NodeId, NodeId), PairContradictions>,
    /// Contradictions of all pairs: others are paired after each.
    total: u32,
    seals: u64,
}

impl Blame {
    /// Two nodes contradicted each other.
    pub(super) fn mark(&mut self, one: NodeId, other: NodeId) {
        let known =
            self.pairs.entry(pair(one, other)).or_insert(PairContradictions { count: 0, at: 0 });
        *known = PairContradictions { count: known.count + 1, at: self.seals };
        self.total += 1;
    }

    /// Marks one of the pairs that contradicted each other about one thing: the first that was not
    /// in contradiction before, so that other pairs count too, or else the first. One thing counts
    /// once, however many nodes see it: a bit that flips once sends no node away.
    pub(super) fn mark_one(
        &mut self,
        pairs: impl Iterator<Item = (NodeId, NodeId)> + Clone,
    ) -> Option<(NodeId, NodeId)> {
        let is_new =
            |(one, other): &(NodeId, NodeId)| !self.pairs.contains_key(&pair(*one, *other));
        let (one, other) = pairs.clone().find(is_new).or_else(|| pairs.clone().next())?;
        self.mark(one, other);
        Some((one, other))
    }

    /// A turn was sealed: pairs of long ago are forgotten.
    pub(super) fn on_sealed(&mut self) {
        self.seals += 1;
        let seals = self.seals;
        self.pairs.retain(|_, known| seals - known.at < DOUBT_SEALS_MAX);
    }

    /// Whether a contradiction is not forgotten yet.
    pub(super) fn has_doubts(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// Contradictions so far, to pair others with.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// The first node that is there and was in contradiction with several, and with how many.
    pub(super) fn at_fault(&self, is_there: impl Fn(NodeId) -> bool) -> Option<(NodeId, u32)> {
        let mut partners: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
        for (one, other) in self.pairs.keys() {
            partners.entry(*one).or_default().insert(*other);
            partners.entry(*other).or_default().insert(*one);
        }
        let is_at_fault = |(node, with): &(NodeId, BTreeSet<NodeId>)| {
            with.len() >= PARTNERS_AT_FAULT && is_there(*node)
        };
        let (node, with) = partners.into_iter().find(is_at_fault)?;
        Some((node, with.len() as u32))
    }

    /// Whether two contradict each other again and again, so that it cannot be known which is
    /// right.
    pub(super) fn is_stuck(&self, one: NodeId, other: NodeId) -> bool {
        let known = self.pairs.get(&pair(one, other));
        known.is_some_and(|known| known.count > PAIR_CONTRADICTIONS_MAX)
    }

    /// The node that was at fault is gone: its contradictions count against no other node.
    pub(super) fn clear(&mut self) {
        self.pairs.clear();
        self.total = 0;
    }
}

fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}

#[cfg(test)]
mod tests {
    use super::{Blame, DOUBT_SEALS_MAX, PAIR_CONTRADICTIONS_MAX};
    use zbelastic_types::NodeId;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);
    const D: NodeId = NodeId(4);

    fn marked(pairs: &[(NodeId, NodeId)]) -> Blame {
        let mut blame = Blame::default();
        pairs.iter().for_each(|(one, other)| blame.mark(*one, *other));
        blame
    }

    #[test]
    fn two_partners_speak_against_a_node_and_one_against_nobody() {
        let check = |pairs: &[_], expected| {
            assert_eq!(marked(pairs).at_fault(|_| true), expected);
        };
        check(&[(B, A)], None);
        check(&[(A, B), (B, A)], None);
        check(&[(A, B), (C, D)], None);
        check(&[(A, C), (C, B)], Some((C, 2)));
        check(&[(D, A), (C, D), (D, B)], Some((D, 3)));
    }

    #[test]
    fn of_several_who_contradict_each_other_about_one_thing_one_pair_is_marked_anew() {
        let mut blame = Blame::default();
        let pairs = [(A, B), (B, C)];
        assert_eq!(blame.mark_one(pairs.into_iter()), Some((A, B)));
        assert_eq!(blame.at_fault(|_| true), None, "it happened once");
        assert_eq!(blame.mark_one(pairs.into_iter()), Some((B, C)));
        assert_eq!(blame.at_fault(|_| true), Some((B, 2)));
        assert_eq!(blame.mark_one(pairs.into_iter()), Some((A, B)), "again");
        assert_eq!(blame.mark_one(std::iter::empty()), None);
    }

    #[test]
    fn who_is_gone_does_not_hide_who_is_there() {
        let blame = marked(&[(A, C), (A, D), (B, C), (B, D)]);
        assert_eq!(blame.at_fault(|_| true), Some((A, 2)));
        assert_eq!(blame.at_fault(|node| node != A), Some((B, 2)));
        assert_eq!(blame.at_fault(|_| false), None);
    }

    /// Pairs are turned after each contradiction, so that those of all pairs together say nothing
    /// about one of them.
    #[test]
    fn contradictions_count_for_their_pair() {
        let mut blame = Blame::default();
        for _ in 0..PAIR_CONTRADICTIONS_MAX {
            blame.mark(A, B);
            blame.mark(C, D);
            assert!(!blame.is_stuck(A, B) && !blame.is_stuck(D, C));
        }
        blame.mark(B, A);
        assert!(blame.is_stuck(A, B) && !blame.is_stuck(D, C));
        assert_eq!(blame.total(), 2 * PAIR_CONTRADICTIONS_MAX + 1);
    }

    #[test]
    fn what_is_long_ago_is_forgotten() {
        let mut blame = marked(&[(A, B)]);
        (1..DOUBT_SEALS_MAX).for_each(|_| blame.on_sealed());
        blame.mark(B, C);
        assert_eq!(blame.at_fault(|_| true), Some((B, 2)));
        blame.on_sealed();
        assert_eq!(blame.at_fault(|_| true), None);
        assert_eq!(blame.total(), 2, "the ring turns on");
    }
}
