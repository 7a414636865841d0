//! Makes a token store of sources.
//!
//! ```text
//!   reader ──batches──> encoder 0 ──┐
//!      ▲      1st, 3rd              ├──ids──> writer ──> shard, shard, …, manifest
//!      │ ──batches──> encoder 1 ────┘   │
//!      └──────────── bytes written ─────┘
//! ```
//!
//! Batch n goes to encoder n modulo their number, and the writer receives from them in turn, so the
//! order needs no sorting and the store does not depend on how many there are. A shard ends with the
//! batch that fills it. When it is durable, the journal notes where in the sources the next one
//! begins; a later call with the same request verifies the shards of the journal and goes on there.
//! Shards of another request are refused: no file that was finished is ever removed.

mod encode_batch;
mod journal;
mod pipeline;
mod store_writer;

use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use zbelastic_types::Bytes;
use zbelastic_whole_file::{self as whole_file, LockError, holder_text};

use crate::checked_json::{self, CheckedJsonError};
use crate::encode::{EncodeDocuments, EncodeError};
use crate::source::{SourceError, SourceListError, SourceListing, SourceOptions, SourceStorage};
use crate::store::{MANIFEST_NAME, SHARD_EXTENSION, StoreManifest, shard_name};
pub use journal::JOURNAL_NAME;

use encode_batch::EncodedBatch;
use journal::{JOURNAL_BYTES_MAX, PrepareJournal, request_hash};
use pipeline::PipelineJob;
use store_writer::StoreWriter;

/// Most memory of [`prepare`], for any corpus. Of a document's byte there are at most, at
/// once: the item, its text, and an id of 4 bytes with its byte of loss mask, which is 7 for each
/// of [`IN_FLIGHT_BYTES_MAX`], or 224 MiB. The ends of a shard's documents need up to 64 MiB, its
/// loss mask 16, zstd's window 128, buffers some ten; of an object on another machine 24 are held,
/// and the names of a bucket's files take up to 23. The encoder's own memory is on top of it, and a
/// page of a Parquet file, which is decompressed as a whole (writers make them of 1 MiB).
pub const PREPARE_BYTES_MAX: Bytes = Bytes(512 << 20);
/// Most bytes of items that are read and not written yet, unless it is a single batch.
pub const IN_FLIGHT_BYTES_MAX: usize = 32 << 20;
/// Ids of a shard, unless another number is requested: 128 MiB of 2 bytes each.
pub const SHARD_TOKENS: u64 = 1 << 26;
/// Most ids of a shard that may be requested.
pub const SHARD_TOKENS_MAX: u64 = 1 << 27;
/// A shard ends early behind so many documents.
const SHARD_DOCUMENTS: usize = 1 << 24;
/// Most encoding threads. More only wait, since [`IN_FLIGHT_BYTES_MAX`] has 128 batches.
const THREADS_MAX: usize = 128;
/// A file that is locked while a process prepares the store of a folder.
const LOCK_NAME: &str = "prepare.lock";

/// The sources that a store is made of, and its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrepareRequest {
    /// Files, folders and globs.
    pub entries: Vec<String>,
    /// The options for reading them.
    pub options: SourceOptions,
    /// Number of threads that encode. It changes no byte of the store.
    pub threads: NonZeroUsize,
    /// Ids of a shard, about: it ends with the batch that reaches them. [`SHARD_TOKENS`] as a rule.
    pub shard_tokens: u64,
    /// The folder of the store, which is created.
    pub folder: PathBuf,
}

/// A name for the store of a request: it differs where the store's bytes would, and where a file was
/// written anew.
///
/// # Errors
/// If the sources cannot be listed.
pub fn request_name(
    request: &PrepareRequest,
    storage: &dyn SourceStorage,
    encoder: &dyn EncodeDocuments,
) -> Result<blake3::Hash, PrepareError> {
    let listing = SourceListing::of(&request.entries, storage)?;
    Ok(request_hash(request, &listing, encoder))
}

/// How far a store is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrepareProgress {
    /// Bytes read of the files, compressed as they are.
    pub bytes_read: Bytes,
    /// Bytes of all files.
    pub bytes_total: Bytes,
    /// Documents so far, those of shards that were kept included.
    pub documents: u64,
    /// Ids so far, those of shards that were kept included.
    pub tokens: u64,
    /// Files of the sources that lie in the folder of the store itself, and are left out.
    pub files_left_out: usize,
    /// Ids a second since this call began to encode; 0 in the beginning.
    pub tokens_per_second: f64,
}

