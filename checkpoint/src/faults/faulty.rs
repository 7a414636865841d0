//! Files that fail on demand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::FileOperation;
use crate::files::{DIRECT_BYTES, EntryKind, FileSystem, FolderEntry, OpenFile};

/// Operations that are remembered at most; later ones are counted and not kept.
const COMPLETED_MAX: usize = 1 << 16;

/// A fault of files. Several can be injected at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFaultRule {
    /// From now on so many more bytes can be written, and then the disk is full.
    FullAfter {
        /// Bytes that can still be written.
        bytes: u64,
    },
    /// One operation fails: the first of its kind after so many of that kind.
    FailOnce {
        /// Kind of operation that fails.
        operation: FileOperation,
        /// How many of that kind succeed first.
        after: u64,
        /// Kind of the error that the operation returns.
        kind: io::ErrorKind,
    },
    /// A write writes at most so many bytes, at least one; a direct one at least one block.
    ShortWrites {
        /// Most bytes that one write writes.
        bytes_max: usize,
    },
    /// After so many more operations nothing works, as if the process had been killed. A write
    /// that comes as the first of those is done by half.
    KillAfter {
        /// Operations that still work.
        operations: u64,
    },
    /// Syncs do nothing and return success.
    LyingSyncs,
}

/// An operation that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedOperation {
    /// Kind of the operation.
    pub operation: FileOperation,
    /// Path of the file that it was done to.
    pub path: PathBuf,
}

/// The faults that are injected, and the operations that were done. All clones share them.
#[derive(Clone, Debug, Default)]
pub struct FileFaultInjector {
    state: Arc<Mutex<InjectionState>>,
}

#[derive(Debug, Default)]
struct InjectionState {
    faults: Vec<FileFaultRule>,
    completed: Vec<CompletedOperation>,
    count: u64,
    is_killed: bool,
}

/// Whether an operation works, as the faults decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationOutcome {
    Works,
    /// Only so many bytes of a write are written. The caller gets their number if `is_reported`,
    /// and an error if the process dies there.
    Takes {
        bytes: usize,
        is_reported: bool,
    },
    Pretends,
}

/// Bytes that a write is to write. Only whole units of them are written.
#[derive(Clone, Copy, Debug)]
struct WriteRequest {
    bytes: usize,
    /// One byte, and [`DIRECT_BYTES`] if the write is direct.
    unit: usize,
}

impl WriteRequest {
    /// The request of an operation that writes nothing.
    const NOTHING: Self = Self { bytes: 0, unit: 1 };

    /// As many bytes of it as `bytes_max` allows, in whole units.
    fn within(self, bytes_max: usize) -> usize {
        let bytes = self.bytes.min(bytes_max);
        bytes - bytes % self.unit
    }
}

impl FileFaultInjector {
    /// Injects a fault, beside those that are injected.
    pub fn inject(&self, fault: FileFaultRule) {
        self.lock_state().faults.push(fault);
    }

    /// Removes all faults. Files that were killed work again.
    pub fn clear(&self) {
        let mut state = self.lock_state();
        state.faults.clear();
        state.is_killed = false;
    }

    /// How many faults are injected; one that happens once is not any more when it has happened.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lock_state().faults.len()
    }

    /// How many operations were begun.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.lock_state().count
    }

    /// The operations that were begun since the last call.
    #[must_use]
    pub fn take_completed(&self) -> Vec<CompletedOperation> {
        std::mem::take(&mut self.lock_state().completed)
    }

    fn lock_state(&self) -> MutexGuard<'_, InjectionState> {
        self.state.lock().expect("nothing panics under the lock")
    }

    fn begin(
        &self,
        operation: FileOperation,
        path: &Path,
        request: WriteRequest,
    ) -> io::Result<OperationOutcome> {
        let mut state = self.lock_state();
        state.count += 1;
        if state.completed.len() < COMPLETED_MAX {
            state.completed.push(CompletedOperation { operation, path: path.to_owned() });
        }
        if state.is_killed {
            return Err(killed());
        }
        state.outcome_of(operation, request)
    }
}

