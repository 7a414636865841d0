//! S5: one leader a term.

use zbelastic_consensus::validation::Turn;
use zbelastic_types::NodeId;

use super::InvariantChecker;
use crate::failure::Invariant;

impl InvariantChecker {
    /// A node became the leader of a term.
    pub fn leads(&mut self, node: NodeId, term: u64) {
        let before = *self.leaders.entry(term).or_insert(node);
        if before != node {
            self.fail(Invariant::S5, || format!("n{before} and n{node} lead in term {term}"));
        }
    }

    /// Fewer voters are up than agree on anything, and this turn is open.
    pub fn quorum_is_down(&mut self, open: Turn) {
        self.quorum_lost_in = Some(open);
    }

    /// Whether that was so while this turn was open.
    #[must_use]
    pub fn was_quorum_down(&self, turn: Turn) -> bool {
        self.quorum_lost_in == Some(turn)
    }
}
