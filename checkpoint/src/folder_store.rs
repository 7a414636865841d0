//! A store of files beside an index: chunks in [`ChunkFolder`], the pieces that they make up in an
//! [`Index`].
//!
//! The rule that everything rests on: **a record in the index names only chunks whose bytes and
//! names are durable**. To write, chunks come before the record; to remove, the record is removed
//! before the chunks. Neither waits for the other: [`ChunkUses`] knows which chunks a writer counts
//! on.

mod chunk_uses;
mod verify;
mod writing;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::buffers::Buffers;
use crate::chunk_folder::{ChunkContent, ChunkFolder, UnnamedChunk};
use crate::error::{CheckpointStoreError, DatabaseFault, FileFault, FileOperation};
use crate::files::FileSystem;
use crate::index::{Index, IndexChange};
use crate::index_rows;
use crate::manifest::Manifest;
use crate::names::{CheckpointId, ChunkDamage, ChunkHash, PieceName, PieceRecord};
use crate::panics;
use crate::retention::{Removal, RemovalTarget, StoreInventory};
use crate::store::{
    CheckpointStore, check_chunk, check_length, check_piece_length, chunk_lengths, hash_chunk,
    names_first, source_fault,
};
use crate::verify::Verification;

use chunk_uses::ChunkUses;

/// The folder of the index, beside those of the chunks.
const INDEX: &str = "index";
/// Chunks of an own piece that are written before the first of them is synced: enough that a sync,
/// which the first of them pays for all, costs little.
const CHUNKS_AT_ONCE: usize = 8;
/// Chunks of a transfer that are: fewer, since several run at once, and where a disk's host caches
/// direct writes it is a sync that waits for them, while the transfer seems to stand still. With an
/// own piece and two transfers 16 files are open.
const ARRIVALS_AT_ONCE: usize = 4;

/// Files without a name, of a transfer to a [`FolderStore`].
#[derive(Debug, Default)]
pub struct UnnamedChunks {
    /// Each with whether something else has its name. Fewer than [`ARRIVALS_AT_ONCE`].
    files: Vec<(UnnamedChunk, bool)>,
}

/// A store in a folder.
#[derive(Debug)]
pub struct FolderStore<I> {
    folder: PathBuf,
    index: I,
    chunks: Arc<ChunkFolder>,
    buffers: Buffers,
    /// Chunks that are written for a record that is not there yet.
    uses: ChunkUses,
    /// Whether a sync failed, or a read found the index damaged. The state of the medium is unknown from
    /// then on.
    has_failed: AtomicBool,
}

impl<I: Index> FolderStore<I> {
    /// Opens the store in `folder`, which is made if it is not there. Its parent must be there.
    /// Files that a crash left half written are removed, and nothing else. All rows of the index are read:
    /// a damaged one is found now, and not when its piece is needed.
    ///
    /// # Errors
    /// If it is damaged, has lost something, is another's or of another version. Nothing is made
    /// anew in the place of something.
    pub fn open(files: Arc<dyn FileSystem>, folder: &Path) -> Result<Self, CheckpointStoreError> {
        files.create_folder(folder).map_err(FileFault::of(FileOperation::CreateFolder, folder))?;
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        files.sync_folder(parent).map_err(FileFault::of(FileOperation::SyncFolder, parent))?;
        let path = folder.join(INDEX);
        let failed = |fault| CheckpointStoreError::Index { folder: path.clone(), fault };
        let chunks = Arc::new(ChunkFolder::open(Arc::clone(&files), folder)?);
        // Chunks are written only beside an index. Checked before an index is made.
        if !I::is_there(&*files, &path).map_err(failed)? && !chunks.is_empty()? {
            return Err(failed(DatabaseFault::Lost { file: path.clone() }));
        }
        let index = I::open(files, &path).map_err(failed)?;
        let rows = panics::opened(|| index_rows::check(&index)).unwrap_or_else(|| {
            Err(DatabaseFault::Damaged { reason: "its rows cannot be read".to_owned() })
        });
        rows.map_err(failed)?;
        Ok(Self {
            folder: folder.to_owned(),
            index,
            chunks,
            buffers: Buffers::default(),
            uses: ChunkUses::default(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Path of the store's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a sync or the index failed, or the index was found damaged, so that nothing is written any
    /// more until the store is opened again.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.has_failed.load(Ordering::Acquire) || self.index.has_stopped()
    }

    /// A fault of the index. One that is damaged stops the store: opening it again tells whether the
    /// medium is damaged, or the memory was.
    fn failed(&self, fault: DatabaseFault) -> CheckpointStoreError {
        if fault.is_damage() {
            self.has_failed.store(true, Ordering::Release);
        }
        CheckpointStoreError::Index { folder: self.folder.clone(), fault }
    }

    /// Checks that the store was not stopped.
    fn check_running(&self) -> Result<(), CheckpointStoreError> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(CheckpointStoreError::Stopped { folder: self.folder.clone() });
        }
        Ok(())
    }

    /// Stops the store after a sync that failed: the system may have dropped the bytes that it was
    /// to write.
    fn stop<T>(&self, result: Result<T, FileFault>) -> Result<T, CheckpointStoreError> {
        result.map_err(|fault| {
            self.has_failed.store(true, Ordering::Release);
            CheckpointStoreError::File(fault)
        })
    }

    fn commit(&self, changes: &[IndexChange]) -> Result<(), CheckpointStoreError> {
        self.index.commit(changes).map_err(|fault| self.failed(fault))
    }

    /// Reads a chunk of a piece onto the end of `bytes`, or returns its damage.
    fn read_chunk(
        &self,
        record: &PieceRecord,
        index: usize,
        bytes: &mut Vec<u8>,
    ) -> Option<ChunkDamage> {
        let expected = record.chunks[index];
        let expected_bytes = record.chunk_bytes(index);
        let mut chunk = self.buffers.take();
        match self.chunks.read(expected, &mut chunk) {
            ChunkContent::Whole if chunk.bytes().len() as u64 == expected_bytes => {
                bytes.extend_from_slice(chunk.bytes());
                None
            }
            ChunkContent::Whole => {
                let found_bytes = chunk.bytes().len() as u64;
                Some(ChunkDamage::Length { index, expected, expected_bytes, found_bytes })
            }
            ChunkContent::Damaged { found, found_bytes } => {
                Some(damage(index, expected, expected_bytes, found, found_bytes))
            }
            ChunkContent::Unreadable(fault) => {
                Some(ChunkDamage::Unreadable { index, expected, kind: fault.source.kind() })
            }
            ChunkContent::Nothing => Some(ChunkDamage::Missing { index, expected }),
        }
    }
}

/// The damage of a chunk that holds something else.
fn damage(
    index: usize,
    expected: ChunkHash,
    expected_bytes: u64,
    found: ChunkHash,
    found_bytes: u64,
) -> ChunkDamage {
    if expected_bytes == found_bytes {
        ChunkDamage::Content { index, expected, found }
    } else {
        ChunkDamage::Length { index, expected, expected_bytes, found_bytes }
    }
}

impl<I: Index> CheckpointStore for FolderStore<I> {
    type UnnamedChunks = UnnamedChunks;

