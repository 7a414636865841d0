//! Processes that are killed while they write, again and again, on the same folder.
//!
//! The test runs itself as another process which writes and prints what was acknowledged. It is
//! killed as soon as it has printed enough, wherever it is by then. Then its folder is opened:
//! nothing that was acknowledged may be missing.

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use common::{manifest, name, noise};
use tempfile::TempDir;
use zbelastic_checkpoint::files::RealFileSystem;
use zbelastic_checkpoint::{CheckpointStore, RecordLog, SledLog, SledStore};

/// Where the other process writes; without it, the test that is one does nothing.
const FOLDER: &str = "CHECKPOINT_TEST_FOLDER";
const LIVES: usize = 40;
const LIVES_OF_STORE: usize = 20;
/// Between fork and exec a new process holds every lock of this one, so one test runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn acknowledge(number: u64) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nacknowledged {number}").and_then(|()| out.flush()).expect("the pipe is open");
}

/// Runs `test` as another process, kills it when it has acknowledged `count` times, and returns
/// the numbers it acknowledged: as many at least.
fn killed_after(test: &str, folder: &Path, count: usize) -> Vec<u64> {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(FOLDER, folder).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut acknowledged = Vec::new();
    // To its end: what is in the pipe when the process dies was acknowledged as well.
    for line in lines {
        let line = line.expect("text");
        let Some(number) = line.strip_prefix("acknowledged ") else { continue };
        acknowledged.push(number.parse().expect("a number"));
        if acknowledged.len() == count {
            child.kill().expect("it runs");
        }
    }
    let status = child.wait().expect("it ends");
    assert!(!status.success(), "it was killed, it did not end");
    acknowledged
}

#[test]
fn process_that_appends() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut log = SledLog::open(Arc::new(RealFileSystem), Path::new(&folder)).expect("it opens");
    loop {
        let next = log.next();
        let batch: Vec<Vec<u8>> =
            (0..1 + next % 3).map(|more| noise(next + more, record_bytes(next + more))).collect();
        log.append(&batch).expect("durable");
        acknowledge(log.next());
        if next.is_multiple_of(7) && log.next() > log.first() + 60 {
            log.trim(log.next() - 40).expect("those are there");
        }
    }
}

fn record_bytes(number: u64) -> usize {
    if number.is_multiple_of(11) { 20_000 } else { 300 }
}

#[test]
fn a_process_that_is_killed_loses_no_record() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("log");
    let mut records = 0;
    for life in 0..LIVES {
        let acknowledged = killed_after("process_that_appends", &folder, 1 + life * 7 % 13);
        let acknowledged = *acknowledged.last().expect("it acknowledged something");
        let log = SledLog::open(Arc::new(RealFileSystem), &folder).expect("it opens again");
        assert!(log.next() >= acknowledged, "life {life}: {acknowledged} were acknowledged");
        for (number, record) in log.read_all().expect("readable") {
            assert!(record == noise(number, record_bytes(number)), "record {number} is whole");
        }
        records = log.next();
    }
    println!("{LIVES} kills, {records} records, none that was acknowledged lost");
}

#[test]
fn process_that_puts() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let store = SledStore::open(Arc::new(RealFileSystem), Path::new(&folder)).expect("it opens");
    let first = store.names().expect("readable").len() as u64;
    for number in first.. {
        store.put(name(number, 0), &noise(number % 50, 70_000)).expect("durable");
        store.put_manifest(&manifest(number, 1)).expect("durable");
        acknowledge(number);
    }
}

#[test]
fn a_process_that_is_killed_loses_no_piece() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("store");
    let mut acknowledged = Vec::new();
    for life in 0..LIVES_OF_STORE {
        acknowledged.extend(killed_after("process_that_puts", &folder, 1 + life * 5 % 7));
        let store = SledStore::open(Arc::new(RealFileSystem), &folder).expect("it opens again");
        let found = store.verify().expect("readable");
        assert!(found.is_whole() && found.stray_entries.is_empty(), "life {life}: {found:?}");
        assert!(found.manifests.iter().all(|manifest| manifest.is_whole()), "life {life}");
        // A life that ends between a piece and its manifest leaves a number without one.
        let kept: BTreeSet<u64> =
            found.manifests.iter().map(|found| found.version.version.0).collect();
        let lost = acknowledged.iter().find(|number| !kept.contains(number));
        assert_eq!(lost, None, "life {life}: it was put");
    }
}
