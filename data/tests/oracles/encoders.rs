//! Encoders that stand for a tokenizer, which this package has none of.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use tempfile::TempDir;
use zbelastic_data::document::Document;
use zbelastic_data::encode::{EncodeDocuments, EncodeError, EncodedDocument, TokenizerHash};
use zbelastic_data::prepare::{PrepareRequest, SHARD_TOKENS, prepare};
use zbelastic_data::source::{LocalStorage, SourceOptions};
use zbelastic_data::store::TokenStore;

fn text(document: &Document) -> &str {
    match document {
        Document::Text(part) => {
            assert!(part.is_first && part.is_last, "the oracle's documents are short");
            &part.text
        }
        Document::Chat(_) => panic!("the oracle has no chats"),
    }
}

/// The ids of texts by a table: those of the oracle's tokenizer, which were made by it.
pub struct TableEncoder(pub BTreeMap<String, Vec<u32>>);

impl EncodeDocuments for TableEncoder {
    fn tokenizer_hash(&self) -> TokenizerHash {
        TokenizerHash(blake3::hash(b"table"))
    }

    fn vocabulary(&self) -> u32 {
        512
    }

    fn end_of_text(&self) -> Option<u32> {
        Some(0)
    }

    fn encode(&self, document: &Document) -> Result<EncodedDocument, EncodeError> {
        let ids = self.0.get(text(document)).cloned();
        let reason = format!("{:?} is no document of the oracle", text(document));
        let ids = ids.ok_or(EncodeError::Tokenize { reason })?;
        Ok(EncodedDocument { ids, loss_mask: None })
    }
}

/// Bytes, and an id of its own behind each document, so that empty ones are seen.
pub struct EndedBytesEncoder;

impl EncodeDocuments for EndedBytesEncoder {
    fn tokenizer_hash(&self) -> TokenizerHash {
        TokenizerHash(blake3::hash(b"ended bytes"))
    }

    fn vocabulary(&self) -> u32 {
        257
    }

    fn end_of_text(&self) -> Option<u32> {
        Some(256)
    }

    fn encode(&self, document: &Document) -> Result<EncodedDocument, EncodeError> {
        let ids = text(document).bytes().map(u32::from).collect();
        Ok(EncodedDocument { ids, loss_mask: None })
    }
}

/// The store of a file.
pub fn store(file: &Path, encoder: &dyn EncodeDocuments) -> (TokenStore, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let request = PrepareRequest {
        entries: vec![file.display().to_string()],
        options: SourceOptions {
            separator: Some("<|endoftext|>".to_owned()),
            ..SourceOptions::default()
        },
        threads: NonZeroUsize::new(2).expect("two"),
        shard_tokens: SHARD_TOKENS,
        folder: folder.path().join("store"),
    };
    let mut on_progress = |_: &_| ControlFlow::Continue(());
    prepare(&request, &LocalStorage, encoder, &mut on_progress).expect("a store");
    let store = TokenStore::open(&request.folder).expect("a store");
    store.verify().expect("as it was written");
    (store, folder)
}
