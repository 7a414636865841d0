//! A table in sled, with the sync that sled leaves out.
//!
//! ```text
//!   commit:  batch -> sled's file -> fdatasync -> sequence number into MARK -> return
//! ```
//!
//! `flush` of sled 0.34 hands its buffers to the medium but neither empties the medium's own cache
//! nor writes down that the file has grown. So every commit syncs sled's file through a handle of
//! our own, and its blob files if there are any.
//!
//! When sled meets damage as it opens, it ends its log there and reports nothing. So each batch
//! carries a sequence number, and the number of the last batch that was acknowledged is written
//! into a file beside it, without a sync: it can be behind the last durable batch, never ahead of
//! it. A table that ends before its mark has lost something and is refused.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::DatabaseFault;
use crate::files::{EntryKind, FileSystem, OpenFile, write_all};
use crate::index::{Index, IndexChange, IndexRow};
use crate::panics;
use crate::sled_rows::{self, PART_BYTES, PART_NUMBER_BYTES};
use crate::stamp::has_check;

/// The version of the rows, in the stamp. That of any other version ends with a check
/// ([`crate::stamp`]): this one, which has none, is known to its last letter.
const STAMP_VERSION: &str = "zbelastic-table 1 sled 0.34\n";
const STAMP: &str = "FORMAT";
const STAMP_NEW: &str = "FORMAT.new";
const STAMP_BYTES_MAX: u64 = 256;
const MARK: &str = "MARK";
/// The number and its check.
const SLOT_BYTES: usize = 16;
/// Where the second of two slots begins. They are written in turn, each in a sector of its own, so
/// that a write which is torn leaves the number before it.
const SLOT_OFFSET: usize = 512;
const DATABASE: &str = "db";
const SETTINGS: &str = "conf";
const BLOBS: &str = "blobs";
const SNAPSHOT_PREFIX: &str = "snap.";
/// If its settings have fewer bytes, sled treats them as none and begins anew.
const SETTINGS_BYTES_MIN: u64 = 9;
/// Memory for pages. The tables are small: a thousand rows a checkpoint.
const CACHE_BYTES: u64 = 32 << 20;
/// How often sled checks whether space can be used again, in milliseconds.
const TIDY_MILLISECONDS: u64 = 500;
/// How long a folder that another handle has locked is waited for. Threads of sled outlive its
/// handle for some milliseconds, and keep its lock as long.
const RELEASE_WAIT: Duration = Duration::from_secs(3);
const RELEASE_PAUSE: Duration = Duration::from_millis(5);
/// The key of the number of the last batch. No other key begins with this letter.
const SEQUENCE_KEY: &[u8] = b"s";

/// A table on a disk.
#[derive(Debug)]
pub struct SledDatabase {
    folder: PathBuf,
    files: Arc<dyn FileSystem>,
    database: sled::Db,
    /// Locked while a batch is written, so that batches are numbered in the order they become
    /// durable.
    writer: Mutex<SledWriter>,
}

#[derive(Debug)]
struct SledWriter {
    /// The number of the last batch.
    sequence: u64,
    database: Box<dyn OpenFile>,
    mark: Box<dyn OpenFile>,
    blobs_synced: BTreeSet<String>,
    /// Whether a write failed. The state of the medium is unknown from then on.
    has_failed: bool,
}

impl SledDatabase {
    /// Makes all of `changes` or none, at some time: they are durable with the next commit.
    ///
    /// # Errors
    /// If the database fails.
    pub fn change_later(&self, changes: &[IndexChange]) -> Result<(), DatabaseFault> {
        let mut writer = self.writer();
        if writer.has_failed {
            return Err(DatabaseFault::Stopped);
        }
        let result = self.apply(&mut writer, changes);
        writer.has_failed |= result.is_err();
        result
    }

    /// The last key that begins with `prefix`.
    ///
    /// # Errors
    /// If the database fails.
    pub fn last_key(&self, prefix: &[u8]) -> Result<Option<Vec<u8>>, DatabaseFault> {
        match self.database.scan_prefix(prefix).keys().next_back() {
            Some(key) => sled_rows::key_of(&key.map_err(fault)?).map(Some),
            None => Ok(None),
        }
    }

