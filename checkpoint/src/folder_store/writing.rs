//! Writing chunks into a store, from a buffer to a durable name.

use std::collections::BTreeSet;

use super::{ARRIVALS_AT_ONCE, FolderStore, UnnamedChunks};
use crate::buffers::ChunkBuffer;
use crate::chunk_folder::{ChunkComparison, UnnamedChunk};
use crate::error::CheckpointStoreError;
use crate::index::Index;
use crate::names::ChunkHash;

impl<I: Index> FolderStore<I> {
    /// Gives files their names, which `ChunkFolder::sync_names` makes durable, once their bytes
    /// are.
    pub(super) fn name_files(
        &self,
        mut unnamed: Vec<(UnnamedChunk, bool)>,
    ) -> Result<(), CheckpointStoreError> {
        for (file, _) in &mut unnamed {
            self.sync_bytes(file)?;
        }
        for (file, is_something_there) in unnamed {
            if is_something_there {
                file.put_aside_existing()?;
            }
            file.rename_into_place()?;
        }
        Ok(())
    }

    /// The chunk's file and whether something else has its name, unless it is there and whole.
    pub(super) fn write_if_needed(
        &self,
        hash: ChunkHash,
        chunk: &ChunkBuffer<'_>,
    ) -> Result<Option<(UnnamedChunk, bool)>, CheckpointStoreError> {
        let is_something_there = match self.chunks.compare(hash, chunk.bytes()) {
            ChunkComparison::Same => return Ok(None),
            ChunkComparison::Nothing => false,
            ChunkComparison::Other => true,
        };
        Ok(Some((self.chunks.write(hash, chunk)?, is_something_there)))
    }

    /// Writes a chunk that came from elsewhere, durably, and keeps it from removal.
    pub(super) fn write_arrived(
        &self,
        hash: ChunkHash,
        bytes: &[u8],
    ) -> Result<(), CheckpointStoreError> {
        let mut transfer = UnnamedChunks::default();
        self.write_unnamed(hash, bytes, &mut transfer)?;
        let named = self.name_files(transfer.files);
        let durable =
            named.and_then(|()| self.stop(self.chunks.sync_names(&BTreeSet::from([hash]))));
        if durable.is_err() {
            self.uses.end_arrivals(&[hash]);
        }
        durable
    }

    /// Writes a chunk that came from elsewhere to a file without a name, and keeps it from removal.
    /// As many as are synced at once get their names then. Where direct writes are refused, a sync
    /// writes all that was written before it, so a slow disk gets one chunk at a time: a transfer
    /// must not seem to stand still for as long as several take.
    pub(super) fn write_unnamed(
        &self,
        hash: ChunkHash,
        bytes: &[u8],
        transfer: &mut UnnamedChunks,
    ) -> Result<(), CheckpointStoreError> {
        self.uses.note_arrival(hash);
        let mut chunk = self.buffers.take();
        chunk.fill(bytes.len(), &mut &*bytes).expect("a slice has as many bytes as it has");
        let written = self.write_if_needed(hash, &chunk).and_then(|unnamed| {
            transfer.files.extend(unnamed);
            let is_full = transfer.files.len() >= ARRIVALS_AT_ONCE;
            if !is_full && self.chunks.writes_directly() {
                return Ok(());
            }
            self.name_files(std::mem::take(&mut transfer.files))
        });
        if written.is_err() {
            self.uses.end_arrivals(&[hash]);
        }
        written
    }

    /// Syncs a file. A disk that turns out to be full costs a file without a name, which is
    /// removed; any other error stops the store.
    fn sync_bytes(&self, file: &mut UnnamedChunk) -> Result<(), CheckpointStoreError> {
        match file.sync() {
            Err(fault) if fault.is_full() => Err(fault.into()),
            result => self.stop(result),
        }
    }
}
