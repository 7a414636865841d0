//! The files in a data folder.

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
use zbelastic_mirror::MirroredCheckpoint;
use zbelastic_types::{Digest, LayerId, RunId, Step};

use super::folder;
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
    ROW.set(row);
    STORE.with(read)
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
