//! An index that is one file, written anew for each commit, and read again where many rows are.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::DatabaseFault;
use crate::files::{FileSystem, write_all};
use crate::index::{Index, IndexChange, IndexRow};

/// Bytes of the file at most.
const FILE_BYTES_MAX: u64 = 64 << 20;
const ROWS: &str = "rows";
const ROWS_NEW: &str = "rows.new";

/// An index that performs every operation on files through [`FileSystem`], unlike sled's.
#[derive(Debug)]
pub struct FileIndex {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    /// Locked for one call each.
    rows: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl FileIndex {
    fn rows(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.rows.lock().expect("nothing panics under the lock")
    }

    fn write(&self, rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<()> {
        let new = self.folder.join(ROWS_NEW);
        let path = self.folder.join(ROWS);
        if self.files.entry_kind(&new)?.is_some() {
            self.files.remove(&new)?;
        }
        let mut file = self.files.create(&new)?;
        let bytes = postcard::to_allocvec(rows).expect("a vector takes all bytes");
        write_all(&mut *file, 0, blake3::hash(&bytes).as_bytes())?;
        write_all(&mut *file, 32, &bytes)?;
        file.sync()?;
        self.files.rename(&new, &path)?;
        self.files.sync_folder(&self.folder)
    }
}

fn read(
    files: &dyn FileSystem,
    folder: &Path,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, DatabaseFault> {
    parse(&files.read(&folder.join(ROWS), FILE_BYTES_MAX).map_err(DatabaseFault::Io)?)
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, DatabaseFault> {
    let damaged = || DatabaseFault::Damaged { reason: "the file is not whole".to_owned() };
    let (hash, body) = bytes.split_first_chunk().ok_or_else(damaged)?;
    if blake3::hash(body).as_bytes() != hash {
        return Err(damaged());
    }
    postcard::from_bytes(body).map_err(|_| damaged())
}

impl Index for FileIndex {
    fn is_there(files: &dyn FileSystem, folder: &Path) -> Result<bool, DatabaseFault> {
        Ok(files.entry_kind(&folder.join(ROWS)).map_err(DatabaseFault::Io)?.is_some())
    }

    fn open(files: Arc<dyn FileSystem>, folder: &Path) -> Result<Self, DatabaseFault> {
        files.create_folder(folder).map_err(DatabaseFault::Io)?;
        if let Some(parent) = folder.parent() {
            files.sync_folder(parent).map_err(DatabaseFault::Io)?;
        }
        let is_there = Self::is_there(&*files, folder)?;
        let rows = if is_there { read(&*files, folder)? } else { BTreeMap::new() };
        let index = Self { files, folder: folder.to_owned(), rows: Mutex::new(rows) };
        if !is_there {
            index.commit(&[])?;
        }
        Ok(index)
    }

    fn commit(&self, changes: &[IndexChange]) -> Result<(), DatabaseFault> {
        let mut current = self.rows();
        let mut rows = current.clone();
        for change in changes {
            match change.clone() {
                IndexChange::Put { key, value } => drop(rows.insert(key, value)),
                IndexChange::Remove { key } => drop(rows.remove(&key)),
            }
        }
        self.write(&rows).map_err(DatabaseFault::Io)?;
        *current = rows;
        Ok(())
    }

    /// Each commit writes the whole file anew, so one that failed leaves the file of before.
    fn has_stopped(&self) -> bool {
        false
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DatabaseFault> {
        Ok(self.rows().get(key).cloned())
    }

    fn rows(&self, prefix: &[u8]) -> Result<Vec<IndexRow>, DatabaseFault> {
        let rows = FileIndex::rows(self);
        read(&*self.files, &self.folder)?;
        let matching = rows.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(matching.map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}
