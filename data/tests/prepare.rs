//! Stores of sources: the same bytes for any number of threads, after any kill.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{MALFORMED, REFUSED, TestEncoder, UNRENDERED, make, make_with, request, source};
use tempfile::TempDir;
use zbelastic_data::prepare::PrepareError;
use zbelastic_data::source::{BadDocument, PART_BYTES_MAX, SourceError, SourceListError};
use zbelastic_data::store::TokenStore;

const WITHOUT_END: usize = usize::MAX;

/// Some megabytes in several formats, with empty documents, a long one and chats.
fn corpus() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let line = |n: usize| format!("{{\"text\": \"{}\"}}\n", "word ".repeat(n * 7919 % 401));
    let lines: String = (0..2000).map(line).collect();
    source(folder.path(), "b/lines.jsonl", lines.as_bytes());
    source(folder.path(), "a.txt", "one two\n".repeat(3 * PART_BYTES_MAX / 8).as_bytes());
    let chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"abc\"}]}\n".repeat(3000);
    source(folder.path(), "chats.jsonl", chat.as_bytes());
    source(folder.path(), "empty.md", b"");
    source(folder.path(), "ids.bin", &[7, 0, 0, 1, 8, 0].repeat(50_000));
    source(folder.path(), ".hidden.txt", b"not read");
    source(folder.path(), "program.py", b"not read");
    folder
}

/// The files of a folder by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable"));
    let file = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        (name, fs::read(entry.path()).expect("readable"))
    };
    entries.map(file).collect()
}

fn make_again(folder: &Path, threads: usize) -> BTreeMap<String, Vec<u8>> {
    let request = request(folder, threads, 300_000);
    if request.folder.exists() {
        fs::remove_dir_all(&request.folder).expect("removable");
    }
    make(&request, WITHOUT_END).expect("a store");
    files(&request.folder)
}

#[test]
fn a_store_has_the_same_bytes_for_any_number_of_threads() {
    let folder = corpus();
    let expected = make_again(folder.path(), 1);
    assert!(expected.len() > 5, "several shards and the manifest: {:?}", expected.keys());
    for threads in [2, 8] {
        assert_eq!(make_again(folder.path(), threads), expected);
    }
    let store = TokenStore::open(&folder.path().join("store")).expect("a store");
    store.verify().expect("as it was written");
    let sources = store.manifest().sources;
    assert_eq!((sources.documents, sources.bad), (2000 + 1 + 3000 + 1 + 50_001, 0));
    assert_eq!(sources.empty, 2000 / 401 + 1 + 1);
}

#[test]
fn a_store_has_the_same_bytes_after_a_stop_anywhere() {
    let folder = corpus();
    let expected = make_again(folder.path(), 2);
    let request = request(folder.path(), 2, 300_000);
    for stops in [&[1][..], &[4, 3, 1, 3], &[2; 30]] {
        fs::remove_dir_all(&request.folder).expect("removable");
        for batches in stops {
            match make(&request, *batches) {
                Err(PrepareError::Stopped) => {}
                other => panic!("{other:?}"),
            }
            assert!(!request.folder.join("manifest.json").exists());
        }
        make(&request, WITHOUT_END).expect("a store");
        assert_eq!(files(&request.folder), expected);
    }
}

#[test]
fn a_damaged_shard_of_an_unfinished_store_is_made_anew() {
    let folder = corpus();
    let expected = make_again(folder.path(), 2);
    let request = request(folder.path(), 2, 300_000);
    fs::remove_dir_all(&request.folder).expect("removable");
    assert!(matches!(make(&request, 8), Err(PrepareError::Stopped)));
    let shard = request.folder.join("00001.shard");
    let mut bytes = fs::read(&shard).expect("finished");
    bytes[100] ^= 1;
    fs::write(&shard, bytes).expect("writable");
    make(&request, WITHOUT_END).expect("a store");
    assert_eq!(files(&request.folder), expected);
}

#[test]
fn finished_shards_of_another_request_are_refused_and_kept() {
    let folder = corpus();
    let smaller = request(folder.path(), 2, 100_000);
    assert!(matches!(make(&smaller, 8), Err(PrepareError::Stopped)));
    let kept = files(&smaller.folder);
    assert!(kept.contains_key("00000.shard"), "{:?}", kept.keys());
    let mut others = vec![request(folder.path(), 2, 300_000), smaller.clone(), smaller.clone()];
    others[1].options.skip_bad = true;
    let more = folder.path().join("more.txt");
    fs::write(&more, "more").expect("writable");
    others[2].entries.push(more.display().to_string());
    for other in others {
        assert!(matches!(make(&other, WITHOUT_END), Err(PrepareError::OtherRequest { .. })));
        assert_eq!(files(&smaller.folder), kept, "nothing was written or removed");
    }
    let dated = TestEncoder { day: Some("2026-11-29") };
    let refused = make_with(&dated, &smaller, WITHOUT_END);
    assert!(matches!(refused, Err(PrepareError::OtherRequest { .. })), "another day");
    assert_eq!(files(&smaller.folder), kept, "nothing was written or removed");
    make(&smaller, WITHOUT_END).expect("the same request goes on");
    assert_eq!(files(&smaller.folder)["00000.shard"], kept["00000.shard"]);
}

