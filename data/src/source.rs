//! Where documents come from: files, folders and globs, in formats known by their names.
//!
//! | name | document |
//! |---|---|
//! | `.txt`, `.md` | the file, or what a separator ends |
//! | `.jsonl`, `.ndjson`, `.json` | a line: the text of a field, or a chat |
//! | `.parquet` | a row: the text of a column, or a chat |
//! | `.bin` | ids between end-of-text tokens, as nanoGPT or llm.c stores them |
//!
//! All but the last two may be compressed, `.gz` or `.zst`; a name that has no more than that is
//! text. [`SourceStorage`] is the seam to other places than the local disk.

mod batch;
mod copy;
mod documents;
mod files;
mod format;
mod json_line;
mod lines;
mod local;
mod parquet_json;
mod parquet_rows;
mod ranged;
mod text;
mod token_file;

pub use copy::{CopyError, copy_file};
pub use documents::{ReadDocument, read_documents};
pub use files::{SourceFile, SourceListError, SourceListing};
pub use format::{Compression, SourceFormat};
pub use local::LocalStorage;
pub use ranged::{RangedFile, SourceStorage};
pub use token_file::TokenFileKind;

pub(crate) use batch::{Batch, BatchReader};
pub(crate) use json_line::read_line;
pub(crate) use token_file::{NARROW_VOCABULARY_MAX, TokenRun};

use std::io;

use serde::{Deserialize, Serialize};

use crate::document::{Document, TextPart};

/// Most bytes of a line of JSON, and of a text in a column. The longest books have some megabytes.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// Longer texts of files are cut into parts, behind a newline if there is one, so that a file of any
/// length is encoded by many threads in bounded memory. Byte-level tokenizers, which split words at
/// a newline, give the same ids for the parts.
pub const PART_BYTES_MAX: usize = 1 << 20;

/// The options for reading the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// The field or column with the text or the messages. Without one it is `text`, or else
    /// `messages`.
    pub field: Option<String>,
    /// The text that ends a document in files of text, such as `<|endoftext|>`; it is not part of
    /// it. Without one each file is a document.
    pub separator: Option<String>,
    /// Whether lines that are no document, and chats that cannot be rendered, are counted and left
    /// out, in place of an error.
    pub skip_bad: bool,
}

/// The counts of the documents that were read from the sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceCounts {
    /// Documents, empty ones included.
    pub documents: u64,
    /// Documents without text or messages.
    pub empty: u64,
    /// Lines or rows that are no document, or a chat that cannot be rendered, and were skipped.
    pub bad: u64,
}

impl SourceCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.documents += other.documents;
        self.empty += other.empty;
        self.bad += other.bad;
    }
}

/// A position in the sources: behind so many items of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceCursor {
    /// Number of the file in the listing.
    pub(crate) file: u64,
    /// Items of the file that were read.
    pub(crate) items: u64,
}

/// The smallest thing that is read of a file at once.
#[derive(Debug)]
pub(crate) enum SourceItem {
    /// A document of a text file, or a part of one, with the number of the line, from 1, in which
    /// it begins.
    Text { line: u64, part: TextPart },
    /// A line of JSON, with its number from 1.
    Line { number: u64, bytes: Vec<u8> },
    /// A row, which was decoded already.
    Row { number: u64, document: Result<Document, BadDocument> },
    /// Ids of a token file.
    Tokens(TokenRun),
}

impl SourceItem {
    /// Bytes in memory, by which batches are bounded.
    fn bytes(&self) -> usize {
        match self {
            Self::Text { part, .. } => part.text.len(),
            Self::Line { bytes, .. } => bytes.len(),
            Self::Row { document: Ok(Document::Text(part)), .. } => part.text.len(),
            Self::Row { document: Ok(Document::Chat(chat)), .. } => chat.record.len(),
            Self::Row { document: Err(_), .. } => 0,
            Self::Tokens(run) => run.ids.len(),
        }
    }
}

/// Why a line or row is no document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDocument {
    /// No JSON object.
    #[error("is no JSON object: {reason}")]
    Json {
        /// The parser's error.
        reason: String,
    },
    /// The field is not there.
    #[error("has no field {expected}, only {}", list(.found))]
    NoField {
        /// The field that was to be read.
        expected: String,
        /// The fields that are there.
        found: Vec<String>,
    },
    /// The field is neither text nor a list of messages.
    #[error("has {found} in field {field}, expected text or a list of messages")]
    FieldType {
        /// The field that was to be read.
        field: String,
        /// The type of its value.
        found: &'static str,
    },
    /// The text is longer than [`LINE_BYTES_MAX`].
    #[error("has more than {max} bytes")]
    TooLong {
        /// Most bytes that are read.
        max: usize,
    },
}

/// Names for an error message, as many as fit on a line.
pub(crate) fn list(names: &[String]) -> String {
    const NAMES_MAX: usize = 20;
    match names.len() {
        0 => "none".to_owned(),
        count if count > NAMES_MAX => {
            format!("{} and {} more", names[..NAMES_MAX].join(", "), count - NAMES_MAX)
        }
        _ => names.join(", "),
    }
}

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file cannot be read or decompressed.
    #[error("{file}: cannot be read: {source}")]
    Io {
        /// Path of the file.
        file: String,
        /// The system's or the decompressor's error.
        source: io::Error,
    },
    /// A line or row is no document.
    #[error("{file}:{line}: {problem}")]
    Bad {
        /// Path of the file.
        file: String,
        /// Number of the line or row, from 1.
        line: u64,
        /// The problem of the document.
        problem: BadDocument,
    },
    /// A file of text is not UTF-8.
    #[error("{file}: byte {offset} is not UTF-8")]
    NotUtf8 {
        /// Path of the file.
        file: String,
        /// Offset of the byte in the decompressed text.
        offset: u64,
    },
    /// A Parquet file has no such column.
    #[error("{file}: has no column {expected}, only {}", list(.found))]
    NoColumn {
        /// Path of the file.
        file: String,
        /// The column that was to be read.
        expected: String,
        /// The columns that are there.
        found: Vec<String>,
    },
    /// A Parquet file is damaged or not supported.
    #[error("{file}: {source}")]
    Parquet {
        /// Path of the file.
        file: String,
        /// The reader's error.
        source: parquet::errors::ParquetError,
    },
    /// A file of ids has a header that does not fit it.
    #[error("{file}: has {found} bytes of ids, its header promises {expected}")]
    TokenCount {
        /// Path of the file.
        file: String,
        /// Bytes behind the header.
        found: u64,
        /// Bytes by the count in the header.
        expected: u64,
    },
    /// llm.c's header has a version that is not known.
    #[error("{file}: has version {found} of llm.c's header {magic}, expected {expected}")]
    TokenVersion {
        /// Path of the file.
        file: String,
        /// First number of the header.
        magic: u32,
        /// The version in the header.
        found: u32,
        /// The version that is read.
        expected: u32,
    },
    /// The separator is empty.
    #[error("the separator of documents is empty")]
    EmptySeparator,
}
