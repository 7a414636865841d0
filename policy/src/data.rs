//! Texts and weights by the hash of their bytes, and the nodes a node requests them from: all
//! holders together, and each alone if the bytes that came from all of them have another hash.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{Digest, NodeId};

/// The name of a text or of weights: bytes that are too large for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DataName {
    /// BLAKE3 of the bytes.
    pub hash: Digest,
    /// Number of these bytes.
    pub length: u64,
}

impl DataName {
    /// The name of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self { hash: Digest(*blake3::hash(bytes).as_bytes()), length: bytes.len() as u64 }
    }
}

/// The name under which damaged bytes are fetched again, of all that are needed: a file that was
/// cut short has its hash by its name, and not its length.
#[must_use]
pub fn expected_name(found: DataName, wanted: &[DataName]) -> DataName {
    wanted.iter().find(|name| name.hash == found.hash).copied().unwrap_or(found)
}

/// Result of a request for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFetchOutcome {
    /// The bytes of the name.
    Sound,
    /// Bytes other than those of the name.
    Damaged,
    /// No bytes: no node that got the request has them, or none answers.
    Missing,
}

/// The next step of a fetch of bytes that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataFetchAction {
    /// Send the request to these nodes, to all at once.
    Request(Vec<NodeId>),
    /// The bytes are there. These nodes have damaged copies and are to fetch theirs again.
    Done {
        /// Nodes with damaged copies.
        damaged: Vec<NodeId>,
    },
    /// No node has the bytes undamaged.
    Failed {
        /// Nodes with damaged copies.
        damaged: Vec<NodeId>,
    },
}

/// A fetch of bytes by their hash. Chunks come from all holders at once, and only the whole has a
/// hash: one corrupt copy spoils the result of all. Each holder gets a request alone then, until
/// one is sound.
#[derive(Clone, Debug)]
pub struct DataFetch {
    together: Option<Vec<NodeId>>,
    alone: VecDeque<NodeId>,
    requested: Option<NodeId>,
    damaged: Vec<NodeId>,
}

impl DataFetch {
    /// A fetch from these, the best first, and the first action.
    #[must_use]
    pub fn new(holders: Vec<NodeId>) -> (Self, DataFetchAction) {
        let first = DataFetchAction::Request(holders.clone());
        let alone = VecDeque::new();
        let damaged = Vec::new();
        (Self { together: Some(holders), alone, requested: None, damaged }, first)
    }

    /// Applies the result of the last request, and returns the next action.
    pub fn note(&mut self, outcome: DataFetchOutcome) -> DataFetchAction {
        if let Some(holders) = self.together.take() {
            match outcome {
                DataFetchOutcome::Sound => return self.done(),
                DataFetchOutcome::Missing => return self.failed(),
                DataFetchOutcome::Damaged if mutant::is(Mutant::M32DamageEndsFetch) => {
                    return self.failed();
                }
                DataFetchOutcome::Damaged if holders.len() == 1 => {
                    self.damaged = holders;
                    return self.failed();
                }
                DataFetchOutcome::Damaged => self.alone = holders.into(),
            }
        } else {
            match outcome {
                DataFetchOutcome::Sound => return self.done(),
                DataFetchOutcome::Damaged => self.damaged.extend(self.requested),
                DataFetchOutcome::Missing => {}
            }
        }
        self.requested = self.alone.pop_front();
        self.requested.map_or_else(|| self.failed(), |node| DataFetchAction::Request(vec![node]))
    }

    fn done(&mut self) -> DataFetchAction {
        DataFetchAction::Done { damaged: std::mem::take(&mut self.damaged) }
    }

    fn failed(&mut self) -> DataFetchAction {
        DataFetchAction::Failed { damaged: std::mem::take(&mut self.damaged) }
    }
}

#[cfg(test)]
mod tests {
    use DataFetchOutcome::{Damaged, Missing, Sound};

    use super::*;

    fn check(holders: u64, outcomes: &[DataFetchOutcome], expected: DataFetchAction) {
        let (mut fetch, mut next) = DataFetch::new((1..=holders).map(NodeId).collect());
        for outcome in outcomes {
            assert!(matches!(next, DataFetchAction::Request(_)), "{outcomes:?}");
            next = fetch.note(*outcome);
        }
        assert_eq!(next, expected, "{outcomes:?}");
    }

    #[test]
    fn one_damaged_copy_is_found_by_requests_to_each_alone() {
        let nodes = |nodes: &[u64]| nodes.iter().copied().map(NodeId).collect::<Vec<_>>();
        let done = |damaged: &[u64]| DataFetchAction::Done { damaged: nodes(damaged) };
        let failed = |damaged: &[u64]| DataFetchAction::Failed { damaged: nodes(damaged) };
        check(3, &[], DataFetchAction::Request(nodes(&[1, 2, 3])));
        check(3, &[Sound], done(&[]));
        check(3, &[Missing], failed(&[]));
        check(3, &[Damaged], DataFetchAction::Request(nodes(&[1])));
        check(3, &[Damaged, Damaged, Sound], done(&[1]));
        check(3, &[Damaged, Missing, Damaged, Sound], done(&[2]));
        check(3, &[Damaged, Damaged, Missing, Damaged], failed(&[1, 3]));
        check(1, &[Damaged], failed(&[1]));
    }

    #[test]
    fn what_was_cut_short_is_fetched_at_its_length() {
        let text = DataName::of(b"all of the text");
        let weights = DataName::of(b"weights");
        let cut = DataName { length: 3, ..text };
        assert_eq!(expected_name(cut, &[weights, text]), text);
        assert_eq!(expected_name(cut, &[weights]), cut, "no name has this hash");
    }
}
