//! A store whose files were damaged, removed or put there by other programs.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{manifest, name, noise};
use tempfile::TempDir;
use zbelastic_checkpoint::faults::FileIndex;
use zbelastic_checkpoint::files::RealFileSystem;
use zbelastic_checkpoint::{
    CHUNK_BYTES, CheckpointStore, CheckpointStoreError, ChunkDamage, ChunkHash, DatabaseFault,
    FolderStore, PieceHealth, SledStore, StrayKind,
};

const LENGTH: usize = CHUNK_BYTES + 500;

fn open(root: &TempDir) -> Result<SledStore, CheckpointStoreError> {
    SledStore::open(Arc::new(RealFileSystem), &root.path().join("store"))
}

/// A store with one piece of two chunks and the manifest that names it.
fn filled() -> (TempDir, SledStore, Vec<ChunkHash>) {
    let root = TempDir::new().expect("a folder");
    let store = open(&root).expect("it opens");
    let record = store.put(name(1, 0), &noise(1, LENGTH)).expect("durable");
    store.put_manifest(&manifest(1, 1)).expect("durable");
    (root, store, record.chunks)
}

fn path(root: &TempDir, hash: ChunkHash) -> PathBuf {
    let text = hash.to_string();
    root.path().join("store/chunks").join(&text[..2]).join(text)
}

/// The damage that reading and walking agree on.
fn damage(store: &SledStore) -> Vec<ChunkDamage> {
    let read = match store.get(name(1, 0)) {
        Err(CheckpointStoreError::Damaged { damage, .. }) => damage,
        other => panic!("it is damaged, got {other:?}"),
    };
    let found = store.verify().expect("readable");
    assert_eq!(found.pieces, [(name(1, 0), PieceHealth::Damaged(read.clone()))]);
    assert!(!found.is_whole() && !found.manifests[0].is_whole());
    assert_eq!(found.manifests[0].pieces, found.pieces);
    read
}

#[test]
fn a_flipped_bit_anywhere_is_named() {
    let (root, store, chunks) = filled();
    let path = path(&root, chunks[1]);
    let whole = fs::read(&path).expect("readable");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).expect("written");
        match store.get(name(1, 0)) {
            Err(CheckpointStoreError::Damaged { damage, .. }) => {
                let expected = chunks[1];
                let found = ChunkHash::of(&bytes);
                assert_eq!(damage, [ChunkDamage::Content { index: 1, expected, found }]);
            }
            other => panic!("byte {at} is another, got {other:?}"),
        }
        if at > 40 && at + 40 < whole.len() && at % 50 != 0 {
            continue;
        }
        assert_eq!(damage(&store).len(), 1);
    }
    fs::write(&path, whole).expect("written");
    assert!(store.verify().expect("readable").is_whole());
}

#[test]
fn missing_short_long_and_swapped_chunks_are_named() {
    let (root, store, chunks) = filled();
    let first = path(&root, chunks[0]);
    let last = path(&root, chunks[1]);
    let whole_first = noise(1, LENGTH);
    let whole_last = noise(1, LENGTH)[CHUNK_BYTES..].to_vec();
    let whole_first = &whole_first[..CHUNK_BYTES];
    fs::remove_file(&last).expect("removed");
    let expected = chunks[1];
    assert_eq!(damage(&store), [ChunkDamage::Missing { index: 1, expected }]);
    fs::write(&last, &whole_last[..499]).expect("written");
    let expected_bytes = 500;
    let found_bytes = 499;
    let short = ChunkDamage::Length { index: 1, expected, expected_bytes, found_bytes };
    assert_eq!(damage(&store), [short]);
    fs::write(&last, whole_first).expect("written");
    fs::write(&first, &whole_last).expect("written");
    let found = damage(&store);
    assert_eq!(found.len(), 2, "both are swapped: {found:?}");
    fs::write(&first, vec![0; CHUNK_BYTES + 1]).expect("written");
    let kind = std::io::ErrorKind::FileTooLarge;
    let expected = chunks[0];
    assert_eq!(damage(&store)[0], ChunkDamage::Unreadable { index: 0, expected, kind });
}

#[test]
fn links_and_folders_in_the_place_of_a_chunk_are_refused() {
    let (root, store, chunks) = filled();
    let last = path(&root, chunks[1]);
    let elsewhere = root.path().join("elsewhere");
    fs::rename(&last, &elsewhere).expect("moved");
    symlink(&elsewhere, &last).expect("linked");
    assert!(matches!(damage(&store)[..], [ChunkDamage::Unreadable { index: 1, .. }]));
    let stray_entries = store.verify().expect("readable").stray_entries;
    assert_eq!(stray_entries.len(), 1);
    assert_eq!(stray_entries[0].kind, StrayKind::NotAFile);
    fs::remove_file(&last).expect("removed");
    fs::create_dir(&last).expect("made");
    assert!(matches!(damage(&store)[..], [ChunkDamage::Unreadable { index: 1, .. }]));
}

