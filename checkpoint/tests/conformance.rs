//! The suites of logs and stores, in memory and on a disk.

use std::sync::Arc;

use tempfile::TempDir;
use zbelastic_checkpoint::conformance::{LogFixture, StoreFixture};
use zbelastic_checkpoint::files::RealFileSystem;
use zbelastic_checkpoint::{InMemoryStore, MemoryLog, SledLog, SledStore};

#[derive(Default)]
struct MemoryFixture;

impl LogFixture for MemoryFixture {
    type Log = MemoryLog;

    fn open(&mut self, before: Option<MemoryLog>) -> MemoryLog {
        before.unwrap_or_default()
    }
}

impl StoreFixture for MemoryFixture {
    type Store = InMemoryStore;

    fn open(&mut self, before: Option<InMemoryStore>) -> InMemoryStore {
        before.unwrap_or_default()
    }
}

struct DiskFixture(TempDir);

fn disk() -> DiskFixture {
    DiskFixture(TempDir::new().expect("a folder"))
}

impl LogFixture for DiskFixture {
    type Log = SledLog;

    fn open(&mut self, before: Option<SledLog>) -> SledLog {
        drop(before);
        SledLog::open(Arc::new(RealFileSystem), &self.0.path().join("log")).expect("it opens")
    }
}

impl StoreFixture for DiskFixture {
    type Store = SledStore;

    fn open(&mut self, before: Option<SledStore>) -> SledStore {
        drop(before);
        SledStore::open(Arc::new(RealFileSystem), &self.0.path().join("store")).expect("it opens")
    }
}

zbelastic_checkpoint::log_conformance!(log_in_memory, MemoryFixture::default);
zbelastic_checkpoint::log_conformance!(log_on_disk, disk);
zbelastic_checkpoint::store_conformance!(store_in_memory, MemoryFixture::default);
zbelastic_checkpoint::store_conformance!(store_on_disk, disk);
