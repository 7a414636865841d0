//! A store made of files of a web server: the same bytes as of local files, whatever the server does, or
//! an error that says what it did.

mod common;
mod server;

use std::fs;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::make;
use server::{Fault, Server};
use zbelastic_data::source::{LocalStorage, SourceStorage};
use zbelastic_remote::{Environment, Missing, RemoteError, RemoteStorage, RetryEvent, RetryPolicy};

/// Waits that take no time, and how many there were.
fn storage(attempts_max: u32) -> (RemoteStorage, Arc<AtomicU32>) {
    let policy = RetryPolicy { attempts_max, wait_first: Duration::ZERO, wait_max: Duration::ZERO };
    let waits = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&waits);
    let on_retry = move |event: RetryEvent<'_>| {
        if let RetryEvent::Begins(notice) = event {
            assert!(notice.reason.starts_with("503"), "{notice}");
            counter.fetch_add(1, Ordering::Relaxed);
        }
        ControlFlow::Continue(())
    };
    (RemoteStorage::new(Environment::default(), policy, Arc::new(on_retry)), waits)
}

/// Text of so many bytes, of which each part is different.
fn text(bytes: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|line: u32| format!("line {line}\n").into_bytes());
    lines.take(bytes).collect()
}

/// The error of a store of `a.txt`, of which nothing is left behind.
fn refused(server: &Server, attempts_max: u32) -> RemoteError {
    let folder = tempfile::tempdir().expect("a folder");
    let (storage, _) = storage(attempts_max);
    let error = make(&storage, vec![server.url("a.txt")], &folder.path().join("store"));
    let error = error.expect_err("refused");
    assert!(!folder.path().join("store").exists());
    RemoteError::find(&error).unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
fn a_server_gives_the_store_of_local_files_in_bounded_ranges_while_it_is_busy() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = text((9 << 20) + 5);
    fs::write(folder.path().join("a.txt"), &long).expect("writable");
    fs::write(folder.path().join("b.jsonl"), "{\"text\": \"b\"}\n").expect("writable");
    let server = Server::start();
    server.put("a.txt", &long);
    server.put("b.jsonl", b"{\"text\": \"b\"}\n");
    server.fail(&[Fault::None, Fault::Busy, Fault::Busy, Fault::None, Fault::None, Fault::Busy]);
    let names = ["a.txt", "b.jsonl"];
    let local = names.map(|name| folder.path().join(name).display().to_string()).to_vec();
    let expected = make(&LocalStorage, local, &folder.path().join("local")).expect("a store");
    let (storage, waits) = storage(3);
    let urls = names.map(|name| server.url(name)).to_vec();
    let found = make(&storage, urls, &folder.path().join("remote")).expect("a store");
    assert_eq!(found, expected);
    assert_eq!(waits.load(Ordering::Relaxed), 3);
    let ranges = server.ranges();
    assert!(ranges.iter().all(|bytes| *bytes <= 4 << 20), "{ranges:?}");
    assert_eq!(ranges.iter().sum::<u64>(), (9 << 20) + 5 + 14, "nothing is read twice");
    assert_eq!(server.ranges_of_any(), 0, "a condition goes with each");
}

