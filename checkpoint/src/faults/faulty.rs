//! Files that fail on demand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::Operation;
use crate::files::{DIRECT_BYTES, EntryKind, Files, FolderEntry, OpenFile};

/// Operations that are remembered at most; later ones are counted and not kept.
const DONE_MAX: usize = 1 << 16;

/// What goes wrong. Several can be set at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// From now on the disk takes so many more bytes and then is full.
    FullAfter {
        /// Bytes that can still be written.
        bytes: u64,
    },
    /// One operation fails: the first of its kind after so many of that kind.
    FailOnce {
        /// Kind of operation that fails.
        operation: Operation,
        /// How many of that kind succeed first.
        after: u64,
        /// Kind of the error that the operation returns.
        kind: io::ErrorKind,
    },
    /// A write takes at most so many bytes, at least one; a direct one at least one block.
    ShortWrites {
        /// Most bytes that one write takes.
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
pub struct Done {
    /// Kind of the operation.
    pub operation: Operation,
    /// Path of the file that it was done to.
    pub path: PathBuf,
}

/// What goes wrong, and what was done. All clones share it.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug, Default)]
struct Plan {
    faults: Vec<Fault>,
    done: Vec<Done>,
    count: u64,
    is_killed: bool,
}

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    /// Only so many bytes of a write are written. The caller gets their number if `is_told`, and an
    /// error if the process dies there.
    Takes {
        bytes: usize,
        is_told: bool,
    },
    Pretends,
}

/// Bytes that a write is to write. Only whole units of them are written.
#[derive(Clone, Copy, Debug)]
struct Asked {
    bytes: usize,
    /// One byte, and [`DIRECT_BYTES`] if the write is direct.
    unit: usize,
}

impl Asked {
    /// Of an operation that writes nothing.
    const NOTHING: Self = Self { bytes: 0, unit: 1 };

    /// As much of it as `bytes_max` allows.
    fn within(self, bytes_max: usize) -> usize {
        let bytes = self.bytes.min(bytes_max);
        bytes - bytes % self.unit
    }
}

impl Faults {
    /// Sets a fault, beside those that are set.
    pub fn set(&self, fault: Fault) {
        self.plan().faults.push(fault);
    }

    /// Takes all faults back. What was killed works again.
    pub fn clear(&self) {
        let mut plan = self.plan();
        plan.faults.clear();
        plan.is_killed = false;
    }

    /// How many operations were begun.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.plan().count
    }

    /// The operations that were begun since the last call.
    #[must_use]
    pub fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.plan().done)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().expect("nothing panics under the lock")
    }

    fn begin(&self, operation: Operation, path: &Path, asked: Asked) -> io::Result<Fate> {
        let mut plan = self.plan();
        plan.count += 1;
        if plan.done.len() < DONE_MAX {
            plan.done.push(Done { operation, path: path.to_owned() });
        }
        if plan.is_killed {
            return Err(killed());
        }
        plan.fate(operation, asked)
    }
}