#[test]
fn writing_again_heals_and_keeps_what_was_damaged() {
    let (root, store, chunks) = filled();
    let last = path(&root, chunks[1]);
    fs::write(&last, b"rotten").expect("written");
    store.put(name(1, 0), &noise(1, LENGTH)).expect("durable");
    assert!(store.get(name(1, 0)).expect("readable") == noise(1, LENGTH));
    let found = store.verify().expect("readable");
    assert!(found.is_whole());
    let kinds: Vec<_> = found.stray_entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [StrayKind::PutAside]);
    let aside = root.path().join("store").join(&found.stray_entries[0].path);
    assert_eq!(fs::read(aside).expect("readable"), b"rotten");
    // A chunk fetched from elsewhere heals as well.
    fs::write(&last, b"rotten again").expect("written");
    store.put_chunk(chunks[1], &noise(1, LENGTH)[CHUNK_BYTES..]).expect("durable");
    assert!(store.verify().expect("readable").is_whole());
}

#[test]
fn what_is_not_the_stores_is_listed_and_left_alone() {
    let (root, store, chunks) = filled();
    let folder = root.path().join("store");
    let hash = chunks[0].to_string();
    let wrong_folder = if hash.starts_with("00") { "01" } else { "00" };
    let strange = [
        "chunks/notes".to_owned(),
        "chunks/00/notes".to_owned(),
        format!("chunks/{}/{}", &hash[..2], hash.to_uppercase()),
        format!("chunks/{wrong_folder}/{hash}"),
        "tmp/notes".to_owned(),
        "damaged/notes".to_owned(),
    ];
    strange.iter().for_each(|path| fs::write(folder.join(path), "x").expect("written"));
    let check = |store: &SledStore| {
        let stray_entries = store.verify().expect("readable").stray_entries;
        let mut paths: Vec<_> =
            stray_entries.iter().map(|entry| entry.path.display().to_string()).collect();
        paths.sort();
        let mut expected = strange.to_vec();
        expected.sort();
        assert_eq!(paths, expected);
        assert!(stray_entries.iter().all(|entry| entry.kind == StrayKind::Foreign));
    };
    check(&store);
    drop(store);
    check(&open(&root).expect("it opens again"));
}

#[test]
fn what_a_crash_left_half_written_goes() {
    let (root, store, _) = filled();
    drop(store);
    let half = root.path().join("store/tmp/17.new");
    fs::write(&half, "half").expect("written");
    let store = open(&root).expect("it opens again");
    assert!(!half.exists() && store.verify().expect("readable").is_whole());
}

#[test]
fn an_index_that_is_lost_is_not_made_anew() {
    let (root, store, _) = filled();
    drop(store);
    fs::remove_dir_all(root.path().join("store/index")).expect("removed");
    for _ in 0..2 {
        match open(&root) {
            Err(CheckpointStoreError::Index { fault: DatabaseFault::Lost { .. }, .. }) => {}
            other => panic!("the index is lost, got {other:?}"),
        }
    }
}

#[test]
fn an_index_that_is_damaged_never_loses_a_piece_silently() {
    let (root, store, _) = filled();
    for version in 2..20 {
        store.put(name(version, 0), &noise(version, 200)).expect("durable");
    }
    let names = store.names().expect("readable");
    drop(store);
    let path = root.path().join("store/index/db");
    let whole = fs::read(&path).expect("readable");
    let used = whole.iter().rposition(|byte| *byte != 0).expect("something was written");
    for at in (0..=used).step_by(used / 40) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        fs::write(&path, bytes).expect("written");
        if let Ok(store) = open(&root) {
            let found = store.names().expect("all rows were read as it was opened");
            assert_eq!(found, names, "byte {at}");
        }
        restore(&root.path().join("store/index"), &whole);
    }
    assert_eq!(open(&root).expect("it opens again").names().expect("readable"), names);
}

#[test]
fn a_read_that_finds_the_index_damaged_stops_the_store_until_it_is_opened_again() {
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("store");
    let open = || FolderStore::<FileIndex>::open(Arc::new(RealFileSystem), &folder);
    let rows = folder.join("index/rows");
    let flip = || {
        let mut bytes = fs::read(&rows).expect("readable");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&rows, bytes).expect("written");
    };
    let store = open().expect("it opens");
    store.put(name(1, 0), &noise(1, 200)).expect("durable");
    flip();
    assert!(!store.has_stopped(), "nobody has read it");
    assert!(store.names().expect_err("it is damaged").is_damage());
    assert!(store.has_stopped());
    let refused = store.put(name(2, 0), &noise(2, 200)).expect_err("nothing more is written");
    assert!(matches!(refused, CheckpointStoreError::Stopped { .. }), "{refused}");
    drop(store);
    assert!(open().expect_err("so is the medium").is_damage());
    // Had it been the memory that was damaged, nothing would be lost.
    flip();
    let store = open().expect("it opens");
    assert_eq!(store.names().expect("readable"), [name(1, 0)]);
    store.put(name(2, 0), &noise(2, 200)).expect("durable");
}

/// Puts the index back as it was; what sled wrote beside it is removed.
fn restore(index: &Path, database: &[u8]) {
    fs::write(index.join("db"), database).expect("written");
    for entry in fs::read_dir(index).expect("readable") {
        let path = entry.expect("readable").path();
        if path.display().to_string().contains("snap.") {
            fs::remove_file(path).expect("removed");
        }
    }
}