#[test]
fn a_store_among_its_sources_does_not_read_itself() {
    let folder = corpus();
    let expected = make_again(folder.path(), 2);
    let mut request = request(folder.path(), 2, 300_000);
    request.folder = folder.path().join("sources/store");
    for batches in [8, 3] {
        assert!(matches!(make(&request, batches), Err(PrepareError::Stopped)));
        assert!(request.folder.join("prepare.json").exists(), "it is named as a source is");
    }
    make(&request, WITHOUT_END).expect("a store");
    assert_eq!(files(&request.folder), expected);
}

#[test]
fn a_request_that_finished_no_shard_gives_way_to_another() {
    let folder = corpus();
    let expected = make_again(folder.path(), 2);
    fs::remove_dir_all(folder.path().join("store")).expect("removable");
    let larger = request(folder.path(), 2, 600_000);
    assert!(matches!(make(&larger, 8), Err(PrepareError::Stopped)));
    for file in files(&larger.folder).into_keys().filter(|name| name.ends_with(".shard")) {
        fs::remove_file(larger.folder.join(file)).expect("removable");
    }
    assert!(larger.folder.join("prepare.json").exists(), "as a call that was killed leaves it");
    make(&request(folder.path(), 2, 300_000), WITHOUT_END).expect("a store");
    assert_eq!(files(&folder.path().join("store")), expected);
}

#[test]
fn a_call_that_finishes_no_shard_leaves_nothing() {
    let folder = corpus();
    let mut request = request(folder.path(), 2, 300_000);
    assert!(matches!(make(&request, 1), Err(PrepareError::Stopped)));
    assert!(!request.folder.exists());
    let bad = folder.path().join("bad.jsonl");
    fs::write(&bad, "{\"text\": \"one\"}\n{\"text\"\n").expect("writable");
    request.entries = vec![bad.display().to_string()];
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(&request.folder).expect("writable");
        }
        assert!(matches!(make(&request, WITHOUT_END), Err(PrepareError::Source(_))));
        assert_eq!(request.folder.exists(), is_there, "a folder of somebody's stays");
    }
    assert_eq!(files(&request.folder).len(), 0);
}

#[test]
fn folders_of_others_are_left_alone() {
    let folder = corpus();
    let request = request(folder.path(), 1, 300_000);
    fs::create_dir(&request.folder).expect("writable");
    fs::write(request.folder.join("thesis.doc"), "").expect("writable");
    assert!(matches!(make(&request, WITHOUT_END), Err(PrepareError::NotEmpty { .. })));
    assert_eq!(files(&request.folder).len(), 1, "nothing was written");
    fs::remove_file(request.folder.join("thesis.doc")).expect("removable");
    let lock = fs::File::create(request.folder.join("prepare.lock")).expect("writable");
    lock.lock().expect("lockable");
    assert!(matches!(make(&request, WITHOUT_END), Err(PrepareError::Busy { .. })));
    drop(lock);
    make(&request, WITHOUT_END).expect("a store");
    assert!(matches!(make(&request, WITHOUT_END), Err(PrepareError::Exists { .. })));
}

#[test]
fn an_empty_corpus_is_a_store_of_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    source(folder.path(), "a.jsonl", b"\n\n");
    let request = request(folder.path(), 2, 100);
    let manifest = make(&request, WITHOUT_END).expect("a store");
    assert_eq!((manifest.tokens(), manifest.documents(), manifest.shards.len()), (0, 0, 0));
    let store = TokenStore::open(&request.folder).expect("a store");
    assert_eq!(store.read(0..0).expect("nothing").ids, [] as [u32; 0]);
    assert!(store.read(0..1).is_err());
}

#[test]
fn bad_lines_are_named_or_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    source(folder.path(), "a.jsonl", b"{\"text\": \"a\"}\n\n{\"text\": \n{\"body\": 1}\n");
    let mut request = request(folder.path(), 2, 100);
    let error = make(&request, WITHOUT_END).expect_err("a bad line").to_string();
    assert!(error.contains("a.jsonl:3: is no JSON object"), "{error}");
    request.options.skip_bad = true;
    let sources = make(&request, WITHOUT_END).expect("a store").sources;
    assert_eq!((sources.documents, sources.empty, sources.bad), (1, 0, 2));
}

#[test]
fn a_document_that_cannot_be_encoded_is_named_by_file_and_line() {
    let check = |name: &str, content: &str, expected: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        // Another file of the same batch stands in front.
        source(folder.path(), "a.jsonl", b"{\"text\": \"a\"}\n");
        source(folder.path(), name, content.as_bytes());
        let mut request = request(folder.path(), 2, 100);
        request.options.separator = Some("%%".to_owned());
        let error = make(&request, WITHOUT_END).expect_err("it is refused").to_string();
        let expected =
            format!("{expected}: the tokenizer cannot encode the document: it is refused");
        assert!(error.ends_with(&expected), "{error}");
    };
    let line = |text: &str| format!("{{\"text\": \"{text}\"}}\n");
    check("b.jsonl", &(line("b") + "\n" + &line(REFUSED)), "/b.jsonl:3");
    check("b.txt", &format!("one\n%%\ntwo {REFUSED}"), "/b.txt:2");
}

