//! Sources of documents, and token stores.

use std::cell::RefCell;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use zbelastic_data::encode::BytesEncoder;
use zbelastic_data::prepare::{JOURNAL_NAME, PrepareError, PrepareRequest, prepare};
use zbelastic_data::source::{LocalStorage, SourceListing, SourceOptions, read_documents};
use zbelastic_data::store::{MANIFEST_NAME, StoreManifest, TokenStore};

use super::{file, folder, write};
use crate::DecodeOutcome;

/// What a reader holds: a megabyte before and one behind a decompressor, two of text, and a batch.
pub const SOURCE_MEMORY: usize = 32 << 20;
/// Name of the first shard of a store.
const FIRST_SHARD: &str = "00000.shard";

/// Reads a source to its end, or to its first error, and the same again where bad lines are left out.
fn read_source(name: &str, bytes: &[u8]) -> DecodeOutcome {
    let entries = [file(name, bytes).display().to_string()];
    let listing = SourceListing::of(&entries, &LocalStorage).expect("it was written");
    let read = |skip_bad, separator: Option<&str>| {
        let separator = separator.map(str::to_owned);
        let options = SourceOptions { skip_bad, separator, ..SourceOptions::default() };
        let documents = read_documents(&listing, &LocalStorage, &options);
        let mut count = 0_u64;
        for read in documents {
            let Ok(read) = read else { return Err(count) };
            assert!(read.bytes_read <= listing.bytes(), "no more is read than there is");
            count += 1;
        }
        Ok(count)
    };
    let strict = read(false, None);
    let lenient = read(true, Some("%%"));
    if let (Ok(strict), Ok(lenient), false) = (strict, lenient, name.starts_with("text")) {
        assert_eq!(strict, lenient, "nothing was bad");
    }
    DecodeOutcome::of(strict.is_ok())
}

/// Files of text.
pub fn texts(bytes: &[u8]) -> DecodeOutcome {
    read_source("text.txt", bytes)
}

/// Lines of JSON.
pub fn json_lines(bytes: &[u8]) -> DecodeOutcome {
    read_source("lines.jsonl", bytes)
}

/// Lines that gzip compressed.
pub fn gzip_lines(bytes: &[u8]) -> DecodeOutcome {
    read_source("lines.jsonl.gz", bytes)
}

/// Lines that zstd compressed.
pub fn zstd_lines(bytes: &[u8]) -> DecodeOutcome {
    read_source("lines.jsonl.zst", bytes)
}

/// Rows of a Parquet file.
pub fn parquet_rows(bytes: &[u8]) -> DecodeOutcome {
    read_source("rows.parquet", bytes)
}

fn request(source: &Path, store: PathBuf) -> PrepareRequest {
    PrepareRequest {
        entries: vec![source.display().to_string()],
        options: SourceOptions::default(),
        threads: NonZeroUsize::MIN,
        shard_tokens: 1,
        folder: store,
    }
}

