//! The trait of stores for the pieces of checkpoints.

use std::io;

use crate::error::CheckpointStoreError;
use crate::manifest::Manifest;
use crate::names::{
    CHUNK_BYTES, CheckpointId, ChunkDamage, ChunkHash, PIECE_BYTES_MAX, PieceName, PieceRecord,
    PieceRecordFault,
};
use crate::retention::{Removal, StoreInventory};
use crate::verify::Verification;

/// Pieces, their chunks and manifests. Any number of threads may use one.
///
/// Data that a call acknowledged are on the medium when it returns. Bytes that a call yields were
/// checked against the hash they were written under.
pub trait CheckpointStore: Send + Sync {
    /// Chunks of a transfer that are written and have no name yet. What is dropped with it is
    /// removed.
    type UnnamedChunks: Default + Send;

    /// Writes a piece of `length` bytes, read as they are written: its chunks first, then their
    /// folder entries, then its record. Chunks that are there and whole are not written again,
    /// those that are there and damaged are replaced. A few chunks are in memory at once, for any
    /// length.
    ///
    /// # Errors
    /// If it is not durable, or `source` has fewer bytes. Nothing refers to the chunks that were
    /// written of it.
    fn put_from(
        &self,
        name: PieceName,
        length: u64,
        source: &mut dyn io::Read,
    ) -> Result<PieceRecord, CheckpointStoreError>;

    /// The same for bytes in memory.
    ///
    /// # Errors
    /// If it is not durable. Nothing refers to the chunks that were written of it.
    fn put(&self, name: PieceName, bytes: &[u8]) -> Result<PieceRecord, CheckpointStoreError> {
        self.put_from(name, bytes.len() as u64, &mut &*bytes)
    }

    /// The bytes of a piece, each chunk checked. A caller that reads pieces of any length reads the
    /// [`Self::record`] and its chunks one by one.
    ///
    /// # Errors
    /// If it is not here, or which of its chunks are not whole.
    fn get(&self, name: PieceName) -> Result<Vec<u8>, CheckpointStoreError>;

    /// The record of a piece, which lists its chunks, if it is here. Its chunks are not read.
    ///
    /// # Errors
    /// If the index fails.
    fn record(&self, name: PieceName) -> Result<Option<PieceRecord>, CheckpointStoreError>;

    /// The pieces that are here, in order.
    ///
    /// # Errors
    /// If the index fails.
    fn names(&self) -> Result<Vec<PieceName>, CheckpointStoreError>;

    /// The bytes of a chunk, checked.
    ///
    /// # Errors
    /// If it is not here or not whole.
    fn chunk(&self, hash: ChunkHash) -> Result<Vec<u8>, CheckpointStoreError> {
        let mut bytes = Vec::new();
        self.chunk_into(hash, &mut bytes)?;
        Ok(bytes)
    }

    /// The same in place of the bytes in `into`. A caller that reads chunk after chunk into one
    /// vector does not have fresh pages cleared for each.
    ///
    /// # Errors
    /// As [`Self::chunk`]. `into` is empty then.
    fn chunk_into(&self, hash: ChunkHash, into: &mut Vec<u8>) -> Result<(), CheckpointStoreError>;

    /// Which chunks of a record are not here, each once. Their bytes are not read.
    ///
    /// # Errors
    /// If the medium fails.
    fn missing(&self, record: &PieceRecord) -> Result<Vec<ChunkHash>, CheckpointStoreError>;

    /// Writes a chunk that came from elsewhere, durably. It is safe from removal until a record
    /// names it, [`Self::abandon`] is called or the store is opened again.
    ///
    /// # Errors
    /// If the bytes are not those of the name, or it is not durable.
    fn put_chunk(&self, hash: ChunkHash, bytes: &[u8]) -> Result<(), CheckpointStoreError>;

    /// Writes a chunk that came from elsewhere without its name, and returns its name. Its bytes are
    /// hashed once, where a caller that hashes them for a name has them hashed twice. It is as safe
    /// from removal as one of [`Self::put_chunk`], but not durable yet and perhaps not to be read:
    /// chunks of a transfer are synced a few at a time, the last of them by
    /// [`Self::name_chunks`], since a disk syncs several in little more time than one.
    ///
    /// # Errors
    /// If they are no chunk, or one of the transfer cannot be written.
    fn put_new_chunk(
        &self,
        bytes: &[u8],
        transfer: &mut Self::UnnamedChunks,
    ) -> Result<ChunkHash, CheckpointStoreError>;

