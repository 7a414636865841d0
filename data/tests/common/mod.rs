//! Corpora and stores of tests.

use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use zbelastic_data::document::Document;
use zbelastic_data::encode::{EncodeDocuments, EncodeError, EncodedDocument, TokenizerHash};
use zbelastic_data::prepare::{PrepareError, PrepareRequest, prepare};
use zbelastic_data::source::{LocalStorage, SourceOptions};
use zbelastic_data::store::StoreManifest;

/// A text or chat with this is refused by [`TestEncoder`].
pub const REFUSED: &str = "<refused>";

/// A chat with this cannot be rendered by [`TestEncoder`].
pub const UNRENDERED: &str = "<unrendered>";
/// With this chat, the template of [`TestEncoder`] is found to be wrong.
pub const MALFORMED: &str = "<malformed>";

/// Bytes as ids, 256 behind each text. Of a chat only the letters `b` count in the loss.
#[derive(Default)]
pub struct TestEncoder {
    /// The day, as settings have it.
    pub day: Option<&'static str>,
}

impl EncodeDocuments for TestEncoder {
    fn tokenizer_hash(&self) -> TokenizerHash {
        TokenizerHash(blake3::hash(b"test"))
    }

    fn settings(&self) -> Option<String> {
        self.day.map(str::to_owned)
    }

    fn vocabulary(&self) -> u32 {
        257
    }

    fn end_of_text(&self) -> Option<u32> {
        Some(256)
    }

    fn encode(&self, document: &Document) -> Result<EncodedDocument, EncodeError> {
        let (text, loss_mask) = match document {
            Document::Text(part) => (&part.text, None),
            Document::Chat(chat) => {
                (&chat.record, Some(chat.record.bytes().map(|byte| byte == b'b').collect()))
            }
        };
        let reason = || "it is refused".to_owned();
        if text.contains(UNRENDERED) {
            return Err(EncodeError::Render { reason: reason() });
        }
        if text.contains(MALFORMED) {
            return Err(EncodeError::Template { reason: reason() });
        }
        if text.contains(REFUSED) {
            return Err(EncodeError::Tokenize { reason: reason() });
        }
        Ok(EncodedDocument { ids: text.bytes().map(u32::from).collect(), loss_mask })
    }
}

/// A request for a store of everything in `FOLDER/sources`.
pub fn request(folder: &Path, threads: usize, shard_tokens: u64) -> PrepareRequest {
    PrepareRequest {
        entries: vec![folder.join("sources").display().to_string()],
        options: SourceOptions::default(),
        threads: NonZeroUsize::new(threads).expect("threads"),
        shard_tokens,
        folder: folder.join("store"),
    }
}

/// Writes a source.
pub fn source(folder: &Path, name: &str, content: &[u8]) {
    let path = folder.join("sources").join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
    fs::write(path, content).expect("writable");
}

/// Makes a store, or stops when so many batches are written.
pub fn make(request: &PrepareRequest, batches: usize) -> Result<StoreManifest, PrepareError> {
    make_with(&TestEncoder::default(), request, batches)
}

/// The same with an encoder of other settings.
pub fn make_with(
    encoder: &TestEncoder,
    request: &PrepareRequest,
    batches: usize,
) -> Result<StoreManifest, PrepareError> {
    let mut written = 0;
    prepare(request, &LocalStorage, encoder, &mut |_| {
        written += 1;
        if written < batches { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}