/// Why a store cannot be made. The shards that are finished are kept, and where none is nothing is left.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The sources cannot be listed.
    #[error(transparent)]
    List(#[from] SourceListError),
    /// A source cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A document cannot be encoded.
    #[error("{file}:{line}: {source}")]
    Encode {
        /// Path of its file.
        file: String,
        /// Number of its line or row, or of the line of text where it or its part begins, from 1.
        line: u64,
        /// The encoder's error.
        source: EncodeError,
    },
    /// The encoder yields a loss mask of another length than its ids.
    #[error("the encoder yields a loss mask of {found} ids, expected {expected}")]
    LossMask {
        /// Length of the mask.
        found: usize,
        /// Number of ids.
        expected: usize,
    },
    /// An id is not below the size of the vocabulary.
    #[error("{file}: id {found} is outside a vocabulary of {vocabulary}")]
    Vocabulary {
        /// Path of the file.
        file: String,
        /// The id.
        found: u32,
        /// Tokens of the vocabulary.
        vocabulary: u32,
    },
    /// No such size of shards.
    #[error("shards of {found} ids were requested, expected 1 to {max}")]
    ShardTokens {
        /// Ids of a shard, as requested.
        found: u64,
        /// Most ids that may be requested.
        max: u64,
    },
    /// A store of so many shards is too large.
    #[error("the store has more than {max} shards; request more ids a shard")]
    Shards {
        /// Most shards of a store.
        max: usize,
    },
    /// There is a finished store.
    #[error("{}: there is a store already", folder.display())]
    Exists {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// The folder has finished shards of another request: other sources, options or encoder, or a
    /// source that was written anew.
    #[error("{}: has finished shards of another request", folder.display())]
    OtherRequest {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// The folder has files, and none is a journal.
    #[error("{}: has other files than those of a store", folder.display())]
    NotEmpty {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// Another process prepares the store.
    #[error("{}: {} is making this store", folder.display(), holder_text(*holder))]
    Busy {
        /// The folder of the store.
        folder: PathBuf,
        /// The number of the process, if it has written it.
        holder: Option<u32>,
    },
    /// The journal of an unfinished store cannot be read.
    #[error("{}: {source}", path.display())]
    Journal {
        /// Path of the journal.
        path: PathBuf,
        /// The error in it.
        source: CheckedJsonError,
    },
    /// A file of the store cannot be written.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The caller stopped it.
    #[error("stopped; the finished shards are kept")]
    Stopped,
    /// A thread panicked, by a bug in a decoder or encoder.
    #[error("a thread that reads or encodes panicked")]
    Panicked,
}

impl PrepareError {
    /// Whether one line, row or chat is bad, which is left out where bad ones are skipped.
    fn is_of_document(&self) -> bool {
        match self {
            Self::Source(SourceError::Bad { .. }) => true,
            Self::Encode { source, .. } => source.is_of_document(),
            Self::List(_)
            | Self::Source(_)
            | Self::LossMask { .. }
            | Self::Vocabulary { .. }
            | Self::ShardTokens { .. }
            | Self::Shards { .. }
            | Self::Exists { .. }
            | Self::OtherRequest { .. }
            | Self::NotEmpty { .. }
            | Self::Busy { .. }
            | Self::Journal { .. }
            | Self::Write { .. }
            | Self::Stopped
            | Self::Panicked => false,
        }
    }
}

/// Makes the store of `request`, or goes on where a call that was killed stopped.
///
/// `on_progress` is called after each batch; with [`ControlFlow::Break`] it stops the call.
///
/// # Errors
/// If the sources cannot be read, a document cannot be encoded, the store cannot be written, or it or
/// a part of another is there already.
pub fn prepare(
    request: &PrepareRequest,
    storage: &dyn SourceStorage,
    encoder: &dyn EncodeDocuments,
    on_progress: &mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>,
) -> Result<StoreManifest, PrepareError> {
    if !(1..=SHARD_TOKENS_MAX).contains(&request.shard_tokens) {
        let found = request.shard_tokens;
        return Err(PrepareError::ShardTokens { found, max: SHARD_TOKENS_MAX });
    }
    let mut listing = SourceListing::of(&request.entries, storage)?;
    let folder = &request.folder;
    let was_there = folder.exists();
    fs::create_dir_all(folder).map_err(|source| write_error(folder, source))?;
    check_folder(folder)?;
    // The journal of a call that was killed looks like a file of documents.
    listing.leave_out(&fs::canonicalize(folder).map_err(|source| write_error(folder, source))?);
    let lock = lock_folder(folder)?;
    // Another process may have finished the store between the first check and the lock.
    check_folder(folder)?;
    let journal = open_journal(folder, request_hash(request, &listing, encoder))?;
    let writer = StoreWriter::resume(request, encoder, journal)?;
    let made = write_shards(request, storage, encoder, &listing, writer, on_progress);
    if made.is_err() && matches!(has_shard(folder), Ok(false)) {
        remove_beginning(folder, was_there);
    }
    let manifest = made?;
    let path = folder.join(LOCK_NAME);
    fs::remove_file(&path).map_err(|source| write_error(&path, source))?;
    drop(lock);
    Ok(manifest)
}

fn write_error(path: &Path, source: io::Error) -> PrepareError {
    PrepareError::Write { path: path.to_owned(), source }
}

fn lock_folder(folder: &Path) -> Result<File, PrepareError> {
    let path = folder.join(LOCK_NAME);
    whole_file::lock(&path).map_err(|error| match error {
        LockError::Held { holder } => PrepareError::Busy { folder: folder.to_owned(), holder },
        LockError::Open(source) | LockError::Lock(source) | LockError::Write(source) => {
            write_error(&path, source)
        }
    })
}

/// Refuses a finished store, and a folder of others.
fn check_folder(folder: &Path) -> Result<(), PrepareError> {
    if folder.join(MANIFEST_NAME).exists() {
        return Err(PrepareError::Exists { folder: folder.to_owned() });
    }
    if folder.join(JOURNAL_NAME).exists() {
        return Ok(());
    }
    let is_ours =
        |name: &str| name == LOCK_NAME || name.strip_suffix(".part") == Some(JOURNAL_NAME);
    for entry in fs::read_dir(folder).map_err(|source| write_error(folder, source))? {
        let entry = entry.map_err(|source| write_error(folder, source))?;
        if !is_ours(&entry.file_name().to_string_lossy()) {
            return Err(PrepareError::NotEmpty { folder: folder.to_owned() });
        }
    }
    Ok(())
}

/// The journal of a call that was killed, if it was for this request; or else a new one, unless the
/// other request has finished a shard.
fn open_journal(folder: &Path, request: blake3::Hash) -> Result<PrepareJournal, PrepareError> {
    let path = folder.join(JOURNAL_NAME);
    match checked_json::read::<PrepareJournal>(&path, JOURNAL_BYTES_MAX) {
        Ok(journal) if journal.request == request => return Ok(journal),
        Ok(_) if has_shard(folder)? => {
            return Err(PrepareError::OtherRequest { folder: folder.to_owned() });
        }
        Ok(_) => {}
        Err(CheckedJsonError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(PrepareError::Journal { path, source }),
    }
    let journal = PrepareJournal { request, shards: Vec::new() };
    checked_json::write(&path, &journal).map_err(|source| write_error(&path, source))?;
    Ok(journal)
}

fn has_shard(folder: &Path) -> Result<bool, PrepareError> {
    for entry in fs::read_dir(folder).map_err(|source| write_error(folder, source))? {
        let entry = entry.map_err(|source| write_error(folder, source))?;
        if entry.file_name().as_encoded_bytes().ends_with(SHARD_EXTENSION.as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes what a call has written that finished no shard, and the folder if it was not there before. What
/// cannot be removed gives way to the next call.
fn remove_beginning(folder: &Path, was_there: bool) {
    let part = format!("{}.part", shard_name(0));
    for name in [JOURNAL_NAME, &part, LOCK_NAME] {
        // The error that ended the call is the one that is reported.
        drop(fs::remove_file(folder.join(name)));
    }
    if !was_there {
        drop(fs::remove_dir(folder));
    }
}

fn write_shards(
    request: &PrepareRequest,
    storage: &dyn SourceStorage,
    encoder: &dyn EncodeDocuments,
    listing: &SourceListing,
    mut writer: StoreWriter,
    on_progress: &mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>,
) -> Result<StoreManifest, PrepareError> {
    let bytes_total = listing.bytes();
    let began = Instant::now();
    let kept = writer.tokens();
    let cursor = writer.cursor();
    let mut write = |batch: EncodedBatch| {
        writer.append(&batch)?;
        let tokens = writer.tokens();
        let seconds = began.elapsed().as_secs_f64();
        let progress = PrepareProgress {
            bytes_read: Bytes(batch.bytes_read),
            bytes_total,
            documents: writer.sources().documents,
            files_left_out: listing.left_out,
            tokens,
            tokens_per_second: if seconds > 0.0 { (tokens - kept) as f64 / seconds } else { 0.0 },
        };
        match on_progress(&progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(PrepareError::Stopped),
        }
    };
    let job = PipelineJob { listing, storage, options: &request.options, encoder, cursor };
    pipeline::run(&job, request.threads.get().min(THREADS_MAX), &mut write)?;
    writer.finish()
}
