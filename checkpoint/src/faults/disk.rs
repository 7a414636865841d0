//! A disk in memory that records the data that would survive a loss of power.
//!
//! Every file and every folder has two states: the one that programs see, and the one on the
//! medium. A sync makes the second equal to the first, for that file or that folder alone. A loss
//! of power leaves for each sector of a file, for its length and for each name in a folder either
//! state, drawn from a seed: writes reach the medium in any order or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::files::{DIRECT_BYTES, EntryKind, FileSystem, FolderEntry, OpenFile};

/// The bytes that the medium writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// How the disk loses its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// It does not: only the process dies.
    ProcessOnly,
    /// Writes that were not synced are lost.
    LosesAll,
    /// Each write that was not synced is lost or not, by a seed.
    LosesSome {
        /// Seed of the random numbers that decide which writes are lost.
        seed: u64,
    },
}

/// A disk in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskEntry {
    File(usize),
    Folder,
}

#[derive(Clone, Debug, Default)]
struct DiskState {
    /// Names that programs see.
    live: BTreeMap<PathBuf, DiskEntry>,
    /// Names on the medium.
    durable: BTreeMap<PathBuf, DiskEntry>,
    contents: Vec<FileContent>,
}

#[derive(Clone, Debug, Default)]
struct FileContent {
    live: Vec<u8>,
    durable: Vec<u8>,
}

impl SimulatedDisk {
    /// A disk with one folder.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        let disk = Self::default();
        disk.lock_state().live.insert(root.to_owned(), DiskEntry::Folder);
        disk.lock_state().durable.insert(root.to_owned(), DiskEntry::Folder);
        disk
    }

    /// The disk as a process finds it that starts after the loss. This one stays as it is.
    #[must_use]
    pub fn after_power_loss(&self, power_loss: PowerLoss) -> Self {
        let mut state = self.lock_state().clone();
        let mut coins = SplitMix64::seed_from_u64(match power_loss {
            PowerLoss::ProcessOnly | PowerLoss::LosesAll => 0,
            PowerLoss::LosesSome { seed } => seed,
        });
        let mut is_kept = || match power_loss {
            PowerLoss::ProcessOnly => true,
            PowerLoss::LosesAll => false,
            PowerLoss::LosesSome { .. } => coins.next_u64() >> 63 == 1,
        };
        for content in &mut state.contents {
            content.live = mixed(content, &mut is_kept);
            content.durable.clone_from(&content.live);
        }
        let paths: BTreeSet<PathBuf> =
            state.live.keys().chain(state.durable.keys()).cloned().collect();
        for path in paths {
            let entry = if is_kept() { state.live.get(&path) } else { state.durable.get(&path) };
            match entry.copied() {
                Some(entry) => drop(state.live.insert(path, entry)),
                None => drop(state.live.remove(&path)),
            }
        }
        state.drop_orphans();
        state.drop_unnamed();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn lock_state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().expect("nothing panics under the lock")
    }
}

/// A file's bytes after a loss of power.
fn mixed(content: &FileContent, mut is_kept: impl FnMut() -> bool) -> Vec<u8> {
    if content.live == content.durable {
        return content.live.clone();
    }
    let length = if is_kept() { content.live.len() } else { content.durable.len() };
    let mut bytes = vec![0; length];
    for (at, sector) in (0..).step_by(SECTOR_BYTES).zip(bytes.chunks_mut(SECTOR_BYTES)) {
        let source = if is_kept() { &content.live } else { &content.durable };
        let kept = source.get(at..source.len().min(at + sector.len())).unwrap_or_default();
        sector[..kept.len()].copy_from_slice(kept);
    }
    bytes
}

impl DiskState {
    /// A name in a folder that is gone is gone as well.
    fn drop_orphans(&mut self) {
        let mut kept: BTreeMap<PathBuf, DiskEntry> = BTreeMap::new();
        // A folder comes before its entries.
        for (path, entry) in &self.live {
            if kept.is_empty() || path.parent().is_some_and(|folder| kept.contains_key(folder)) {
                kept.insert(path.clone(), *entry);
            }
        }
        self.durable.clone_from(&kept);
        self.live = kept;
    }

