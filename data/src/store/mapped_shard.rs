//! A shard that is mapped into memory.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use memmap2::{Advice, Mmap, UncheckedAdvice};

use super::layout::{ShardLayout, file_bytes};
use super::manifest::ShardRecord;
use super::present_chunks::PresentChunks;
use super::{StoreError, TokenSpan, hash_pieces};

/// A shard whose length was checked.
#[derive(Debug)]
pub(super) struct MappedShard {
    path: PathBuf,
    mapping: Mmap,
    layout: ShardLayout,
    vocabulary: u32,
    /// Of a shard that arrives.
    arriving: Option<ArrivingFile>,
}

/// A file of the length of a shard, of which some chunks are here. It is held open, since it gets
/// another name once it is whole.
#[derive(Debug)]
struct ArrivingFile {
    file: Arc<File>,
    present: PresentChunks,
}

impl MappedShard {
    pub(super) fn open(
        path: PathBuf,
        record: &ShardRecord,
        vocabulary: u32,
    ) -> Result<Self, StoreError> {
        let file = File::open(&path);
        let file = file.map_err(|source| StoreError::Io { path: path.clone(), source })?;
        Self::map(&file, path, record, vocabulary)
    }

    /// A shard of which no chunk is here yet. Its file has its length already.
    pub(super) fn arriving(
        (file, path): (Arc<File>, PathBuf),
        record: &ShardRecord,
        vocabulary: u32,
        chunk_bytes: u64,
    ) -> Result<Self, StoreError> {
        let shard = Self::map(&file, path, record, vocabulary)?;
        let present = PresentChunks::new(shard.bytes(), chunk_bytes);
        Ok(Self { arriving: Some(ArrivingFile { file, present }), ..shard })
    }

    fn map(
        file: &File,
        path: PathBuf,
        record: &ShardRecord,
        vocabulary: u32,
    ) -> Result<Self, StoreError> {
        let io = |source: io::Error| StoreError::Io { path: path.clone(), source };
        let found = file.metadata().map_err(io)?.len();
        let expected = file_bytes(record, vocabulary);
        if found != expected {
            return Err(StoreError::Length { path, found, expected });
        }
        // SAFETY: the bytes are read as integers, of which every pattern is valid. Shards are written
        // once, under another name; a program that alters one later may change the ids that are
        // read, which `verify` and the checks of each read notice.
        let mapping = unsafe { Mmap::map(file) }.map_err(io)?;
        let layout = ShardLayout::of(record, vocabulary);
        // Windows lie anywhere: pages behind one that is read are not those that are read next. A
        // system that does not heed it is slower.
        let _ = mapping.advise(Advice::Random);
        Ok(Self { path, mapping, layout, vocabulary, arriving: None })
    }

    /// A chunk of a shard that arrives was written and compared with its hash.
    pub(super) fn note_chunk(&self, chunk: u64) {
        if let Some(arriving) = &self.arriving {
            arriving.present.set(chunk);
        }
    }

    /// The bytes of a chunk go. Yields whether they were here, in a file that chunks are fetched into.
    pub(super) fn forget_chunk(&self, chunk: u64) -> bool {
        self.arriving.as_ref().is_some_and(|arriving| arriving.present.clear(chunk))
    }

    /// Whether chunks are fetched into its file.
    pub(super) const fn arrives(&self) -> bool {
        self.arriving.is_some()
    }

    pub(super) fn has_chunk(&self, chunk: u64) -> bool {
        self.arriving.as_ref().is_none_or(|arriving| arriving.present.has(chunk))
    }

    /// Whether all is here that a read of these ids touches.
    pub(super) fn has(&self, tokens: &Range<u64>) -> bool {
        let Some(ArrivingFile { present, .. }) = &self.arriving else { return true };
        self.layout.bytes_of(tokens).iter().all(|bytes| present.has_bytes(bytes))
    }

    /// Gives the memory of pages that were read back to the system; they are read again when they
    /// are needed.
    pub(super) fn release(&self) {
        // SAFETY: the mapping is shared and was never written through, so a page that is dropped
        // comes back from the file with the same bytes. A system that refuses keeps them.
        let _ = unsafe { self.mapping.unchecked_advise(UncheckedAdvice::DontNeed) };
    }

    /// Whether the file still has the length that was mapped: to read behind its end would end the
    /// process.
    pub(super) fn check_length(&self) -> Result<(), StoreError> {
        let path = || self.path.clone();
        let found = match &self.arriving {
            Some(arriving) => arriving.file.metadata(),
            None => fs::metadata(&self.path),
        };
        let found = found.map_err(|source| StoreError::Io { path: path(), source })?.len();
        let expected = self.mapping.len() as u64;
        if found != expected {
            return Err(StoreError::Length { path: path(), found, expected });
        }
        Ok(())
    }

