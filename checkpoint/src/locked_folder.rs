//! A node's folder: which process may use it, and which version of the program it belongs to.
//!
//! Two processes never share one: each open holds a lock of the system on the file `LOCK`, which is
//! released with the process however it ends. A folder of a newer program is left alone. Nothing
//! here makes a folder anew in the place of one that is damaged.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use zbelastic_whole_file::{LockError, holder_text};

use crate::error::{FileFault, FileOperation};
use crate::files::{EntryKind, FileSystem, RealFileSystem, write_all};
use crate::stamp::{has_check, stamp_of};

/// The version of the folder's format. A program opens those up to its own.
pub const FORMAT_VERSION: u32 = 1;
/// The last version whose first programs wrote no check behind it.
const UNCHECKED_VERSION_MAX: u32 = 1;
/// The first program that reads this version of the format. It is written into `VERSION`, and older
/// programs print it.
const PROGRAM_NEEDED: &str = env!("CARGO_PKG_VERSION");
const LOCK: &str = "LOCK";
const VERSION: &str = "VERSION";
const VERSION_NEW: &str = "VERSION.new";
/// Bytes of `VERSION` at most.
const TEXT_BYTES_MAX: u64 = 1024;
/// The first word of `VERSION`.
const TITLE: &str = "zbelastic-data";

/// A folder that is locked for this process until this value is dropped.
#[derive(Debug)]
pub struct LockedFolder {
    path: PathBuf,
    is_new: bool,
    /// The open `LOCK` file; the system releases the lock when it is closed.
    _lock: File,
}

/// Why a folder cannot be used.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The path leads to something else.
    #[error("{} is {}, not a folder", path.display(), kind_text(*found))]
    NotAFolder {
        /// Path of the folder.
        path: PathBuf,
        /// The kind of the entry at the path, instead of a folder.
        found: EntryKind,
    },
    /// This user may not read in it.
    #[error("{} may not be read by this user (it belongs to user {owner})", path.display())]
    Unreadable {
        /// Path of the folder, or of a file in it.
        path: PathBuf,
        /// The number of the user it belongs to.
        owner: u32,
    },
    /// This user may not write in it.
    #[error("{} may not be written by this user (it belongs to user {owner})", path.display())]
    Unwritable {
        /// Path of the folder, or of a file in it.
        path: PathBuf,
        /// The number of the user it belongs to.
        owner: u32,
    },
    /// The medium is read-only.
    #[error("{} lies on a medium that is read-only", path.display())]
    ReadOnly {
        /// Path of the folder, or of a file in it.
        path: PathBuf,
    },
    /// Another process uses it.
    #[error("{} is in use by {}", path.display(), holder_text(*owner))]
    InUse {
        /// Path of the folder.
        path: PathBuf,
        /// The process, if it has written its number.
        owner: Option<u32>,
    },
    /// A newer program wrote it.
    #[error(
        "{} was written by a newer version {program}, needs >= {needs}; the data is untouched",
        path.display()
    )]
    Newer {
        /// Path of the folder.
        path: PathBuf,
        /// The version of the program that wrote it.
        program: String,
        /// The first version of the program that can read it.
        needs: String,
    },
    /// Its version cannot be read.
    #[error("{} has no readable version: {reason}; the data is untouched", path.display())]
    BadVersion {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// It has no version and is not empty, so it is not a folder of this program.
    #[error("{} is no data folder, and holds {found}; give an empty one", path.display())]
    Foreign {
        /// Path of the folder.
        path: PathBuf,
        /// The first thing in it.
        found: String,
    },
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileFault),
}

impl FolderError {
    /// Whether the disk or the user's share of it is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::File(fault) => fault.is_full(),
            Self::NotAFolder { .. }
            | Self::Unreadable { .. }
            | Self::Unwritable { .. }
            | Self::ReadOnly { .. }
            | Self::InUse { .. }
            | Self::Newer { .. }
            | Self::BadVersion { .. }
            | Self::Foreign { .. } => false,
        }
    }
}

fn kind_text(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File { .. } => "a file",
        EntryKind::Folder => "a folder",
        EntryKind::Link => "a link",
        EntryKind::Special => "a device, a pipe or a socket",
    }
}

impl LockedFolder {
    /// Locks the folder at `path` for this process. One that is not there is made, with its owner's
    /// rights alone; one that is empty becomes a data folder.
    ///
    /// # Errors
    /// If it cannot be used. Its content stays as it is.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        make_folder(path)?;
        let refused = |error| refusal(path, FileOperation::List, error);
        let entries = RealFileSystem.list(path).map_err(refused)?;
        let is_new = !entries.iter().any(|entry| entry.name == VERSION);
        let ours = [LOCK, VERSION_NEW];
        let foreign = entries.iter().find(|entry| !ours.contains(&entry.name.as_str()));
        if let (true, Some(foreign)) = (is_new, foreign) {
            let found = foreign.name.clone();
            return Err(FolderError::Foreign { path: path.to_owned(), found });
        }
        if !is_new {
            check_version(path)?;
        }
        let lock = lock(path)?;
        if is_new && RealFileSystem.entry_kind(&path.join(VERSION)).map_err(refused)?.is_none() {
            write_version(path)?;
        }
        check_version(path)?;
        Ok(Self { path: path.to_owned(), is_new, _lock: lock })
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it became a data folder by this open.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// A folder in it, made if it is not there, with its owner's rights alone.
    ///
    /// # Errors
    /// If it cannot be made durable, or something else has its name.
    pub fn subfolder(&self, name: &str) -> Result<PathBuf, FolderError> {
        let path = self.path.join(name);
        RealFileSystem
            .create_folder(&path)
            .map_err(FileFault::of(FileOperation::CreateFolder, &path))?;
        RealFileSystem
            .sync_folder(&self.path)
            .map_err(FileFault::of(FileOperation::SyncFolder, &self.path))?;
        Ok(path)
    }
}

