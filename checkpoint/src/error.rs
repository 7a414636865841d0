//! The errors of this package, with the path and the operation.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::manifest::ManifestFault;
use crate::names::{ChunkDamage, ChunkHash, PieceName, PieceRecordFault};

/// An operation on a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOperation {
    /// Reading the kind of the entry at a path.
    Look,
    /// Listing the entries of a folder.
    List,
    /// Making a new folder.
    CreateFolder,
    /// Making a new, empty file.
    Create,
    /// Opening a file that exists.
    Open,
    /// Opening a file for writing past the page cache (O_DIRECT).
    OpenDirect,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Waiting until a file is on the medium.
    Sync,
    /// Dropping the bytes that the system's cache holds of a file.
    Forget,
    /// Waiting until the entries of a folder are on the medium.
    SyncFolder,
    /// Giving a file another name.
    Rename,
    /// Removing a file by its name.
    Remove,
    /// Locking a file for this process.
    Lock,
}

impl std::fmt::Display for FileOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Look => "look at",
            Self::List => "list",
            Self::CreateFolder => "make the folder",
            Self::Create => "create",
            Self::Open => "open",
            Self::OpenDirect => "open for direct writing",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Forget => "read from the medium",
            Self::SyncFolder => "sync the folder",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Lock => "lock",
        })
    }
}

/// An operation on a file that failed.
#[derive(Debug, Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct FileFault {
    /// The operation that failed.
    pub operation: FileOperation,
    /// Path of the file or folder that it was done to.
    pub path: PathBuf,
    /// The error that the system returned.
    pub source: io::Error,
}

impl FileFault {
    /// Turns the error that the system returned into a fault, for `map_err`.
    pub(crate) fn of(operation: FileOperation, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { operation, path, source }
    }

    /// Whether the disk or the user's share of it is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        is_full(&self.source)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the operation may work another time without anybody doing something: the disk failed, not a
/// rule of the file system.
fn is_passing(error: &io::Error) -> bool {
    let is_rule = matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotFound
            | io::ErrorKind::Unsupported
    );
    !is_rule && !is_full(error)
}

/// The fault of a database folder: the log's, or a store's index.
#[derive(Debug, Error)]
pub enum DatabaseFault {
    /// The system refused something.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// The bytes of the database are damaged.
    #[error("the database is damaged: {reason}")]
    Damaged {
        /// The reason, as text.
        reason: String,
    },
    /// Another version of the database wrote the folder, or with other settings.
    #[error("the database was written otherwise: {reason}")]
    OtherVersion {
        /// The reason, as text.
        reason: String,
    },
    /// The folder was in use before, and a file of the database is gone or empty.
    #[error("the database has lost its file {}; nothing is made anew in its place", file.display())]
    Lost {
        /// Path of the file that is missing or empty.
        file: PathBuf,
    },
    /// The database ends before the last batch that was acknowledged: it was damaged, or an older
    /// copy was restored.
    #[error("the database ends at {found}, but {acknowledged} was acknowledged")]
    WentBack {
        /// The number of the last batch that was written and synced.
        acknowledged: u64,
        /// The number of the last batch that is there.
        found: u64,
    },
    /// Something that is not of the database lies in the folder.
    #[error("{} does not belong to the database", path.display())]
    Foreign {
        /// Path of the file or folder that does not belong there.
        path: PathBuf,
    },
    /// It is open already, in this process or in another one.
    #[error(
        "{} is locked by another process or handle; end what runs on this folder, then try again",
        file.display()
    )]
    Held {
        /// The file with the lock.
        file: PathBuf,
    },
    /// A write failed before. The state of the medium is unknown until it is opened again.
    #[error("a write failed before, and nothing more is written")]
    Stopped,
    /// A row that this program did not write, or that is damaged.
    #[error("the row {row} is not readable: {reason}")]
    BadRow {
        /// Its key in hexadecimal letters.
        row: String,
        /// The reason.
        reason: &'static str,
    },
}

impl DatabaseFault {
    /// Whether the data that are there cannot be read, and will not be by trying again.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. }
            | Self::Lost { .. }
            | Self::WentBack { .. }
            | Self::BadRow { .. } => true,
            Self::Io(_)
            | Self::OtherVersion { .. }
            | Self::Foreign { .. }
            | Self::Held { .. }
            | Self::Stopped => false,
        }
    }

    /// Whether the disk or the user's share of it is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io(error) => is_full(error),
            Self::Damaged { .. }
            | Self::OtherVersion { .. }
            | Self::Lost { .. }
            | Self::WentBack { .. }
            | Self::Foreign { .. }
            | Self::Held { .. }
            | Self::Stopped
            | Self::BadRow { .. } => false,
        }
    }
}

