//! The checkpoint store, which survives all processes: a folder that all nodes reach, or pieces on the
//! disks of workers, which can be read while a process runs there.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{Digest, LayerId, NodeId, Step};

use crate::queue::VirtualTime;
use crate::random::Draws;

/// The key of a piece: its name is the digest of its content.
pub type PieceKey = (Step, LayerId, Digest);

/// A piece that is being written, or is stored.
#[derive(Clone, Debug)]
struct StoredPiece {
    bytes: Vec<u8>,
    writer: NodeId,
    reach: PieceReach,
    state: PieceState,
    /// The bytes that a node writes in place of damaged ones, until they are durable.
    rewrite: Option<(NodeId, Vec<u8>)>,
}

/// Who reads a piece.
#[derive(Clone, Debug)]
pub enum PieceReach {
    /// All nodes, whoever runs.
    All,
    /// Whoever there is, while a process runs on one of these workers, which keep it on their disks.
    Disks(BTreeSet<NodeId>),
}

impl PieceReach {
    fn keepers(&self) -> Option<&BTreeSet<NodeId>> {
        match self {
            Self::All => None,
            Self::Disks(keepers) => Some(keepers),
        }
    }
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
    /// Since when pieces of a version could not be read, and no plan ran since.
    unread_since: BTreeMap<Step, VirtualTime>,
    /// Whether writes to the store fail.
    pub fails: bool,
}

impl SimulatedStore {
    /// Begins to write a piece. One that is whole stays as and where it is: its name determines its
    /// bytes. They are compared, and damaged ones are written anew.
    pub fn put(&mut self, key: PieceKey, bytes: Vec<u8>, writer: NodeId, reach: PieceReach) {
        match self.pieces.get_mut(&key).filter(|piece| piece.is_whole()) {
            Some(piece) if piece.state == PieceState::Damaged => {
                piece.rewrite = Some((writer, bytes));
            }
            Some(_) => {}
            None => {
                let state = PieceState::UnderWay;
                let piece = StoredPiece { bytes, writer, reach, state, rewrite: None };
                self.pieces.insert(key, piece);
            }
        }
    }

    /// The workers that keep a piece on their disks. None if all nodes reach it, or it is not there.
    #[must_use]
    pub fn keepers(&self, key: PieceKey) -> Option<&BTreeSet<NodeId>> {
        self.pieces.get(&key).and_then(|piece| piece.reach.keepers())
    }

    /// A worker goes for good: another one has what it kept. If there is none, all nodes reach what
    /// nobody else keeps.
    pub fn hand_over(&mut self, from: NodeId, to: Option<NodeId>) {
        for piece in self.pieces.values_mut() {
            let PieceReach::Disks(keepers) = &mut piece.reach else { continue };
            if keepers.remove(&from) {
                keepers.extend(to);
                if keepers.is_empty() {
                    piece.reach = PieceReach::All;
                }
            }
        }
    }

    /// A worker was lost: of what it keeps another one gets a copy, if there is one elsewhere that can be
    /// read.
    pub fn mend(&mut self, lost: NodeId, to: NodeId, is_running: impl Fn(NodeId) -> bool) {
        for piece in self.pieces.values_mut() {
            let PieceReach::Disks(keepers) = &mut piece.reach else { continue };
            if keepers.contains(&lost) && keepers.iter().any(|node| is_running(*node)) {
                keepers.insert(to);
            }
        }
    }

    /// A piece of this version could not be read.
    pub fn note_unread(&mut self, version: Step, now: VirtualTime) {
        self.unread_since.entry(version).or_insert(now);
    }

    /// This version was written again.
    pub fn note_written(&mut self, version: Step) {
        self.unread_since.remove(&version);
    }

    /// A plan runs: nothing is missed.
    pub fn note_resumed(&mut self) {
        self.unread_since.clear();
    }

    /// Since when pieces of this version could not be read.
    #[must_use]
    pub fn unread_since(&self, version: Step) -> Option<VirtualTime> {
        self.unread_since.get(&version).copied()
    }

    /// A write ends. Yields whether the piece is durable.
    pub fn finish(&mut self, key: PieceKey) -> bool {
        match self.pieces.get_mut(&key) {
            Some(piece) if !self.fails && piece.state != PieceState::Torn => {
                if let Some((_, bytes)) = piece.rewrite.take() {
                    piece.bytes = bytes;
                    piece.state = PieceState::Durable;
                }
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
            piece.rewrite.take_if(|(by, _)| *by == writer);
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

    use super::{PieceKey, PieceReach, SimulatedStore};
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
            store.put(key(0), bytes(), WRITER, PieceReach::All);
            assert!(store.finish(key(0)));
            store.put(key(1), bytes(), WRITER, PieceReach::All);
            assert_eq!(store.get(key(1)), None, "it is under way");
            store.writer_crashed(WRITER, &mut Draws::new(seed, DrawPurpose::Store));
            assert_eq!(store.get(key(0)), Some(bytes()), "it was durable");
            if let Some(left) = store.get(key(1)) {
                torn += 1;
                assert!(LayerImage::decode(&left).is_err());
                assert!(!store.finish(key(1)), "nobody ends what was torn");
                store.put(key(1), bytes(), NodeId(2), PieceReach::All);
                assert!(store.finish(key(1)), "another writes it anew");
            }
        }
        assert!((10..40).contains(&torn), "{torn}");
    }

    #[test]
    fn a_damaged_piece_is_mended_by_whoever_writes_it_again() {
        let mut store = SimulatedStore::default();
        let draws = &mut Draws::new(7, DrawPurpose::Store);
        store.put(key(0), bytes(), WRITER, PieceReach::All);
        assert!(store.finish(key(0)));
        assert_eq!(store.flip(draws), Some(key(0)));
        let damaged = store.get(key(0));
        assert_ne!(damaged, Some(bytes()));
        store.put(key(0), bytes(), NodeId(2), PieceReach::All);
        assert!(store.is_damaged(key(0)), "what is written is not durable");
        store.writer_crashed(NodeId(2), draws);
        assert!(store.finish(key(0)), "another write of it ends");
        assert_eq!(store.get(key(0)), damaged);
        store.put(key(0), bytes(), NodeId(2), PieceReach::All);
        assert!(store.finish(key(0)) && !store.is_damaged(key(0)));
        assert_eq!(store.get(key(0)), Some(bytes()));
    }

    #[test]
    fn a_piece_is_kept_by_whoever_it_was_written_to_and_by_whom_it_is_handed_over_to() {
        let mut store = SimulatedStore::default();
        store.put(key(0), bytes(), WRITER, PieceReach::Disks([WRITER, NodeId(2)].into()));
        assert!(store.finish(key(0)));
        let check = |store: &SimulatedStore, expected: &[u64]| {
            let keepers = store.keepers(key(0)).expect("it lies on disks");
            assert_eq!(*keepers, expected.iter().copied().map(NodeId).collect());
        };
        store.put(key(0), bytes(), NodeId(3), PieceReach::All);
        check(&store, &[1, 2]);
        store.mend(NodeId(2), NodeId(5), |node| node == NodeId(2));
        check(&store, &[1, 2, 5]);
        store.mend(NodeId(1), NodeId(6), |_| false);
        store.hand_over(WRITER, Some(NodeId(4)));
        check(&store, &[2, 4, 5]);
        for node in [2, 4] {
            store.hand_over(NodeId(node), None);
        }
        check(&store, &[5]);
        store.hand_over(NodeId(5), None);
        assert_eq!(store.keepers(key(0)), None, "all nodes reach it");
    }
}