    /// Gives the chunks of a transfer that have none their names: they can be read, and
    /// [`Self::put_record`] may name them, which makes them durable.
    ///
    /// # Errors
    /// If one cannot be synced.
    fn name_chunks(&self, transfer: Self::UnnamedChunks) -> Result<(), CheckpointStoreError>;

    /// Writes the record of a piece with chunks that came from elsewhere, durably.
    ///
    /// # Errors
    /// If a chunk of it is not here, or it is not durable.
    fn put_record(&self, name: PieceName, record: &PieceRecord)
    -> Result<(), CheckpointStoreError>;

    /// Abandons a transfer that will not be finished: its chunks may be removed.
    fn abandon(&self, record: &PieceRecord);

    /// Writes a manifest, durably. Its pieces may lie elsewhere. One of the same version is
    /// replaced: a run that was rewound reaches the same version again.
    ///
    /// # Errors
    /// If it is no manifest or not durable.
    fn put_manifest(&self, manifest: &Manifest) -> Result<(), CheckpointStoreError>;

    /// The manifests that are here, oldest version first.
    ///
    /// # Errors
    /// If the index fails.
    fn manifests(&self) -> Result<Vec<Manifest>, CheckpointStoreError>;

    /// The manifest of a version, if it is here.
    ///
    /// # Errors
    /// If the index fails.
    fn manifest(&self, version: CheckpointId) -> Result<Option<Manifest>, CheckpointStoreError>;

    /// The content of the store, in the form that [`crate::plan_removals`] reads.
    ///
    /// # Errors
    /// If the medium fails.
    fn inventory(&self) -> Result<StoreInventory, CheckpointStoreError>;

    /// Carries out the given removals, names before bytes. A chunk that a record names by now, or
    /// that was written for one under way, stays. Returns the removals that were carried out.
    ///
    /// # Errors
    /// If the medium fails. Data that are still named are still there.
    fn remove(&self, removals: &[Removal]) -> Result<Vec<Removal>, CheckpointStoreError>;

    /// Reads everything and returns the parts that are whole.
    ///
    /// # Errors
    /// If the index or the folder cannot be read at all. A chunk that cannot be is in the answer.
    fn verify(&self) -> Result<Verification, CheckpointStoreError>;
}

/// Checks that a piece may have this length, before anything of it is read.
pub(crate) fn check_piece_length(name: PieceName, length: u64) -> Result<(), CheckpointStoreError> {
    if length <= PIECE_BYTES_MAX {
        return Ok(());
    }
    let fault = PieceRecordFault::TooLong { found: length };
    Err(CheckpointStoreError::BadRecord { name, fault })
}

/// Bytes of each chunk of a piece, in order.
pub(crate) fn chunk_lengths(length: u64) -> impl Iterator<Item = usize> {
    let starts = (0..length).step_by(CHUNK_BYTES);
    starts.map(move |start| (length - start).min(CHUNK_BYTES as u64) as usize)
}

/// The error of a piece that cannot be read from its source.
pub(crate) fn source_fault(name: PieceName) -> impl FnOnce(io::Error) -> CheckpointStoreError {
    move |source| CheckpointStoreError::Source { name, source }
}

/// Checks that `bytes` may be a chunk, and returns its hash.
pub(crate) fn hash_chunk(bytes: &[u8]) -> Result<ChunkHash, CheckpointStoreError> {
    if bytes.is_empty() || bytes.len() > CHUNK_BYTES {
        return Err(CheckpointStoreError::ChunkLength { found: bytes.len() });
    }
    Ok(ChunkHash::of(bytes))
}

/// Checks that `bytes` may be a chunk, and are the one called `expected`.
pub(crate) fn check_chunk(expected: ChunkHash, bytes: &[u8]) -> Result<(), CheckpointStoreError> {
    let found = hash_chunk(bytes)?;
    if found != expected {
        return Err(CheckpointStoreError::WrongChunk { expected, found });
    }
    Ok(())
}

/// Checks that a chunk that is here has the length that follows from the record.
pub(crate) fn check_length(
    name: PieceName,
    record: &PieceRecord,
    index: usize,
    found_bytes: u64,
) -> Result<(), CheckpointStoreError> {
    let expected_bytes = record.chunk_bytes(index);
    if expected_bytes == found_bytes {
        return Ok(());
    }
    let expected = record.chunks[index];
    let damage = ChunkDamage::Length { index, expected, expected_bytes, found_bytes };
    Err(CheckpointStoreError::Damaged { name, damage: vec![damage] })
}

/// The removals in an order in which no name is left without its bytes: the name of a thing is
/// removed before the thing.
pub(crate) fn names_first(removals: &[Removal]) -> Vec<Removal> {
    let mut removals = removals.to_vec();
    removals.sort();
    removals.dedup();
    removals
}
