//! S5: one leader a term.

use zbelastic_types::NodeId;

use super::Checker;
use crate::failure::Invariant;

impl Checker {
    /// A node leads.
    pub fn leads(&mut self, node: NodeId, term: u64) {
        let before = *self.leaders.entry(term).or_insert(node);
        if before != node {
            self.fail(Invariant::S5, || format!("n{before} and n{node} lead in term {term}"));
        }
    }

    /// Nobody leads now.
    pub fn leaderless(&mut self) {
        self.is_leaderless = true;
    }

    /// Whether nobody led for a while during the attempt that was sealed last.
    #[must_use]
    pub fn was_leaderless(&self) -> bool {
        self.was_leaderless
    }
}
