//! The checkpoint store: a folder that all nodes reach, and that survives them.

use std::collections::BTreeMap;

use zbelastic_types::{Digest, LayerId, NodeId, Step};

use crate::random::Draws;

/// The key of a piece: its name is the digest of its content.
pub type PieceKey = (Step, LayerId, Digest);

/// A piece that is being written, or is stored.
#[derive(Clone, Debug)]
struct StoredPiece {
    bytes: Vec<u8>,
    writer: NodeId,
    state: PieceState,
}

/// The state of a piece in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceState {
    /// Nothing that survives its writer.
    UnderWay,
    /// Some of its bytes: its writer died. Nothing can refer to it.
    Torn,
    /// All of its bytes.
    Durable,
    /// All of it, with a bit that a fault flipped.
    Damaged,
}

impl StoredPiece {
    /// Whether all its bytes are there, right or wrong.
    fn is_whole(&self) -> bool {
        matches!(self.state, PieceState::Durable | PieceState::Damaged)
    }
}

/// The store of checkpoints of a life.
#[derive(Clone, Debug, Default)]
pub struct SimulatedStore {
    pieces: BTreeMap<PieceKey, StoredPiece>,
    manifests: BTreeMap<Step, Vec<u8>>,
    /// Whether writes to the store fail.
    pub fails: bool,
}

impl SimulatedStore {
    /// Begins to write a piece. One that is whole stays as it is: its name determines its bytes.
    pub fn put(&mut self, key: PieceKey, bytes: Vec<u8>, writer: NodeId) {
        let is_there = self.pieces.get(&key).is_some_and(StoredPiece::is_whole);
        if !is_there {
            let piece = StoredPiece { bytes, writer, state: PieceState::UnderWay };
            self.pieces.insert(key, piece);
        }
    }

    /// A write ends. Yields whether the piece is durable.
    pub fn finish(&mut self, key: PieceKey) -> bool {
        match self.pieces.get_mut(&key) {
            Some(piece) if !self.fails && piece.state != PieceState::Torn => {
                if piece.state == PieceState::UnderWay {
                    piece.state = PieceState::Durable;
                }
                true
            }
            Some(_) | None => false,
        }
    }

    /// Reads the bytes that there are of a piece.
    #[must_use]
    pub fn get(&self, key: PieceKey) -> Option<Vec<u8>> {
        let there = self.pieces.get(&key).filter(|piece| piece.state != PieceState::UnderWay);
        there.map(|piece| piece.bytes.clone())
    }

    /// A piece that a node was writing is lost with it, or there in part: its name, and some of its
    /// bytes.
    pub fn writer_crashed(&mut self, writer: NodeId, draws: &mut Draws) {
        self.pieces.retain(|_, piece| {
            let is_under_way = piece.writer == writer && piece.state == PieceState::UnderWay;
            if is_under_way && draws.chance(0.5) {
                let keep = draws.below(piece.bytes.len() as u64) as usize;
                piece.bytes.truncate(keep);
                piece.state = PieceState::Torn;
                return true;
            }
            !is_under_way
        });
    }

    /// Damages a durable piece.
    pub fn flip(&mut self, draws: &mut Draws) -> Option<PieceKey> {
        let keys: Vec<_> = self.pieces.iter().filter(|(_, p)| p.is_whole()).collect();
        if keys.is_empty() {
            return None;
        }
        let key = *draws.pick(&keys.iter().map(|(key, _)| **key).collect::<Vec<_>>());
        let piece = self.pieces.get_mut(&key)?;
        let at = draws.below(piece.bytes.len() as u64) as usize;
        piece.bytes[at] ^= 1 << draws.below(8);
        piece.state = PieceState::Damaged;
        Some(key)
    }

    /// Whether a fault damaged a piece.
    #[must_use]
    pub fn is_damaged(&self, key: PieceKey) -> bool {
        self.pieces.get(&key).is_some_and(|piece| piece.state == PieceState::Damaged)
    }

    /// Removes the pieces before a version: nothing will refer to it again.
    pub fn remove_before(&mut self, version: Step) {
        self.pieces.retain(|(of, ..), _| *of >= version);
        self.manifests.retain(|of, _| *of >= version);
    }

    /// Removes a version that nothing refers to.
    pub fn remove(&mut self, version: Step) {
        self.pieces.retain(|(of, ..), _| *of != version);
        self.manifests.remove(&version);
    }

    /// Versions of which there is anything.
    #[must_use]
    pub fn versions(&self) -> Vec<Step> {
        let mut versions: Vec<_> = self.pieces.keys().map(|(version, ..)| *version).collect();
        versions.dedup();
        versions
    }

    /// Keeps the manifest that is needed to begin again from a version.
    pub fn put_manifest(&mut self, version: Step, bytes: Vec<u8>) {
        self.manifests.insert(version, bytes);
    }

    /// The manifests, newest first.
    pub fn manifests(&self) -> impl Iterator<Item = (Step, &[u8])> {
        self.manifests.iter().rev().map(|(version, bytes)| (*version, &bytes[..]))
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_trainer::elastic::LayerImage;
    use zbelastic_types::{Digest, LayerId, NodeId, Step};

    use super::{PieceKey, SimulatedStore};
    use crate::random::{DrawPurpose, Draws};

    const WRITER: NodeId = NodeId(1);

    fn key(layer: u32) -> PieceKey {
        (Step(3), LayerId(layer), Digest([0; 32]))
    }

    fn bytes() -> Vec<u8> {
        let floats = || vec![1.0; 3];
        let layer = LayerId(0);
        let version = Step(3);
        LayerImage { layer, version, w: floats().into(), m: floats().into(), v: floats().into() }
            .encode()
    }

    #[test]
    fn a_writer_that_dies_leaves_nothing_or_a_torn_piece_that_no_decoder_takes() {
        let mut torn = 0;
        for seed in 0..50 {
            let mut store = SimulatedStore::default();
            store.put(key(0), bytes(), WRITER);
            assert!(store.finish(key(0)));
            store.put(key(1), bytes(), WRITER);
            assert_eq!(store.get(key(1)), None, "it is under way");
            store.writer_crashed(WRITER, &mut Draws::new(seed, DrawPurpose::Store));
            assert_eq!(store.get(key(0)), Some(bytes()), "it was durable");
            if let Some(left) = store.get(key(1)) {
                torn += 1;
                assert!(LayerImage::decode(&left).is_err());
                assert!(!store.finish(key(1)), "nobody ends what was torn");
                store.put(key(1), bytes(), NodeId(2));
                assert!(store.finish(key(1)), "another writes it anew");
            }
        }
        assert!((10..40).contains(&torn), "{torn}");
    }
}