impl Plan {
    fn fate(&mut self, operation: Operation, asked: Asked) -> io::Result<Fate> {
        let mut fate = Fate::Works;
        let mut spent = None;
        for (at, fault) in self.faults.iter_mut().enumerate() {
            match fault {
                Fault::KillAfter { operations: 0 } => {
                    self.is_killed = true;
                    let half = asked.within(asked.bytes / 2);
                    if operation == Operation::Write && half > 0 {
                        return Ok(Fate::Takes { bytes: half, is_told: false });
                    }
                    return Err(killed());
                }
                Fault::KillAfter { operations } => *operations -= 1,
                Fault::FailOnce { operation: kind_of, after, kind } if *kind_of == operation => {
                    if *after == 0 {
                        spent = Some((at, *kind));
                    } else {
                        *after -= 1;
                    }
                }
                Fault::FullAfter { bytes: left } if operation == Operation::Write => {
                    let taken = asked.within(usize::try_from(*left).unwrap_or(usize::MAX));
                    if taken == 0 {
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                    *left -= taken as u64;
                    fate = Fate::Takes { bytes: taken, is_told: true };
                }
                Fault::ShortWrites { bytes_max } if operation == Operation::Write => {
                    let bytes = asked.within((*bytes_max).max(asked.unit));
                    fate = Fate::Takes { bytes, is_told: true };
                }
                Fault::LyingSyncs
                    if matches!(operation, Operation::Sync | Operation::SyncFolder) =>
                {
                    fate = Fate::Pretends;
                }
                Fault::FailOnce { .. }
                | Fault::FullAfter { .. }
                | Fault::ShortWrites { .. }
                | Fault::LyingSyncs => {}
            }
        }
        if let Some((at, kind)) = spent {
            self.faults.remove(at);
            return Err(kind.into());
        }
        Ok(fate)
    }
}

fn killed() -> io::Error {
    io::Error::other("the process was killed")
}

/// Files that fail as their [`Faults`] prescribe, and otherwise do what those behind them do.
#[derive(Debug)]
pub struct FaultyFiles {
    inner: Arc<dyn Files>,
    faults: Faults,
}

impl FaultyFiles {
    /// Files before `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Files>, faults: Faults) -> Self {
        Self { inner, faults }
    }

    fn wrap(&self, path: &Path, unit: usize, inner: Box<dyn OpenFile>) -> Box<dyn OpenFile> {
        Box::new(FaultyFile { inner, path: path.to_owned(), unit, faults: self.faults.clone() })
    }
}

impl Files for FaultyFiles {
    fn look(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.faults.begin(Operation::Look, path, Asked::NOTHING)?;
        self.inner.look(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        self.faults.begin(Operation::List, folder, Asked::NOTHING)?;
        self.inner.list(folder)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.faults.begin(Operation::CreateFolder, path, Asked::NOTHING)?;
        self.inner.create_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.faults.begin(Operation::Create, path, Asked::NOTHING)?;
        Ok(self.wrap(path, 1, self.inner.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.faults.begin(Operation::Open, path, Asked::NOTHING)?;
        Ok(self.wrap(path, 1, self.inner.open(path)?))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.faults.begin(Operation::OpenDirect, path, Asked::NOTHING)?;
        Ok(self.wrap(path, DIRECT_BYTES, self.inner.open_direct(path)?))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        self.faults.begin(Operation::Read, path, Asked::NOTHING)?;
        self.inner.read(path, bytes_max)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.begin(Operation::Rename, from, Asked::NOTHING)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.begin(Operation::Remove, path, Asked::NOTHING)?;
        self.inner.remove(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        match self.faults.begin(Operation::SyncFolder, path, Asked::NOTHING)? {
            Fate::Pretends => Ok(()),
            Fate::Works | Fate::Takes { .. } => self.inner.sync_folder(path),
        }
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Box<dyn OpenFile>,
    path: PathBuf,
    /// What a write is made of.
    unit: usize,
    faults: Faults,
}

impl OpenFile for FaultyFile {
    fn write_some(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let asked = Asked { bytes: bytes.len(), unit: self.unit };
        match self.faults.begin(Operation::Write, &self.path, asked)? {
            Fate::Takes { bytes: taken, is_told } => {
                let written = self.inner.write_some(offset, &bytes[..taken])?;
                if is_told { Ok(written) } else { Err(killed()) }
            }
            Fate::Works | Fate::Pretends => self.inner.write_some(offset, bytes),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match self.faults.begin(Operation::Sync, &self.path, Asked::NOTHING)? {
            Fate::Pretends => Ok(()),
            Fate::Works | Fate::Takes { .. } => self.inner.sync(),
        }
    }

    fn forget_cached(&mut self) -> io::Result<()> {
        self.faults.begin(Operation::Forget, &self.path, Asked::NOTHING)?;
        self.inner.forget_cached()
    }
}
