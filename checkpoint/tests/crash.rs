//! A store that loses its process, or its power, at every single operation on a file.
//!
//! A story of writes, transfers and removals runs on a simulated disk until the n-th operation,
//! for every n there is. Then the disk is read as a process finds it that starts afterwards:
//! as it was seen, with all unsynced changes lost, and with some of them lost by several seeds.
//! What was acknowledged must be there, what has a name must be whole, and the store must go on.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use common::{at, manifest, name, noise};
use zbelastic_checkpoint::faults::{
    FaultyFileSystem, FileFaultInjector, FileFaultRule, FileIndex, PowerLoss, SimulatedDisk,
};
use zbelastic_checkpoint::files::{FileSystem, RealFileSystem};
use zbelastic_checkpoint::{
    CHUNK_BYTES, CheckpointId, CheckpointStore, CheckpointStoreError, FileOperation, FolderStore,
    Index, Manifest, PieceHealth, PieceName, PieceRecord, RetentionRoots, SledStore, plan_removals,
};

/// Seeds of losses of power at each operation.
const SEEDS: u64 = 3;
const ROOT: &str = "/disk";

type CrashTestStore = FolderStore<FileIndex>;

/// The writes that were acknowledged, on which a program may rely.
#[derive(Clone, Default)]
struct AcknowledgedWrites {
    pieces: BTreeMap<PieceName, Vec<u8>>,
    manifests: BTreeMap<CheckpointId, Manifest>,
}

fn open(files: Arc<dyn FileSystem>) -> Result<CrashTestStore, CheckpointStoreError> {
    let folder = Path::new(ROOT).join("store");
    files.create_folder(&folder).expect("the root is there");
    if let Err(source) = files.sync_folder(Path::new(ROOT)) {
        panic!("a simulated disk syncs: {source}");
    }
    CrashTestStore::open(files, &folder)
}

fn put(
    store: &impl CheckpointStore,
    model: &mut AcknowledgedWrites,
    name: PieceName,
    bytes: Vec<u8>,
) -> Result<(), CheckpointStoreError> {
    store.put(name, &bytes)?;
    model.pieces.insert(name, bytes);
    Ok(())
}

fn put_manifest(
    store: &impl CheckpointStore,
    model: &mut AcknowledgedWrites,
    version: u64,
) -> Result<(), CheckpointStoreError> {
    store.put_manifest(&manifest(version, 2))?;
    model.manifests.insert(at(version), manifest(version, 2));
    Ok(())
}

/// What a program does, noted in `model` when it is acknowledged.
fn story(
    store: &impl CheckpointStore,
    model: &mut AcknowledgedWrites,
) -> Result<(), CheckpointStoreError> {
    put(store, model, name(1, 0), noise(1, 700))?;
    put(store, model, name(1, 1), noise(2, CHUNK_BYTES + 1300))?;
    put_manifest(store, model, 1)?;
    // The same bytes as in version 1, and others.
    put(store, model, name(2, 0), noise(1, 700))?;
    let moved = noise(3, 900);
    let record = PieceRecord::of(&moved);
    store.put_chunk(record.chunks[0], &moved)?;
    store.put_record(name(2, 1), &record)?;
    model.pieces.insert(name(2, 1), moved);
    put_manifest(store, model, 2)?;
    let inventory = store.inventory()?;
    let needed = RetentionRoots { keep_last: 1, ..RetentionRoots::default() };
    let removals = plan_removals(&inventory, &needed);
    assert!(!removals.is_empty(), "there is something to remove");
    // From here on no program may rely on version 1, whether it is there or not.
    model.pieces.retain(|name, _| name.version == at(2));
    model.manifests.remove(&at(1));
    store.remove(&removals)?;
    // A chunk that was just removed.
    put(store, model, name(3, 1), noise(2, CHUNK_BYTES + 1300).split_off(CHUNK_BYTES))?;
    // Chunks that are synced together.
    let fetched = noise(4, CHUNK_BYTES + 40);
    let mut transfer = Default::default();
    let write = |chunk| store.put_new_chunk(chunk, &mut transfer);
    let chunks = fetched.chunks(CHUNK_BYTES).map(write).collect::<Result<_, _>>()?;
    store.name_chunks(transfer)?;
    let length = fetched.len() as u64;
    store.put_record(name(3, 0), &PieceRecord { length, chunks })?;
    model.pieces.insert(name(3, 0), fetched);
    put_manifest(store, model, 3)
}

