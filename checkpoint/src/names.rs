//! The names of chunks, which follow from their content, and of pieces, which identify a layer of a
//! version.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zbelastic_types::{Digest, LayerId, RunId, Step};

/// Bytes of a chunk; the last one of a piece may be shorter. Large enough that a file costs little
/// beside its bytes, small enough to be sent again when a transfer breaks.
pub const CHUNK_BYTES: usize = 4 << 20;
/// Bytes of a piece at most: three parts of 16 GiB and a header, as large as a layer can be.
pub const PIECE_BYTES_MAX: u64 = 49 << 30;
/// Letters of a chunk's name.
const HEX_LETTERS: usize = 64;

/// The BLAKE3 hash of a chunk's bytes, and so its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChunkHash(pub [u8; 32]);

/// Why a text names no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no chunk is called so, a name is {HEX_LETTERS} letters of 0-9 and a-f")]
pub struct ChunkNameFault;

impl ChunkHash {
    /// The hash of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The hash that `text` spells, in the one spelling there is: 64 small hexadecimal letters.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn parse(text: &str) -> Result<Self, ChunkNameFault> {
        let letters = text.as_bytes();
        if letters.len() != HEX_LETTERS {
            return Err(ChunkNameFault);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(letters.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

fn nibble(letter: u8) -> Result<u8, ChunkNameFault> {
    match letter {
        b'0'..=b'9' => Ok(letter - b'0'),
        b'a'..=b'f' => Ok(letter - b'a' + 10),
        _ => Err(ChunkNameFault),
    }
}

impl fmt::Display for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A version of a run, which may be a checkpoint. Those of a run follow those of the runs before
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CheckpointId {
    /// The run that the version belongs to.
    pub run: RunId,
    /// Steps of it sealed before.
    pub version: Step,
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} of run {}", self.version, self.run)
    }
}

/// The name of a piece: a layer as it was before a step. Never a stage, so that any number of
/// stages can read the pieces that any other number wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PieceName {
    /// The run, and steps of it sealed before.
    pub version: CheckpointId,
    /// Index of the layer in the model.
    pub layer: LayerId,
    /// The digest of the layer's state, as the cluster agreed on it. It is not a hash of the bytes.
    pub digest: Digest,
}

impl fmt::Display for PieceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} of {} ({:?})", self.layer, self.version, self.digest)
    }
}

/// The chunks of a piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceRecord {
    /// Length of the piece in bytes.
    pub length: u64,
    /// Its chunks in order. All but the last have [`CHUNK_BYTES`].
    pub chunks: Vec<ChunkHash>,
}

/// Why a record cannot be one of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PieceRecordFault {
    /// More bytes than a piece can have.
    #[error("a piece of {found} bytes, at most {PIECE_BYTES_MAX}")]
    TooLong {
        /// The length in the record.
        found: u64,
    },
    /// More or fewer chunks than the length requires.
    #[error("{found} chunks, the length requires {expected}")]
    ChunkCount {
        /// Number of chunks that the length requires.
        expected: u64,
        /// Number of chunks in the record.
        found: u64,
    },
}

impl PieceRecord {
    /// The record of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let chunks = bytes.chunks(CHUNK_BYTES).map(ChunkHash::of).collect();
        Self { length: bytes.len() as u64, chunks }
    }

    /// Checks that the length and the number of chunks agree. A record from another node or from a
    /// disk is checked so before anything is allocated for it.
    ///
    /// # Errors
    /// If they do not.
    pub fn check(&self) -> Result<(), PieceRecordFault> {
        if self.length > PIECE_BYTES_MAX {
            return Err(PieceRecordFault::TooLong { found: self.length });
        }
        let expected = self.length.div_ceil(CHUNK_BYTES as u64);
        let found = self.chunks.len() as u64;
        if expected != found {
            return Err(PieceRecordFault::ChunkCount { expected, found });
        }
        Ok(())
    }

    /// The bytes of the chunk at `index`.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn chunk_bytes(&self, index: usize) -> u64 {
        assert!(index < self.chunks.len(), "the piece has such a chunk");
        (self.length - (index * CHUNK_BYTES) as u64).min(CHUNK_BYTES as u64)
    }
}

/// The damage of a chunk of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChunkDamage {
    /// Its file is not there.
    #[error("chunk {index} ({expected}) is missing")]
    Missing {
        /// Which chunk of the piece.
        index: usize,
        /// Name of the chunk: the hash that its bytes should have.
        expected: ChunkHash,
    },
    /// Its file is shorter or longer.
    #[error("chunk {index} ({expected}) has {found_bytes} bytes, expected {expected_bytes}")]
    Length {
        /// Which chunk of the piece.
        index: usize,
        /// Name of the chunk: the hash that its bytes should have.
        expected: ChunkHash,
        /// Bytes that the file should have.
        expected_bytes: u64,
        /// Bytes that the file has.
        found_bytes: u64,
    },
    /// Its bytes are not those that it is named after.
    #[error("chunk {index} hashes to {found}, expected {expected}")]
    Content {
        /// Which chunk of the piece.
        index: usize,
        /// Name of the chunk: the hash that its bytes should have.
        expected: ChunkHash,
        /// The hash of the bytes that are there.
        found: ChunkHash,
    },
    /// The medium does not yield its bytes, or something other than a file has its name.
    #[error("chunk {index} ({expected}) cannot be read: {kind}")]
    Unreadable {
        /// Which chunk of the piece.
        index: usize,
        /// Name of the chunk: the hash that its bytes should have.
        expected: ChunkHash,
        /// Kind of the error that the system returned.
        kind: std::io::ErrorKind,
    },
}
