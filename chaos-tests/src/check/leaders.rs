//! S5: one leader a term.

use zbelastic_types::NodeId;

use super::Checker;
use crate::failure::Invariant;

impl Checker {
    /// A node leads.
    pub fn leads(&mut self, node: NodeId, term: u64) {
        self.terms_in_attempt += 1;
        let before = *self.leaders.entry(term).or_insert(node);
        if before != node {
            self.fail(Invariant::S5, || format!("n{before} and n{node} lead in term {term}"));
        }
    }

    /// Whether somebody else led than when the attempt began.
    #[must_use]
    pub fn leader_changed_within_attempt(&self) -> bool {
        self.terms_in_attempt > 1
    }
}
