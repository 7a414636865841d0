//! Whether a copy of a piece is the layer that was agreed on, to the last bit: hashed as its bytes are read or
//! arrive, whatever its length.

use std::io;

use zbelastic_checkpoint::{CheckpointStore, CheckpointStoreError};
use zbelastic_trainer::elastic::{ImageDigester, ImageError};
use zbelastic_transport::ChunkSink;

use crate::piece::PieceRef;
use crate::piece_sink::PieceError;

/// Hashes a copy, whose bytes are pushed in order.
#[derive(Debug)]
pub struct CopyCheck {
    piece: PieceRef,
    digester: ImageDigester,
}

impl CopyCheck {
    /// Of a piece, no byte of which is pushed yet.
    #[must_use]
    pub fn new(piece: PieceRef) -> Self {
        Self { piece, digester: ImageDigester::new(piece.length) }
    }

    /// Hashes the bytes that follow.
    ///
    /// # Errors
    /// If they are not the bytes of a layer of the piece's length.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.digester.push(bytes)
    }

    /// Compares the digest.
    ///
    /// # Errors
    /// If bytes are missing, or it is another state.
    pub fn finish(self) -> Result<(), PieceError> {
        let expected = self.piece.digest;
        let found = self.digester.finish()?;
        if found == expected { Ok(()) } else { Err(PieceError::Digest { expected, found }) }
    }
}

/// One holder serves chunks in order; what comes in another order is no copy that could be checked.
impl ChunkSink for CopyCheck {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset != self.digester.found() {
            let found = self.digester.found();
            let what =
                format!("the bytes from {found} on were expected, those from {offset} on came");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.push(bytes).map_err(io::Error::other)
    }
}

/// Reads the copy in a store chunk by chunk.
///
/// # Errors
/// If it is not there ([`CheckpointStoreError::NoPiece`]), also if it is removed meanwhile, or not the piece.
pub fn check_stored_copy<S: CheckpointStore>(store: &S, piece: PieceRef) -> Result<(), PieceError> {
    let name = piece.name();
    let record = store.record(name)?.ok_or(CheckpointStoreError::NoPiece { name })?;
    let mut check = CopyCheck::new(piece);
    let mut chunk = Vec::new();
    for hash in &record.chunks {
        if let Err(error) = store.chunk_into(*hash, &mut chunk) {
            let is_removed = store.record(name)?.as_ref() != Some(&record);
            let removed = CheckpointStoreError::NoPiece { name };
            return Err(if is_removed { removed } else { error }.into());
        }
        check.push(&chunk)?;
    }
    check.finish()
}

#[cfg(test)]
mod tests {
    use zbelastic_checkpoint::{CHUNK_BYTES, InMemoryStore};
    use zbelastic_types::Digest;

    use super::*;
    use crate::piece_sink::tests::layer;

    #[test]
    fn a_copy_is_sound_if_all_of_it_is_the_layer() {
        let store = InMemoryStore::new();
        let (piece, mut bytes) = layer();
        let absent = check_stored_copy(&store, piece);
        assert!(matches!(absent, Err(PieceError::Store(CheckpointStoreError::NoPiece { .. }))));
        store.put(piece.name(), &bytes).expect("space");
        check_stored_copy(&store, piece).expect("the layer");
        let other = PieceRef { digest: Digest([7; 32]), ..piece };
        store.put(other.name(), &bytes).expect("space");
        let error = check_stored_copy(&store, other).expect_err("another state");
        assert!(matches!(error, PieceError::Digest { found, .. } if found == piece.digest));
        bytes[CHUNK_BYTES + 7] ^= 1;
        store.put(piece.name(), &bytes).expect("space");
        let error = check_stored_copy(&store, piece).expect_err("one bit differs");
        assert!(matches!(error, PieceError::Digest { expected, .. } if expected == piece.digest));
    }

    #[test]
    fn bytes_are_checked_in_the_order_in_which_one_holder_serves_them() {
        let (piece, bytes) = layer();
        let (first, rest) = bytes.split_at(CHUNK_BYTES);
        let mut check = CopyCheck::new(piece);
        check.write(0, first).expect("the beginning");
        let error = check.write(0, first).expect_err("twice");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        check.write(first.len() as u64, rest).expect("what follows");
        check.finish().expect("the layer");
        let mut short = CopyCheck::new(piece);
        short.write(0, first).expect("the beginning");
        assert!(matches!(short.finish(), Err(PieceError::Image(_))), "bytes are missing");
    }
}