fn check(store: &impl CheckpointStore, model: &AcknowledgedWrites, story: &str) {
    let found = store.verify().unwrap_or_else(|error| panic!("{story}: {error}"));
    for (name, health) in &found.pieces {
        assert_eq!(*health, PieceHealth::Whole, "{story}: {name} has a name and is not whole");
    }
    for (name, bytes) in &model.pieces {
        let found = store.get(*name).unwrap_or_else(|error| panic!("{story}: {error}"));
        assert!(found == *bytes, "{story}: {name} was acknowledged with other bytes");
    }
    for (version, manifest) in &model.manifests {
        let found = store.manifest(*version).expect("readable");
        assert_eq!(found.as_ref(), Some(manifest), "{story}: manifest {version} was acknowledged");
    }
    assert_eq!(found.stray_entries, [], "{story}: nothing of an unfinished write is left");
    store.put(name(9, 0), &noise(9, 50)).unwrap_or_else(|error| panic!("{story}: {error}"));
}

/// The store of a story on a disk, open already: opening has a sweep of its own.
fn story_on(
    disk: &SimulatedDisk,
    faults: &FileFaultInjector,
) -> (CrashTestStore, AcknowledgedWrites) {
    drop(open(Arc::new(disk.clone())).expect("a new store opens"));
    let files = Arc::new(FaultyFileSystem::new(Arc::new(disk.clone()), faults.clone()));
    let store = CrashTestStore::open(files, &Path::new(ROOT).join("store")).expect("it opens");
    (store, AcknowledgedWrites::default())
}

/// Which of the story's operations change the disk. To die before one that only reads is to die
/// before the next one that does.
fn changes(faults: &FileFaultInjector) -> Vec<u64> {
    let (store, _) = story_on(&SimulatedDisk::new(Path::new(ROOT)), faults);
    changes_of(&store, faults)
}

fn changes_of(store: &impl CheckpointStore, faults: &FileFaultInjector) -> Vec<u64> {
    drop(faults.take_completed());
    story(store, &mut AcknowledgedWrites::default()).expect("nothing fails");
    let is_change = |operation| match operation {
        FileOperation::Look
        | FileOperation::List
        | FileOperation::Open
        | FileOperation::OpenDirect
        | FileOperation::Read
        | FileOperation::Forget => false,
        FileOperation::CreateFolder
        | FileOperation::Create
        | FileOperation::Write
        | FileOperation::Sync
        | FileOperation::SyncFolder
        | FileOperation::Rename
        | FileOperation::Remove
        | FileOperation::Lock => true,
    };
    let done = faults.take_completed();
    let changes = (0..).zip(&done).filter(|(_, done)| is_change(done.operation));
    changes.map(|(number, _)| number).chain([done.len() as u64]).collect()
}

/// Kills the story at an operation and reads the disk after each kind of power loss.
fn crash_at(operations: u64, more: Option<FileFaultRule>) {
    let disk = SimulatedDisk::new(Path::new(ROOT));
    let faults = FileFaultInjector::default();
    let (store, mut model) = story_on(&disk, &faults);
    more.into_iter().for_each(|more| faults.inject(more));
    faults.inject(FileFaultRule::KillAfter { operations });
    drop(story(&store, &mut model));
    drop(store);
    let some = (0..SEEDS).map(|seed| PowerLoss::LosesSome { seed: operations * SEEDS + seed });
    for power_loss in [PowerLoss::ProcessOnly, PowerLoss::LosesAll].into_iter().chain(some) {
        let story = format!("killed at operation {operations}, {power_loss:?}");
        let store = open(Arc::new(disk.after_power_loss(power_loss)));
        check(&store.unwrap_or_else(|error| panic!("{story}: {error}")), &model, &story);
    }
}

