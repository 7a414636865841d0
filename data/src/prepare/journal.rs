//! The finished part of a store, so that a later call goes on from there.

use serde::{Deserialize, Serialize};

use super::PrepareRequest;
use crate::checked_json::{self, hex_hash};
use crate::encode::EncodeDocuments;
use crate::source::{SourceCounts, SourceCursor, SourceListing};
use crate::store::{FORMAT_VERSION, SHARDS_MAX, ShardRecord};

/// Name of the journal in the folder of a store that is not finished.
pub const JOURNAL_NAME: &str = "prepare.json";

/// Most bytes of a shard in the journal: names, white space, eight numbers of 20 digits, and a hash.
const FINISHED_BYTES_MAX: u64 = 768;
/// Most bytes of the rest of the journal.
const HEAD_BYTES_MAX: u64 = 1 << 10;
/// Most bytes of a journal, which has [`SHARDS_MAX`] shards at most.
pub(super) const JOURNAL_BYTES_MAX: u64 = HEAD_BYTES_MAX + SHARDS_MAX as u64 * FINISHED_BYTES_MAX;

/// The finished shards of a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrepareJournal {
    /// [`request_hash`] of the request.
    #[serde(with = "hex_hash")]
    pub(super) request: blake3::Hash,
    pub(super) shards: Vec<FinishedShard>,
}

/// A shard that is durable.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FinishedShard {
    pub(super) record: ShardRecord,
    /// Where in the sources the next shard begins.
    pub(super) after: SourceCursor,
    /// The counts of the documents that were read from the sources up to there.
    pub(super) sources: SourceCounts,
    /// Whether the last document goes on in the next shard.
    pub(super) is_document_open: bool,
}

/// Everything that determines a store's bytes, and the versions of its files.
#[derive(Serialize)]
struct RequestContent<'a> {
    format: u32,
    tokenizer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<String>,
    vocabulary: u32,
    end_of_text: Option<u32>,
    field: Option<&'a str>,
    separator: Option<&'a str>,
    skip_bad: bool,
    shard_tokens: u64,
    files: Vec<(&'a str, u64, &'a str)>,
}

/// A hash that differs where a store differs, or a file was written anew.
pub(super) fn request_hash(
    request: &PrepareRequest,
    listing: &SourceListing,
    encoder: &dyn EncodeDocuments,
) -> blake3::Hash {
    let files = listing.files.iter();
    let files = files.map(|(file, _)| (&*file.canonical, file.bytes.0, &*file.version));
    checked_json::checksum(&RequestContent {
        format: FORMAT_VERSION,
        tokenizer: encoder.tokenizer_hash().0.to_hex().to_string(),
        settings: encoder.settings(),
        vocabulary: encoder.vocabulary(),
        end_of_text: encoder.end_of_text(),
        field: request.options.field.as_deref(),
        separator: request.options.separator.as_deref(),
        skip_bad: request.options.skip_bad,
        shard_tokens: request.shard_tokens,
        files: files.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::{FINISHED_BYTES_MAX, FinishedShard, HEAD_BYTES_MAX, PrepareJournal};
    use crate::checked_json;
    use crate::source::{SourceCounts, SourceCursor};
    use crate::store::ShardRecord;

    #[test]
    fn the_largest_journal_is_within_the_limit_of_its_file() {
        let max = u64::MAX;
        let hash = blake3::hash(b"");
        let shard = FinishedShard {
            record: ShardRecord { tokens: max, documents: max, has_loss_mask: false, hash },
            after: SourceCursor { file: max, items: max },
            sources: SourceCounts { documents: max, empty: max, bad: max },
            is_document_open: false,
        };
        let bytes = |shards: usize| {
            let journal = PrepareJournal { request: hash, shards: vec![shard.clone(); shards] };
            checked_json::text(&journal).expect("it serializes").len() as u64
        };
        assert!(bytes(0) <= HEAD_BYTES_MAX, "{}", bytes(0));
        let shard = (bytes(101) - bytes(1)) / 100;
        assert!(shard <= FINISHED_BYTES_MAX, "{shard}");
    }
}
