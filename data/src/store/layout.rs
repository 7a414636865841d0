//! Where the parts of a shard lie in its file.

use std::ops::Range;

use super::manifest::ShardRecord;
use crate::source::NARROW_VOCABULARY_MAX;

/// Bytes of a document's end.
pub(super) const END_BYTES: u64 = 4;

/// The ranges of a shard's parts, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardLayout {
    pub(super) id_bytes: usize,
    pub(super) ids: Range<usize>,
    pub(super) ends: Range<usize>,
    /// Empty if every id counts in the loss.
    pub(super) loss_mask: Range<usize>,
}

/// Bytes of an id: 2 if all ids of the vocabulary fit.
pub(crate) fn id_bytes(vocabulary: u32) -> u64 {
    if vocabulary <= NARROW_VOCABULARY_MAX { 2 } else { 4 }
}

/// Length of the shard's file. The manifest's limits on counts keep it from overflowing.
pub(super) fn file_bytes(record: &ShardRecord, vocabulary: u32) -> u64 {
    let mask = if record.has_loss_mask { record.tokens.div_ceil(8) } else { 0 };
    record.tokens * id_bytes(vocabulary) + record.documents * END_BYTES + mask
}

impl ShardLayout {
    pub(super) fn of(record: &ShardRecord, vocabulary: u32) -> Self {
        let id_bytes = id_bytes(vocabulary);
        let ids_end = (record.tokens * id_bytes) as usize;
        let ends_end = ids_end + (record.documents * END_BYTES) as usize;
        let file_end = file_bytes(record, vocabulary) as usize;
        Self {
            id_bytes: id_bytes as usize,
            ids: 0..ids_end,
            ends: ids_end..ends_end,
            loss_mask: ends_end..file_end,
        }
    }

    /// The bytes that a read of these ids touches: the ids, all ends of documents, among which
    /// theirs are searched, and their bits of the loss mask.
    pub(super) fn bytes_of(&self, tokens: &Range<u64>) -> [Range<usize>; 3] {
        let start = tokens.start as usize;
        let end = tokens.end as usize;
        let mask_start = self.loss_mask.start + start / 8;
        let mask_end = self.loss_mask.start + end.div_ceil(8);
        let mask = if self.loss_mask.is_empty() { 0..0 } else { mask_start..mask_end };
        [start * self.id_bytes..end * self.id_bytes, self.ends.clone(), mask]
    }
}