/// Makes a store, or stops when so many batches are written.
fn make(request: &PrepareRequest, batches: usize) -> Result<StoreManifest, PrepareError> {
    let mut written = 0;
    prepare(request, &LocalStorage, &BytesEncoder, &mut |_| {
        written += 1;
        if written < batches { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

/// An empty folder.
fn emptied(name: &str) -> PathBuf {
    let path = folder().join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("the folder can be written");
    }
    path
}

fn read_all(store: &TokenStore) -> DecodeOutcome {
    let read = store.read(0..store.tokens());
    let is_whole = store.verify().is_ok();
    if let Ok(span) = &read {
        assert_eq!(span.ids.len() as u64, store.tokens());
        assert!(span.ids.iter().all(|id| *id < store.manifest().vocabulary));
        let is_in_order = span.documents.is_sorted();
        assert!(is_in_order && span.documents.last().is_none_or(|it| *it < store.documents()));
    }
    assert!(read.is_ok() || !is_whole, "a store that is whole can be read");
    DecodeOutcome::of(read.is_ok())
}

/// Files of ids, which become a store that has them.
pub fn token_files(bytes: &[u8]) -> DecodeOutcome {
    let request = request(&file("ids.bin", bytes), emptied("ids"));
    let Ok(manifest) = make(&request, usize::MAX) else { return DecodeOutcome::Refused };
    let store = TokenStore::open(&request.folder).expect("it was made");
    assert_eq!(*store.manifest(), manifest);
    store.verify().expect("it was made");
    read_all(&store)
}

/// A manifest, by itself and as the content of one with its checksum, beside no shard.
pub fn store_manifests(bytes: &[u8]) -> DecodeOutcome {
    let store = emptied("manifest");
    fs::create_dir_all(&store).expect("the folder can be written");
    let open = |bytes: &[u8]| {
        fs::write(store.join(MANIFEST_NAME), bytes).expect("the folder can be written");
        TokenStore::open(&store)
    };
    // Few inputs have a checksum that fits.
    let by_itself = open(bytes).is_ok();
    let Ok(manifest) = serde_json::from_slice::<StoreManifest>(bytes) else {
        return DecodeOutcome::of(by_itself);
    };
    let content = serde_json::to_string(&manifest).expect("it was read");
    let checked = format!("{{\"checksum\":\"{}\",\"content\":{content}}}", manifest.hash());
    let Ok(opened) = open(checked.as_bytes()) else { return DecodeOutcome::Refused };
    assert_eq!(*opened.manifest(), manifest);
    read_all(&opened)
}

/// A source of some documents, some of them of two parts of the store.
fn small_source() -> PathBuf {
    let lines: String =
        (0..40).map(|n| format!("{{\"text\": \"{}\"}}\n", "ab".repeat(n % 7))).collect();
    file("small.jsonl", lines.as_bytes())
}

thread_local! {
    /// The bytes of the shard of a small store.
    static SHARD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The shard of a small store, with the first bytes replaced.
pub fn shards(bytes: &[u8]) -> DecodeOutcome {
    let store = folder().join("shards");
    SHARD.with_borrow_mut(|whole| {
        if whole.is_empty() {
            make(&request(&small_source(), emptied("shards")), usize::MAX).expect("a store");
            *whole = fs::read(store.join(FIRST_SHARD)).expect("it was made");
        }
        let replaced = bytes.len().min(whole.len());
        let shard = [&bytes[..replaced], &whole[replaced..]].concat();
        fs::write(store.join(FIRST_SHARD), shard).expect("the folder can be written");
    });
    TokenStore::open(&store).map_or(DecodeOutcome::Refused, |store| read_all(&store))
}

/// The first shard's bytes of the store that [`shards`] changes.
pub fn shard() -> Vec<u8> {
    shards(&[]);
    SHARD.with_borrow(Clone::clone)
}

/// A source of two batches, so that its store has two shards.
fn source_of_two() -> PathBuf {
    let path = folder().join("two.jsonl");
    // One that is written anew is another source.
    if !path.exists() {
        write(&path, "{\"text\": \"ab\"}\n".repeat(4100).as_bytes());
    }
    path
}

thread_local! {
    /// The manifest of the store of [`source_of_two`].
    static EXPECTED: RefCell<Option<StoreManifest>> = const { RefCell::new(None) };
    /// The first shard of that store.
    static FIRST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A journal of an unfinished store: whatever it says, a store that comes of it is that of its sources.
pub fn journals(bytes: &[u8]) -> DecodeOutcome {
    let request = request(&source_of_two(), emptied("journals"));
    EXPECTED.with_borrow_mut(|expected| {
        if expected.is_none() {
            *expected = Some(make(&request, usize::MAX).expect("a store"));
            let first = fs::read(request.folder.join(FIRST_SHARD)).expect("it was made");
            FIRST.set(first);
        }
    });
    let folder = emptied("journals");
    fs::create_dir_all(&folder).expect("the folder can be written");
    FIRST.with_borrow(|first| fs::write(folder.join(FIRST_SHARD), first).expect("writable"));
    fs::write(folder.join(JOURNAL_NAME), bytes).expect("the folder can be written");
    let Ok(found) = make(&request, usize::MAX) else { return DecodeOutcome::Refused };
    EXPECTED.with_borrow(|expected| assert_eq!(Some(&found), expected.as_ref()));
    DecodeOutcome::Accepted
}

/// The journal of a store that was stopped behind its first shard.
pub fn journal() -> Vec<u8> {
    let request = request(&source_of_two(), emptied("journals"));
    make(&request, 2).expect_err("it was stopped");
    fs::read(request.folder.join(JOURNAL_NAME)).expect("it is not finished")
}