/// Why an operation of a store failed.
#[derive(Debug, Error)]
pub enum CheckpointStoreError {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileFault),
    /// The index of the store failed.
    #[error("the index in {}: {fault}", folder.display())]
    Index {
        /// Path of the folder that failed.
        folder: PathBuf,
        /// The fault of the database.
        #[source]
        fault: DatabaseFault,
    },
    /// A sync failed before, or the index was found damaged. Nothing is written until the store is opened
    /// again.
    #[error("the store in {} failed before, and writes nothing more", folder.display())]
    Stopped {
        /// Path of the folder that failed.
        folder: PathBuf,
    },
    /// The piece is not in this store.
    #[error("{name} is not here")]
    NoPiece {
        /// Name of the piece.
        name: PieceName,
    },
    /// The piece is here and not whole.
    #[error("{name} is damaged: {} of its chunks, first {}", damage.len(), damage[0])]
    Damaged {
        /// Name of the piece.
        name: PieceName,
        /// Each chunk that is not as it should be, at least one.
        damage: Vec<ChunkDamage>,
    },
    /// The chunk is not in this store.
    #[error("chunk {hash} is not here")]
    NoChunk {
        /// Name of the chunk: the hash of its bytes.
        hash: ChunkHash,
    },
    /// The chunk's file does not hold the bytes it is named after.
    #[error("chunk {expected} is damaged: its {found_bytes} bytes hash to {found}")]
    DamagedChunk {
        /// Name of the chunk: the hash that its bytes should have.
        expected: ChunkHash,
        /// The hash of the bytes that are there.
        found: ChunkHash,
        /// How many bytes are there.
        found_bytes: u64,
    },
    /// Bytes that were passed in under another chunk's name.
    #[error("the bytes hash to {found}, they were announced as chunk {expected}")]
    WrongChunk {
        /// The name they came under.
        expected: ChunkHash,
        /// The hash of the bytes.
        found: ChunkHash,
    },
    /// A chunk that is too long, or has no bytes.
    #[error("a chunk of {found} bytes, it has 1 to {}", crate::names::CHUNK_BYTES)]
    ChunkLength {
        /// Bytes that were passed in.
        found: usize,
    },
    /// The reader of a piece failed while the piece was written.
    #[error("{name} cannot be read to be written: {source}")]
    Source {
        /// Name of the piece.
        name: PieceName,
        /// The error that its reader returned.
        source: io::Error,
    },
    /// A record that cannot be one.
    #[error("the record of {name}: {fault}")]
    BadRecord {
        /// Name of the piece.
        name: PieceName,
        /// The fault of the record.
        fault: PieceRecordFault,
    },
    /// A manifest that cannot be one.
    #[error("the manifest: {0}")]
    BadManifest(#[from] ManifestFault),
}

impl CheckpointStoreError {
    /// Whether the index cannot be read, and will not be by trying again.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        if let Self::Index { fault, .. } = self { fault.is_damage() } else { false }
    }

    /// The system's error with which an operation on a file or the index failed, if one did.
    fn io_error(&self) -> Option<&io::Error> {
        match self {
            Self::File(fault) => Some(&fault.source),
            Self::Index { fault: DatabaseFault::Io(error), .. } => Some(error),
            Self::Index { .. }
            | Self::Stopped { .. }
            | Self::NoPiece { .. }
            | Self::Damaged { .. }
            | Self::NoChunk { .. }
            | Self::DamagedChunk { .. }
            | Self::WrongChunk { .. }
            | Self::ChunkLength { .. }
            | Self::Source { .. }
            | Self::BadRecord { .. }
            | Self::BadManifest(_) => None,
        }
    }

    /// Whether an operation on the disk failed that may work another time.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.io_error().is_some_and(is_passing)
    }

    /// Whether the disk or the user's share of it is full. If it was a chunk that did not fit, the
    /// store stays usable: the half-written file is removed. If it was the index, the store has
    /// to be opened again when there is space.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.io_error().is_some_and(is_full)
    }
}
