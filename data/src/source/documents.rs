//! Documents without ids, for what reads text alone, such as the training of a tokenizer.

use zbelastic_types::Bytes;

use super::batch::{Batch, BatchReader};
use super::files::SourceListing;
use super::json_line::read_line;
use super::ranged::SourceStorage;
use super::{BadDocument, SourceCursor, SourceError, SourceItem, SourceOptions};
use crate::document::Document;

/// Token files are opened with it; what they hold is left out.
const NO_VOCABULARY: u32 = 0;

/// A document, and how much was read for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadDocument {
    /// The document, or a part of it.
    pub document: Document,
    /// Bytes read so far of all files, compressed as they are, of
    /// [`SourceListing::bytes`]; those of a batch are read together.
    pub bytes_read: Bytes,
}

/// The documents of a listing in order, those longer than [`PART_BYTES_MAX`](super::PART_BYTES_MAX)
/// in parts. Files of ids have no text, and give no document. After an error the iterator is not
/// called again.
pub fn read_documents<'a>(
    listing: &'a SourceListing,
    storage: &'a dyn SourceStorage,
    options: &'a SourceOptions,
) -> impl Iterator<Item = Result<ReadDocument, SourceError>> + 'a {
    let start = SourceCursor::default();
    let batches = BatchReader::new(listing, storage, options, NO_VOCABULARY, None, start);
    batches.flat_map(move |batch| match batch {
        Ok(batch) => documents_of(batch, listing, options),
        Err(error) => vec![Err(error)],
    })
}

fn documents_of(
    batch: Batch,
    listing: &SourceListing,
    options: &SourceOptions,
) -> Vec<Result<ReadDocument, SourceError>> {
    let bytes_read = Bytes(batch.bytes_read);
    let unless_bad = |file: u64, line: u64, read: Result<Document, BadDocument>| match read {
        Ok(document) => Some(Ok(document)),
        Err(_) if options.skip_bad => None,
        Err(problem) => {
            let file = listing.files[file as usize].0.path.clone();
            Some(Err(SourceError::Bad { file, line, problem }))
        }
    };
    let items = batch.items.into_iter().filter_map(|(file, item)| match item {
        SourceItem::Text { part, .. } => Some(Ok(Document::Text(part))),
        SourceItem::Line { number, bytes } => {
            unless_bad(file, number, read_line(&bytes, options.field.as_deref()))
        }
        SourceItem::Row { number, document } => unless_bad(file, number, document),
        SourceItem::Tokens(_) => None,
    });
    let read = |document| ReadDocument { document, bytes_read };
    items.map(|document| document.map(read)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::read_documents;
    use crate::document::{Document, TextPart};
    use crate::source::{LocalStorage, SourceError, SourceListing, SourceOptions};

    #[test]
    fn texts_come_in_order_and_ids_have_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("writable");
        };
        write("a.bin", "\0\0");
        write("b.jsonl", "{\"text\": \"b\"}\nno JSON\n");
        write("c.txt", "c");
        let entries = [folder.path().display().to_string()];
        let listing = SourceListing::of(&entries, &LocalStorage).expect("three files");
        let read = |skip_bad| {
            let options = SourceOptions { skip_bad, ..SourceOptions::default() };
            let read = read_documents(&listing, &LocalStorage, &options);
            read.map(|read| read.map(|read| read.document)).collect::<Result<Vec<_>, _>>()
        };
        let text = |text: &str| Document::Text(TextPart::whole(text.to_owned()));
        assert_eq!(read(true).expect("readable"), [text("b"), text("c")]);
        assert!(matches!(read(false), Err(SourceError::Bad { line: 2, .. })));
    }

    #[test]
    fn what_was_read_is_counted_in_bytes_of_the_files_whatever_their_compression() {
        let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/vectors/datasets");
        for name in ["documents.jsonl", "documents.jsonl.gz", "documents.jsonl.zst"] {
            let entries = [vectors.join(name).display().to_string()];
            let listing = SourceListing::of(&entries, &LocalStorage).expect("a file");
            let options = SourceOptions::default();
            let read = read_documents(&listing, &LocalStorage, &options);
            let read = read.map(|read| read.expect("readable").bytes_read);
            assert_eq!(read.last(), Some(listing.bytes()), "{name}");
        }
    }
}
