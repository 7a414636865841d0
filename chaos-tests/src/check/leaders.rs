//! S5: one leader a term.

use std::collections::BTreeMap;

use zbelastic_consensus::validation::Turn;
use zbelastic_types::NodeId;

use super::FirstFailure;
use crate::failure::Invariant;

/// Who led, and when none could.
#[derive(Default)]
pub(super) struct LeaderChecker {
    leaders: BTreeMap<u64, NodeId>,
    /// The turn that was open when a majority of the voters was down last.
    quorum_lost_in: Option<Turn>,
}

impl LeaderChecker {
    /// S5: a node became the leader of a term.
    pub(super) fn leads(&mut self, failure: &mut FirstFailure, node: NodeId, term: u64) {
        let before = *self.leaders.entry(term).or_insert(node);
        if before != node {
            failure.set(Invariant::S5, || format!("n{before} and n{node} lead in term {term}"));
        }
    }

    /// Fewer voters are up than agree on anything, and this turn is open.
    pub(super) fn quorum_is_down(&mut self, open: Turn) {
        self.quorum_lost_in = Some(open);
    }

    /// Whether that was so while this turn was open.
    pub(super) fn was_quorum_down(&self, turn: Turn) -> bool {
        self.quorum_lost_in == Some(turn)
    }
}