    fn writer(&self) -> MutexGuard<'_, SledWriter> {
        self.writer.lock().expect("no call panics while it writes")
    }

    fn apply(&self, writer: &mut SledWriter, changes: &[IndexChange]) -> Result<(), DatabaseFault> {
        let mut batch = sled::Batch::default();
        for change in changes {
            let (key, parts) = match change {
                IndexChange::Put { key, value } => (key, sled_rows::parts(key, value)),
                IndexChange::Remove { key } => (key, Vec::new()),
            };
            for old in self.database.scan_prefix(key).keys().skip(parts.len()) {
                batch.remove(old.map_err(fault)?);
            }
            for (number, part) in (0_u32..).zip(parts) {
                batch.insert(sled_rows::part_key(key, number), part);
            }
        }
        let sequence = (writer.sequence + 1).to_le_bytes();
        let [row] = &sled_rows::parts(SEQUENCE_KEY, &sequence)[..] else {
            unreachable!("{PART_BYTES} bytes hold a number")
        };
        batch.insert(sled_rows::part_key(SEQUENCE_KEY, 0), row.clone());
        self.database.apply_batch(batch).map_err(fault)?;
        writer.sequence += 1;
        Ok(())
    }

    fn make_durable(&self, writer: &mut SledWriter) -> Result<(), DatabaseFault> {
        self.database.flush().map_err(fault)?;
        sync_blobs(&*self.files, &self.folder.join(BLOBS), &mut writer.blobs_synced)?;
        writer.database.sync().map_err(DatabaseFault::Io)?;
        let slot = writer.sequence % 2 * SLOT_OFFSET as u64;
        let number = slot_bytes(writer.sequence);
        write_all(&mut *writer.mark, slot, &number).map_err(DatabaseFault::Io)
    }
}

impl Index for SledDatabase {
    fn is_there(files: &dyn FileSystem, folder: &Path) -> Result<bool, DatabaseFault> {
        Ok(files.entry_kind(&folder.join(STAMP)).map_err(DatabaseFault::Io)?.is_some())
    }

    fn open(files: Arc<dyn FileSystem>, folder: &Path) -> Result<Self, DatabaseFault> {
        let is_new = !check_folder(&*files, folder)?;
        wait_for_release(&folder.join(DATABASE))?;
        if !is_new {
            forget_cached(&*files, folder)?;
        }
        let database = open_sled(folder)?;
        if !is_new && !database.was_recovered() {
            return Err(DatabaseFault::Lost { file: folder.join(DATABASE) });
        }
        let sequence = sequence(&database)?;
        if is_new {
            if sequence > 0 {
                return Err(DatabaseFault::Lost { file: folder.join(STAMP) });
            }
            finish_new(&*files, folder, &database)?;
        }
        let acknowledged = read_mark(&*files, folder)?;
        if acknowledged > sequence {
            return Err(DatabaseFault::WentBack { acknowledged, found: sequence });
        }
        let open = |name: &str| files.open(&folder.join(name)).map_err(DatabaseFault::Io);
        let writer = SledWriter {
            sequence,
            database: open(DATABASE)?,
            mark: open(MARK)?,
            blobs_synced: BTreeSet::new(),
            has_failed: false,
        };
        Ok(Self { folder: folder.to_owned(), files, database, writer: Mutex::new(writer) })
    }

    fn commit(&self, changes: &[IndexChange]) -> Result<(), DatabaseFault> {
        let mut writer = self.writer();
        if writer.has_failed {
            return Err(DatabaseFault::Stopped);
        }
        let applied = self.apply(&mut writer, changes);
        let result = applied.and_then(|()| self.make_durable(&mut writer));
        writer.has_failed |= result.is_err();
        result
    }

