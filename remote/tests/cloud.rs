//! Buckets of Google and containers of Azure, read from and written to servers that speak their APIs: the same bytes
//! as of the local disk, or an error that says what is wrong with whom.

mod cloud_server;
mod common;
mod object_folder;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cloud_server::{Api, Azure, CloudServer, Google};
use common::make;
use object_folder::{check_object_folder, open_folder};
use tempfile::TempDir;
use zbelastic_data::source::{LocalStorage, SourceStorage};
use zbelastic_remote::{
    Environment, Missing, OnRetry, RemoteError, RemoteStorage, RetryEvent, RetryPolicy, Scheme,
};

/// A folder whose order by bytes is not that of paths, with other files beside its texts.
fn corpus() -> (TempDir, Vec<(&'static str, Vec<u8>)>) {
    let folder = tempfile::tempdir().expect("a folder");
    let long: String = (0..400_000).map(|line| format!("line {line}\n")).collect();
    let files = vec![
        ("corpus/a.txt", b"a".to_vec()),
        ("corpus/a/b c.txt", b"a/b".to_vec()),
        ("corpus/b.jsonl", b"{\"text\": \"b\"}\n".to_vec()),
        ("corpus/long.txt", long.into_bytes()),
        ("corpus/.hidden.txt", b"hidden".to_vec()),
        ("corpus/notes.py", b"notes".to_vec()),
        ("other.txt", b"other".to_vec()),
    ];
    for (name, content) in &files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(path, content).expect("writable");
    }
    (folder, files)
}