#[test]
fn a_server_that_stays_busy_is_an_error_with_what_was_tried() {
    let server = Server::start();
    server.put("a.txt", b"a");
    server.fail(&[Fault::None, Fault::Busy, Fault::Busy, Fault::Busy]);
    let error = refused(&server, 3);
    let RemoteError::Unavailable { host, reason, attempts, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((&**reason, *attempts), ("503 SlowDown", 3));
    assert!(server.url("").contains(&**host), "{host}");
}

#[test]
fn a_connection_that_breaks_within_a_range_is_made_again() {
    let server = Server::start();
    server.put("a.txt", &text(100_000));
    server.fail(&[Fault::None, Fault::Cut]);
    let folder = tempfile::tempdir().expect("a folder");
    let policy = RetryPolicy { wait_first: Duration::ZERO, ..RetryPolicy::STANDARD };
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&reasons);
    let on_retry = move |event: RetryEvent<'_>| {
        if let RetryEvent::Begins(notice) = event {
            notes.lock().expect("not poisoned").push(notice.reason.clone());
        }
        ControlFlow::Continue(())
    };
    let storage = RemoteStorage::new(Environment::default(), policy, Arc::new(on_retry));
    let made = make(&storage, vec![server.url("a.txt")], &folder.path().join("store"));
    let tokens: u64 = made.expect("a store").shards.iter().map(|shard| shard.tokens).sum();
    assert_eq!(tokens, 100_000);
    let reasons = reasons.lock().expect("not poisoned").clone();
    assert_eq!(reasons.len(), 1);
    assert!(!reasons[0].contains("127.0.0.1"), "the host is named beside it: {}", reasons[0]);
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let other = [b"x", &text((9 << 20) - 1)[..]].concat();
    // Without an ETag, and within the same second, only the length tells.
    for (changed, has_etag) in [(text(100), false), (text(9 << 19), false), (other, true)] {
        let server = Server::start();
        server.put("a.txt", &text(9 << 20));
        server.set_etags(has_etag);
        server.change_behind(2, &changed);
        let error = refused(&server, 1);
        assert!(matches!(error, RemoteError::Changed { .. }), "{error}");
    }
}

#[test]
fn a_server_that_ignores_conditions_is_noticed_by_the_etag_it_sends() {
    let server = Server::start();
    server.put("a.txt", &text(9 << 20));
    server.set_conditions(false);
    server.change_behind(2, &[b"x", &text((9 << 20) - 1)[..]].concat());
    let error = refused(&server, 1);
    assert!(matches!(error, RemoteError::Changed { .. }), "{error}");
}

#[test]
fn what_a_server_refuses_is_told_apart() {
    let check = |status, code: &str, expected: &dyn Fn(&RemoteError) -> bool| {
        let server = Server::start();
        server.put("a.txt", b"a");
        server.fail(&[Fault::None, Fault::Status(status)]);
        let error = refused(&server, 3);
        assert!(expected(&error), "{status}: {error}");
        assert!(error.to_string().contains(code), "{error}");
    };
    let gone = |error: &RemoteError| {
        matches!(error, RemoteError::NotFound { missing: Missing::Gone | Missing::File, .. })
    };
    check(404, "", &gone);
    check(403, "403 SlowDown", &|error| matches!(error, RemoteError::Denied { .. }));
    check(401, "401 SlowDown", &|error| matches!(error, RemoteError::Denied { .. }));
    check(412, "another", &|error| matches!(error, RemoteError::Changed { .. }));
    check(416, "another", &|error| matches!(error, RemoteError::Changed { .. }));
    check(400, "400 SlowDown", &|error| matches!(error, RemoteError::Other { .. }));
    let server = Server::start();
    let error = refused(&server, 3);
    assert!(matches!(error, RemoteError::NotFound { missing: Missing::File, .. }), "{error}");
}

#[test]
fn a_server_that_reads_no_ranges_is_an_error() {
    let server = Server::start();
    server.put("a.txt", &text(100));
    server.fail(&[Fault::None, Fault::Whole]);
    let error = refused(&server, 3);
    assert!(matches!(error, RemoteError::NoRanges { .. }), "{error}");
}

#[test]
fn a_wait_ends_when_the_caller_stops_it() {
    let server = Server::start();
    server.put("a.txt", b"a");
    server.fail(&[Fault::Busy]);
    let policy = RetryPolicy::STANDARD;
    let storage =
        RemoteStorage::new(Environment::default(), policy, Arc::new(|_| ControlFlow::Break(())));
    let error = storage.list(&server.url("a.txt")).expect_err("stopped");
    assert_eq!(RemoteError::find(&error), Some(&RemoteError::Stopped));
}

#[test]
fn an_address_that_cannot_be_read_asks_no_server() {
    let (storage, _) = storage(1);
    let check = |entry: &str, expected: &str| {
        let error = storage.list(entry).expect_err("refused").to_string();
        assert!(error.contains(expected), "{entry}: {error}");
    };
    check("ftp://h/a.txt", "is no address of a known kind");
    check("http://h.example/a.txt", "plain http://");
    check("https://h.example/folder/", "a web server lists no files");
    check("https://h.example/*.txt", "a web server lists no files");
    check("s3:///a.txt", "names no bucket");
    check("nowhere.txt", "nowhere.txt does not exist");
}