impl InjectionState {
    fn outcome_of(
        &mut self,
        operation: FileOperation,
        request: WriteRequest,
    ) -> io::Result<OperationOutcome> {
        let mut outcome = OperationOutcome::Works;
        let mut spent = None;
        for (at, fault) in self.faults.iter_mut().enumerate() {
            match fault {
                FileFaultRule::KillAfter { operations: 0 } => {
                    self.is_killed = true;
                    let half = request.within(request.bytes / 2);
                    if operation == FileOperation::Write && half > 0 {
                        return Ok(OperationOutcome::Takes { bytes: half, is_reported: false });
                    }
                    return Err(killed());
                }
                FileFaultRule::KillAfter { operations } => *operations -= 1,
                FileFaultRule::FailOnce { operation: kind_of, after, kind }
                    if *kind_of == operation =>
                {
                    if *after == 0 {
                        spent = Some((at, *kind));
                    } else {
                        *after -= 1;
                    }
                }
                FileFaultRule::FullAfter { bytes: left } if operation == FileOperation::Write => {
                    let taken = request.within(usize::try_from(*left).unwrap_or(usize::MAX));
                    if taken == 0 {
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                    *left -= taken as u64;
                    outcome = OperationOutcome::Takes { bytes: taken, is_reported: true };
                }
                FileFaultRule::ShortWrites { bytes_max } if operation == FileOperation::Write => {
                    let bytes = request.within((*bytes_max).max(request.unit));
                    outcome = OperationOutcome::Takes { bytes, is_reported: true };
                }
                FileFaultRule::LyingSyncs
                    if matches!(operation, FileOperation::Sync | FileOperation::SyncFolder) =>
                {
                    outcome = OperationOutcome::Pretends;
                }
                FileFaultRule::FailOnce { .. }
                | FileFaultRule::FullAfter { .. }
                | FileFaultRule::ShortWrites { .. }
                | FileFaultRule::LyingSyncs => {}
            }
        }
        if let Some((at, kind)) = spent {
            self.faults.remove(at);
            return Err(kind.into());
        }
        Ok(outcome)
    }
}

fn killed() -> io::Error {
    io::Error::other("the process was killed")
}

/// A file system that fails as its [`FileFaultInjector`] prescribes, and otherwise behaves as the
/// one behind it does.
#[derive(Debug)]
pub struct FaultyFileSystem {
    inner: Arc<dyn FileSystem>,
    faults: FileFaultInjector,
}

impl FaultyFileSystem {
    /// Wraps `inner`, with the faults of `faults`.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>, faults: FileFaultInjector) -> Self {
        Self { inner, faults }
    }

    fn wrap(&self, path: &Path, unit: usize, inner: Box<dyn OpenFile>) -> Box<dyn OpenFile> {
        Box::new(FaultyFile { inner, path: path.to_owned(), unit, faults: self.faults.clone() })
    }
}

impl FileSystem for FaultyFileSystem {
    fn entry_kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.faults.begin(FileOperation::Look, path, WriteRequest::NOTHING)?;
        self.inner.entry_kind(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        self.faults.begin(FileOperation::List, folder, WriteRequest::NOTHING)?;
        self.inner.list(folder)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.faults.begin(FileOperation::CreateFolder, path, WriteRequest::NOTHING)?;
        self.inner.create_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.faults.begin(FileOperation::Create, path, WriteRequest::NOTHING)?;
        Ok(self.wrap(path, 1, self.inner.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.faults.begin(FileOperation::Open, path, WriteRequest::NOTHING)?;
        Ok(self.wrap(path, 1, self.inner.open(path)?))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.faults.begin(FileOperation::OpenDirect, path, WriteRequest::NOTHING)?;
        Ok(self.wrap(path, DIRECT_BYTES, self.inner.open_direct(path)?))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        self.faults.begin(FileOperation::Read, path, WriteRequest::NOTHING)?;
        self.inner.read(path, bytes_max)
    }

    fn read_direct(&self, path: &Path, into: &mut [u8]) -> io::Result<usize> {
        self.faults.begin(FileOperation::Read, path, WriteRequest::NOTHING)?;
        self.inner.read_direct(path, into)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.begin(FileOperation::Rename, from, WriteRequest::NOTHING)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.begin(FileOperation::Remove, path, WriteRequest::NOTHING)?;
        self.inner.remove(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        match self.faults.begin(FileOperation::SyncFolder, path, WriteRequest::NOTHING)? {
            OperationOutcome::Pretends => Ok(()),
            OperationOutcome::Works | OperationOutcome::Takes { .. } => {
                self.inner.sync_folder(path)
            }
        }
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Box<dyn OpenFile>,
    path: PathBuf,
    /// The bytes that a write is a multiple of.
    unit: usize,
    faults: FileFaultInjector,
}

impl OpenFile for FaultyFile {
    fn write_some(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let request = WriteRequest { bytes: bytes.len(), unit: self.unit };
        match self.faults.begin(FileOperation::Write, &self.path, request)? {
            OperationOutcome::Takes { bytes: taken, is_reported } => {
                let written = self.inner.write_some(offset, &bytes[..taken])?;
                if is_reported { Ok(written) } else { Err(killed()) }
            }
            OperationOutcome::Works | OperationOutcome::Pretends => {
                self.inner.write_some(offset, bytes)
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match self.faults.begin(FileOperation::Sync, &self.path, WriteRequest::NOTHING)? {
            OperationOutcome::Pretends => Ok(()),
            OperationOutcome::Works | OperationOutcome::Takes { .. } => self.inner.sync(),
        }
    }

    fn forget_cached(&mut self) -> io::Result<()> {
        self.faults.begin(FileOperation::Forget, &self.path, WriteRequest::NOTHING)?;
        self.inner.forget_cached()
    }
}
