//! The finished part of a store, so that a later call goes on from there.

use serde::{Deserialize, Serialize};

use super::PrepareRequest;
use crate::checked_json::{self, hex_hash};
use crate::encode::EncodeDocuments;
use crate::source::{SourceCounts, SourceCursor, SourceListing};
use crate::store::{FORMAT_VERSION, ShardRecord};

/// Name of the journal in the folder of a store that is not finished.
pub const JOURNAL_NAME: &str = "prepare.json";

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
        vocabulary: encoder.vocabulary(),
        end_of_text: encoder.end_of_text(),
        field: request.options.field.as_deref(),
        separator: request.options.separator.as_deref(),
        skip_bad: request.options.skip_bad,
        shard_tokens: request.shard_tokens,
        files: files.collect(),
    })
}
