//! A chunk's file from its first byte to its name.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ChunkFolder, DAMAGED, TEMPORARY, TEMPORARY_SUFFIX};
use crate::buffers::ChunkBuffer;
use crate::error::{FileFault, FileOperation};
use crate::files::OpenFile;
use crate::names::ChunkHash;

/// A chunk's file that has no name yet. It is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct UnnamedChunk {
    chunks: Arc<ChunkFolder>,
    path: PathBuf,
    file: Box<dyn OpenFile>,
    hash: ChunkHash,
    is_synced: bool,
    is_named: bool,
}

impl ChunkFolder {
    /// Writes a chunk's bytes into a file without a name.
    pub(crate) fn write(
        self: &Arc<Self>,
        hash: ChunkHash,
        chunk: &ChunkBuffer<'_>,
    ) -> Result<UnnamedChunk, FileFault> {
        let number = self.temporaries.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(TEMPORARY).join(format!("{number}{TEMPORARY_SUFFIX}"));
        let file = self.files.create(&path).map_err(FileFault::of(FileOperation::Create, &path))?;
        let chunks = Arc::clone(self);
        let mut unnamed =
            UnnamedChunk { chunks, path, file, hash, is_synced: false, is_named: false };
        self.direct.write(&*self.files, &unnamed.path, &mut *unnamed.file, chunk)?;
        Ok(unnamed)
    }
}

impl UnnamedChunk {
    /// Waits until the bytes are durable.
    pub(crate) fn sync(&mut self) -> Result<(), FileFault> {
        self.file.sync().map_err(FileFault::of(FileOperation::Sync, &self.path))?;
        self.is_synced = true;
        Ok(())
    }

    /// Gives the file its chunk's name. The name is durable after [`ChunkFolder::sync_names`].
    pub(crate) fn rename_into_place(mut self) -> Result<(), FileFault> {
        assert!(self.is_synced, "a file without durable bytes gets no name");
        let chunks = Arc::clone(&self.chunks);
        let path = chunks.path(self.hash);
        let folder = self.hash.0[0];
        // Before the rename: a thread that finds the file must find the folder changed as well.
        chunks.with_sync_state(folder, |now| {
            now.changed += 1;
            now.renames += 1;
        });
        let renamed = chunks.files.rename(&self.path, &path);
        chunks.with_sync_state(folder, |now| now.renames -= 1);
        renamed.map_err(FileFault::of(FileOperation::Rename, &path))?;
        self.is_named = true;
        Ok(())
    }

    /// Puts aside an entry that has the chunk's name and is not the chunk.
    pub(crate) fn put_aside_existing(&self) -> Result<(), FileFault> {
        let aside = self.chunks.folder.join(DAMAGED).join(self.hash.to_string());
        let path = self.chunks.path(self.hash);
        match self.chunks.files.rename(&path, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileFault::of(FileOperation::Rename, &path)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Drop for UnnamedChunk {
    fn drop(&mut self) {
        if !self.is_named {
            // A file that cannot be removed now is removed when the store is opened again.
            drop(self.chunks.files.remove(&self.path));
        }
    }
}
