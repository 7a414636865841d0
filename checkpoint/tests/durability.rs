//! What a log acknowledged is on the disk: at the moment of the sync, after a kill, after damage.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use zbelastic_checkpoint::conformance::noise;
use zbelastic_checkpoint::faults::{FaultyFileSystem, FileFaultInjector, FileFaultRule};
use zbelastic_checkpoint::files::{EntryKind, FileSystem, FolderEntry, OpenFile, RealFileSystem};
use zbelastic_checkpoint::{DatabaseFault, FileOperation, LogError, RecordLog, SledLog};

fn open(folder: &Path) -> Result<SledLog, LogError> {
    SledLog::open(Arc::new(RealFileSystem), folder)
}

fn written(count: u64) -> Vec<(u64, Vec<u8>)> {
    (0..count).map(|number| (number, noise(number, 300))).collect()
}

fn append(log: &mut SledLog, count: u64) {
    let end = log.next() + count;
    while log.next() < end {
        log.append(&[noise(log.next(), 300)]).expect("durable");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a new folder");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}

/// Real files that copy the log's folder at each sync of the database's file.
#[derive(Clone, Debug)]
struct SyncSnapshots {
    folder: PathBuf,
    copies: PathBuf,
    count: Arc<Mutex<u64>>,
}

impl FileSystem for SyncSnapshots {
    fn entry_kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        RealFileSystem.entry_kind(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        RealFileSystem.list(folder)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        RealFileSystem.create_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        RealFileSystem.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let inner = RealFileSystem.open(path)?;
        if path.ends_with("db") {
            return Ok(Box::new(SnapshottedFile { inner, witness: self.clone() }));
        }
        Ok(inner)
    }

    fn open_direct(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        RealFileSystem.open_direct(path)
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        RealFileSystem.read(path, bytes_max)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFileSystem.remove(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealFileSystem.sync_folder(path)
    }
}

#[derive(Debug)]
struct SnapshottedFile {
    inner: Box<dyn OpenFile>,
    witness: SyncSnapshots,
}

impl OpenFile for SnapshottedFile {
    fn write_some(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write_some(offset, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.inner.sync()?;
        let mut count = self.witness.count.lock().expect("nothing panics under the lock");
        copy(&self.witness.folder, &self.witness.copies.join(count.to_string()));
        *count += 1;
        Ok(())
    }

    fn forget_cached(&mut self) -> io::Result<()> {
        self.inner.forget_cached()
    }
}

#[test]
fn a_record_is_in_the_file_when_the_file_is_synced() {
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("log");
    let copies = root.path().join("copies");
    fs::create_dir(&copies).expect("a new folder");
    let count = Arc::new(Mutex::new(0));
    let witness = SyncSnapshots { folder: folder.clone(), copies: copies.clone(), count };
    let mut log = SledLog::open(Arc::new(witness.clone()), &folder).expect("it opens");
    let syncs = || *witness.count.lock().expect("nothing panics under the lock");
    let before = syncs();
    for number in 0..20 {
        append(&mut log, 1);
        assert_eq!(syncs(), before + number + 1, "one sync for one append");
    }
    log.append(&written(70).into_iter().map(|(_, record)| record).skip(20).collect::<Vec<_>>())
        .expect("durable");
    assert_eq!(syncs(), before + 21, "one sync for fifty records");
    drop(log);
    // What the disk held when the sync of an append returned, and nothing that came later.
    for number in 0..20 {
        let log = open(&copies.join((before + number).to_string())).expect("it opens");
        assert_eq!(log.read_all().expect("readable"), written(number + 1));
    }
    let log = open(&copies.join((before + 20).to_string())).expect("it opens");
    assert_eq!(log.read_all().expect("readable"), written(70));
}

#[test]
fn a_sync_follows_each_append_and_nothing_else_is_written_after_it() {
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("log");
    let faults = FileFaultInjector::default();
    let files = FaultyFileSystem::new(Arc::new(RealFileSystem), faults.clone());
    let mut log = SledLog::open(Arc::new(files), &folder).expect("it opens");
    for _ in 0..10 {
        drop(faults.take_completed());
        append(&mut log, 1);
        let done = faults.take_completed();
        let steps: Vec<_> = done.iter().map(|done| (done.operation, done.path.as_path())).collect();
        let blobs = folder.join("blobs");
        let database = folder.join("db");
        let mark = folder.join("MARK");
        let expected = [
            (FileOperation::List, blobs.as_path()),
            (FileOperation::Sync, database.as_path()),
            (FileOperation::Write, mark.as_path()),
        ];
        assert_eq!(steps, expected);
    }
}

#[test]
fn a_log_takes_nothing_after_a_sync_that_failed() {
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("log");
    let faults = FileFaultInjector::default();
    let files = FaultyFileSystem::new(Arc::new(RealFileSystem), faults.clone());
    let mut log = SledLog::open(Arc::new(files), &folder).expect("it opens");
    append(&mut log, 3);
    let kind = io::ErrorKind::Other;
    faults.inject(FileFaultRule::FailOnce { operation: FileOperation::Sync, after: 0, kind });
    match log.append(&[vec![1]]) {
        Err(LogError::Database { fault: DatabaseFault::Io(_), .. }) => {}
        other => panic!("the sync fails, got {other:?}"),
    }
    assert_eq!(log.next(), 3, "it was not acknowledged");
    for again in [log.append(&[vec![1]]), log.trim(1), log.cut_from(2)] {
        match again {
            Err(LogError::Database { fault: DatabaseFault::Stopped, .. }) => {}
            other => panic!("it has stopped, got {other:?}"),
        }
    }
    drop(log);
    let mut log = open(&folder).expect("it opens again");
    assert_eq!(log.read_all().expect("readable")[..3], written(3));
    append(&mut log, 1);
}

/// The system's cache holds what the sync could not write, and would return it to the next reader.
#[test]
fn what_is_opened_after_a_sync_that_failed_is_read_from_the_medium() {
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("log");
    let mut log = open(&folder).expect("it opens");
    append(&mut log, 3);
    drop(log);
    let faults = FileFaultInjector::default();
    let files = FaultyFileSystem::new(Arc::new(RealFileSystem), faults.clone());
    let log = SledLog::open(Arc::new(files), &folder).expect("it opens again");
    let done = faults.take_completed();
    let position = |operation, name: &str| {
        let expected = (operation, folder.join(name));
        done.iter().position(|done| (done.operation, done.path.clone()) == expected)
    };
    for name in ["db", "conf", "MARK"] {
        let synced = position(FileOperation::Sync, name);
        let forgotten = position(FileOperation::Forget, name);
        assert!(synced.is_some() && synced < forgotten, "{name}: {done:?}");
    }
    assert!(
        position(FileOperation::Forget, "MARK") < position(FileOperation::Read, "MARK"),
        "{done:?}"
    );
    assert_eq!(log.read_all().expect("readable"), written(3));
    drop(log);
    // A medium that still cannot write what the cache holds is detected before anything that was
    // read is used.
    let files = FaultyFileSystem::new(Arc::new(RealFileSystem), faults.clone());
    let kind = io::ErrorKind::Other;
    faults.inject(FileFaultRule::FailOnce { operation: FileOperation::Sync, after: 0, kind });
    match SledLog::open(Arc::new(files), &folder) {
        Err(LogError::Database { fault: DatabaseFault::Io(_), .. }) => {}
        other => panic!("the sync fails, got {other:?}"),
    }
}

#[test]
fn a_full_disk_is_distinguished() {
    let root = TempDir::new().expect("a folder");
    let faults = FileFaultInjector::default();
    let files = FaultyFileSystem::new(Arc::new(RealFileSystem), faults.clone());
    let mut log = SledLog::open(Arc::new(files), &root.path().join("log")).expect("it opens");
    let kind = io::ErrorKind::StorageFull;
    faults.inject(FileFaultRule::FailOnce { operation: FileOperation::Sync, after: 0, kind });
    assert!(log.append(&[vec![1]]).expect_err("the disk is full").is_full());
    assert!(!log.append(&[vec![1]]).expect_err("it has stopped").is_full());
}

#[test]
fn a_second_process_is_refused_by_the_database_as_well() {
    let root = TempDir::new().expect("a folder");
    let log = open(&root.path().join("log")).expect("it opens");
    let refused = open(&root.path().join("log")).expect_err("it is held");
    let LogError::Database { fault: DatabaseFault::Held { file }, .. } = refused else {
        panic!("the locked file is reported, found {refused}")
    };
    assert_eq!(file, root.path().join("log/db"));
    drop(log);
    open(&root.path().join("log")).expect("it opens again");
}

#[test]
fn a_log_that_is_about_to_be_released_is_waited_for() {
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("log");
    append(&mut open(&folder).expect("it opens"), 3);
    let lock = fs::File::open(folder.join("db")).expect("the database's file");
    lock.lock().expect("it is not locked for long");
    let holder = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(lock);
    });
    let log = open(&folder).expect("it opens once it is released");
    holder.join().expect("it only waits");
    assert_eq!(log.read_all().expect("readable"), written(3));
}

/// Damages a copy of the log in `root` and returns what opening it finds: all records, or why not.
fn damaged(root: &Path, change: impl FnOnce(&Path)) -> Result<Vec<(u64, Vec<u8>)>, LogError> {
    let folder = root.join("changed");
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("removed");
    }
    copy(&root.join("log"), &folder);
    change(&folder);
    open(&folder)?.read_all()
}

fn filled(count: u64) -> TempDir {
    let root = TempDir::new().expect("a folder");
    append(&mut open(&root.path().join("log")).expect("it opens"), count);
    root
}

#[test]
fn a_flipped_bit_never_loses_a_record_silently() {
    let root = filled(60);
    let database = fs::read(root.path().join("log/db")).expect("readable");
    // What was written is far shorter than the file may be; the rest of it is not looked at.
    let used = database.iter().rposition(|byte| *byte != 0).expect("something was written");
    assert_eq!(damaged(root.path(), |_| {}).expect("it is whole"), written(60));
    let mut refused = 0;
    let mut whole = 0;
    for at in (0..=used).step_by(used / 150) {
        let found = damaged(root.path(), |folder| {
            let mut bytes = database.clone();
            bytes[at] ^= 0x10;
            fs::write(folder.join("db"), bytes).expect("written");
        });
        match found {
            Ok(records) => {
                assert!(records == written(60), "byte {at}: {} records", records.len());
                whole += 1;
            }
            Err(LogError::Database { .. } | LogError::Gap { .. }) => refused += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    println!("{refused} flips refused, {whole} in bytes that are of no use any more");
    assert!(refused > 20, "most flips hit a record");
}

#[test]
fn what_is_lost_is_not_made_anew() {
    let root = filled(20);
    let lost = |file: &str, change: fn(&Path)| match damaged(root.path(), |f| change(&f.join(file)))
    {
        Err(LogError::Database { fault: DatabaseFault::Lost { file: found }, .. }) => {
            assert!(found.ends_with(file), "{}", found.display());
        }
        other => panic!("{file} is lost, got {other:?}"),
    };
    let remove: fn(&Path) = |path| fs::remove_file(path).expect("removed");
    let empty: fn(&Path) = |path| fs::write(path, []).expect("emptied");
    for file in ["db", "conf", "MARK"] {
        lost(file, remove);
    }
    for file in ["db", "conf"] {
        lost(file, empty);
    }
    lost("FORMAT", remove);
}

#[test]
fn an_older_copy_is_refused() {
    let root = filled(20);
    let older = fs::read(root.path().join("log/db")).expect("readable");
    append(&mut open(&root.path().join("log")).expect("it opens"), 5);
    let found = damaged(root.path(), |folder| {
        fs::write(folder.join("db"), older).expect("written");
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.display().to_string().contains("snap.") {
                fs::remove_file(path).expect("removed");
            }
        }
    });
    match found {
        Err(LogError::Database {
            fault: DatabaseFault::WentBack { acknowledged, found }, ..
        }) => {
            assert_eq!((acknowledged, found), (25, 20));
        }
        other => panic!("it is older than the mark, got {other:?}"),
    }
}

#[test]
fn a_mark_in_disorder_is_reported() {
    let root = filled(20);
    let one = damaged(root.path(), |folder| {
        let path = folder.join("MARK");
        let mut bytes = fs::read(&path).expect("readable");
        bytes[512..].fill(7);
        fs::write(path, bytes).expect("written");
    });
    assert_eq!(one.expect("the other slot is whole"), written(20));
    let both = damaged(root.path(), |folder| fs::write(folder.join("MARK"), []).expect("written"));
    assert!(matches!(both, Err(LogError::Database { fault: DatabaseFault::Damaged { .. }, .. })));
}

#[test]
fn what_is_not_the_logs_is_named_and_left_alone() {
    let root = filled(5);
    for strange in ["notes.txt", "db.old"] {
        match damaged(root.path(), |folder| fs::write(folder.join(strange), "x").expect("written"))
        {
            Err(LogError::Database { fault: DatabaseFault::Foreign { path }, .. }) => {
                assert!(path.ends_with(strange) && path.exists());
            }
            other => panic!("{strange} is strange, got {other:?}"),
        }
    }
    let link = damaged(root.path(), |folder| {
        let path = folder.join("db");
        fs::rename(&path, folder.with_extension("db")).expect("moved");
        std::os::unix::fs::symlink(folder.with_extension("db"), path).expect("linked");
    });
    match link {
        Err(LogError::Database { fault: DatabaseFault::Foreign { path }, .. }) => {
            assert!(path.ends_with("db"));
        }
        other => panic!("a link is refused, got {other:?}"),
    }
}

#[test]
fn another_version_is_refused() {
    let root = filled(5);
    let text = "zbelastic-table 2 sled 1.0";
    let stamp = format!("{text} {}", &blake3::hash(text.as_bytes()).to_hex()[..8]);
    let found = damaged(root.path(), |folder| {
        fs::write(folder.join("FORMAT"), format!("{stamp}\n")).expect("written");
    });
    match found {
        Err(LogError::Database { fault: DatabaseFault::OtherVersion { reason }, .. }) => {
            assert_eq!(reason, stamp);
        }
        other => panic!("another version, got {other:?}"),
    }
}

/// A flipped bit or a lost end of the stamp is damage, of which a store's index is made anew.
#[test]
fn a_stamp_that_names_no_version_is_damaged() {
    let cut =
        ["zbelastic-table 1 sled 0.34", "zbelastic-table 1 sled 0.3", "zbelastic-table 1 sle", ""];
    let flipped = [
        "xbelastic-table 1 sled 0.34\n",
        "zbelastic-table 3 sled 0.34\n",
        "zbelastic-table 1 sled 0.36\n",
        "zbelastic-table 0 sled 0.34\n",
    ];
    for stamp in cut.into_iter().chain(flipped) {
        let root = filled(5);
        let found = damaged(root.path(), |folder| {
            fs::write(folder.join("FORMAT"), stamp).expect("written");
        });
        match found {
            Err(LogError::Database { fault, .. }) => assert!(fault.is_damage(), "{fault}"),
            other => panic!("{stamp:?} is no version, got {other:?}"),
        }
    }
}

#[test]
fn a_log_that_is_trimmed_does_not_grow() {
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("log");
    let faults = FileFaultInjector::default();
    // The disk's speed is not tested here, so the syncs are left out.
    faults.inject(FileFaultRule::LyingSyncs);
    let files = FaultyFileSystem::new(Arc::new(RealFileSystem), faults);
    let mut log = SledLog::open(Arc::new(files), &folder).expect("it opens");
    let mut bytes = Vec::new();
    for round in 0..40 {
        append(&mut log, 250);
        log.trim(log.next() - 50).expect("those are there");
        if round % 10 == 9 {
            bytes.push(fs::metadata(folder.join("db")).expect("it is there").len());
        }
    }
    println!("bytes after each 2500 records: {bytes:?}");
    assert!(bytes[3] < 24 << 20, "10,000 records of 300 bytes, 50 kept, in {bytes:?} bytes");
}
