//! A member's disk: the product's store of checkpoints over a disk in memory, whose space is
//! limited, and texts beside it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use zbelastic_checkpoint::faults::{
    FaultyFileSystem, FileFaultInjector, FileFaultRule, FileIndex, PowerLoss, SimulatedDisk,
};
use zbelastic_checkpoint::files::{FileSystem, OpenFile};
use zbelastic_checkpoint::{
    CheckpointStore, CheckpointStoreError, FileOperation, FolderStore, PieceName,
};
use zbelastic_policy::data::DataName;
use zbelastic_policy::data_chunks::{ChunkHashes, ChunkSize};
use zbelastic_policy::disk_space::DiskSpace;
use zbelastic_policy::scrub::DataFileAccess;
use zbelastic_types::{Bytes, Digest};

const ROOT: &str = "/node";
const STORE: &str = "/node/store";
const ROWS: &str = "/node/store/index/rows";

/// The store of a life.
pub type MemberStore = FolderStore<FileIndex>;

/// Bytes of a chunk of a text: a text of a life has several.
pub const TEXT_CHUNK: ChunkSize = ChunkSize::of(1024);

/// Texts of a member, by the hash that they should have.
#[derive(Clone, Debug, Default)]
pub struct MemberTexts {
    files: Rc<RefCell<BTreeMap<Digest, Rc<Vec<u8>>>>>,
    /// The lists of the hashes of their chunks, written when they were sound.
    hashes: Rc<RefCell<BTreeMap<Digest, Vec<u8>>>>,
}

impl MemberTexts {
    /// Stores a text under its hash, with the hashes of its chunks.
    pub fn put(&self, hash: Digest, bytes: Vec<u8>) {
        self.keep_hashes(&ChunkHashes::of(&bytes, TEXT_CHUNK));
        self.damage(hash, bytes);
    }

    /// Other bytes lie under the hash of a text.
    pub fn damage(&self, hash: Digest, bytes: Vec<u8>) {
        self.files.borrow_mut().insert(hash, Rc::new(bytes));
    }