    /// The bytes of a file without a name are gone.
    fn drop_unnamed(&mut self) {
        let named: BTreeSet<usize> = { self.live.values() }
            .filter_map(|entry| match entry {
                DiskEntry::File(number) => Some(*number),
                DiskEntry::Folder => None,
            })
            .collect();
        for (number, content) in self.contents.iter_mut().enumerate() {
            if !named.contains(&number) {
                *content = FileContent::default();
            }
        }
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.live.get(path) {
            Some(DiskEntry::File(number)) => Ok(*number),
            Some(DiskEntry::Folder) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn check_parent(&self, path: &Path) -> io::Result<()> {
        match path.parent().and_then(|parent| self.live.get(parent)) {
            Some(DiskEntry::Folder) => Ok(()),
            Some(DiskEntry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn kind(&self, entry: DiskEntry) -> EntryKind {
        match entry {
            DiskEntry::File(number) => {
                EntryKind::File { bytes: self.contents[number].live.len() as u64 }
            }
            DiskEntry::Folder => EntryKind::Folder,
        }
    }
}

impl FileSystem for SimulatedDisk {
    fn entry_kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        let state = self.lock_state();
        Ok(state.live.get(path).map(|entry| state.kind(*entry)))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        let state = self.lock_state();
        if state.live.get(folder) != Some(&DiskEntry::Folder) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let below = state.live.range(folder.to_owned()..);
        let below = below.take_while(|(path, _)| path.starts_with(folder));
        let entries = below.filter(|(path, _)| path.parent() == Some(folder));
        let entries = entries.filter_map(|(path, entry)| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            Some(FolderEntry { name, kind: state.kind(*entry) })
        });
        Ok(entries.collect())
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.check_parent(path)?;
        match state.live.get(path) {
            Some(DiskEntry::Folder) => Ok(()),
            Some(DiskEntry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => {
                state.live.insert(path.to_owned(), DiskEntry::Folder);
                Ok(())
            }
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut state = self.lock_state();
        state.check_parent(path)?;
        if state.live.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = state.contents.len();
        state.contents.push(FileContent::default());
        state.live.insert(path.to_owned(), DiskEntry::File(number));
        Ok(Box::new(SimulatedFile { disk: self.clone(), number, is_direct: false }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let number = self.lock_state().file(path)?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), number, is_direct: false }))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let number = self.lock_state().file(path)?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), number, is_direct: true }))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let state = self.lock_state();
        let bytes = &state.contents[state.file(path)?].live;
        if bytes.len() as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.clone())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.check_parent(to)?;
        let entry = DiskEntry::File(state.file(from)?);
        state.live.remove(from);
        state.live.insert(to.to_owned(), entry);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.file(path)?;
        state.live.remove(path);
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        if state.live.get(path) != Some(&DiskEntry::Folder) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let is_in_folder = |entry_path: &PathBuf| entry_path.parent() == Some(path);
        let live: Vec<(PathBuf, DiskEntry)> = { state.live.iter() }
            .filter(|(entry_path, _)| is_in_folder(entry_path))
            .map(|(entry_path, entry)| (entry_path.clone(), *entry))
            .collect();
        state.durable.retain(|entry_path, _| !is_in_folder(entry_path));
        state.durable.extend(live);
        Ok(())
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    number: usize,
    is_direct: bool,
}

impl OpenFile for SimulatedFile {
    /// A direct write that is not aligned is refused, as a kernel does. One that is survives a loss
    /// of power no better than another: the medium has a cache, and the length is written down by a
    /// sync.
    fn write_some(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let numbers = [offset as usize, bytes.len(), bytes.as_ptr().addr()];
        if self.is_direct && !numbers.iter().all(|number| number.is_multiple_of(DIRECT_BYTES)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let live = &mut self.disk.lock_state().contents[self.number].live;
        let start = offset as usize;
        let end = start + bytes.len();
        if live.len() < end {
            live.resize(end, 0);
        }
        live[start..end].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn sync(&mut self) -> io::Result<()> {
        let content = &mut self.disk.lock_state().contents[self.number];
        content.durable.clone_from(&content.live);
        Ok(())
    }

    /// Its syncs do not fail, so its cache holds nothing that must still be written and cannot be.
    fn forget_cached(&mut self) -> io::Result<()> {
        Ok(())
    }
}
