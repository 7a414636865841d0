//! The suites of logs and stores, in memory and on a disk.

use std::sync::Arc;

use tempfile::TempDir;
use zbelastic_checkpoint::conformance::{LogPlace, StorePlace};
use zbelastic_checkpoint::files::RealFiles;
use zbelastic_checkpoint::{MemoryLog, MemoryStore, SledLog, SledStore};

#[derive(Default)]
struct Memory;

impl LogPlace for Memory {
    type Log = MemoryLog;

    fn open(&mut self, before: Option<MemoryLog>) -> MemoryLog {
        before.unwrap_or_default()
    }
}

impl StorePlace for Memory {
    type Store = MemoryStore;

    fn open(&mut self, before: Option<MemoryStore>) -> MemoryStore {
        before.unwrap_or_default()
    }
}

struct Disk(TempDir);

fn disk() -> Disk {
    Disk(TempDir::new().expect("a folder"))
}

impl LogPlace for Disk {
    type Log = SledLog;

    fn open(&mut self, before: Option<SledLog>) -> SledLog {
        drop(before);
        SledLog::open(Arc::new(RealFiles), &self.0.path().join("log")).expect("it opens")
    }
}

impl StorePlace for Disk {
    type Store = SledStore;

    fn open(&mut self, before: Option<SledStore>) -> SledStore {
        drop(before);
        SledStore::open(Arc::new(RealFiles), &self.0.path().join("store")).expect("it opens")
    }
}

zbelastic_checkpoint::log_conformance!(log_in_memory, Memory::default);
zbelastic_checkpoint::log_conformance!(log_on_disk, disk);
zbelastic_checkpoint::store_conformance!(store_in_memory, Memory::default);
zbelastic_checkpoint::store_conformance!(store_on_disk, disk);
