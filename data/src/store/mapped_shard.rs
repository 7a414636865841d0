//! A shard that is mapped into memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use memmap2::Mmap;

use super::layout::{ShardLayout, file_bytes};
use super::manifest::ShardRecord;
use super::{StoreError, TokenSpan};

/// A shard, with lengths and document ends that were checked.
#[derive(Debug)]
pub(super) struct MappedShard {
    path: PathBuf,
    mapping: Mmap,
    layout: ShardLayout,
    vocabulary: u32,
}

impl MappedShard {
    pub(super) fn open(
        path: PathBuf,
        record: &ShardRecord,
        vocabulary: u32,
    ) -> Result<Self, StoreError> {
        let io = |source: io::Error| StoreError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        let found = file.metadata().map_err(io)?.len();
        let expected = file_bytes(record, vocabulary);
        if found != expected {
            return Err(StoreError::Length { path, found, expected });
        }
        // SAFETY: the bytes are read as integers, of which every pattern is valid. Shards are written
        // once, under another name; a program that alters one later may change the ids that are
        // read, which `verify` and the checks of each read notice.
        let mapping = unsafe { Mmap::map(&file) }.map_err(io)?;
        let layout = ShardLayout::of(record, vocabulary);
        let shard = Self { path, mapping, layout, vocabulary };
        shard.check_ends()?;
        Ok(shard)
    }

    pub(super) fn tokens(&self) -> u64 {
        (self.layout.ids.len() / self.layout.id_bytes) as u64
    }

    pub(super) fn verify(&self, record: &ShardRecord) -> Result<(), StoreError> {
        let found = blake3::hash(&self.mapping);
        if found != record.hash {
            let expected = record.hash;
            return Err(StoreError::Hash { path: self.path.clone(), found, expected });
        }
        Ok(())
    }

    /// Numbers of ids behind which documents end.
    fn ends(&self) -> &[[u8; 4]] {
        self.mapping[self.layout.ends.clone()].as_chunks().0
    }

    fn check_ends(&self) -> Result<(), StoreError> {
        let mut least = 1;
        for (document, end) in self.ends().iter().enumerate() {
            let found = u64::from(u32::from_le_bytes(*end));
            let expected = least..self.tokens() + 1;
            if !expected.contains(&found) {
                let path = self.path.clone();
                let document = document as u64;
                return Err(StoreError::DocumentEnd { path, document, found, expected });
            }
            least = found + 1;
        }
        Ok(())
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
        let ends = self.ends();
        let end = |document: usize| {
            ends.get(document).map_or(u64::MAX, |end| u32::from_le_bytes(*end).into())
        };
        let is_before = |end: &[u8; 4]| u64::from(u32::from_le_bytes(*end)) <= tokens.start;
        let mut document = ends.partition_point(is_before);
        for at in tokens {
            if at >= end(document) {
                document += 1;
            }
            let found = self.id(at as usize);
            if found >= self.vocabulary {
                let path = self.path.clone();
                return Err(StoreError::Vocabulary { path, found, vocabulary: self.vocabulary });
            }
            to.ids.push(found);
            to.documents.push(first_document + document as u64);
            to.loss_mask.push(self.is_in_loss(at as usize));
        }
        Ok(())
    }
}