    /// Flips a bit of the list of the hashes of a text's chunks, if there is one.
    pub fn damage_hashes(&self, hash: Digest, bit: u64) {
        if let Some(list) = self.hashes.borrow_mut().get_mut(&hash) {
            let bit = bit as usize % (8 * list.len());
            list[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// The list of the hashes of a text's chunks as others get it, if the text was here.
    #[must_use]
    pub fn served_hashes(&self, hash: Digest) -> Option<Vec<u8>> {
        self.hashes.borrow().get(&hash).cloned()
    }

    /// The hashes of a text's chunks, if they are here and sound.
    #[must_use]
    pub fn hashes(&self, name: DataName) -> Option<ChunkHashes> {
        ChunkHashes::decode(name, &self.served_hashes(name.hash)?, TEXT_CHUNK).ok()
    }

    /// The bytes that lie under a hash.
    #[must_use]
    pub fn get(&self, hash: Digest) -> Option<Rc<Vec<u8>>> {
        self.files.borrow().get(&hash).cloned()
    }
}

impl DataFileAccess for MemberTexts {
    type File = Rc<Vec<u8>>;

    fn list(&self) -> Vec<Digest> {
        self.files.borrow().keys().copied().collect()
    }

    fn open(&self, hash: Digest) -> Option<(Self::File, u64)> {
        let file = self.get(hash)?;
        let length = file.len() as u64;
        Some((file, length))
    }

    fn read_at(file: &Self::File, offset: u64, into: &mut [u8]) -> bool {
        let start = offset as usize;
        let there = file.get(start..start + into.len());
        there.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    fn keep_hashes(&self, hashes: &ChunkHashes) {
        self.hashes.borrow_mut().insert(hashes.name().hash, hashes.encode());
    }
}

/// One of so many parts of its disk is left for a log that is nearly full: half of what
/// [`zbelastic_policy::full_logs`] takes for that.
const LOG_PARTS: u64 = 160;

/// The disk of a member, in memory.
pub struct MemberDisk {
    files: SimulatedDisk,
    /// Operations that are to fail.
    faults: FileFaultInjector,
    /// Faults that had not happened when that was asked last.
    pending: usize,
    store: Option<Arc<MemberStore>>,
    total: u64,
    /// Whether other files fill the disk.
    pub is_filled: bool,
    /// Whether hardly any space is left where the log lies, which is another disk then.
    pub is_log_filled: bool,
    /// Whether the store takes nothing.
    pub is_stuck: bool,
    /// Damaged stores that lie aside.
    pub aside: u32,
}

impl MemberDisk {
    /// An empty disk of so many bytes, with a store.
    ///
    /// # Panics
    /// If a new store cannot be opened.
    #[must_use]
    pub fn new(total: u64) -> Self {
        let files = SimulatedDisk::new(Path::new(ROOT));
        let faults = FileFaultInjector::default();
        let store = Some(Arc::new(open(&files, &faults).expect("nothing is there yet")));
        Self {
            files,
            faults,
            pending: 0,
            store,
            total,
            is_filled: false,
            is_log_filled: false,
            is_stuck: false,
            aside: 0,
        }
    }

    /// The store, while it is open.
    #[must_use]
    pub fn store(&self) -> Option<&Arc<MemberStore>> {
        self.store.as_ref()
    }

    /// Bytes of all pieces; each chunk counts as often as it is named.
    #[must_use]
    pub fn used(&self) -> u64 {
        let Some(store) = &self.store else { return 0 };
        let names = store.names().unwrap_or_default();
        let length = |name| store.record(name).ok().flatten().map_or(0, |record| record.length);
        names.into_iter().map(length).sum()
    }

    /// The disk space that is left, in bytes.
    #[must_use]
    pub fn disk_space(&self) -> DiskSpace {
        let free = if self.is_filled { 0 } else { self.total.saturating_sub(self.used()) };
        DiskSpace { free: Bytes(free), total: Bytes(self.total) }
    }

    /// The disk space that is left where the log lies, in bytes.
    #[must_use]
    pub fn log_space(&self) -> DiskSpace {
        match self.is_log_filled && !self.is_filled {
            true => DiskSpace { free: Bytes(self.total / LOG_PARTS), total: Bytes(self.total) },
            false => self.disk_space(),
        }
    }

    /// Whether hardly any space is left for the log.
    #[must_use]
    pub const fn is_log_full(&self) -> bool {
        self.is_filled || self.is_log_filled
    }

    /// The process dies: what was not synced is there or not.
    pub fn crash(&mut self, seed: u64) {
        self.store = None;
        self.files = self.files.after_power_loss(PowerLoss::LosesSome { seed });
    }

    /// An operation of this kind will fail, once so many of them have worked.
    pub fn fail_once(&mut self, operation: FileOperation, after: u64) {
        let kind = io::ErrorKind::Other;
        self.faults.inject(FileFaultRule::FailOnce { operation, after, kind });
        self.pending += 1;
    }

    /// Whether an operation failed since this was asked last.
    pub fn take_failure(&mut self) -> bool {
        let before = std::mem::replace(&mut self.pending, self.faults.pending());
        self.pending < before
    }

    /// Whether an operation failed, and the store writes nothing until it is opened again.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.has_stopped())
    }

    /// A bit of the index flips. Yields whether there is one.
    pub fn damage_index(&mut self) -> bool {
        flip(&self.files, Path::new(ROWS))
    }

    /// A bit of the index flips while the store is open, and a read finds it. Yields whether that is so.
    pub fn rot_index(&mut self) -> bool {
        !self.has_stopped()
            && self.damage_index()
            && self.store.as_ref().is_some_and(|store| store.names().is_err())
    }

    /// A bit of the first chunk of a piece flips. Yields whether there is one.
    pub fn rot(&mut self, name: PieceName) -> bool {
        let record = self.store.as_ref().and_then(|store| store.record(name).ok().flatten());
        let Some(hash) = record.and_then(|record| record.chunks.first().copied()) else {
            return false;
        };
        let text = hash.to_string();
        flip(&self.files, &Path::new(STORE).join("chunks").join(&text[..2]).join(&text))
    }

    /// Opens the store again.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn open(&mut self) -> Result<(), CheckpointStoreError> {
        self.store = None;
        self.store = Some(Arc::new(open(&self.files, &self.faults)?));
        Ok(())
    }

    /// Puts what is there aside, and begins another store.
    ///
    /// # Panics
    /// If a new store cannot be opened.
    pub fn begin_anew(&mut self, aside: u32) {
        self.aside = aside;
        self.files = SimulatedDisk::new(Path::new(ROOT));
        self.faults.clear();
        self.pending = 0;
        self.open().expect("nothing is there yet");
    }
}

fn open(
    files: &SimulatedDisk,
    faults: &FileFaultInjector,
) -> Result<MemberStore, CheckpointStoreError> {
    let files = FaultyFileSystem::new(Arc::new(files.clone()), faults.clone());
    MemberStore::open(Arc::new(files), Path::new(STORE))
}

/// Flips a bit in the middle of a file, on the medium as well. Yields whether it is there.
fn flip(files: &SimulatedDisk, path: &Path) -> bool {
    let Ok(bytes) = files.read(path, u64::MAX) else { return false };
    let middle = bytes.len() / 2;
    let Some(byte) = bytes.get(middle) else { return false };
    let mut file: Box<dyn OpenFile> = files.open(path).expect("it was read");
    file.write_some(middle as u64, &[byte ^ 1]).and_then(|_| file.sync()).is_ok()
}

#[cfg(test)]
mod tests {
    use zbelastic_checkpoint::CheckpointId;
    use zbelastic_types::{LayerId, RunId, Step};

    use super::*;

    #[test]
    fn a_disk_loses_only_what_faults_take() {
        let mut disk = MemberDisk::new(10_000);
        let version = CheckpointId { run: RunId(1), version: Step(4) };
        let name = PieceName { version, layer: LayerId(0), digest: Digest([7; 32]) };
        disk.store().expect("open").put(name, &[5; 100]).expect("disk space");
        assert_eq!((disk.used(), disk.disk_space().free), (100, Bytes(9_900)));
        disk.crash(3);
        disk.open().expect("what was acknowledged is whole");
        assert!(disk.store().expect("open").get(name).is_ok());
        assert!(disk.rot(name));
        assert!(disk.store().expect("open").get(name).is_err());
        assert!(disk.damage_index());
        disk.crash(4);
        assert!(disk.open().expect_err("the index is damaged").is_damage());
        disk.begin_anew(1);
        assert_eq!(disk.used(), 0);
        assert!(disk.rot_index() && disk.has_stopped());
        assert!(disk.open().expect_err("the index is damaged").is_damage());
    }
}
