//! Stores of tests.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use zbelastic_data::document::Document;
use zbelastic_data::encode::{EncodeDocuments, EncodeError, EncodedDocument, TokenizerHash};
use zbelastic_data::prepare::{PrepareError, PrepareRequest, SHARD_TOKENS, prepare};
use zbelastic_data::source::{SourceOptions, SourceStorage};
use zbelastic_data::store::StoreManifest;

/// Each byte is an id.
pub struct BytesEncoder;

impl EncodeDocuments for BytesEncoder {
    fn tokenizer_hash(&self) -> TokenizerHash {
        TokenizerHash([0; 32].into())
    }

    fn vocabulary(&self) -> u32 {
        256
    }

    fn end_of_text(&self) -> Option<u32> {
        None
    }

    fn encode(&self, document: &Document) -> Result<EncodedDocument, EncodeError> {
        let Document::Text(part) = document else { panic!("a text") };
        Ok(EncodedDocument { ids: part.text.bytes().map(u32::from).collect(), loss_mask: None })
    }
}

/// Makes a store.
pub fn make(
    storage: &dyn SourceStorage,
    entries: Vec<String>,
    folder: &Path,
) -> Result<StoreManifest, PrepareError> {
    let request = PrepareRequest {
        entries,
        options: SourceOptions::default(),
        threads: NonZeroUsize::MIN,
        shard_tokens: SHARD_TOKENS,
        folder: folder.to_owned(),
    };
    prepare(&request, storage, &BytesEncoder, &mut |_| ControlFlow::Continue(()))
}
