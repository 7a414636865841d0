//! Cuts encoded batches into shards, and notes which are finished.

use std::path::PathBuf;

use zbelastic_whole_file as whole_file;

use super::encode_batch::EncodedBatch;
use super::journal::{FinishedShard, JOURNAL_NAME, PrepareJournal};
use super::{PrepareError, PrepareRequest, SHARD_DOCUMENTS, write_error};
use crate::checked_json;
use crate::encode::EncodeDocuments;
use crate::source::{SourceCounts, SourceCursor};
use crate::store::{
    FORMAT_VERSION, MANIFEST_NAME, SHARDS_MAX, ShardWriter, StoreManifest, hash_file, shard_name,
};

/// A store that is being written.
pub(super) struct StoreWriter {
    folder: PathBuf,
    shard_tokens: u64,
    shard_documents: usize,
    /// The store's later manifest, of the finished shards.
    manifest: StoreManifest,
    journal: PrepareJournal,
    /// The shard that is being written. One that is full is finished when ids come that do not
    /// fit, since the end of its last document may come before them.
    shard: Option<ShardWriter>,
    /// Where the batch behind the last one begins.
    cursor: SourceCursor,
    /// Whether ids were written since a document ended.
    is_document_open: bool,
}

impl StoreWriter {
    /// Keeps the shards of the journal, up to the first that is not there as it was written.
    pub(super) fn resume(
        request: &PrepareRequest,
        encoder: &dyn EncodeDocuments,
        mut journal: PrepareJournal,
    ) -> Result<Self, PrepareError> {
        let folder = request.folder.clone();
        let is_kept = |(index, shard): &(usize, &FinishedShard)| {
            let found = hash_file(&folder.join(shard_name(*index)), &|_| {});
            found.is_ok_and(|found| found == shard.record.hash)
        };
        let kept = journal.shards.iter().enumerate().take_while(is_kept).count();
        journal.shards.truncate(kept);
        let last = journal.shards.last();
        let manifest = StoreManifest {
            version: FORMAT_VERSION,
            tokenizer: encoder.tokenizer_hash().0,
            vocabulary: encoder.vocabulary(),
            end_of_text: encoder.end_of_text(),
            sources: last.map_or_else(SourceCounts::default, |shard| shard.sources),
            shards: journal.shards.iter().map(|shard| shard.record.clone()).collect(),
        };
        Ok(Self {
            folder,
            shard_tokens: request.shard_tokens,
            shard_documents: SHARD_DOCUMENTS,
            manifest,
            cursor: last.map_or_else(SourceCursor::default, |shard| shard.after),
            is_document_open: last.is_some_and(|shard| shard.is_document_open),
            journal,
            shard: None,
        })
    }

    pub(super) fn cursor(&self) -> SourceCursor {
        self.cursor
    }

    pub(super) fn sources(&self) -> SourceCounts {
        self.manifest.sources
    }

    pub(super) fn tokens(&self) -> u64 {
        self.manifest.tokens() + self.shard.as_ref().map_or(0, ShardWriter::tokens)
    }

    fn is_full(&self) -> bool {
        let is_full = |shard: &ShardWriter| {
            shard.tokens() >= self.shard_tokens || shard.documents() >= self.shard_documents
        };
        self.shard.as_ref().is_some_and(is_full)
    }

    pub(super) fn append(&mut self, batch: &EncodedBatch) -> Result<(), PrepareError> {
        if self.is_full() && !batch.ids.is_empty() {
            if batch.ends.first() == Some(&0) {
                self.end_document();
            }
            self.finish_shard()?;
        }
        let path = self.folder.join(shard_name(self.manifest.shards.len()));
        let write_error = |source| write_error(&path, source);
        let mut begin = 0;
        let ends = batch.ends.iter().map(|end| (*end, true));
        for (end, is_document_end) in ends.chain([(batch.ids.len(), false)]) {
            if begin < end {
                if self.shard.is_none() {
                    let vocabulary = self.manifest.vocabulary;
                    let shard = ShardWriter::create(path.clone(), vocabulary);
                    self.shard = Some(shard.map_err(write_error)?);
                }
                let shard = self.shard.as_mut().expect("was created if there was none");
                let range = begin..end;
                let appended = shard.append(&batch.ids[range.clone()], &batch.loss_mask[range]);
                appended.map_err(write_error)?;
                self.is_document_open = true;
            }
            if is_document_end {
                self.end_document();
            }
            begin = end;
        }
        self.manifest.sources.add(batch.sources);
        self.cursor = batch.after;
        Ok(())
    }

    /// Ends the document, if it has ids.
    fn end_document(&mut self) {
        if let Some(shard) = self.shard.as_mut().filter(|_| self.is_document_open) {
            shard.end_document();
            self.is_document_open = false;
        }
    }

    fn finish_shard(&mut self) -> Result<(), PrepareError> {
        let Some(shard) = self.shard.take() else { return Ok(()) };
        if self.manifest.shards.len() == SHARDS_MAX {
            return Err(PrepareError::Shards { max: SHARDS_MAX });
        }
        let path = self.folder.join(shard_name(self.manifest.shards.len()));
        let record = shard.finish().map_err(|source| write_error(&path, source))?;
        self.manifest.shards.push(record.clone());
        self.journal.shards.push(FinishedShard {
            record,
            after: self.cursor,
            sources: self.manifest.sources,
            is_document_open: self.is_document_open,
        });
        let path = self.folder.join(JOURNAL_NAME);
        checked_json::write(&path, &self.journal).map_err(|source| write_error(&path, source))
    }

    /// Finishes the last shard, and makes of the folder a store.
    pub(super) fn finish(mut self) -> Result<StoreManifest, PrepareError> {
        self.end_document();
        self.finish_shard()?;
        let path = self.folder.join(MANIFEST_NAME);
        let written = checked_json::write(&path, &self.manifest);
        written.map_err(|source| write_error(&path, source))?;
        let path = self.folder.join(JOURNAL_NAME);
        whole_file::remove(&path).map_err(|source| write_error(&path, source))?;
        Ok(self.manifest)
    }
}
