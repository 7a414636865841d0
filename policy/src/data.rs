//! Texts and weights by the hash of their bytes, and the nodes a node requests them from: the hashes
//! of their chunks from any, and each chunk from one that has it sound.

use std::collections::{BTreeSet, VecDeque};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataFetchOutcome {
    /// What was requested, sound.
    Sound {
        /// Nodes that gave other bytes for some of it.
        damaged: Vec<NodeId>,
    },
    /// Bytes other than those of the name, of these nodes.
    Damaged(Vec<NodeId>),
    /// No bytes: no node that got the request has them, or none answers.
    Missing,
}

/// The next step of a fetch of bytes that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataFetchAction {
    /// Request the hashes of the chunks from this node.
    RequestHashes(NodeId),
    /// Request the chunks that are not here from these nodes, from all at once, and compare each
    /// with its hash.
    RequestChunks(Vec<NodeId>),
    /// Request all from this node, and compare it with its name.
    RequestWhole(NodeId),
    /// The bytes are there. These nodes have damaged copies and are to fetch theirs again.
    Done {
        /// Nodes with damaged copies.
        damaged: Vec<NodeId>,
    },
    /// The nodes do not have the bytes undamaged.
    Failed {
        /// Nodes with damaged copies.
        damaged: Vec<NodeId>,
    },
}

#[derive(Clone, Debug)]
enum DataFetchStage {
    /// The hashes of the chunks are requested from one node after the other.
    Hashes,
    /// Chunks come from all nodes at once: what is damaged at one may be sound at another.
    Chunks,
    /// No node has the hashes, as none of an earlier version does: all is requested from one node
    /// after the other.
    Whole,
}

/// A fetch of bytes by their hash: first the hashes of their chunks, then each chunk from a node
/// that has it sound, whatever else is damaged there.
#[derive(Clone, Debug)]
pub struct DataFetch {
    holders: Vec<NodeId>,
    stage: DataFetchStage,
    /// Nodes that the stage has not sent a request to.
    left: VecDeque<NodeId>,
    damaged: BTreeSet<NodeId>,
}

impl DataFetch {
    /// A fetch from these, the best first, and the first action. The hashes of the chunks may be
    /// here already.
    #[must_use]
    pub fn new(holders: Vec<NodeId>, has_hashes: bool) -> (Self, DataFetchAction) {
        let stage = DataFetchStage::Hashes;
        let left = holders.iter().copied().collect();
        let mut fetch = Self { holders, stage, left, damaged: BTreeSet::new() };
        let by_chunks = has_hashes && !mutant::is(Mutant::M54WholeCopiesOnly);
        let first = if by_chunks { fetch.request_chunks() } else { fetch.request_next() };
        (fetch, first)
    }

    /// Applies the result of the last request, and returns the next action.
    pub fn note(&mut self, outcome: DataFetchOutcome) -> DataFetchAction {
        let (is_sound, damaged) = match outcome {
            DataFetchOutcome::Sound { damaged } => (true, damaged),
            DataFetchOutcome::Damaged(damaged) => (false, damaged),
            DataFetchOutcome::Missing => (false, Vec::new()),
        };
        let is_damaged = !is_sound && !damaged.is_empty();
        self.damaged.extend(damaged);
        match (&self.stage, is_sound) {
            (DataFetchStage::Hashes, true) if mutant::is(Mutant::M54WholeCopiesOnly) => {
                self.request_whole()
            }
            (DataFetchStage::Hashes, true) => self.request_chunks(),
            (DataFetchStage::Chunks | DataFetchStage::Whole, true) => {
                DataFetchAction::Done { damaged: self.take_damaged() }
            }
            (DataFetchStage::Hashes, false)
                if is_damaged && mutant::is(Mutant::M32DamageEndsFetch) =>
            {
                DataFetchAction::Failed { damaged: self.take_damaged() }
            }
            (DataFetchStage::Hashes | DataFetchStage::Whole, false) => self.request_next(),
            (DataFetchStage::Chunks, false) => {
                DataFetchAction::Failed { damaged: self.take_damaged() }
            }
        }
    }

    fn request_chunks(&mut self) -> DataFetchAction {
        self.stage = DataFetchStage::Chunks;
        DataFetchAction::RequestChunks(self.holders.clone())
    }

    fn request_next(&mut self) -> DataFetchAction {
        match (&self.stage, self.left.pop_front()) {
            (DataFetchStage::Hashes, Some(node)) => DataFetchAction::RequestHashes(node),
            (DataFetchStage::Hashes, None) => self.request_whole(),
            (DataFetchStage::Chunks | DataFetchStage::Whole, Some(node)) => {
                DataFetchAction::RequestWhole(node)
            }
            (DataFetchStage::Chunks | DataFetchStage::Whole, None) => {
                DataFetchAction::Failed { damaged: self.take_damaged() }
            }
        }
    }

    fn request_whole(&mut self) -> DataFetchAction {
        self.stage = DataFetchStage::Whole;
        self.left = self.holders.iter().copied().collect();
        self.request_next()
    }

    fn take_damaged(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.damaged).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use DataFetchAction::{Done, Failed, RequestChunks, RequestHashes, RequestWhole};
    use DataFetchOutcome::{Damaged, Missing, Sound};

    use super::*;

    fn nodes(nodes: &[u64]) -> Vec<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn check(has_hashes: bool, outcomes: &[DataFetchOutcome], expected: &[DataFetchAction]) {
        let (mut fetch, first) = DataFetch::new(nodes(&[1, 2, 3]), has_hashes);
        let rest = outcomes.iter().map(|outcome| fetch.note(outcome.clone()));
        let actions: Vec<_> = std::iter::once(first).chain(rest).collect();
        assert_eq!(actions, expected, "{outcomes:?}");
    }

    #[test]
    fn hashes_come_from_any_node_and_each_chunk_from_one_that_has_it() {
        let sound = |damaged: &[u64]| Sound { damaged: nodes(damaged) };
        let damaged = |damaged: &[u64]| Damaged(nodes(damaged));
        let [one, two, three] = [1, 2, 3].map(NodeId);
        let all = RequestChunks(nodes(&[1, 2, 3]));
        let done = |damaged: &[u64]| Done { damaged: nodes(damaged) };
        check(true, &[sound(&[])], &[all.clone(), done(&[])]);
        check(true, &[sound(&[1, 3])], &[all.clone(), done(&[1, 3])]);
        let failed = Failed { damaged: nodes(&[1, 2]) };
        check(true, &[damaged(&[1, 2])], &[all.clone(), failed]);
        check(true, &[Missing], &[all.clone(), Failed { damaged: vec![] }]);
        check(false, &[sound(&[]), sound(&[])], &[RequestHashes(one), all.clone(), done(&[])]);
        check(
            false,
            &[damaged(&[1]), Missing, sound(&[]), sound(&[2])],
            &[RequestHashes(one), RequestHashes(two), RequestHashes(three), all, done(&[1, 2])],
        );
        let whole = [RequestWhole(one), RequestWhole(two), RequestWhole(three)];
        let hashes = [RequestHashes(one), RequestHashes(two), RequestHashes(three)];
        check(
            false,
            &[Missing, Missing, Missing, damaged(&[1]), Missing, sound(&[])],
            &[&hashes[..], &whole, &[done(&[1])]].concat(),
        );
        check(
            false,
            &[Missing, Missing, Missing, damaged(&[1]), Missing, damaged(&[3])],
            &[&hashes[..], &whole, &[Failed { damaged: nodes(&[1, 3]) }]].concat(),
        );
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
