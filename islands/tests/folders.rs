//! Objects in folders of the disk: whole or not there, in as many parts as they need.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use zbelastic_islands::{
    FolderError, IslandFolders, ObjectFolders, ObjectKey, WeightsHead, WeightsKind, contents_hash,
};
use zbelastic_remote::{Environment, ObjectFolder, RetryEvent, RetryPolicy};
use zbelastic_types::{LayerId, Step};

/// More than fits into two parts of 8 MiB.
const FLOATS: usize = 5 << 20;

fn folders(root: &std::path::Path) -> ObjectFolders {
    let open = |name: &str| {
        let place = root.join(name).display().to_string();
        let on_retry = Arc::new(|_: RetryEvent<'_>| ControlFlow::Continue(()));
        let environment = Environment::default();
        ObjectFolder::open(&place, &environment, RetryPolicy::STANDARD, on_retry).expect("a path")
    };
    ObjectFolders::new(vec![open("a"), open("b")], 0)
}

fn key(version: u64) -> ObjectKey {
    ObjectKey { kind: WeightsKind::Sent, layer: LayerId(3), version: Step(version) }
}

fn head(version: u64, vectors: &[&[f32]]) -> WeightsHead {
    WeightsHead {
        settings: [1; 32],
        island: 0,
        layer: 3,
        version,
        before: [2; 32],
        is_skipped: false,
        floats: vectors[0].len() as u64,
        contents: contents_hash(vectors),
    }
}

fn hex(hash: [u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Two processes that write one version at once leave one of them whole, whatever the order.
#[test]
fn a_head_names_its_own_parts() {
    let root = tempfile::tempdir().expect("a folder");
    let folders = folders(root.path());
    let objects = [[1.0_f32; 9], [2.0; 9]];
    for floats in &objects {
        folders.write(key(4), &head(4, &[floats]), &[floats]).expect("room");
    }
    let first = head(4, &[&objects[0]]);
    let path = root.path().join("a").join(key(4).to_string());
    fs::write(path, first.encode().expect("a form")).expect("room");
    let found = folders.head(0, key(4)).expect("readable").expect("it is there");
    assert_eq!(folders.vectors(0, key(4), &found).expect("whole"), [objects[0].to_vec()]);
}

fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|index| index as f32).collect()
}

#[test]
fn objects_of_any_size_are_read_as_they_were_written() {
    let root = tempfile::tempdir().expect("a folder");
    let folders = folders(root.path());
    assert!(folders.head(0, key(4)).expect("readable").is_none());
    for kind in [WeightsKind::Sent, WeightsKind::Outer] {
        let key = ObjectKey { kind, ..key(4) };
        for count in [0, 1, FLOATS] {
            let vectors = [floats(count), floats(count).into_iter().rev().collect()];
            let vectors = match kind {
                WeightsKind::Sent => &vectors[..1],
                WeightsKind::Outer => &vectors[..],
            };
            let slices: Vec<_> = vectors.iter().map(Vec::as_slice).collect();
            let written = head(4, &slices);
            folders.write(key, &written, &slices).expect("room");
            let found = folders.head(0, key).expect("readable").expect("it is there");
            assert_eq!(found, written);
            let found = folders.vectors(0, key, &found).expect("whole");
            assert!(found == vectors, "{count} floats");
        }
    }
    assert!(folders.head(1, key(4)).expect("readable").is_none(), "it is in its own folder");
}

#[test]
fn a_part_that_is_missing_or_damaged_is_noticed_and_old_versions_are_removed() {
    let root = tempfile::tempdir().expect("a folder");
    let folders = folders(root.path());
    let floats = floats(100);
    for version in [4, 8, 12] {
        folders.write(key(version), &head(version, &[&floats]), &[&floats]).expect("room");
    }
    folders.remove_before(key(12)).expect("removed");
    assert!(folders.head(0, key(8)).expect("readable").is_none());
    let head = folders.head(0, key(12)).expect("readable").expect("it is there");
    let is_damaged = || matches!(folders.vectors(0, key(12), &head), Err(FolderError::Object(_)));
    assert!(!is_damaged());
    let part = format!("{}-{}-00000", key(12), &hex(head.contents)[..8]);
    let part = root.path().join("a").join(part);
    let mut bytes = fs::read(&part).expect("a part");
    bytes[100] ^= 1;
    fs::write(&part, &bytes).expect("room");
    assert!(is_damaged(), "a bit is another");
    fs::write(&part, &bytes[1..]).expect("room");
    assert!(is_damaged(), "a byte is missing");
    fs::remove_file(&part).expect("there");
    assert!(is_damaged(), "the part is missing");
    let left = fs::read_dir(part.parent().expect("a folder")).expect("readable").count();
    assert_eq!(left, 1, "versions before have left nothing");
}