    fn put_from(
        &self,
        name: PieceName,
        length: u64,
        source: &mut dyn io::Read,
    ) -> Result<PieceRecord, CheckpointStoreError> {
        check_piece_length(name, length)?;
        self.check_running()?;
        let mut record = PieceRecord { length, chunks: Vec::new() };
        let mut write = self.uses.begin_write();
        let mut unnamed = Vec::new();
        let mut chunk = self.buffers.take();
        for count in chunk_lengths(length) {
            chunk.fill(count, source).map_err(source_fault(name))?;
            let hash = ChunkHash::of(chunk.bytes());
            record.chunks.push(hash);
            if write.add(hash) {
                unnamed.extend(self.write_if_needed(hash, &chunk)?);
            }
            if unnamed.len() == CHUNKS_AT_ONCE {
                self.name_files(std::mem::take(&mut unnamed))?;
            }
        }
        self.name_files(unnamed)?;
        self.stop(self.chunks.sync_names(write.chunks()))?;
        self.commit(&[index_rows::put_piece(name, &record)])?;
        Ok(record)
    }

    fn get(&self, name: PieceName) -> Result<Vec<u8>, CheckpointStoreError> {
        let record = self.record(name)?.ok_or(CheckpointStoreError::NoPiece { name })?;
        let mut bytes = Vec::new();
        let chunks = 0..record.chunks.len();
        let damage: Vec<_> =
            chunks.filter_map(|index| self.read_chunk(&record, index, &mut bytes)).collect();
        if damage.is_empty() {
            return Ok(bytes);
        }
        // It may have been removed while it was read.
        if self.record(name)?.as_ref() != Some(&record) {
            return Err(CheckpointStoreError::NoPiece { name });
        }
        Err(CheckpointStoreError::Damaged { name, damage })
    }

    fn record(&self, name: PieceName) -> Result<Option<PieceRecord>, CheckpointStoreError> {
        index_rows::piece(&self.index, name).map_err(|fault| self.failed(fault))
    }

    fn names(&self) -> Result<Vec<PieceName>, CheckpointStoreError> {
        let pieces = index_rows::pieces(&self.index).map_err(|fault| self.failed(fault))?;
        Ok(pieces.into_keys().collect())
    }

    fn chunk_into(&self, hash: ChunkHash, into: &mut Vec<u8>) -> Result<(), CheckpointStoreError> {
        into.clear();
        let mut chunk = self.buffers.take();
        match self.chunks.read(hash, &mut chunk) {
            ChunkContent::Whole => {
                into.extend_from_slice(chunk.bytes());
                Ok(())
            }
            ChunkContent::Damaged { found, found_bytes } => {
                Err(CheckpointStoreError::DamagedChunk { expected: hash, found, found_bytes })
            }
            ChunkContent::Unreadable(fault) => Err(fault.into()),
            ChunkContent::Nothing => Err(CheckpointStoreError::NoChunk { hash }),
        }
    }

