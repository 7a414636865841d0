//! A mirror in a folder: what is written is read again, and what is damaged is not.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use zbelastic_checkpoint::{CheckpointId, ChunkHash, Manifest, PieceName, PieceRecord};
use zbelastic_mirror::{CheckpointObjectError, Mirror, MirrorError, MirroredCheckpoint};
use zbelastic_remote::{Environment, ObjectFolder, RetryPolicy};
use zbelastic_types::{Digest, LayerId, RunId, Step};

fn mirror(folder: &Path) -> Mirror {
    let place = folder.display().to_string();
    let environment = Environment::from_iter([]);
    let on_retry = Arc::new(|_: zbelastic_remote::RetryEvent<'_>| ControlFlow::Continue(()));
    let folder = ObjectFolder::open(&place, &environment, RetryPolicy::STANDARD, on_retry);
    Mirror::new(folder.expect("a path"))
}

const RUN: RunId = RunId(1);

/// A checkpoint of the run.
fn put(mirror: &mut Mirror, version: u64) -> MirroredCheckpoint {
    put_of(mirror, CheckpointId { run: RUN, version: Step(version) })
}

/// A checkpoint of one layer in two chunks, one of which all have.
fn put_of(mirror: &mut Mirror, version: CheckpointId) -> MirroredCheckpoint {
    let bytes = [b"frozen".to_vec(), version.to_string().into_bytes()];
    let length = bytes.iter().map(|chunk| chunk.len() as u64).sum();
    let chunks = bytes.map(|chunk| mirror.put_chunk(chunk).expect("room")).to_vec();
    let layer = PieceName { version, layer: LayerId(0), digest: Digest([7; 32]) };
    let checkpoint = MirroredCheckpoint {
        cluster: 5,
        cluster_name: "wiki".to_owned(),
        run_name: "first".to_owned(),
        manifest: Manifest {
            version,
            layers: vec![layer],
            document: b"job".to_vec(),
            data: Digest([1; 32]),
            program: String::new(),
            seed: 0,
        },
        pieces: vec![PieceRecord { length, chunks }],
        data: Vec::new(),
    };
    mirror.put_checkpoint(&checkpoint).expect("room");
    checkpoint
}

fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

#[test]
fn checkpoints_are_read_as_they_were_written_and_the_newest_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut writer = mirror(folder.path());
    assert_eq!(writer.checkpoints().expect("readable"), []);
    let written: Vec<_> = [5, 10, 100].map(|version| put(&mut writer, version)).into();
    let reader = mirror(folder.path());
    let ids: Vec<_> = written.iter().map(MirroredCheckpoint::id).collect();
    assert_eq!(reader.checkpoints().expect("readable"), ids, "by number, not by letters");
    for checkpoint in &written {
        assert_eq!(reader.checkpoint(checkpoint.id()).expect("it is there"), *checkpoint);
        let chunks = checkpoint.chunks().map(|hash| reader.chunk(hash).expect("it is there"));
        assert_eq!(chunks.map(|chunk| chunk.len() as u64).sum::<u64>(), checkpoint.bytes());
    }
    assert_eq!(files(&folder.path().join("chunks")), 4, "what all have is there once");
    let mut another = mirror(folder.path());
    assert_eq!(another.keep_newest(RUN, 2).expect("it may"), 1);
    assert_eq!(another.checkpoints().expect("readable"), ids[1..]);
    assert_eq!(files(&folder.path().join("chunks")), 3);
    assert_eq!(another.keep_newest(RUN, 2).expect("it may"), 0);
    for hash in written[2].chunks() {
        reader.chunk(hash).expect("what is kept is whole");
    }
}

/// A run that ended has its model in its last checkpoint alone.
#[test]
fn a_new_run_removes_no_last_checkpoint_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut writer = mirror(folder.path());
    let of_run = |run, version| CheckpointId { run: RunId(run), version: Step(version) };
    let written = [(1, 5), (1, 10), (2, 3), (2, 6), (2, 9), (3, 1)];
    let written = written.map(|(run, version)| put_of(&mut writer, of_run(run, version)));
    assert_eq!(writer.keep_newest(RunId(2), 2).expect("it may"), 2);
    let kept = [&written[1], &written[3], &written[4], &written[5]];
    let ids: Vec<_> = kept.iter().map(|checkpoint| checkpoint.id()).collect();
    assert_eq!(writer.checkpoints().expect("readable"), ids);
    for hash in kept.into_iter().flat_map(MirroredCheckpoint::chunks) {
        writer.chunk(hash).expect("what is kept is whole");
    }
}

#[test]
fn what_is_damaged_is_named_and_not_returned() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut writer = mirror(folder.path());
    let checkpoint = put(&mut writer, 5);
    let hash = checkpoint.pieces[0].chunks[1];
    let name = hash.to_string();
    let path = folder.path().join("chunks").join(&name[..2]).join(&name);
    fs::write(&path, "other").expect("written");
    let found = ChunkHash::of(b"other");
    let damaged = writer.chunk(hash).expect_err("its bytes are others");
    assert!(matches!(damaged, MirrorError::Damaged { found: is, .. } if is == found), "{damaged}");
    fs::remove_file(&path).expect("it was there");
    assert!(matches!(writer.chunk(hash), Err(MirrorError::NoChunk(_))));
    let object = fs::read_dir(folder.path().join("checkpoints")).expect("a folder").next();
    let object = object.expect("one").expect("an entry").path();
    let mut bytes = fs::read(&object).expect("readable");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(&object, &bytes).expect("written");
    let damaged = writer.checkpoint(checkpoint.id()).expect_err("a bit flipped");
    let MirrorError::Checkpoint { fault: CheckpointObjectError::Check { .. }, .. } = damaged else {
        panic!("{damaged}")
    };
    // A checkpoint that cannot be read names chunks that nobody knows: none is removed.
    put(&mut writer, 3);
    assert!(writer.keep_newest(RUN, 1).is_err());
    assert_eq!(writer.checkpoints().expect("readable").len(), 2);
}

#[test]
fn one_cluster_writes_until_another_takes_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let mirror = mirror(folder.path());
    assert_eq!(mirror.owner().expect("readable"), None);
    mirror.check_owner(5).expect("it is the first");
    mirror.check_owner(5).expect("it is its own");
    let refused = mirror.check_owner(6).expect_err("another's");
    assert!(matches!(refused, MirrorError::Owned { expected: 6, found: 5 }), "{refused}");
    mirror.take_over(6).expect("room");
    assert!(mirror.check_owner(5).is_err(), "the old one stops");
    fs::write(folder.path().join("OWNER"), "somebody\n").expect("written");
    assert!(matches!(mirror.owner(), Err(MirrorError::Owner)));
}