    fn has_stopped(&self) -> bool {
        self.writer().has_failed
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DatabaseFault> {
        Ok(self.rows(key)?.pop().map(|(_, value)| value))
    }

    fn rows(&self, prefix: &[u8]) -> Result<Vec<IndexRow>, DatabaseFault> {
        let parts = self.database.scan_prefix(prefix);
        sled_rows::join(parts.map(|part| part.map_err(fault)))
    }
}

/// Checks the entries of the folder, and returns whether it was in use before.
fn check_folder(files: &dyn FileSystem, folder: &Path) -> Result<bool, DatabaseFault> {
    files.create_folder(folder).map_err(DatabaseFault::Io)?;
    let entries = files.list(folder).map_err(DatabaseFault::Io)?;
    for entry in &entries {
        let name = entry.name.as_str();
        let is_ours = match entry.kind {
            EntryKind::File { .. } => {
                [STAMP, STAMP_NEW, MARK, DATABASE, SETTINGS].contains(&name)
                    || name.starts_with(SNAPSHOT_PREFIX)
            }
            EntryKind::Folder => name == BLOBS,
            EntryKind::Link | EntryKind::Special => false,
        };
        if !is_ours {
            return Err(DatabaseFault::Foreign { path: folder.join(name) });
        }
    }
    if !entries.iter().any(|entry| entry.name == STAMP) {
        return Ok(false);
    }
    check_stamp(files, folder)?;
    for (name, bytes_min) in [(DATABASE, 1), (SETTINGS, SETTINGS_BYTES_MIN), (MARK, 0)] {
        let is_there = entries.iter().any(|entry| {
            entry.name == name
                && matches!(entry.kind, EntryKind::File { bytes } if bytes >= bytes_min)
        });
        if !is_there {
            return Err(DatabaseFault::Lost { file: folder.join(name) });
        }
    }
    Ok(true)
}

fn check_stamp(files: &dyn FileSystem, folder: &Path) -> Result<(), DatabaseFault> {
    let bytes = files.read(&folder.join(STAMP), STAMP_BYTES_MAX).map_err(DatabaseFault::Io)?;
    if bytes == STAMP_VERSION.as_bytes() {
        return Ok(());
    }
    let found = String::from_utf8_lossy(&bytes);
    Err(if has_check(&found) {
        DatabaseFault::OtherVersion { reason: found.trim().to_owned() }
    } else {
        let reason = format!("{STAMP} reads {found:?}, and no check of that");
        DatabaseFault::Damaged { reason }
    })
}

fn open_sled(folder: &Path) -> Result<sled::Db, DatabaseFault> {
    let config = sled::Config::new().path(folder).cache_capacity(CACHE_BYTES);
    let config = config.flush_every_ms(Some(TIDY_MILLISECONDS));
    panics::opened(|| config.open().map_err(fault)).unwrap_or_else(|| {
        let reason = "it cannot be opened".to_owned();
        Err(DatabaseFault::Damaged { reason })
    })
}

/// Has everything read from the medium that is read from now on. A process before this one may have
/// ended because a sync failed: then the system's cache holds bytes that are not on the medium, and
/// no sync writes them any more.
fn forget_cached(files: &dyn FileSystem, folder: &Path) -> Result<(), DatabaseFault> {
    for entry in files.list(folder).map_err(DatabaseFault::Io)? {
        if let EntryKind::File { .. } = entry.kind {
            let file = files.open(&folder.join(entry.name));
            // Bytes that wait to be written are written first, or they would stay in the cache.
            let forgotten =
                file.and_then(|mut file| file.sync().and_then(|()| file.forget_cached()));
            forgotten.map_err(DatabaseFault::Io)?;
        }
    }
    Ok(())
}

/// Waits until no process holds the lock that sled acquires on its file.
fn wait_for_release(database: &Path) -> Result<(), DatabaseFault> {
    let file = match File::open(database) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(DatabaseFault::Io(error)),
    };
    let deadline = Instant::now() + RELEASE_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(RELEASE_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(DatabaseFault::Held { file: database.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(DatabaseFault::Io(error)),
        }
    }
}

/// Makes a new table durable, its stamp last: without a stamp nothing was acknowledged.
fn finish_new(
    files: &dyn FileSystem,
    folder: &Path,
    database: &sled::Db,
) -> Result<(), DatabaseFault> {
    database.flush().map_err(fault)?;
    let io = DatabaseFault::Io;
    for name in [STAMP_NEW, MARK] {
        let path = folder.join(name);
        if files.entry_kind(&path).map_err(io)?.is_some() {
            files.remove(&path).map_err(io)?;
        }
    }
    for name in [DATABASE, SETTINGS] {
        files.open(&folder.join(name)).and_then(|mut file| file.sync()).map_err(io)?;
    }
    let texts: [(&str, &[u8]); 2] = [(MARK, &slot_bytes(0)), (STAMP_NEW, STAMP_VERSION.as_bytes())];
    for (name, bytes) in texts {
        let mut file = files.create(&folder.join(name)).map_err(io)?;
        write_all(&mut *file, 0, bytes).and_then(|()| file.sync()).map_err(io)?;
    }
    files.sync_folder(folder).map_err(io)?;
    files.rename(&folder.join(STAMP_NEW), &folder.join(STAMP)).map_err(io)?;
    files.sync_folder(folder).map_err(io)?;
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    files.sync_folder(parent.unwrap_or(Path::new("."))).map_err(io)
}

fn sequence(database: &sled::Db) -> Result<u64, DatabaseFault> {
    let parts = database.scan_prefix(SEQUENCE_KEY).map(|part| part.map_err(fault));
    let Some((key, value)) = sled_rows::join(parts)?.pop() else { return Ok(0) };
    let number = value.try_into().map_err(|_| sled_rows::bad_row(&key, "it is no number"))?;
    Ok(u64::from_le_bytes(number))
}

fn slot_bytes(sequence: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let (number, check) = bytes.split_at_mut(8);
    number.copy_from_slice(&sequence.to_le_bytes());
    check.copy_from_slice(&blake3::hash(number).as_bytes()[..8]);
    bytes
}

/// The newer of the two numbers, of those that are whole.
fn read_mark(files: &dyn FileSystem, folder: &Path) -> Result<u64, DatabaseFault> {
    let bytes_max = SLOT_OFFSET + SLOT_BYTES;
    let bytes = files.read(&folder.join(MARK), bytes_max as u64).map_err(DatabaseFault::Io)?;
    let slots = [0, SLOT_OFFSET].into_iter().filter_map(|at| {
        let slot: &[u8; SLOT_BYTES] = bytes.get(at..)?.first_chunk()?;
        let number = u64::from_le_bytes(*slot.first_chunk()?);
        (*slot == slot_bytes(number)).then_some(number)
    });
    let damaged = || DatabaseFault::Damaged { reason: format!("{MARK} holds no number") };
    slots.max().ok_or_else(damaged)
}

/// Syncs the blob files that were not there before. The rows are cut so small that sled makes none;
/// this is here because a page of theirs is its own affair.
fn sync_blobs(
    files: &dyn FileSystem,
    folder: &Path,
    synced: &mut BTreeSet<String>,
) -> Result<(), DatabaseFault> {
    let entries = files.list(folder).map_err(DatabaseFault::Io)?;
    let names: BTreeSet<String> = entries.into_iter().map(|entry| entry.name).collect();
    if names.is_subset(synced) {
        return Ok(());
    }
    for name in names.difference(synced) {
        let synced = files.open(&folder.join(name)).and_then(|mut file| file.sync());
        match synced {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            result => result.map_err(DatabaseFault::Io)?,
        }
    }
    files.sync_folder(folder).map_err(DatabaseFault::Io)?;
    *synced = names;
    Ok(())
}

fn fault(error: sled::Error) -> DatabaseFault {
    match error {
        sled::Error::Io(error) => DatabaseFault::Io(error),
        sled::Error::Unsupported(reason) => DatabaseFault::OtherVersion { reason },
        error @ (sled::Error::CollectionNotFound(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. }) => DatabaseFault::Damaged { reason: error.to_string() },
    }
}

// A part with its key and its header must fit into a quarter of a segment sixteen times.
const _: () = assert!(16 * (PART_BYTES + PART_NUMBER_BYTES + 128) < (512 << 10) / 4);
