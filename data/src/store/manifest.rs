//! The content of a store.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::StoreError;
use super::layout::{file_bytes, id_bytes};
use crate::checked_json::{self, hex_hash};
use crate::source::SourceCounts;

/// Version of the format of manifests and shards.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Name of the manifest in the folder of a store.
pub const MANIFEST_NAME: &str = "manifest.json";
/// Most ids of a shard; ends of documents are 32-bit numbers.
pub(crate) const SHARD_TOKENS_MAX: u64 = u32::MAX as u64;
/// Most shards of a store: of the usual size 2^44 ids, ten times what any model was trained on.
pub(crate) const SHARDS_MAX: usize = 1 << 18;
/// Most bytes of a shard in the manifest: names, white space, numbers of 20 digits, and a hash.
const RECORD_BYTES_MAX: u64 = 256;
/// Most bytes of the rest of the manifest.
const HEAD_BYTES_MAX: u64 = 1 << 10;
/// Most bytes of a manifest, which has [`SHARDS_MAX`] shards at most.
pub(crate) const MANIFEST_BYTES_MAX: u64 = HEAD_BYTES_MAX + SHARDS_MAX as u64 * RECORD_BYTES_MAX;

/// How the names of shards end.
pub(crate) const SHARD_EXTENSION: &str = ".shard";

/// The name of a shard in the folder of its store.
#[must_use]
pub fn shard_name(index: usize) -> String {
    format!("{index:05}{SHARD_EXTENSION}")
}

/// The content of a token store. It names no path and no time, so that the same sources give the
/// same manifest everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreManifest {
    /// Version of the format.
    pub version: u32,
    /// The encoder's [`TokenizerHash`](crate::encode::TokenizerHash).
    #[serde(with = "hex_hash")]
    pub tokenizer: blake3::Hash,
    /// Number of token ids that there are; ids are stored in 2 bytes if there are up to 65,536.
    pub vocabulary: u32,
    /// The id behind each text, if there is one.
    pub end_of_text: Option<u32>,
    /// The counts of the documents that were read from the sources. A document of no ids counts
    /// here and not in a shard.
    pub sources: SourceCounts,
    /// The shards in order.
    pub shards: Vec<ShardRecord>,
}

/// The content of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// Number of its ids.
    pub tokens: u64,
    /// Number of documents that end in it.
    pub documents: u64,
    /// Whether some of its ids do not count in the loss, so that it has a bit for each.
    pub has_loss_mask: bool,
    /// BLAKE3 of its file.
    #[serde(with = "hex_hash")]
    pub hash: blake3::Hash,
}

/// The fault of a manifest that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestFault {
    /// Another version of the format.
    #[error("has version {found} of the format, expected {expected}")]
    Version {
        /// The version in the manifest.
        found: u32,
        /// The version that is read.
        expected: u32,
    },
    /// No token id.
    #[error("has a vocabulary of no token")]
    Vocabulary,
    /// The end-of-text token is outside the vocabulary.
    #[error("has end-of-text id {found}, expected one below {vocabulary}")]
    EndOfText {
        /// The id in the manifest.
        found: u32,
        /// Tokens of the vocabulary.
        vocabulary: u32,
    },
    /// A shard of no ids, of too many, or of more documents than ids.
    #[error("shard {shard} has {tokens} ids and {documents} documents, expected 1 to {max} ids")]
    ShardSize {
        /// Index of the shard.
        shard: usize,
        /// Its ids by the manifest.
        tokens: u64,
        /// Its documents by the manifest.
        documents: u64,
        /// Most ids of a shard.
        max: u64,
    },
    /// More shards than a store has.
    #[error("has {found} shards, expected at most {max}")]
    Shards {
        /// Shards of the manifest.
        found: usize,
        /// Most shards of a store.
        max: usize,
    },
}

impl ShardRecord {
    pub(crate) fn check(&self, shard: usize) -> Result<(), ManifestFault> {
        let Self { tokens, documents, .. } = *self;
        if tokens == 0 || tokens > SHARD_TOKENS_MAX || documents > tokens {
            let max = SHARD_TOKENS_MAX;
            return Err(ManifestFault::ShardSize { shard, tokens, documents, max });
        }
        Ok(())
    }
}

impl StoreManifest {
    /// Reads the manifest of the store in `folder`.
    ///
    /// # Errors
    /// If there is none, or it is damaged or contradicts itself.
    pub fn read(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(MANIFEST_NAME);
        let manifest: Self = match checked_json::read(&path, MANIFEST_BYTES_MAX) {
            Ok(manifest) => manifest,
            Err(source) => return Err(StoreError::Manifest { path, source }),
        };
        match manifest.check() {
            Ok(()) => Ok(manifest),
            Err(source) => Err(StoreError::Content { path, source }),
        }
    }

    /// Length of each shard's file, in bytes.
    pub fn shard_bytes(&self) -> impl Iterator<Item = u64> {
        self.shards.iter().map(|record| file_bytes(record, self.vocabulary))
    }

    /// Bytes of an id.
    pub(crate) fn id_bytes(&self) -> u64 {
        id_bytes(self.vocabulary)
    }

    /// Number of ids.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.shards.iter().map(|shard| shard.tokens).sum()
    }

    /// Number of documents that have ids.
    #[must_use]
    pub fn documents(&self) -> u64 {
        self.shards.iter().map(|shard| shard.documents).sum()
    }

    /// The name of the store's content: BLAKE3 of the manifest, and so of all shards.
    #[must_use]
    pub fn hash(&self) -> blake3::Hash {
        checked_json::checksum(self)
    }

    /// Checks that it does not contradict itself: whatever it says then, no arithmetic with it
    /// overflows.
    ///
    /// # Errors
    /// With the first contradiction.
    pub fn check(&self) -> Result<(), ManifestFault> {
        let vocabulary = self.vocabulary;
        if self.version != FORMAT_VERSION {
            let expected = FORMAT_VERSION;
            return Err(ManifestFault::Version { found: self.version, expected });
        }
        if vocabulary == 0 {
            return Err(ManifestFault::Vocabulary);
        }
        if let Some(found) = self.end_of_text.filter(|id| *id >= vocabulary) {
            return Err(ManifestFault::EndOfText { found, vocabulary });
        }
        if self.shards.len() > SHARDS_MAX {
            return Err(ManifestFault::Shards { found: self.shards.len(), max: SHARDS_MAX });
        }
        self.shards.iter().enumerate().try_for_each(|(index, shard)| shard.check(index))
    }
}

#[cfg(test)]
mod tests {
    use super::{HEAD_BYTES_MAX, RECORD_BYTES_MAX, ShardRecord, StoreManifest};
    use crate::checked_json;
    use crate::source::SourceCounts;

    #[test]
    fn the_largest_manifest_is_within_the_limit_of_its_file() {
        let hash = blake3::hash(b"");
        let record =
            ShardRecord { tokens: u64::MAX, documents: u64::MAX, has_loss_mask: false, hash };
        let sources = SourceCounts { documents: u64::MAX, empty: u64::MAX, bad: u64::MAX };
        let bytes = |shards: usize| {
            let manifest = StoreManifest {
                version: u32::MAX,
                tokenizer: hash,
                vocabulary: u32::MAX,
                end_of_text: Some(u32::MAX),
                sources,
                shards: vec![record.clone(); shards],
            };
            checked_json::text(&manifest).expect("it serializes").len() as u64
        };
        assert!(bytes(0) <= HEAD_BYTES_MAX, "{}", bytes(0));
        let record = (bytes(101) - bytes(1)) / 100;
        assert!(record <= RECORD_BYTES_MAX, "{record}");
    }
}