fn make_folder(path: &Path) -> Result<(), FolderError> {
    match RealFileSystem
        .entry_kind(path)
        .map_err(|error| refusal(path, FileOperation::Look, error))?
    {
        Some(EntryKind::Folder) => Ok(()),
        Some(found @ (EntryKind::File { .. } | EntryKind::Link | EntryKind::Special)) => {
            Err(FolderError::NotAFolder { path: path.to_owned(), found })
        }
        None => {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(|error| refusal(path, FileOperation::CreateFolder, error))
        }
    }
}

/// Turns an error of the system at `path` into the reason why the folder cannot be used.
fn refusal(path: &Path, operation: FileOperation, error: io::Error) -> FolderError {
    let owner = fs::symlink_metadata(path).map_or(0, |metadata| metadata.uid());
    let path = path.to_owned();
    let is_reading =
        matches!(operation, FileOperation::List | FileOperation::Look | FileOperation::Read);
    if error.kind() == io::ErrorKind::PermissionDenied && is_reading {
        FolderError::Unreadable { path, owner }
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        FolderError::Unwritable { path, owner }
    } else if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
        FolderError::ReadOnly { path }
    } else {
        FolderError::File(FileFault { operation, path, source: error })
    }
}

fn lock(folder: &Path) -> Result<File, FolderError> {
    let path = folder.join(LOCK);
    let fault = |operation, error| FileFault::of(operation, &path)(error).into();
    zbelastic_whole_file::lock(&path).map_err(|error| match error {
        LockError::Open(error) => refusal(folder, FileOperation::Create, error),
        LockError::Held { holder } => FolderError::InUse { path: folder.to_owned(), owner: holder },
        LockError::Lock(error) => fault(FileOperation::Lock, error),
        LockError::Write(error) => fault(FileOperation::Write, error),
    })
}

fn write_version(folder: &Path) -> Result<(), FolderError> {
    let new = folder.join(VERSION_NEW);
    let path = folder.join(VERSION);
    let program = env!("CARGO_PKG_VERSION");
    let text = stamp_of(&format!("{TITLE} {FORMAT_VERSION} {PROGRAM_NEEDED} {program}"));
    let files = RealFileSystem;
    if files.entry_kind(&new).map_err(FileFault::of(FileOperation::Look, &new))?.is_some() {
        files.remove(&new).map_err(FileFault::of(FileOperation::Remove, &new))?;
    }
    let mut file = files.create(&new).map_err(|e| refusal(folder, FileOperation::Create, e))?;
    write_all(&mut *file, 0, text.as_bytes()).map_err(FileFault::of(FileOperation::Write, &new))?;
    file.sync().map_err(FileFault::of(FileOperation::Sync, &new))?;
    files.rename(&new, &path).map_err(FileFault::of(FileOperation::Rename, &path))?;
    files.sync_folder(folder).map_err(FileFault::of(FileOperation::SyncFolder, folder))?;
    Ok(())
}

fn check_version(folder: &Path) -> Result<(), FolderError> {
    let path = folder.join(VERSION);
    let bad = |reason| FolderError::BadVersion { path: path.clone(), reason };
    let bytes = match RealFileSystem.read(&path, TEXT_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return Err(bad("it is long")),
        Err(error) => return Err(refusal(&path, FileOperation::Read, error)),
    };
    let text = str::from_utf8(&bytes).map_err(|_| bad("it is no text"))?;
    let mut words = text.split_whitespace();
    if words.next() != Some(TITLE) {
        return Err(bad(if text.is_empty() { "it is empty" } else { "it is another program's" }));
    }
    let version = words.next().and_then(|word| word.parse::<u32>().ok());
    let version = version.ok_or_else(|| bad("its number is missing"))?;
    let mut word = || words.next().unwrap_or("unknown").to_owned();
    let needs = word();
    let program = word();
    let is_checked = words.next().is_some();
    if is_checked && !has_check(text) {
        return Err(bad("it is damaged: its check is another text's"));
    }
    if !is_checked && version > UNCHECKED_VERSION_MAX {
        return Err(bad("it is damaged: a folder of this version has a check behind it"));
    }
    if version > FORMAT_VERSION {
        return Err(FolderError::Newer { path: folder.to_owned(), program, needs });
    }
    if version == 0 {
        return Err(bad("there is no version 0"));
    }
    Ok(())
}