#[test]
fn nothing_acknowledged_is_lost_at_any_operation() {
    let changes = changes(&FileFaultInjector::default());
    assert!(changes.len() > 60, "the story has {} operations that change", changes.len());
    changes.iter().for_each(|operations| crash_at(*operations, None));
    println!("killed at each of {} operations, {} losses of power each", changes.len(), SEEDS + 2);
}

#[test]
fn short_writes_change_nothing() {
    let short = FileFaultRule::ShortWrites { bytes_max: CHUNK_BYTES / 3 };
    let faults = FileFaultInjector::default();
    faults.inject(short);
    let changes = changes(&faults);
    changes.iter().step_by(11).for_each(|operations| crash_at(*operations, Some(short)));
}

#[test]
fn a_disk_that_refuses_direct_writes_loses_nothing_either() {
    let operation = FileOperation::OpenDirect;
    let kind = std::io::ErrorKind::InvalidInput;
    let refusal = FileFaultRule::FailOnce { operation, after: 0, kind };
    let faults = FileFaultInjector::default();
    faults.inject(refusal);
    let changes = changes(&faults);
    changes.iter().step_by(3).for_each(|operations| crash_at(*operations, Some(refusal)));
}

#[test]
fn a_store_opens_after_a_crash_while_it_was_made() {
    for operations in (0..).step_by(5) {
        let disk = SimulatedDisk::new(Path::new(ROOT));
        let faults = FileFaultInjector::default();
        faults.inject(FileFaultRule::KillAfter { operations: operations + 2 });
        let files: Arc<dyn FileSystem> =
            Arc::new(FaultyFileSystem::new(Arc::new(disk.clone()), faults.clone()));
        let is_done = open(files).is_ok();
        let power_losses = [
            PowerLoss::ProcessOnly,
            PowerLoss::LosesAll,
            PowerLoss::LosesSome { seed: operations },
        ];
        for power_loss in power_losses {
            let store = open(Arc::new(disk.after_power_loss(power_loss))).expect("it is made now");
            check(&store, &AcknowledgedWrites::default(), &format!("{operations}, {power_loss:?}"));
        }
        if is_done {
            assert!(operations > 256, "all folders were made");
            return;
        }
    }
}

/// The checks above must be able to fail: a disk that lies about syncs is caught.
#[test]
#[should_panic(expected = "killed at operation")]
fn syncs_that_do_nothing_are_caught() {
    let changes = changes(&FileFaultInjector::default());
    changes.iter().for_each(|operations| crash_at(*operations, Some(FileFaultRule::LyingSyncs)));
}

#[test]
fn a_store_on_a_real_disk_survives_a_kill_at_every_operation() {
    let open = |folder: &Path, faults: &FileFaultInjector| {
        let files = FaultyFileSystem::new(Arc::new(RealFileSystem), faults.clone());
        SledStore::open(Arc::new(files), &folder.join("store")).expect("it opens")
    };
    let (folder, faults) =
        (tempfile::TempDir::new().expect("a folder"), FileFaultInjector::default());
    let changes = changes_of(&open(folder.path(), &faults), &faults);
    for operations in changes.into_iter().step_by(6) {
        let folder = tempfile::TempDir::new().expect("a folder");
        let folder = folder.path();
        let faults = FileFaultInjector::default();
        let store = open(folder, &faults);
        faults.inject(FileFaultRule::KillAfter { operations });
        let mut model = AcknowledgedWrites::default();
        drop(story(&store, &mut model));
        drop(store);
        let store = open(folder, &FileFaultInjector::default());
        check(&store, &model, &format!("killed at operation {operations}"));
    }
}