    fn missing(&self, record: &PieceRecord) -> Result<Vec<ChunkHash>, CheckpointStoreError> {
        let needed: BTreeSet<ChunkHash> = record.chunks.iter().copied().collect();
        let mut missing = Vec::new();
        for hash in needed {
            if self.chunks.length(hash)?.is_none() {
                missing.push(hash);
            }
        }
        Ok(missing)
    }

    fn put_chunk(&self, hash: ChunkHash, bytes: &[u8]) -> Result<(), CheckpointStoreError> {
        self.check_running()?;
        check_chunk(hash, bytes)?;
        self.write_arrived(hash, bytes)
    }

    fn put_new_chunk(
        &self,
        bytes: &[u8],
        transfer: &mut UnnamedChunks,
    ) -> Result<ChunkHash, CheckpointStoreError> {
        self.check_running()?;
        let hash = hash_chunk(bytes)?;
        self.write_unnamed(hash, bytes, transfer)?;
        Ok(hash)
    }

    fn name_chunks(&self, transfer: UnnamedChunks) -> Result<(), CheckpointStoreError> {
        self.check_running()?;
        self.name_files(transfer.files)
    }

    fn put_record(
        &self,
        name: PieceName,
        record: &PieceRecord,
    ) -> Result<(), CheckpointStoreError> {
        self.check_running()?;
        record.check().map_err(|fault| CheckpointStoreError::BadRecord { name, fault })?;
        let mut write = self.uses.begin_write();
        for (index, &hash) in record.chunks.iter().enumerate() {
            write.add(hash);
            let length = self.chunks.length(hash)?.ok_or(CheckpointStoreError::NoChunk { hash })?;
            check_length(name, record, index, length)?;
        }
        self.stop(self.chunks.sync_names(write.chunks()))?;
        self.commit(&[index_rows::put_piece(name, record)])?;
        self.uses.end_arrivals(&record.chunks);
        Ok(())
    }

    fn abandon(&self, record: &PieceRecord) {
        self.uses.end_arrivals(&record.chunks);
    }

    fn put_manifest(&self, manifest: &Manifest) -> Result<(), CheckpointStoreError> {
        manifest.check()?;
        self.check_running()?;
        self.commit(&[index_rows::put_manifest(manifest)])
    }

    fn manifests(&self) -> Result<Vec<Manifest>, CheckpointStoreError> {
        let manifests = index_rows::manifests(&self.index);
        Ok(manifests.map_err(|fault| self.failed(fault))?.into_values().collect())
    }

    fn manifest(&self, version: CheckpointId) -> Result<Option<Manifest>, CheckpointStoreError> {
        index_rows::manifest(&self.index, version).map_err(|fault| self.failed(fault))
    }

    fn inventory(&self) -> Result<StoreInventory, CheckpointStoreError> {
        // The records last: a chunk written in between is missing from the list and so stays.
        let under_way = self.uses.under_way();
        let chunks = self.chunks.list()?.chunks;
        let failed = |fault| self.failed(fault);
        let manifests = index_rows::manifests(&self.index).map_err(failed)?;
        let pieces = index_rows::pieces(&self.index).map_err(failed)?;
        Ok(StoreInventory { manifests, pieces, chunks, under_way })
    }

    fn remove(&self, removals: &[Removal]) -> Result<Vec<Removal>, CheckpointStoreError> {
        self.check_running()?;
        let removals = names_first(removals);
        let mut gone = self.remove_names(&removals)?;
        let chunk_of = |removal: &Removal| match removal.target {
            RemovalTarget::Chunk(hash) => Some(hash),
            RemovalTarget::Manifest(_) | RemovalTarget::Piece(_) => None,
        };
        let unused = self.uses.begin_removal(removals.iter().filter_map(chunk_of).collect());
        // Read after chunks were condemned: a record that is committed from now on is of a writer that
        // uses its chunks.
        let pieces = index_rows::pieces(&self.index).map_err(|fault| self.failed(fault))?;
        unused.spare(pieces.values().flat_map(|record| &record.chunks));
        for removal in removals {
            let Some(hash) = chunk_of(&removal) else { continue };
            if unused.remove(hash, || self.chunks.remove(hash)).transpose()? == Some(true) {
                gone.push(removal);
            }
        }
        Ok(gone)
    }

    fn verify(&self) -> Result<Verification, CheckpointStoreError> {
        verify::verify(self)
    }
}

impl<I: Index> FolderStore<I> {
    /// Removes manifests and records from the index, durably.
    fn remove_names(&self, removals: &[Removal]) -> Result<Vec<Removal>, CheckpointStoreError> {
        let mut gone = Vec::new();
        let mut changes = Vec::new();
        for &removal in removals {
            let key = match removal.target {
                RemovalTarget::Manifest(version) => index_rows::manifest_key(version),
                RemovalTarget::Piece(name) => index_rows::piece_key(name),
                RemovalTarget::Chunk(_) => continue,
            };
            if self.index.value(&key).map_err(|fault| self.failed(fault))?.is_some() {
                changes.push(IndexChange::Remove { key });
                gone.push(removal);
            }
        }
        if !changes.is_empty() {
            self.commit(&changes)?;
        }
        Ok(gone)
    }
}
