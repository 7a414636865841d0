//! The files in a data folder, and the objects that are written into folders and buckets.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use zbelastic_checkpoint::faults::SimulatedDisk;
use zbelastic_checkpoint::files::FileSystem;
use zbelastic_checkpoint::{
    CheckpointId, CheckpointStore, ChunkHash, DatabaseFault, FolderStore, Index, IndexChange,
    IndexRow, LockedFolder, PieceName,
};
use zbelastic_islands::WeightsHead;
use zbelastic_mirror::MirroredCheckpoint;
use zbelastic_policy::data::DataName;
use zbelastic_policy::data_chunks::{ChunkHashes, ChunkListFault, ChunkSize};
use zbelastic_transport::ChunkCheck;
use zbelastic_types::{Digest, LayerId, RunId, Step};

use super::{any, folder};
use crate::DecodeOutcome;

thread_local! {
    static ROW: RefCell<IndexRow> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// A table with the one row that is tried.
#[derive(Debug)]
struct SingleRowDatabase;

impl Index for SingleRowDatabase {
    fn is_there(_: &dyn FileSystem, _: &Path) -> Result<bool, DatabaseFault> {
        Ok(true)
    }

    fn open(_: Arc<dyn FileSystem>, _: &Path) -> Result<Self, DatabaseFault> {
        Ok(Self)
    }

    fn commit(&self, _: &[IndexChange]) -> Result<(), DatabaseFault> {
        Ok(())
    }

    fn has_stopped(&self) -> bool {
        false
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DatabaseFault> {
        Ok(ROW.with_borrow(|(found, value)| (found == key).then(|| value.clone())))
    }

    fn rows(&self, prefix: &[u8]) -> Result<Vec<IndexRow>, DatabaseFault> {
        Ok(ROW
            .with_borrow(|row| if row.0.starts_with(prefix) { vec![row.clone()] } else { vec![] }))
    }
}

thread_local! {
    static STORE: FolderStore<SingleRowDatabase> = {
        let root = Path::new("/disk");
        let disk = Arc::new(SimulatedDisk::new(root));
        FolderStore::open(disk, &root.join("store")).expect("the disk does not fail")
    };
}

/// The result of a read from a store that holds nothing but this row.
fn with_row<T>(row: IndexRow, read: impl FnOnce(&FolderStore<SingleRowDatabase>) -> T) -> T {
    STORE.with(|store| {
        // Behind opening, which reads every row.
        ROW.set(row);
        read(store)
    })
}

/// The version under which every manifest's row is put.
#[must_use]
pub fn version() -> CheckpointId {
    CheckpointId { run: RunId(1), version: Step(8) }
}

/// A manifest is of the version under which it lies, and keeps to its rules.
pub fn manifests(bytes: &[u8]) -> DecodeOutcome {
    let CheckpointId { run, version: step } = version();
    let key = [&b"M"[..], &run.0.to_be_bytes(), &step.0.to_be_bytes()].concat();
    with_row((key, bytes.to_vec()), check_manifest)
}

fn check_manifest(store: &FolderStore<SingleRowDatabase>) -> DecodeOutcome {
    let Ok(Some(manifest)) = store.manifest(version()) else {
        assert!(store.manifests().is_err(), "a row that one reader refuses is refused by all");
        return DecodeOutcome::Refused;
    };
    assert_eq!((manifest.version, manifest.check()), (version(), Ok(())));
    assert_eq!(store.manifests().expect("the row is good"), [manifest]);
    DecodeOutcome::Accepted
}

/// A checkpoint of a mirror is refused, or written again as the same.
pub fn mirror_checkpoints(bytes: &[u8]) -> DecodeOutcome {
    let Ok(checkpoint) = MirroredCheckpoint::decode(bytes) else { return DecodeOutcome::Refused };
    assert_eq!(checkpoint.manifest.layers.len(), checkpoint.pieces.len());
    let again = checkpoint.encode().expect("it was an object");
    assert_eq!(MirroredCheckpoint::decode(&again).expect("it was written"), checkpoint);
    DecodeOutcome::Accepted
}

/// The piece that every row is the record of.
fn piece() -> PieceName {
    PieceName { version: version(), layer: LayerId(2), digest: Digest([5; 32]) }
}

/// The chunks of a record make up its length.
pub fn piece_records(bytes: &[u8]) -> DecodeOutcome {
    let PieceName { version: CheckpointId { run, version }, layer, digest } = piece();
    let parts = [&b"P"[..], &run.0.to_be_bytes(), &version.0.to_be_bytes()];
    let key = [parts.concat(), layer.0.to_be_bytes().to_vec(), digest.0.to_vec()].concat();
    with_row((key, bytes.to_vec()), check_record)
}

fn check_record(store: &FolderStore<SingleRowDatabase>) -> DecodeOutcome {
    let Ok(Some(record)) = store.record(piece()) else {
        assert!(store.inventory().is_err(), "a row that one reader refuses is refused by all");
        return DecodeOutcome::Refused;
    };
    assert_eq!(record.check(), Ok(()));
    assert_eq!(store.names().expect("the row is good"), [piece()]);
    DecodeOutcome::Accepted
}

/// A name of a chunk is spelt in one way.
pub fn chunk_names(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let Ok(hash) = ChunkHash::parse(text) else { return DecodeOutcome::Refused };
    assert_eq!(hash.to_string(), text);
    DecodeOutcome::Accepted
}

/// Of a chunk that a list has the hash of: the fewest bytes that there may be.
pub const LIST_CHUNK: ChunkSize = ChunkSize::of(1024);

/// A list behind the length of its data is refused, or has the bytes that it was read from. No mutation finds a
/// list of a given name, so that the name is the one that the list gives.
pub fn chunk_lists(bytes: &[u8]) -> DecodeOutcome {
    let Some((length, list)) = bytes.split_first_chunk() else { return DecodeOutcome::Refused };
    let unnamed = DataName { hash: Digest([0; 32]), length: u64::from_le_bytes(*length) };
    let hash = match ChunkHashes::decode(unnamed, list, LIST_CHUNK) {
        Err(ChunkListFault::Length { .. }) => return DecodeOutcome::Refused,
        Err(ChunkListFault::Root { found, .. }) => found,
        // A hash is that of its only chunk.
        Ok(_) => unnamed.hash,
    };
    let name = DataName { hash, ..unnamed };
    let hashes = ChunkHashes::decode(name, list, LIST_CHUNK).expect("its own name");
    assert_eq!((hashes.name(), &hashes.encode()[..]), (name, list));
    let behind = LIST_CHUNK.count(name.length);
    assert!([behind, u64::MAX].iter().all(|chunk| !hashes.is_sound(*chunk, list)));
    let _ = hashes.is_sound(0, list);
    DecodeOutcome::Accepted
}

/// Heads, and bytes that the title and their right hash are put before: no mutation finds the hash.
pub fn island_heads(bytes: &[u8]) -> DecodeOutcome {
    let titled = [&island_title(bytes), bytes].concat();
    any([check_island_head(bytes), check_island_head(&titled)])
}

/// What stands before the bytes of a head.
fn island_title(head: &[u8]) -> Vec<u8> {
    let written = island_head().encode().expect("numbers have a form");
    let title = written.split(|byte| *byte == b'\n').next().expect("a line");
    let words = &title[..title.len() - DataName::of(head).hash.to_string().len()];
    [words, format!("{}\n", DataName::of(head).hash).as_bytes()].concat()
}

/// The head of an object of outer state.
#[must_use]
pub fn island_head() -> WeightsHead {
    WeightsHead {
        settings: [7; 32],
        island: 1,
        layer: 300,
        version: 64,
        before: [0; 32],
        is_skipped: true,
        floats: 70_000,
        contents: [5; 32],
    }
}

/// A head is written again as bytes that are read as it, and has nothing behind it.
fn check_island_head(bytes: &[u8]) -> DecodeOutcome {
    let Ok(head) = WeightsHead::decode(bytes) else { return DecodeOutcome::Refused };
    let again = head.encode().expect("it was a head");
    assert_eq!(WeightsHead::decode(&again).expect("it reads what it wrote"), head);
    assert_eq!(head.place(), (LayerId(head.layer), Step(head.version)));
    let body = bytes.splitn(2, |byte| *byte == b'\n').nth(1).expect("a head behind its line");
    let longer = [body, &[0]].concat();
    let longer = [island_title(&longer), longer].concat();
    assert!(WeightsHead::decode(&longer).is_err(), "there is nothing behind a head");
    DecodeOutcome::Accepted
}

/// A data folder that is refused is left as it is.
pub fn folder_versions(bytes: &[u8]) -> DecodeOutcome {
    let path = folder().join("data");
    fs::create_dir_all(&path).expect("a folder can be made");
    let version = path.join("VERSION");
    super::write(&version, bytes);
    let outcome = DecodeOutcome::of(LockedFolder::open(&path).is_ok());
    assert_eq!(fs::read(&version).expect("it is there"), bytes);
    outcome
}