/// A line with a chat of one message.
fn chat(content: &str) -> String {
    format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{content}\"}}]}}\n")
}

#[test]
fn a_chat_that_cannot_be_rendered_is_named_or_counted_and_leaves_no_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = chat("a") + &chat("b");
    source(folder.path(), "a.jsonl", good.as_bytes());
    let mut request = request(folder.path(), 2, 100_000);
    make(&request, WITHOUT_END).expect("a store");
    let expected = files(&request.folder);
    fs::remove_dir_all(&request.folder).expect("removable");
    let mixed = chat("a") + &chat(UNRENDERED) + "{\n" + &chat("b") + &chat(UNRENDERED);
    source(folder.path(), "a.jsonl", mixed.as_bytes());
    let error = make(&request, WITHOUT_END).expect_err("a bad chat").to_string();
    assert!(error.contains("a.jsonl:2: the chat template cannot render"), "{error}");
    request.options.skip_bad = true;
    let sources = make(&request, WITHOUT_END).expect("a store").sources;
    assert_eq!((sources.documents, sources.empty, sources.bad), (2, 0, 3));
    assert_eq!(files(&request.folder)["00000.shard"], expected["00000.shard"]);
}

#[test]
fn what_no_document_can_be_encoded_with_is_an_error_even_where_bad_ones_are_skipped() {
    let check = |content: &str, expected: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        source(folder.path(), "a.jsonl", (chat("a") + &chat(content)).as_bytes());
        let mut request = request(folder.path(), 2, 100);
        request.options.skip_bad = true;
        let error = make(&request, WITHOUT_END).expect_err("it is refused").to_string();
        assert!(error.ends_with(expected), "{error}");
        assert!(!request.folder.exists(), "nothing is half written");
    };
    check(MALFORMED, "a.jsonl:2: it is refused");
    check(REFUSED, "a.jsonl:2: the tokenizer cannot encode the document: it is refused");
}

#[test]
fn fields_and_columns_that_are_there_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let vectors = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/vectors"));
    let parquet = fs::read(vectors.join("datasets/documents.parquet")).expect("readable");
    source(folder.path(), "a.parquet", &parquet);
    let mut request = request(folder.path(), 2, 100);
    request.options.field = Some("body".to_owned());
    let error = make(&request, WITHOUT_END).expect_err("no such column").to_string();
    assert!(error.ends_with("has no column body, only id, text, source"), "{error}");
    request.options.field = Some("id".to_owned());
    match make(&request, WITHOUT_END) {
        Err(PrepareError::Source(SourceError::Bad { line: 1, problem, .. })) => {
            let field = "id".to_owned();
            assert_eq!(problem, BadDocument::FieldType { field, found: "a number" });
        }
        other => panic!("{other:?}"),
    }
    source(folder.path(), "b.parquet", &parquet[..parquet.len() / 2]);
    request.options.field = None;
    let error = make(&request, WITHOUT_END).expect_err("half a file").to_string();
    assert!(error.contains("b.parquet"), "{error}");
}

#[test]
fn truncated_streams_are_errors_of_their_file() {
    let vectors = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/vectors"));
    for name in ["documents.jsonl.gz", "documents.jsonl.zst"] {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = fs::read(vectors.join("datasets").join(name)).expect("readable");
        source(folder.path(), name, &bytes[..bytes.len() - 5]);
        match make(&request(folder.path(), 2, 100), WITHOUT_END) {
            Err(PrepareError::Source(SourceError::Io { file, .. })) => {
                assert!(file.ends_with(name));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn entries_are_read_in_order_and_each_file_once() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in [("b.txt", "B"), ("a/z.txt", "Z"), ("a.txt", "A"), ("c.md", "C")] {
        source(folder.path(), name, content.as_bytes());
    }
    let entry = |name: &str| folder.path().join("sources").join(name).display().to_string();
    let mut request = request(folder.path(), 2, 100);
    request.entries = vec![entry("c.md"), entry("*.txt"), entry("")];
    make(&request, WITHOUT_END).expect("a store");
    let store = TokenStore::open(&request.folder).expect("a store");
    let ids = store.read(0..store.tokens()).expect("whole").ids;
    let text: String = ids.iter().filter_map(|id| u8::try_from(*id).ok().map(char::from)).collect();
    assert_eq!(text, "CABZ");
    let error = |entries: &[String]| {
        let mut request = request.clone();
        request.entries = entries.to_vec();
        match make(&request, WITHOUT_END) {
            Err(PrepareError::List(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(error(&[entry("d.txt")]), SourceListError::NotFound { .. }));
    assert!(matches!(error(&[entry("*.parquet")]), SourceListError::NothingMatched { .. }));
    assert!(matches!(error(&[entry("***")]), SourceListError::Glob { .. }));
    fs::write(entry("e.py"), "").expect("writable");
    assert!(matches!(error(&[entry("e.py")]), SourceListError::Format { .. }));
}
