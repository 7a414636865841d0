//! Chunks as files, each under the name of its hash.
//!
//! ```text
//!   tmp/<n>.new            written, then synced
//!   chunks/ab/<64 letters> renamed to, then the folder synced
//!   damaged/<64 letters>   what was not whole when the same chunk was written again
//! ```
//!
//! A file under `chunks/` was synced before it got that name, so it is whole or the medium failed.
//! Whether the *name* is durable is known for each of the 256 folders: a chunk that is found and
//! not written again may have been renamed a moment ago by another thread, or just before a crash.

mod unnamed_chunk;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use crate::buffers::ChunkBuffer;
use crate::direct::DirectWrites;
use crate::error::{FileFault, FileOperation};
use crate::files::{EntryKind, FileSystem};
use crate::names::ChunkHash;
use crate::verify::{StrayEntry, StrayKind};

pub(crate) use unnamed_chunk::UnnamedChunk;

const CHUNKS: &str = "chunks";
const TEMPORARY: &str = "tmp";
const DAMAGED: &str = "damaged";
const TEMPORARY_SUFFIX: &str = ".new";
/// Folders that chunks are spread over, by the first byte of their hash.
const SPREAD: usize = 256;

/// The chunks of a store.
#[derive(Debug)]
pub(crate) struct ChunkFolder {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    temporaries: AtomicU64,
    direct: DirectWrites,
    /// Which folders may hold names that are not durable. Locked only to read or to record that.
    entries: Mutex<Vec<FolderSyncState>>,
}

/// How many changes to a folder's entries were begun, up to which of them it was synced, and how
/// many files are being renamed into it. A sync during a rename may have come before it, so it counts
/// for nothing, and who finds a file meanwhile syncs for itself.
#[derive(Clone, Copy, Debug)]
struct FolderSyncState {
    changed: u64,
    synced: u64,
    renames: u32,
}

/// The content found at the path of a chunk.
#[derive(Debug)]
pub(crate) enum ChunkContent {
    /// A file with bytes that have the hash in its name, which are in the buffer now.
    Whole,
    /// A file that holds something else.
    Damaged {
        /// The hash of its bytes.
        found: ChunkHash,
        /// How many bytes it has.
        found_bytes: u64,
    },
    /// Something that cannot be read.
    Unreadable(FileFault),
    Nothing,
}

/// The content at the path of a chunk, compared with the bytes that it should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkComparison {
    /// A file that holds them.
    Same,
    /// Something else, or something that cannot be read.
    Other,
    Nothing,
}

/// All that lies under the folder.
#[derive(Debug, Default)]
pub(crate) struct ChunkListing {
    /// Chunks that have a file.
    pub(crate) chunks: BTreeSet<ChunkHash>,
    /// Entries that are not the store's, by path.
    pub(crate) stray_entries: Vec<StrayEntry>,
}

impl ChunkFolder {
    /// Opens the chunks in `folder`. Removes the files that a crash left half written.
    pub(crate) fn open(files: Arc<dyn FileSystem>, folder: &Path) -> Result<Self, FileFault> {
        let entries = vec![FolderSyncState { changed: 1, synced: 0, renames: 0 }; SPREAD];
        let chunks = Self {
            files,
            folder: folder.to_owned(),
            temporaries: AtomicU64::new(0),
            direct: DirectWrites::default(),
            entries: Mutex::new(entries),
        };
        for name in [TEMPORARY, DAMAGED, CHUNKS] {
            chunks.create_folder(&folder.join(name))?;
        }
        chunks.create_spread()?;
        chunks.sync_folder(folder)?;
        chunks.remove_temporaries()?;
        Ok(chunks)
    }

