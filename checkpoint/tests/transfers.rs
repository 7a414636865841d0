//! Chunks that come from elsewhere: synced a few at a time, and durable once a record names them.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use zbelastic_checkpoint::conformance::noise;
use zbelastic_checkpoint::faults::{
    FaultyFileSystem, FileFaultInjector, FileFaultRule, FileIndex, PowerLoss, SimulatedDisk,
};
use zbelastic_checkpoint::files::{DIRECT_BYTES, EntryKind, FileSystem, FolderEntry, OpenFile};
use zbelastic_checkpoint::{
    CheckpointId, CheckpointStore, CheckpointStoreError, ChunkHash, FileOperation, FolderStore,
    PieceName, PieceRecord,
};
use zbelastic_types::{Digest, LayerId, RunId, Step};

const ROOT: &str = "/disk";
/// What takes longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(60);

type TransferTestStore = FolderStore<FileIndex>;

fn open(files: Arc<dyn FileSystem>) -> TransferTestStore {
    TransferTestStore::open(files, &Path::new(ROOT).join("store")).expect("it opens")
}

fn name(layer: u32) -> PieceName {
    let version = CheckpointId { run: RunId(1), version: Step(1) };
    PieceName { version, layer: LayerId(layer), digest: Digest([3; 32]) }
}

/// A store on a simulated disk, whose faults are injected.
fn store() -> (TransferTestStore, SimulatedDisk, FileFaultInjector) {
    let disk = SimulatedDisk::new(Path::new(ROOT));
    let faults = FileFaultInjector::default();
    let store = open(Arc::new(FaultyFileSystem::new(Arc::new(disk.clone()), faults.clone())));
    (store, disk, faults)
}

/// Bytes of a chunk that has whole blocks.
fn chunk(seed: u64) -> Vec<u8> {
    noise(seed, 2 * DIRECT_BYTES + 7)
}

type Transfer = <TransferTestStore as CheckpointStore>::UnnamedChunks;

/// Three chunks of a transfer, which have no names yet.
fn unnamed(store: &TransferTestStore) -> (Transfer, Vec<ChunkHash>) {
    let mut transfer = Transfer::default();
    let put = |seed| store.put_new_chunk(&chunk(seed), &mut transfer).expect("room");
    let chunks = (0..3).map(put).collect();
    (transfer, chunks)
}

fn temporaries(disk: &SimulatedDisk) -> usize {
    disk.list(&Path::new(ROOT).join("store/tmp")).expect("it is there").len()
}

#[test]
fn chunks_get_their_names_four_at_a_time_or_each_at_once_where_direct_writes_are_refused() {
    let check = |is_refused: bool, expected: [usize; 6]| {
        let (store, disk, faults) = store();
        if is_refused {
            let kind = io::ErrorKind::InvalidInput;
            let operation = FileOperation::OpenDirect;
            faults.inject(FileFaultRule::FailOnce { operation, after: 0, kind });
        }
        let mut transfer = Default::default();
        let mut hashes = Vec::new();
        let readable =
            |hashes: &[ChunkHash]| hashes.iter().filter(|hash| store.chunk(**hash).is_ok()).count();
        for (seed, expected) in (0..).zip(expected) {
            hashes.push(store.put_new_chunk(&chunk(seed), &mut transfer).expect("room"));
            assert_eq!(readable(&hashes), expected, "behind {} chunks", hashes.len());
        }
        store.name_chunks(transfer).expect("synced");
        assert_eq!((readable(&hashes), temporaries(&disk)), (hashes.len(), 0));
    };
    check(false, [0, 0, 0, 4, 4, 4]);
    check(true, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_transfer_that_is_dropped_leaves_nothing() {
    let (store, disk, _) = store();
    let (transfer, chunks) = unnamed(&store);
    assert_eq!(temporaries(&disk), 3);
    drop(transfer);
    assert_eq!(temporaries(&disk), 0);
    store.abandon(&PieceRecord { length: 0, chunks });
    assert!(store.inventory().expect("readable").under_way.is_empty());
}

#[test]
fn chunks_that_a_full_disk_does_not_sync_get_no_name() {
    let (store, disk, faults) = store();
    let (transfer, chunks) = unnamed(&store);
    let kind = io::ErrorKind::StorageFull;
    faults.inject(FileFaultRule::FailOnce { operation: FileOperation::Sync, after: 1, kind });
    let refused = store.name_chunks(transfer);
    assert!(matches!(refused, Err(CheckpointStoreError::File(_))), "{refused:?}");
    assert_eq!(temporaries(&disk), 0);
    assert!(chunks.iter().all(|hash| store.chunk(*hash).is_err()));
    // Nothing is wrong with the store.
    store.put(name(0), &chunk(0)).expect("there is room again");
}

/// A disk on which one rename to a chunk's name waits.
#[derive(Debug)]
struct HeldRename {
    disk: SimulatedDisk,
    held: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl FileSystem for HeldRename {
    fn entry_kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.disk.entry_kind(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        self.disk.list(folder)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.disk.create_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.disk.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.disk.open(path)
    }

    fn open_direct(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.disk.open_direct(path)
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        self.disk.read(path, bytes_max)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let held = self.held.lock().expect("no rename panics").take_if(|_| is_chunk(to));
        if let Some((arrived, go_on)) = held {
            arrived.send(()).map_err(io::Error::other)?;
            go_on.recv().map_err(io::Error::other)?;
        }
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_folder(path)
    }
}

fn is_chunk(path: &Path) -> bool {
    path.starts_with(Path::new(ROOT).join("store/chunks"))
}

/// Bytes of two chunks that lie in one folder.
fn of_one_folder() -> [Vec<u8>; 2] {
    let folder = |bytes: &[u8]| ChunkHash::of(bytes).to_string()[..2].to_owned();
    let first = chunk(0);
    let other = (1..).map(chunk).find(|other| folder(other) == folder(&first));
    [first, other.expect("one of some hundred")]
}

/// A transfer is about to rename a chunk when another piece, with a chunk in the same folder, is
/// written and syncs that folder.
#[test]
fn a_sync_beside_a_rename_does_not_count_for_it() {
    let [held, other] = of_one_folder();
    let disk = SimulatedDisk::new(Path::new(ROOT));
    let (arrived, is_held) = channel();
    let (release, go_on) = channel();
    let files = HeldRename { disk: disk.clone(), held: Mutex::new(Some((arrived, go_on))) };
    let store = open(Arc::new(files));
    thread::scope(|scope| {
        let store = &store;
        let held = &held;
        let transfer = scope.spawn(move || {
            let mut transfer = Default::default();
            let hash = store.put_new_chunk(held, &mut transfer).expect("room");
            store.name_chunks(transfer).expect("synced");
            let record = PieceRecord { length: held.len() as u64, chunks: vec![hash] };
            store.put_record(name(0), &record).expect("durable");
        });
        is_held.recv_timeout(PATIENCE).expect("it renames");
        store.put(name(1), &other).expect("durable");
        release.send(()).expect("it waits");
        transfer.join().expect("no panic");
    });
    let store = open(Arc::new(disk.after_power_loss(PowerLoss::LosesAll)));
    for (layer, bytes) in [(0, held), (1, other)] {
        let found = store.get(name(layer)).unwrap_or_else(|error| panic!("{error}"));
        assert!(found == bytes, "layer {layer} was acknowledged");
    }
}
