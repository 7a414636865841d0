//! Checkpoints that could not be read: when a leader may give one up.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::duty::PLANS_FAILED_MAX;
use zbelastic_types::{Generation, LayerId, NodeId, Step};

/// A piece of a checkpoint, as a worker that reads it knows it.
type ReadPiece = (NodeId, Step, LayerId);

/// The reads of checkpoints that came to nothing. A read that did excuses the report of the worker
/// that read, and that until it reads the piece; the reports of one checkpoint under several plans
/// excuse that it is given up, until a plan runs or it is agreed on again.
#[derive(Debug, Default)]
pub struct MissedReads {
    /// Pieces that a worker could not read when it last tried.
    missed: BTreeSet<ReadPiece>,
    /// The plans under which a worker reported such a piece, by the version of its checkpoint.
    reported: BTreeMap<Step, BTreeSet<Generation>>,
}

impl MissedReads {
    /// A worker's read of a piece is over, and yielded its bytes or not.
    pub fn note(&mut self, node: NodeId, version: Step, layer: LayerId, is_whole: bool) {
        let piece = (node, version, layer);
        if is_whole {
            self.missed.remove(&piece);
        } else {
            self.missed.insert(piece);
        }
    }

    /// A worker reports under a plan that it cannot have a layer: of each checkpoint that it could
    /// not read it from.
    pub fn reported(&mut self, node: NodeId, layer: LayerId, generation: Generation) {
        let missed = self.missed.iter().filter(|(by, _, of)| (*by, *of) == (node, layer));
        for (_, version, _) in missed {
            self.reported.entry(*version).or_default().insert(generation);
        }
    }

    /// A plan runs: what its layers came from could be read.
    pub(super) fn resumed(&mut self) {
        self.missed.clear();
        self.reported.clear();
    }

    /// A checkpoint of this version is agreed on: its pieces were written.
    pub(super) fn agreed(&mut self, version: Step) {
        self.missed.retain(|(_, of, _)| *of != version);
        self.reported.remove(&version);
    }

    /// Whether a leader may give up the checkpoint of this version.
    #[must_use]
    pub fn is_given_up(&self, version: Step) -> bool {
        self.reported.get(&version).is_some_and(|plans| plans.len() >= PLANS_FAILED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::duty::PLANS_FAILED_MAX;
    use zbelastic_types::{Generation, LayerId, NodeId, Step};

    use super::MissedReads;

    const NODE: NodeId = NodeId(1);
    const VERSION: Step = Step(12);
    const LAYER: LayerId = LayerId(3);

    /// As many plans as a leader tries could not read a layer of the checkpoint.
    fn given_up() -> MissedReads {
        let mut reads = MissedReads::default();
        for generation in 1..=PLANS_FAILED_MAX as u64 {
            assert!(!reads.is_given_up(VERSION), "{generation}");
            reads.note(NODE, VERSION, LAYER, false);
            reads.reported(NODE, LAYER, Generation(generation));
            reads.reported(NODE, LAYER, Generation(generation));
        }
        assert!(reads.is_given_up(VERSION) && !reads.is_given_up(Step(9)));
        reads
    }

    #[test]
    fn a_checkpoint_is_given_up_until_a_plan_runs_or_it_is_agreed_on_again() {
        let mut reads = given_up();
        reads.agreed(Step(9));
        assert!(reads.is_given_up(VERSION), "another one was agreed on");
        reads.agreed(VERSION);
        assert!(!reads.is_given_up(VERSION));
        let mut reads = given_up();
        reads.resumed();
        assert!(!reads.is_given_up(VERSION));
        reads.reported(NODE, LAYER, Generation(9));
        given_up();
    }

    #[test]
    fn a_report_counts_only_of_whoever_could_not_read_that_piece() {
        let mut reads = MissedReads::default();
        for generation in 1..=9 {
            reads.note(NODE, VERSION, LAYER, false);
            reads.reported(NodeId(2), LAYER, Generation(generation));
            reads.reported(NODE, LayerId(4), Generation(generation));
            reads.note(NODE, VERSION, LAYER, true);
            reads.reported(NODE, LAYER, Generation(generation));
        }
        assert!(!reads.is_given_up(VERSION));
    }
}