    /// Reads the file at the path of a chunk into `chunk`, past the page cache: a copy from
    /// there would be made beside a training, and a check of a disk reads the bytes that lie on it.
    pub(crate) fn read(&self, hash: ChunkHash, chunk: &mut ChunkBuffer<'_>) -> ChunkContent {
        let path = self.path(hash);
        match chunk.fill_by(|into| self.files.read_direct(&path, into)) {
            Ok(()) => {
                let bytes = chunk.bytes();
                let found = ChunkHash::of(bytes);
                if found == hash {
                    ChunkContent::Whole
                } else {
                    ChunkContent::Damaged { found, found_bytes: bytes.len() as u64 }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => ChunkContent::Nothing,
            Err(error) => {
                ChunkContent::Unreadable(FileFault::of(FileOperation::Read, &path)(error))
            }
        }
    }

    /// Whether chunks are written past the page cache, as far as is known.
    pub(crate) fn writes_directly(&self) -> bool {
        self.direct.are_supported()
    }

    /// The length of a chunk's file, if it has one.
    pub(crate) fn length(&self, hash: ChunkHash) -> Result<Option<u64>, FileFault> {
        let path = self.path(hash);
        match self.files.entry_kind(&path).map_err(FileFault::of(FileOperation::Look, &path))? {
            Some(EntryKind::File { bytes }) => Ok(Some(bytes)),
            Some(EntryKind::Folder | EntryKind::Link | EntryKind::Special) | None => Ok(None),
        }
    }

    /// Compares the file at the path of a chunk with its bytes, which are not hashed.
    pub(crate) fn compare(&self, hash: ChunkHash, bytes: &[u8]) -> ChunkComparison {
        match self.files.read(&self.path(hash), bytes.len() as u64) {
            Ok(found) if found == bytes => ChunkComparison::Same,
            Err(error) if error.kind() == io::ErrorKind::NotFound => ChunkComparison::Nothing,
            Ok(_) | Err(_) => ChunkComparison::Other,
        }
    }

    /// Waits until the names of these chunks are durable.
    pub(crate) fn sync_names(&self, chunks: &BTreeSet<ChunkHash>) -> Result<(), FileFault> {
        let folders: BTreeSet<u8> = chunks.iter().map(|hash| hash.0[0]).collect();
        for folder in folders {
            let FolderSyncState { changed, synced, renames } =
                self.with_sync_state(folder, |now| *now);
            if changed == synced && renames == 0 {
                continue;
            }
            self.sync_folder(&self.spread(folder))?;
            if renames == 0 {
                self.with_sync_state(folder, |now| now.synced = now.synced.max(changed));
            }
        }
        Ok(())
    }

    /// Reads or records the state of a folder.
    fn with_sync_state<T>(&self, folder: u8, then: impl FnOnce(&mut FolderSyncState) -> T) -> T {
        let mut entries = self.entries.lock().expect("nothing panics under the lock");
        then(&mut entries[usize::from(folder)])
    }

    /// Removes a chunk's file, and a damaged one of it that was put aside. Returns whether it had one.
    pub(crate) fn remove(&self, hash: ChunkHash) -> Result<bool, FileFault> {
        // What cannot be removed there keeps no chunk: a check of the store names it.
        drop(self.files.remove(&self.folder.join(DAMAGED).join(hash.to_string())));
        let path = self.path(hash);
        match self.files.remove(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(FileFault::of(FileOperation::Remove, &path)(error)),
        }
    }

    /// Lists the chunks that have a file, and the stray entries.
    pub(crate) fn list(&self) -> Result<ChunkListing, FileFault> {
        let mut listing = ChunkListing::default();
        for entry in self.entries_of(&self.folder.join(CHUNKS))? {
            let path = Path::new(CHUNKS).join(&entry.name);
            if spread_number(&entry.name).is_some() && entry.kind == EntryKind::Folder {
                self.list_spread(&entry.name, &path, &mut listing)?;
            } else {
                listing.stray_entries.push(StrayEntry { path, kind: StrayKind::Foreign });
            }
        }
        for (folder, kind) in [(DAMAGED, StrayKind::PutAside), (TEMPORARY, StrayKind::Foreign)] {
            for entry in self.entries_of(&self.folder.join(folder))? {
                let is_ours = match kind {
                    StrayKind::PutAside => ChunkHash::parse(&entry.name).is_ok(),
                    StrayKind::Foreign | StrayKind::NotAFile => is_temporary(&entry.name),
                };
                if is_ours && kind == StrayKind::Foreign {
                    continue;
                }
                let kind = if is_ours { kind } else { StrayKind::Foreign };
                listing
                    .stray_entries
                    .push(StrayEntry { path: Path::new(folder).join(entry.name), kind });
            }
        }
        listing.stray_entries.sort();
        Ok(listing)
    }

    /// Whether any chunk has a file.
    pub(crate) fn is_empty(&self) -> Result<bool, FileFault> {
        Ok(self.list()?.chunks.is_empty())
    }

    fn list_spread(
        &self,
        spread: &str,
        path: &Path,
        listing: &mut ChunkListing,
    ) -> Result<(), FileFault> {
        for entry in self.entries_of(&self.folder.join(path))? {
            let hash = ChunkHash::parse(&entry.name).ok();
            let hash = hash.filter(|_| entry.name.starts_with(spread));
            let stray = |kind| StrayEntry { path: path.join(&entry.name), kind };
            match (hash, entry.kind) {
                (Some(hash), EntryKind::File { .. }) => {
                    listing.chunks.insert(hash);
                }
                (Some(_), EntryKind::Folder | EntryKind::Link | EntryKind::Special) => {
                    listing.stray_entries.push(stray(StrayKind::NotAFile));
                }
                (None, _) => listing.stray_entries.push(stray(StrayKind::Foreign)),
            }
        }
        Ok(())
    }

    fn path(&self, hash: ChunkHash) -> PathBuf {
        self.spread(hash.0[0]).join(hash.to_string())
    }

    fn spread(&self, number: u8) -> PathBuf {
        self.folder.join(CHUNKS).join(format!("{number:02x}"))
    }

    fn create_spread(&self) -> Result<(), FileFault> {
        let path = self.folder.join(CHUNKS);
        let entries = self.entries_of(&path)?;
        let present: BTreeSet<u8> = entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::Folder)
            .filter_map(|entry| spread_number(&entry.name))
            .collect();
        for number in 0..=u8::MAX {
            if !present.contains(&number) {
                self.create_folder(&self.spread(number))?;
            }
        }
        // Always: a crash may have come between making them and this.
        self.sync_folder(&path)
    }

    fn remove_temporaries(&self) -> Result<(), FileFault> {
        let folder = self.folder.join(TEMPORARY);
        for entry in self.entries_of(&folder)? {
            if is_temporary(&entry.name) && matches!(entry.kind, EntryKind::File { .. }) {
                let path = folder.join(&entry.name);
                self.files.remove(&path).map_err(FileFault::of(FileOperation::Remove, &path))?;
            }
        }
        Ok(())
    }

    fn create_folder(&self, path: &Path) -> Result<(), FileFault> {
        self.files.create_folder(path).map_err(FileFault::of(FileOperation::CreateFolder, path))
    }

    fn sync_folder(&self, path: &Path) -> Result<(), FileFault> {
        self.files.sync_folder(path).map_err(FileFault::of(FileOperation::SyncFolder, path))
    }

    fn entries_of(&self, path: &Path) -> Result<Vec<crate::files::FolderEntry>, FileFault> {
        self.files.list(path).map_err(FileFault::of(FileOperation::List, path))
    }
}

fn spread_number(name: &str) -> Option<u8> {
    let number = u8::from_str_radix(name, 16).ok()?;
    (name == format!("{number:02x}")).then_some(number)
}

fn is_temporary(name: &str) -> bool {
    let number = name.strip_suffix(TEMPORARY_SUFFIX);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}
