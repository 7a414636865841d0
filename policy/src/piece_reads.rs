//! The pieces of checkpoints that a worker reads for its plan, and what came of those that no node
//! was left to send: a later plan that reads the same piece goes on with it.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::plan::LayerSource;
use zbelastic_types::{LayerId, Step};

use crate::piece::PieceRef;

/// The reads of pieces under way, and what came of pieces, each a `B`. No piece is in here that the
/// last plan does not read at this node, so `B`s take the memory of layers of one plan at most.
#[derive(Debug)]
pub struct PieceReads<B> {
    reading: BTreeMap<(Step, LayerId), PieceRef>,
    unfinished: BTreeMap<PieceRef, B>,
}

impl<B> Default for PieceReads<B> {
    fn default() -> Self {
        Self { reading: BTreeMap::new(), unfinished: BTreeMap::new() }
    }
}

impl<B> PieceReads<B> {
    /// A plan is loaded with these sources of all layers, and needs some of them here. Pieces that it
    /// does not read are dropped: another digest is another piece.
    pub fn begin_plan(&mut self, sources: &[LayerSource], needed: &BTreeSet<LayerId>) {
        let is_read = |&PieceRef { layer, version, digest, .. }: &PieceRef| {
            let source = LayerSource::Checkpoint { version, digest };
            needed.contains(&layer) && sources.get(layer.index()) == Some(&source)
        };
        self.reading.retain(|_, piece| is_read(piece));
        self.unfinished.retain(|piece, _| is_read(piece));
    }

    /// The layers of the plan are here, or no plan has a part for this node.
    pub fn end_loading(&mut self) {
        self.reading.clear();
        self.unfinished.clear();
    }

    /// The runtime requests a piece.
    pub fn request(&mut self, piece: PieceRef) {
        self.reading.insert((piece.version, piece.layer), piece);
    }

    /// What came of a piece before, for a fetch that goes on with it.
    pub fn take_begun(&mut self, piece: PieceRef) -> Option<B> {
        self.unfinished.remove(&piece)
    }

    /// No node is left to send a piece of which this came. It is kept if the piece is read here.
    pub fn note_unfinished(&mut self, piece: PieceRef, begun: B) {
        if self.reading.values().any(|reading| *reading == piece) {
            self.unfinished.insert(piece, begun);
        }
    }

    /// A piece was read, or cannot be. Yields whether the runtime waits for that.
    pub fn answer(&mut self, piece: PieceRef) -> bool {
        self.reading.remove(&(piece.version, piece.layer)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, RunId};

    use super::*;

    fn piece(layer: u32, digest: u8) -> PieceRef {
        let digest = Digest([digest; 32]);
        PieceRef { run: RunId(1), version: Step(4), layer: LayerId(layer), digest, length: 10 }
    }

    fn source(digest: u8) -> LayerSource {
        LayerSource::Checkpoint { version: Step(4), digest: Digest([digest; 32]) }
    }

    /// Pieces of three layers of which a byte came each.
    fn unfinished() -> PieceReads<u8> {
        let mut reads = PieceReads::default();
        for layer in 0..3 {
            reads.request(piece(layer, 7));
            reads.note_unfinished(piece(layer, 7), layer as u8);
            assert!(reads.answer(piece(layer, 7)));
            assert!(!reads.answer(piece(layer, 7)), "once");
        }
        reads
    }

    fn begun(reads: &mut PieceReads<u8>) -> Vec<Option<u8>> {
        (0..3).map(|layer| reads.take_begun(piece(layer, 7))).collect()
    }

    #[test]
    fn the_next_plan_goes_on_with_pieces_that_it_reads_here() {
        let mut reads = unfinished();
        let needed = BTreeSet::from([LayerId(0), LayerId(1)]);
        reads.begin_plan(&[source(7), source(8), source(7)], &needed);
        assert_eq!(begun(&mut reads), [Some(0), None, None], "another state, another node's");
        assert_eq!(begun(&mut reads), [None; 3], "once");
        let mut reads = unfinished();
        reads.begin_plan(&[source(7), LayerSource::Initial], &needed);
        assert_eq!(begun(&mut reads), [Some(0), None, None], "no checkpoint, no layer");
    }

    #[test]
    fn nothing_stays_of_a_piece_that_no_plan_reads() {
        let mut reads = unfinished();
        reads.end_loading();
        assert_eq!(begun(&mut reads), [None; 3]);
        reads.note_unfinished(piece(0, 7), 0);
        assert_eq!(begun(&mut reads), [None; 3], "it is late");
        reads.request(piece(0, 8));
        reads.note_unfinished(piece(0, 7), 0);
        assert_eq!(begun(&mut reads), [None; 3], "another one is read");
        reads.begin_plan(&[LayerSource::Initial], &BTreeSet::from([LayerId(0)]));
        assert!(!reads.answer(piece(0, 8)), "the plan does not read it");
    }
}
