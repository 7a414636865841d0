//! The chaining values of the moments of layers: of the subtrees of BLAKE3 behind the weights
//! ([`zbelastic_trainer::elastic::moment_subtrees`]), which an export reads in place of the moments.
//!
//! A node that keeps a piece for another one hashes all of it as it arrives, and computes these
//! values on the way. Kept in memory, they spare an export two thirds of the reading from the disk.
//! They are a cache: without them the moments are read and hashed again, and the reader compares
//! the digest that follows from them with the one that the cluster agreed on.

use std::collections::VecDeque;

use zbelastic_trainer::elastic::ChainingValue;

use crate::piece::PieceRef;

/// Pieces with values in memory, the newest: those of 146 checkpoints of GPT-2 124M (14 layers), or
/// of a checkpoint of 2,048 layers.
///
/// A value has 32 bytes and stands for up to 16 MiB of moments; where a tree is cut there are up to
/// some twenty smaller ones a layer. So a layer of 7 million parameters has 11 values, one of
/// 2 billion 1,007: all pieces together take less than 3 MiB, and 2 MiB more for each TiB of moments,
/// all of which lay in this node's store. A piece is no longer than its layer in the job
/// ([`crate::keep_rule::check_keep`]).
const PIECES_MAX: usize = 2048;

/// The chaining values of pieces that arrived here.
#[derive(Debug, Default)]
pub struct MomentValues {
    /// The oldest first.
    pieces: VecDeque<(PieceRef, Vec<ChainingValue>)>,
}

impl MomentValues {
    /// A piece arrived, and was the one that was announced. Beyond [`PIECES_MAX`] the values of the
    /// oldest are forgotten.
    pub fn note(&mut self, piece: PieceRef, values: Vec<ChainingValue>) {
        if values.is_empty() {
            return;
        }
        self.pieces.retain(|(known, _)| *known != piece);
        if self.pieces.len() >= PIECES_MAX {
            self.pieces.pop_front();
        }
        self.pieces.push_back((piece, values));
    }

    /// The value of a subtree of a piece, if it is remembered.
    #[must_use]
    pub fn value(&self, piece: PieceRef, subtree: u32) -> Option<ChainingValue> {
        let (_, values) = self.pieces.iter().rev().find(|(known, _)| *known == piece)?;
        values.get(subtree as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, LayerId, RunId, Step};

    use super::*;

    fn piece(layer: u32) -> PieceRef {
        let digest = Digest([7; 32]);
        PieceRef { run: RunId(1), version: Step(4), layer: LayerId(layer), digest, length: 10 }
    }

    fn value(byte: u8) -> ChainingValue {
        ChainingValue([byte; 32])
    }

    #[test]
    fn values_are_those_of_the_piece_and_the_subtree() {
        let mut moments = MomentValues::default();
        moments.note(piece(0), vec![value(1), value(2)]);
        moments.note(piece(1), vec![value(3)]);
        moments.note(piece(2), Vec::new());
        let found = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
            .map(|(layer, subtree)| moments.value(piece(layer), subtree));
        assert_eq!(found, [Some(value(1)), Some(value(2)), None, Some(value(3)), None]);
        let other = PieceRef { digest: Digest([8; 32]), ..piece(0) };
        assert_eq!(moments.value(other, 0), None, "another state of the layer");
    }

    #[test]
    fn the_oldest_are_forgotten_and_none_is_there_twice() {
        let mut moments = MomentValues::default();
        for layer in 0..PIECES_MAX as u32 {
            moments.note(piece(layer), vec![value(1)]);
        }
        moments.note(piece(0), vec![value(2)]);
        assert_eq!(moments.value(piece(1), 0), Some(value(1)), "it replaced its own");
        moments.note(piece(PIECES_MAX as u32), vec![value(3)]);
        assert_eq!(moments.pieces.len(), PIECES_MAX);
        let found = [0, 1, 2].map(|layer| moments.value(piece(layer), 0));
        assert_eq!(found, [Some(value(2)), None, Some(value(1))]);
    }
}
