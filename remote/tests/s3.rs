//! Stores made of buckets, read from an S3 server over a folder: the same bytes as of the folder, or an
//! error that says what the server has not.

mod common;
mod object_folder;
mod s3_server;

use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use common::{BytesEncoder, make};
use object_folder::{check_object_folder, open_folder};
use s3_server::{S3Server, SECRET};
use tempfile::TempDir;
use zbelastic_data::prepare::{PrepareError, PrepareRequest, prepare};
use zbelastic_data::source::{CopyError, LocalStorage, SourceOptions, SourceStorage, copy_file};
use zbelastic_remote::{
    Environment, Missing, OnRetry, RemoteError, RemoteStorage, RetryEvent, RetryPolicy, Scheme,
};

/// A bucket `books` whose order by bytes is not that of paths, and other files beside its texts.
fn folder_with_bucket() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let lines: String =
        (0..60_000).map(|line| format!("{{\"text\": \"line {line}\"}}\n")).collect();
    let files = [
        ("corpus/a.txt", "a"),
        ("corpus/a/b c.txt", "a/b"),
        ("corpus/b.jsonl", "{\"text\": \"b\"}\n"),
        ("corpus/lines.jsonl", &lines),
        ("corpus/.hidden.txt", "hidden"),
        ("corpus/notes.py", "notes"),
        ("other.txt", "other"),
    ];
    for (name, content) in files {
        let path = folder.path().join("buckets/books").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(path, content).expect("writable");
    }
    folder
}

/// Waits take no time, and what was said of them is kept.
fn storage(environment: Environment) -> (RemoteStorage, Arc<Mutex<Vec<String>>>) {
    let policy =
        RetryPolicy { attempts_max: 3, wait_first: Duration::ZERO, wait_max: Duration::ZERO };
    let notes = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&notes);
    let on_retry: OnRetry = Arc::new(move |event: RetryEvent<'_>| {
        if let RetryEvent::Begins(notice) = event {
            kept.lock().expect("not poisoned").push(notice.reason.clone());
        }
        ControlFlow::Continue(())
    });
    (RemoteStorage::new(environment, policy, on_retry), notes)
}

/// A store of `remote` is one of `local`, which is seen from the folder of buckets.
fn check_same(folder: &Path, storage: &RemoteStorage, local: &str, remote: &[&str]) {
    let stores = tempfile::tempdir().expect("a folder");
    let local = local.split(' ').map(|name| folder.join("buckets").join(name));
    let local = local.map(|path| path.display().to_string()).collect();
    let expected = make(&LocalStorage, local, &stores.path().join("local")).expect("a store");
    let entries = remote.iter().map(|entry| (*entry).to_owned()).collect();
    let found = make(storage, entries, &stores.path().join("remote"));
    assert_eq!(found.expect("a store"), expected, "{remote:?}");
}

#[test]
fn a_bucket_gives_the_store_of_the_same_files_while_the_server_is_busy() {
    let folder = folder_with_bucket();
    let server = S3Server::start(&folder.path().join("buckets"), true);
    let (storage, notes) = storage(server.environment(SECRET));
    let check = |local, remote: &[&str]| check_same(folder.path(), &storage, local, remote);
    check("books/corpus", &["s3://books/corpus/"]);
    check("books/corpus", &["s3://books/corpus"]);
    check("books", &["s3://books"]);
    check("books/**/*.txt", &["s3://books/**/*.txt"]);
    server.be_busy(2);
    let both = ["s3://books/other.txt", "s3://books/corpus/lines.jsonl"];
    check("books/other.txt books/corpus/lines.jsonl", &both);
    let noted = notes.lock().expect("not poisoned").join(", ");
    assert!(noted.starts_with("503") && noted.matches("503").count() == 2, "{noted}");
}

#[test]
fn buckets_of_google_are_read_too() {
    let folder = folder_with_bucket();
    let server = S3Server::start(&folder.path().join("buckets"), false);
    let variables =
        [("GOOGLE_BASE_URL", server.endpoint()), ("GOOGLE_SKIP_SIGNATURE", "true".to_owned())];
    let environment = variables.into_iter().map(|(name, value)| (name.to_owned(), value));
    let (storage, _) = storage(environment.collect());
    check_same(folder.path(), &storage, "books/corpus", &["gs://books/corpus/"]);
}

