//! The items of a batch to ids.

use super::PrepareError;
use crate::document::Document;
use crate::encode::{EncodeDocuments, EncodedDocument};
use crate::source::{
    BadDocument, Batch, SourceCounts, SourceCursor, SourceError, SourceItem, SourceListing,
    SourceOptions, TokenRun, read_line,
};

/// A batch, encoded.
#[derive(Debug, Default)]
pub(super) struct EncodedBatch {
    pub(super) ids: Vec<u32>,
    /// For each id, whether it counts in the loss as a target.
    pub(super) loss_mask: Vec<bool>,
    /// Numbers of ids, from the batch's beginning, behind which a document ends. Not strictly
    /// growing: there are documents of no ids.
    pub(super) ends: Vec<usize>,
    /// The counts that the batch adds.
    pub(super) sources: SourceCounts,
    /// Where the next batch begins.
    pub(super) after: SourceCursor,
    /// Bytes of the batch's items.
    pub(super) bytes: usize,
    /// Bytes read so far of all files.
    pub(super) bytes_read: u64,
}

/// The encoder and the options that batches are encoded with.
pub(super) struct BatchEncoder<'a> {
    pub(super) encoder: &'a dyn EncodeDocuments,
    pub(super) listing: &'a SourceListing,
    pub(super) options: &'a SourceOptions,
}

impl BatchEncoder<'_> {
    pub(super) fn encode(&self, batch: Batch) -> Result<EncodedBatch, PrepareError> {
        let Batch { items, after, bytes, bytes_read } = batch;
        let mut encoded = EncodedBatch { after, bytes, bytes_read, ..EncodedBatch::default() };
        for (file, item) in items {
            match item {
                SourceItem::Text { line, part } => {
                    self.append_document(file, line, &Document::Text(part), &mut encoded)?;
                }
                SourceItem::Line { number, bytes } => {
                    let document = read_line(&bytes, self.options.field.as_deref());
                    self.append_unless_bad(file, number, document, &mut encoded)?;
                }
                SourceItem::Row { number, document } => {
                    self.append_unless_bad(file, number, document, &mut encoded)?;
                }
                SourceItem::Tokens(run) => self.append_run(file, &run, &mut encoded)?,
            }
        }
        Ok(encoded)
    }

    fn path(&self, file: u64) -> String {
        self.listing.files[file as usize].0.path.clone()
    }

    /// Appends the document, or counts it if it is bad and bad ones are skipped.
    fn append_unless_bad(
        &self,
        file: u64,
        line: u64,
        document: Result<Document, BadDocument>,
        encoded: &mut EncodedBatch,
    ) -> Result<(), PrepareError> {
        let appended = match document {
            Ok(document) => self.append_document(file, line, &document, encoded),
            Err(problem) => Err(SourceError::Bad { file: self.path(file), line, problem }.into()),
        };
        match appended {
            Err(error) if self.options.skip_bad && error.is_of_document() => {
                encoded.sources.bad += 1;
                Ok(())
            }
            appended => appended,
        }
    }

    /// Appends nothing of a document that cannot be encoded.
    fn append_document(
        &self,
        file: u64,
        line: u64,
        document: &Document,
        encoded: &mut EncodedBatch,
    ) -> Result<(), PrepareError> {
        let ids = self.encoder.encode(document);
        let ids =
            ids.map_err(|source| PrepareError::Encode { file: self.path(file), line, source })?;
        encoded.sources.empty += u64::from(document.is_empty());
        self.append_ids(file, ids, encoded)?;
        let is_last = match document {
            Document::Text(part) => {
                let end_of_text = self.encoder.end_of_text().filter(|_| part.is_last);
                encoded.loss_mask.extend(end_of_text.map(|_| true));
                encoded.ids.extend(end_of_text);
                part.is_last
            }
            Document::Chat(_) => true,
        };
        if is_last {
            encoded.ends.push(encoded.ids.len());
            encoded.sources.documents += 1;
        }
        Ok(())
    }

    fn append_ids(
        &self,
        file: u64,
        document: EncodedDocument,
        encoded: &mut EncodedBatch,
    ) -> Result<(), PrepareError> {
        self.check_ids(file, &document.ids)?;
        let count = document.ids.len();
        let before = encoded.loss_mask.len();
        match document.loss_mask {
            Some(mask) if mask.len() != count => {
                return Err(PrepareError::LossMask { found: mask.len(), expected: count });
            }
            Some(mask) => encoded.loss_mask.extend(mask),
            None => encoded.loss_mask.resize(before + count, true),
        }
        encoded.ids.extend(document.ids);
        Ok(())
    }

    fn append_run(
        &self,
        file: u64,
        run: &TokenRun,
        encoded: &mut EncodedBatch,
    ) -> Result<(), PrepareError> {
        self.check_ids(file, &run.ids)?;
        let before = encoded.ids.len();
        encoded.ids.extend(&run.ids);
        encoded.loss_mask.resize(encoded.ids.len(), true);
        encoded.ends.extend(run.ends.iter().map(|end| before + end));
        encoded.sources.documents += run.ends.len() as u64;
        encoded.sources.empty += run.empty;
        Ok(())
    }

    fn check_ids(&self, file: u64, ids: &[u32]) -> Result<(), PrepareError> {
        let vocabulary = self.encoder.vocabulary();
        match ids.iter().find(|id| **id >= vocabulary) {
            Some(found) => {
                let file = self.path(file);
                Err(PrepareError::Vocabulary { file, found: *found, vocabulary })
            }
            None => Ok(()),
        }
    }
}
