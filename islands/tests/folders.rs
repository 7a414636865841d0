//! Objects in folders of the disk: whole or not there, in as many parts as they need.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use zbelastic_islands::{
    FolderError, IslandFolders, ObjectFolders, ObjectKey, WeightsHead, WeightsKind, WeightsObject,
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
    ObjectFolders::new(vec![open("a"), open("b")], 0, FLOATS)
}

fn key(version: u64) -> ObjectKey {
    ObjectKey { kind: WeightsKind::Sent, layer: LayerId(3), version: Step(version) }
}

fn object(version: u64, floats: usize) -> WeightsObject {
    let head = WeightsHead {
        settings: [1; 32],
        island: 0,
        layer: 3,
        version,
        before: [2; 32],
        is_skipped: false,
    };
    WeightsObject { head, floats: (0..floats).map(|index| index as f32).collect() }
}

#[test]
fn objects_of_any_size_are_read_as_they_were_written() {
    let root = tempfile::tempdir().expect("a folder");
    let folders = folders(root.path());
    assert!(folders.read(0, key(4)).expect("readable").is_none());
    for floats in [0, 1, FLOATS] {
        let written = object(4, floats);
        folders.write(key(4), &written).expect("room");
        let found = folders.read(0, key(4)).expect("readable").expect("it is there");
        assert!(found == written, "{floats} floats");
    }
    assert!(folders.read(1, key(4)).expect("readable").is_none(), "it is in its own folder");
}

#[test]
fn a_part_that_is_missing_or_damaged_is_noticed_and_old_versions_are_removed() {
    let root = tempfile::tempdir().expect("a folder");
    let folders = folders(root.path());
    for version in [4, 8, 12] {
        folders.write(key(version), &object(version, 10)).expect("room");
    }
    folders.remove_before(key(12)).expect("removed");
    assert!(folders.read(0, key(8)).expect("readable").is_none());
    assert!(folders.read(0, key(12)).expect("readable").is_some());
    let part = root.path().join("a").join(format!("{}-00000", key(12)));
    let mut bytes = fs::read(&part).expect("a part");
    bytes[100] ^= 1;
    fs::write(&part, &bytes).expect("room");
    assert!(matches!(folders.read(0, key(12)), Err(FolderError::Object(_))));
    fs::remove_file(&part).expect("there");
    assert!(matches!(folders.read(0, key(12)), Err(FolderError::Object(_))));
    let left = fs::read_dir(part.parent().expect("a folder")).expect("readable").count();
    assert_eq!(left, 1, "versions before have left nothing");
}