#[test]
fn what_was_stopped_goes_on_to_the_same_store_unless_an_object_changed() {
    let folder = folder_with_bucket();
    let server = S3Server::start(&folder.path().join("buckets"), true);
    let request = |store: &str| PrepareRequest {
        entries: vec!["s3://books/corpus/".to_owned()],
        options: SourceOptions::default(),
        threads: NonZeroUsize::MIN,
        shard_tokens: 100_000,
        folder: folder.path().join(store),
    };
    let make = |store: &str, batches: u32| {
        let (storage, _) = storage(server.environment(SECRET));
        let mut written = 0;
        prepare(&request(store), &storage, &BytesEncoder, &mut |_| {
            written += 1;
            if written < batches { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    };
    let whole = make("whole", u32::MAX).expect("a store");
    assert!(whole.shards.len() > 2, "{}", whole.shards.len());
    assert!(matches!(make("store", 6), Err(PrepareError::Stopped)));
    assert!(folder.path().join("store/00000.shard").exists());
    let object = folder.path().join("buckets/books/corpus/a.txt");
    let time = fs::metadata(&object).and_then(|found| found.modified()).expect("a time");
    fs::write(&object, "another").expect("writable");
    assert!(matches!(make("store", u32::MAX), Err(PrepareError::OtherRequest { .. })));
    fs::write(&object, "a").expect("writable");
    let file = fs::File::options().write(true).open(&object).expect("a file");
    file.set_modified(time).expect("writable");
    assert_eq!(make("store", u32::MAX).expect("a store"), whole);
}

#[test]
fn what_a_server_has_not_and_whom_it_refuses_are_told_apart() {
    let folder = folder_with_bucket();
    let server = S3Server::start(&folder.path().join("buckets"), true);
    let refused = |environment: Environment, entry: &str| {
        let (storage, _) = storage(environment);
        let error = storage.list(entry).expect_err("refused");
        RemoteError::find(&error).unwrap_or_else(|| panic!("{error}")).clone()
    };
    let check = |entry: &str, expected| {
        let error = refused(server.environment(SECRET), entry);
        let RemoteError::NotFound { place, missing } = &error else { panic!("{error}") };
        assert!(entry.starts_with(&**place), "{place}");
        assert_eq!(*missing, expected, "{entry}");
    };
    check("s3://nobody/a.txt", Missing::Bucket);
    check("s3://nobody/", Missing::Bucket);
    check("s3://books/a.txt", Missing::Key);
    check("s3://books/corpus/a.tx", Missing::Key);
    let error = refused(server.environment("another"), "s3://books/");
    let RemoteError::Denied { scheme: Scheme::S3, reason } = &error else { panic!("{error}") };
    assert_eq!(reason, "403 SignatureDoesNotMatch");
    let variables = [
        ("AWS_ENDPOINT_URL", server.endpoint()),
        // Nothing listens there.
        ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9".to_owned()),
    ];
    let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value));
    let error = refused(variables.collect(), "s3://books/");
    assert!(matches!(error, RemoteError::Credentials { scheme: Scheme::S3, .. }), "{error}");
    let error = refused(Environment::default(), "az://container/");
    assert!(matches!(error, RemoteError::Credentials { scheme: Scheme::Az, .. }), "{error}");
    server.be_busy(u32::MAX);
    let error = refused(server.environment(SECRET), "s3://books/");
    assert!(matches!(error, RemoteError::Unavailable { attempts: 3, .. }), "{error}");
}

#[test]
fn a_folder_of_objects_is_written_in_a_bucket_as_on_the_disk() {
    let root = tempfile::tempdir().expect("a folder");
    fs::create_dir(root.path().join("books")).expect("a bucket");
    let server = S3Server::start(root.path(), true);
    check_object_folder("s3://books", &server.environment(SECRET));
    server.be_busy(2);
    check_object_folder("s3://books/deep/er/", &server.environment(SECRET));
    let local = root.path().join("local/folder").display().to_string();
    check_object_folder(&local, &Environment::from_iter([]));
    let open = |place, secret| open_folder(place, &server.environment(secret));
    let refused = open("s3://books", "wrong").expect("a place").put("a", b"b");
    assert!(matches!(refused, Err(RemoteError::Denied { scheme: Scheme::S3, .. })), "{refused:?}");
    assert!(matches!(open("https://h/a", SECRET).err(), Some(RemoteError::Address { .. })));
}

/// A file comes whole however often the server is busy and the copy is stopped, and not again while it is the same.
#[test]
fn a_copy_of_an_object_goes_on_while_it_is_the_same() {
    let folder = folder_with_bucket();
    let weights = folder.path().join("buckets/books/model.safetensors");
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 253) as u8).collect();
    fs::write(&weights, &bytes).expect("writable");
    let server = S3Server::start(&folder.path().join("buckets"), true);
    let (storage, notes) = storage(server.environment(SECRET));
    let list = || storage.list("s3://books/model.safetensors").expect("it is there").remove(0);
    let to = folder.path().join("copy.safetensors");
    let copy = |reads: usize| {
        let mut seen = Vec::new();
        let copied = copy_file(&storage, &list(), &to, |at| {
            seen.push(at);
            if seen.len() > reads { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (copied, seen)
    };
    assert!(matches!(copy(2), (Err(CopyError::Stopped), _)));
    server.be_busy(2);
    let (copied, seen) = copy(99);
    copied.expect("the rest");
    assert!(seen[0] > 0 && notes.lock().expect("not poisoned").len() == 2, "{seen:?}");
    assert_eq!(fs::read(&to).expect("whole"), bytes);
    assert_eq!(copy(0).1, [0; 0], "it is there");

    fs::remove_file(&to).expect("it is there");
    assert!(matches!(copy(2), (Err(CopyError::Stopped), _)));
    let other: Vec<u8> = bytes.iter().rev().copied().collect();
    fs::write(&weights, &other).expect("writable");
    // This server's lists have no ETag, so that a version is a time, in seconds.
    let later = SystemTime::now() + Duration::from_secs(2);
    File::options().append(true).open(&weights).and_then(|f| f.set_modified(later)).expect("set");
    let (copied, seen) = copy(99);
    copied.expect("all of it");
    assert_eq!((seen[0], fs::read(&to).expect("whole")), (0, other), "no part of the one before");
    let missing = storage.list("s3://books/none.safetensors").expect_err("it is not there");
    assert!(matches!(RemoteError::find(&missing), Some(RemoteError::NotFound { .. })), "{missing}");
}
