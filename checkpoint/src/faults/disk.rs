//! A disk in memory that knows what would survive a power cut.
//!
//! Every file and every folder has two states: what programs see, and what is on the medium. A sync
//! makes the second equal to the first, for that file or that folder alone. A power cut leaves for
//! each sector of a file, for its length and for each name in a folder either state, drawn from a
//! seed: writes reach the medium in any order or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::files::{DIRECT_BYTES, EntryKind, FileSystem, FolderEntry, OpenFile};

/// What the medium writes whole.
const SECTOR_BYTES: usize = 512;

/// How the disk loses its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// It does not: only the process dies.
    ProcessOnly,
    /// What was not synced is lost.
    LosesAll,
    /// What was not synced is lost or not, by a seed.
    LosesSome {
        /// Seed of the draw that decides what is lost.
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

    /// The disk as a process finds it that starts after the cut. This one stays as it is.
    #[must_use]
    pub fn after_power_loss(&self, cut: PowerLoss) -> Self {
        let mut held = self.lock_state().clone();
        let mut draw = SeededCoins(match cut {
            PowerLoss::ProcessOnly | PowerLoss::LosesAll => 0,
            PowerLoss::LosesSome { seed } => seed,
        });
        let mut is_kept = || match cut {
            PowerLoss::ProcessOnly => true,
            PowerLoss::LosesAll => false,
            PowerLoss::LosesSome { .. } => draw.coin(),
        };
        for content in &mut held.contents {
            content.live = mixed(content, &mut is_kept);
            content.durable.clone_from(&content.live);
        }
        let paths: BTreeSet<PathBuf> =
            held.live.keys().chain(held.durable.keys()).cloned().collect();
        for path in paths {
            let state = if is_kept() { held.live.get(&path) } else { held.durable.get(&path) };
            match state.copied() {
                Some(node) => drop(held.live.insert(path, node)),
                None => drop(held.live.remove(&path)),
            }
        }
        held.drop_orphans();
        held.drop_unnamed();
        Self { state: Arc::new(Mutex::new(held)) }
    }

    fn lock_state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().expect("nothing panics under the lock")
    }
}

/// A file's bytes after a cut.
fn mixed(content: &FileContent, mut is_kept: impl FnMut() -> bool) -> Vec<u8> {
    if content.live == content.durable {
        return content.live.clone();
    }
    let length = if is_kept() { content.live.len() } else { content.durable.len() };
    let mut bytes = vec![0; length];
    for (at, sector) in (0..).step_by(SECTOR_BYTES).zip(bytes.chunks_mut(SECTOR_BYTES)) {
        let state = if is_kept() { &content.live } else { &content.durable };
        let there = state.get(at..state.len().min(at + sector.len())).unwrap_or_default();
        sector[..there.len()].copy_from_slice(there);
    }
    bytes
}

impl DiskState {
    /// A name whose folder is gone is gone as well.
    fn drop_orphans(&mut self) {
        let mut kept: BTreeMap<PathBuf, DiskEntry> = BTreeMap::new();
        // A folder comes before what is in it.
        for (path, node) in &self.live {
            if kept.is_empty() || path.parent().is_some_and(|folder| kept.contains_key(folder)) {
                kept.insert(path.clone(), *node);
            }
        }
        self.durable.clone_from(&kept);
        self.live = kept;
    }

    /// The bytes of a file without a name are gone.
    fn drop_unnamed(&mut self) {
        let named: BTreeSet<usize> = { self.live.values() }
            .filter_map(|node| match node {
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

    fn kind(&self, node: DiskEntry) -> EntryKind {
        match node {
            DiskEntry::File(number) => {
                EntryKind::File { bytes: self.contents[number].live.len() as u64 }
            }
            DiskEntry::Folder => EntryKind::Folder,
        }
    }
}

impl FileSystem for SimulatedDisk {
    fn entry_kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        let held = self.lock_state();
        Ok(held.live.get(path).map(|node| held.kind(*node)))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        let held = self.lock_state();
        if held.live.get(folder) != Some(&DiskEntry::Folder) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let below = held.live.range(folder.to_owned()..);
        let below = below.take_while(|(path, _)| path.starts_with(folder));
        let entries = below.filter(|(path, _)| path.parent() == Some(folder));
        let entries = entries.filter_map(|(path, node)| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            Some(FolderEntry { name, kind: held.kind(*node) })
        });
        Ok(entries.collect())
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        let mut held = self.lock_state();
        held.check_parent(path)?;
        match held.live.get(path) {
            Some(DiskEntry::Folder) => Ok(()),
            Some(DiskEntry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => {
                held.live.insert(path.to_owned(), DiskEntry::Folder);
                Ok(())
            }
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut held = self.lock_state();
        held.check_parent(path)?;
        if held.live.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = held.contents.len();
        held.contents.push(FileContent::default());
        held.live.insert(path.to_owned(), DiskEntry::File(number));
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
        let held = self.lock_state();
        let bytes = &held.contents[held.file(path)?].live;
        if bytes.len() as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.clone())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut held = self.lock_state();
        held.check_parent(to)?;
        let node = DiskEntry::File(held.file(from)?);
        held.live.remove(from);
        held.live.insert(to.to_owned(), node);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut held = self.lock_state();
        held.file(path)?;
        held.live.remove(path);
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let mut held = self.lock_state();
        if held.live.get(path) != Some(&DiskEntry::Folder) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let is_entry = |entry: &PathBuf| entry.parent() == Some(path);
        let live: Vec<(PathBuf, DiskEntry)> = { held.live.iter() }
            .filter(|(entry, _)| is_entry(entry))
            .map(|(entry, node)| (entry.clone(), *node))
            .collect();
        held.durable.retain(|entry, _| !is_entry(entry));
        held.durable.extend(live);
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
    /// A direct write that is not aligned is refused, as a kernel does. One that is survives a power
    /// cut no better than another: the medium has a cache, and the length is written down by a sync.
    fn write_some(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let places = [offset as usize, bytes.len(), bytes.as_ptr().addr()];
        if self.is_direct && !places.iter().all(|place| place.is_multiple_of(DIRECT_BYTES)) {
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

/// Coins from a seed.
#[derive(Debug)]
struct SeededCoins(u64);

impl SeededCoins {
    fn coin(&mut self) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 63 == 1
    }
}