#[test]
fn a_full_disk_is_reported_and_taken_back() {
    let disk = SimulatedDisk::new(Path::new(ROOT));
    let faults = FileFaultInjector::default();
    let files = Arc::new(FaultyFileSystem::new(Arc::new(disk), faults.clone()));
    let store = open(files).expect("it opens");
    store.put(name(1, 0), &noise(1, 100)).expect("durable");
    for bytes in [0, 1, 5000, CHUNK_BYTES as u64 + 10] {
        faults.inject(FileFaultRule::FullAfter { bytes });
        let error = store.put(name(1, 1), &noise(2, CHUNK_BYTES + 1000)).expect_err("it is full");
        assert!(error.is_full(), "{error}");
        assert!(error.to_string().starts_with("cannot write "), "{error}");
        faults.clear();
        let found = store.verify().expect("readable");
        assert_eq!((found.pieces.len(), found.stray_entries), (1, vec![]));
    }
    store.put(name(1, 1), &noise(2, CHUNK_BYTES + 1000)).expect("there is space again");
    check(&store, &AcknowledgedWrites::default(), "after a full disk");
}

#[test]
fn a_store_takes_nothing_after_a_sync_that_failed() {
    for operation in [FileOperation::Sync, FileOperation::SyncFolder] {
        let disk = SimulatedDisk::new(Path::new(ROOT));
        let faults = FileFaultInjector::default();
        let files = Arc::new(FaultyFileSystem::new(Arc::new(disk.clone()), faults.clone()));
        let store = open(files).expect("it opens");
        store.put(name(1, 0), &noise(1, 100)).expect("durable");
        faults.inject(FileFaultRule::FailOnce {
            operation,
            after: 0,
            kind: std::io::ErrorKind::Other,
        });
        match store.put(name(1, 1), &noise(2, 100)) {
            Err(CheckpointStoreError::File(fault)) => assert_eq!(fault.operation, operation),
            other => panic!("{operation} fails, got {other:?}"),
        }
        let again = store.put(name(1, 1), &noise(2, 100));
        assert!(matches!(again, Err(CheckpointStoreError::Stopped { .. })), "{again:?}");
        assert_eq!(store.get(name(1, 0)).expect("reading goes on"), noise(1, 100));
        drop(store);
        let store =
            open(Arc::new(disk.after_power_loss(PowerLoss::LosesAll))).expect("it opens again");
        assert_eq!(store.names().expect("readable"), [name(1, 0)]);
        store.put(name(1, 1), &noise(2, 100)).expect("it goes on");
    }
}

#[test]
fn an_index_that_is_lost_is_not_made_anew() {
    let disk = SimulatedDisk::new(Path::new(ROOT));
    let store = open(Arc::new(disk.clone())).expect("it opens");
    store.put(name(1, 0), &noise(1, 100)).expect("durable");
    drop(store);
    disk.remove(&Path::new(ROOT).join("store/index/rows")).expect("it is there");
    match open(Arc::new(disk)) {
        Err(CheckpointStoreError::Index { fault, .. }) => {
            assert!(matches!(fault, zbelastic_checkpoint::DatabaseFault::Lost { .. }), "{fault}");
        }
        other => panic!("the index is lost, got {other:?}"),
    }
}

#[test]
fn an_index_in_a_file_keeps_what_it_committed() {
    use zbelastic_checkpoint::IndexChange;
    let disk = SimulatedDisk::new(Path::new(ROOT));
    let folder = Path::new(ROOT).join("index");
    let files: Arc<dyn FileSystem> = Arc::new(disk.clone());
    assert!(!FileIndex::is_there(&*files, &folder).expect("readable"));
    let index = FileIndex::open(Arc::clone(&files), &folder).expect("it opens");
    let put = |key: &[u8]| IndexChange::Put { key: key.to_vec(), value: vec![1] };
    index.commit(&[put(b"a"), put(b"b")]).expect("durable");
    index.commit(&[IndexChange::Remove { key: b"a".to_vec() }]).expect("durable");
    let files: Arc<dyn FileSystem> = Arc::new(disk.after_power_loss(PowerLoss::LosesAll));
    assert!(FileIndex::is_there(&*files, &folder).expect("readable"));
    let index = FileIndex::open(files, &folder).expect("it opens");
    assert_eq!(Index::rows(&index, b"").expect("readable"), [(b"b".to_vec(), vec![1])]);
}