/// Waits take no time.
fn storage(environment: Environment) -> RemoteStorage {
    let policy =
        RetryPolicy { attempts_max: 3, wait_first: Duration::ZERO, wait_max: Duration::ZERO };
    let on_retry: OnRetry = Arc::new(|_: RetryEvent<'_>| ControlFlow::Continue(()));
    RemoteStorage::new(environment, policy, on_retry)
}

/// Stores of a bucket are those of the same files on the disk.
fn check_reads(api: Api, scheme: &str, environment: impl Fn(&CloudServer, &Path) -> Environment) {
    let (folder, files) = corpus();
    let keys = tempfile::tempdir().expect("a folder");
    let server = CloudServer::start(api);
    for (name, content) in &files {
        server.put(name, content);
    }
    let storage = storage(environment(&server, keys.path()));
    let check = |entries: &[&str]| {
        let stores = tempfile::tempdir().expect("a folder");
        let local = entries.iter().map(|entry| folder.path().join(entry).display().to_string());
        let remote = entries.iter().map(|entry| format!("{scheme}://books/{entry}"));
        let expected = make(&LocalStorage, local.collect(), &stores.path().join("local"));
        let found = make(&storage, remote.collect(), &stores.path().join("remote"));
        assert_eq!(found.expect("a store"), expected.expect("a store"), "{entries:?}");
    };
    check(&["corpus/"]);
    let (pages, ranges) = server.take_counts();
    assert_eq!(pages, 3, "six objects, of which two are in a page");
    let bytes: usize = files[..4].iter().map(|(_, content)| content.len()).sum();
    assert_eq!(ranges.iter().sum::<usize>(), bytes, "nothing else is read, and nothing twice");
    assert!(ranges.len() > 4 && ranges.iter().all(|range| *range <= 4 << 20), "{ranges:?}");
    check(&["corpus"]);
    check(&[""]);
    check(&["**/*.txt"]);
    server.be_busy(2);
    check(&["other.txt", "corpus/b.jsonl"]);
    let refused = |entry: &str| {
        let error = storage.list(&format!("{scheme}://{entry}")).expect_err("refused");
        RemoteError::find(&error).unwrap_or_else(|| panic!("{error}")).clone()
    };
    let missing = |entry: &str, expected| {
        let error = refused(entry);
        let RemoteError::NotFound { place, missing } = &error else { panic!("{error}") };
        assert!(format!("{scheme}://{entry}").starts_with(&**place), "{place}");
        assert_eq!(*missing, expected, "{entry}");
    };
    missing("nobody/", Missing::Bucket);
    missing("nobody/a.txt", Missing::Bucket);
    missing("books/none.txt", Missing::Key);
    server.be_busy(u32::MAX);
    let error = refused("books/");
    let RemoteError::Unavailable { reason, attempts: 3, .. } = &error else { panic!("{error}") };
    assert_eq!(reason, "503 ServerBusy");
}

#[test]
fn buckets_of_google_are_read_with_the_token_of_an_account() {
    let environment = CloudServer::google_environment;
    check_reads(Api::Google(Google::new()), "gs", environment);
}

#[test]
fn containers_of_azure_are_read_with_a_shared_key() {
    check_reads(Api::Azure(Azure::SharedKey), "az", |server, _| server.azure_environment(true));
}

#[test]
fn containers_of_azure_are_read_with_a_shared_access_signature() {
    let environment = |server: &CloudServer, _: &Path| server.azure_environment_of_signature(true);
    check_reads(Api::Azure(Azure::SharedAccessSignature), "az", environment);
}

#[test]
fn folders_of_objects_are_written_to_both() {
    let keys = tempfile::tempdir().expect("a folder");
    let google = CloudServer::start(Api::Google(Google::new()));
    check_object_folder("gs://books/run 1/", &google.google_environment(keys.path()));
    google.be_busy(2);
    check_object_folder("gs://books", &google.google_environment(keys.path()));
    let azure = CloudServer::start(Api::Azure(Azure::SharedKey));
    check_object_folder("az://books/run 1/", &azure.azure_environment(true));
    azure.be_busy(2);
    check_object_folder("az://books", &azure.azure_environment(true));
    let azure = CloudServer::start(Api::Azure(Azure::SharedAccessSignature));
    check_object_folder("az://books", &azure.azure_environment_of_signature(true));
}

#[test]
fn who_may_not_read_is_refused_and_no_secret_is_printed() {
    let keys = tempfile::tempdir().expect("a folder");
    let google = CloudServer::start(Api::Google(Google::new()));
    let shared_key = CloudServer::start(Api::Azure(Azure::SharedKey));
    let signature = CloudServer::start(Api::Azure(Azure::SharedAccessSignature));
    let check = |entry: &str, environment: Environment, expected: Scheme| {
        let errors = [
            storage(environment.clone()).list(entry).expect_err("refused").to_string(),
            open_folder(entry, &environment)
                .expect("a place")
                .put("a", &[1])
                .expect_err("refused")
                .to_string(),
        ];
        for error in &errors {
            assert!(!error.contains("sig=") && !error.contains("b3RoZXI"), "{error}");
        }
        let error = storage(environment).list(entry).expect_err("refused");
        match RemoteError::find(&error) {
            Some(RemoteError::Denied { scheme, .. }) => assert_eq!(*scheme, expected),
            _ => panic!("{error}"),
        }
    };
    check("gs://books/", google.google_environment_without_rights(keys.path()), Scheme::Gs);
    check("az://books/", shared_key.azure_environment(false), Scheme::Az);
    check("az://books/", signature.azure_environment_of_signature(false), Scheme::Az);
    check("az://books/", signature.azure_environment(true), Scheme::Az);
}

#[test]
fn credentials_that_cannot_be_read_are_named() {
    let keys = tempfile::tempdir().expect("a folder");
    let file = keys.path().join("account.json");
    let check = |entry: &str, variables: &[(&str, &str)], expected: &str| {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let error = storage(variables.collect()).list(entry).expect_err("refused");
        let found = RemoteError::find(&error);
        assert!(matches!(found, Some(RemoteError::Credentials { .. })), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    let path = file.display().to_string();
    let google = [("GOOGLE_APPLICATION_CREDENTIALS", &*path)];
    check("gs://books/", &google, &path);
    fs::write(&file, "{\"type\": \"service_account\", ").expect("writable");
    check("gs://books/", &google, "decode");
    check("az://books/", &[("AZURE_STORAGE_KEY", "YQ==")], "ccount");
    let azure = [("AZURE_STORAGE_ACCOUNT", "library"), ("AZURE_STORAGE_KEY", "no base64!")];
    check("az://books/", &azure, "Access Key");
}
