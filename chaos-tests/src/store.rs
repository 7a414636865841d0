//! The checkpoint store: a folder that all nodes reach, and that survives them.

use std::collections::BTreeMap;

use zbelastic_types::{Digest, LayerId, NodeId, Step};

use crate::random::Draws;

/// What a piece is found by: its name is what it holds.
pub type PieceKey = (Step, LayerId, Digest);

/// A piece on its way or there.
#[derive(Clone, Debug)]
struct Piece {
    bytes: Vec<u8>,
    writer: NodeId,
    is_durable: bool,
    is_damaged: bool,
}

/// The store.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pieces: BTreeMap<PieceKey, Piece>,
    manifests: BTreeMap<Step, Vec<u8>>,
    /// Whether writes fail.
    pub fails: bool,
}

impl Store {
    /// Begins to write a piece. One that is durable stays as it is.
    pub fn put(&mut self, key: PieceKey, bytes: Vec<u8>, writer: NodeId) {
        let is_there = self.pieces.get(&key).is_some_and(|p| p.is_durable && !p.is_damaged);
        if !is_there {
            let piece = Piece { bytes, writer, is_durable: false, is_damaged: false };
            self.pieces.insert(key, piece);
        }
    }

    /// A write ends. Yields whether the piece is durable.
    pub fn finish(&mut self, key: PieceKey) -> bool {
        match self.pieces.get_mut(&key) {
            Some(piece) if !self.fails => {
                piece.is_durable = true;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Reads a piece.
    #[must_use]
    pub fn get(&self, key: PieceKey) -> Option<Vec<u8>> {
        self.pieces.get(&key).filter(|piece| piece.is_durable).map(|piece| piece.bytes.clone())
    }

    /// What a node was writing is lost with it, or there in part.
    pub fn writer_crashed(&mut self, writer: NodeId) {
        self.pieces.retain(|_, piece| piece.is_durable || piece.writer != writer);
    }

    /// Damages a durable piece.
    pub fn flip(&mut self, draws: &mut Draws) -> Option<PieceKey> {
        let keys: Vec<_> = self.pieces.iter().filter(|(_, p)| p.is_durable).collect();
        if keys.is_empty() {
            return None;
        }
        let key = *draws.pick(&keys.iter().map(|(key, _)| **key).collect::<Vec<_>>());
        let piece = self.pieces.get_mut(&key)?;
        let at = draws.below(piece.bytes.len() as u64) as usize;
        piece.bytes[at] ^= 1 << draws.below(8);
        piece.is_damaged = true;
        Some(key)
    }

    /// Whether a fault damaged a piece.
    #[must_use]
    pub fn is_damaged(&self, key: PieceKey) -> bool {
        self.pieces.get(&key).is_some_and(|piece| piece.is_damaged)
    }

    /// Removes what lies before a version: nothing will refer to it again.
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

    /// Keeps what is needed to begin again from a version.
    pub fn put_manifest(&mut self, version: Step, bytes: Vec<u8>) {
        self.manifests.insert(version, bytes);
    }

    /// The manifests, newest first.
    pub fn manifests(&self) -> impl Iterator<Item = (Step, &[u8])> {
        self.manifests.iter().rev().map(|(version, bytes)| (*version, &bytes[..]))
    }
}