    /// Length of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    pub(super) fn tokens(&self) -> u64 {
        (self.layout.ids.len() / self.layout.id_bytes) as u64
    }

    /// Compares the file's hash, and then its ids with the vocabulary. It is read and not mapped, so
    /// that no more than a buffer of it is in memory. `on_bytes` is called with the length of each piece that was read.
    pub(super) fn verify(
        &self,
        record: &ShardRecord,
        on_bytes: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        let io = |source: io::Error| StoreError::Io { path: self.path.clone(), source };
        let mut id_bytes_left = self.layout.ids.len();
        let mut greatest = 0;
        let found = hash_pieces(&self.path, &mut |piece| {
            let ids = &piece[..piece.len().min(id_bytes_left)];
            id_bytes_left -= ids.len();
            greatest = greatest.max(self.greatest_id(ids));
            on_bytes(piece.len() as u64);
        });
        let found = found.map_err(io)?;
        if found != record.hash {
            let expected = record.hash;
            return Err(StoreError::Hash { path: self.path.clone(), found, expected });
        }
        self.check_id(greatest)?;
        self.check_ends()
    }

    fn greatest_id(&self, ids: &[u8]) -> u32 {
        let greatest = match self.layout.id_bytes {
            2 => ids.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id).into()).max(),
            _ => ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).max(),
        };
        greatest.unwrap_or(0)
    }

    fn check_id(&self, found: u32) -> Result<(), StoreError> {
        if found >= self.vocabulary {
            let path = self.path.clone();
            return Err(StoreError::Vocabulary { path, found, vocabulary: self.vocabulary });
        }
        Ok(())
    }

    /// Numbers of ids behind which documents end.
    fn ends(&self) -> &[[u8; 4]] {
        self.mapping[self.layout.ends.clone()].as_chunks().0
    }

    fn check_ends(&self) -> Result<(), StoreError> {
        let mut begin = 0;
        for document in 0..self.ends().len() {
            begin = self.document_end(document, begin)?.unwrap_or(begin);
        }
        Ok(())
    }

    /// Where a document that goes on behind `begin` ids ends; nothing if that is in another shard.
    fn document_end(&self, document: usize, begin: u64) -> Result<Option<u64>, StoreError> {
        let Some(end) = self.ends().get(document) else { return Ok(None) };
        let found = u64::from(u32::from_le_bytes(*end));
        let expected = begin + 1..self.tokens() + 1;
        if !expected.contains(&found) {
            let path = self.path.clone();
            let document = document as u64;
            return Err(StoreError::DocumentEnd { path, document, found, expected });
        }
        Ok(Some(found))
    }

    pub(super) fn check_last_document_ends(&self) -> Result<(), StoreError> {
        let last = self.ends().last().map(|end| u64::from(u32::from_le_bytes(*end)));
        if last != Some(self.tokens()) {
            return Err(StoreError::OpenDocument { path: self.path.clone() });
        }
        Ok(())
    }

    fn id(&self, at: usize) -> u32 {
        let ids = &self.mapping[self.layout.ids.clone()];
        match self.layout.id_bytes {
            2 => u16::from_le_bytes(ids.as_chunks().0[at]).into(),
            _ => u32::from_le_bytes(ids.as_chunks().0[at]),
        }
    }

    fn is_in_loss(&self, at: usize) -> bool {
        let mask = &self.mapping[self.layout.loss_mask.clone()];
        mask.get(at / 8).is_none_or(|byte| byte >> (at % 8) & 1 == 1)
    }

    /// Appends ids of this shard; its first document has number `first_document`.
    pub(super) fn read(
        &self,
        tokens: Range<u64>,
        first_document: u64,
        to: &mut TokenSpan,
    ) -> Result<(), StoreError> {
        let is_before = |end: &[u8; 4]| u64::from(u32::from_le_bytes(*end)) <= tokens.start;
        let mut document = self.ends().partition_point(is_before);
        let mut begin = tokens.start;
        while begin < tokens.end {
            let end = self.document_end(document, begin)?.unwrap_or(tokens.end).min(tokens.end);
            for at in begin..end {
                let found = self.id(at as usize);
                self.check_id(found)?;
                to.ids.push(found);
                to.documents.push(first_document + document as u64);
                to.loss_mask.push(self.is_in_loss(at as usize));
            }
            begin = end;
            document += 1;
        }
        Ok(())
    }
}
