//! Chunks are written past the page cache where that is possible, and hold the same bytes where it
//! is not.

mod common;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use common::{manifest, name, noise};
use tempfile::TempDir;
use zbelastic_checkpoint::faults::{
    CompletedOperation, FaultyFileSystem, FileFaultInjector, FileFaultRule, FileIndex,
    SimulatedDisk,
};
use zbelastic_checkpoint::files::{DIRECT_BYTES, FileSystem, RealFileSystem};
use zbelastic_checkpoint::{CHUNK_BYTES, CheckpointStore, ChunkHash, FileOperation, FolderStore};

/// Lengths of chunks on both sides of what a block and a chunk are.
const LENGTHS: [usize; 8] =
    [1, 511, 512, 4095, DIRECT_BYTES, DIRECT_BYTES + 1, CHUNK_BYTES - 1, CHUNK_BYTES];
/// Those of [`LENGTHS`] that have a whole block.
const WITH_BLOCKS: usize = 4;

type DirectTestStore = FolderStore<FileIndex>;

/// Files in which a store's folder can be made below `root`.
struct DirectTestFolder {
    files: Arc<dyn FileSystem>,
    root: TempDir,
    faults: FileFaultInjector,
}

impl DirectTestFolder {
    fn real() -> Self {
        Self::on(|_| Arc::new(RealFileSystem))
    }

    fn simulated() -> Self {
        Self::on(|root| Arc::new(SimulatedDisk::new(root)))
    }

    fn on(inner: impl FnOnce(&Path) -> Arc<dyn FileSystem>) -> Self {
        let root = TempDir::new().expect("a folder");
        let faults = FileFaultInjector::default();
        let files = Arc::new(FaultyFileSystem::new(inner(root.path()), faults.clone()));
        Self { files, root, faults }
    }

    fn open(&self) -> DirectTestStore {
        let folder = self.root.path().join("store");
        DirectTestStore::open(Arc::clone(&self.files), &folder).expect("it opens")
    }

    /// The bytes under a chunk's name.
    fn bytes_of(&self, hash: ChunkHash) -> Vec<u8> {
        let text = hash.to_string();
        let path = self.root.path().join("store/chunks").join(&text[..2]).join(text);
        self.files.read(&path, u64::MAX / 2).expect("readable")
    }

    /// How often a file was opened for direct writing since the operations were last taken.
    fn direct_opens(&self) -> usize {
        let done = self.faults.take_completed();
        done.iter().filter(|done| done.operation == FileOperation::OpenDirect).count()
    }
}

/// Writes a piece of each length and a chunk of each, and checks the bytes of their files.
fn check_lengths(place: &DirectTestFolder) {
    let store = place.open();
    drop(place.faults.take_completed());
    for (layer, length) in (0..).zip(LENGTHS) {
        let piece = noise(1, length);
        let arrived = noise(2, length);
        let record = store.put(name(1, layer), &piece).expect("durable");
        assert!(place.bytes_of(record.chunks[0]) == piece, "a piece of {length} bytes");
        assert!(store.get(name(1, layer)).expect("readable") == piece, "{length} bytes are read");
        let mut transfer = Default::default();
        let hash = store.put_new_chunk(&arrived, &mut transfer).expect("written");
        store.name_chunks(transfer).expect("durable");
        assert_eq!(hash, ChunkHash::of(&arrived));
        assert!(place.bytes_of(hash) == arrived, "a chunk of {length} bytes");
        assert!(store.chunk(hash).expect("readable") == arrived, "{length} bytes are read");
    }
    store.put_manifest(&manifest(1, LENGTHS.len() as u32)).expect("durable");
    assert!(store.verify().expect("readable").is_whole());
}

#[test]
fn chunks_of_every_length_hold_their_bytes_on_a_real_disk() {
    check_lengths(&DirectTestFolder::real());
}

/// Whether this disk takes direct writes is unknown, so their number is checked on a simulated one.
#[test]
fn whole_blocks_of_every_chunk_are_written_directly() {
    let place = DirectTestFolder::simulated();
    check_lengths(&place);
    assert_eq!(place.direct_opens(), 2 * WITH_BLOCKS, "none was refused");
}

#[test]
fn a_disk_that_refuses_to_open_is_tried_once() {
    for kind in [io::ErrorKind::InvalidInput, io::ErrorKind::Unsupported] {
        for place in [DirectTestFolder::simulated(), DirectTestFolder::real()] {
            let refusal =
                FileFaultRule::FailOnce { operation: FileOperation::OpenDirect, after: 0, kind };
            place.faults.inject(refusal);
            check_lengths(&place);
            assert_eq!(place.direct_opens(), 1, "{kind}");
        }
    }
}

#[test]
fn a_disk_that_refuses_to_write_goes_on_where_it_refused() {
    let kind = io::ErrorKind::InvalidInput;
    for after in 0..3 {
        let place = DirectTestFolder::simulated();
        let store = place.open();
        drop(place.faults.take_completed());
        place.faults.inject(FileFaultRule::ShortWrites { bytes_max: CHUNK_BYTES / 3 });
        place.faults.inject(FileFaultRule::FailOnce {
            operation: FileOperation::Write,
            after,
            kind,
        });
        let bytes = noise(1, 2 * CHUNK_BYTES + 100);
        let record = store.put(name(1, 0), &bytes).expect("durable");
        for (hash, expected) in record.chunks.iter().zip(bytes.chunks(CHUNK_BYTES)) {
            assert!(place.bytes_of(*hash) == expected, "refused after {after} writes");
        }
        assert_eq!(place.direct_opens(), 1);
        assert_eq!(store.get(name(1, 0)).expect("readable"), bytes);
    }
}

#[test]
fn a_disk_that_fails_is_not_taken_for_one_that_refuses() {
    let kind = io::ErrorKind::Other;
    for operation in [FileOperation::OpenDirect, FileOperation::Write] {
        let place = DirectTestFolder::simulated();
        let store = place.open();
        place.faults.inject(FileFaultRule::FailOnce { operation, after: 0, kind });
        store.put(name(1, 0), &noise(1, CHUNK_BYTES)).expect_err("the disk fails");
        assert_eq!(store.names().expect("readable"), []);
        drop(place.faults.take_completed());
        store.put(name(1, 0), &noise(1, CHUNK_BYTES)).expect("it works again");
        assert_eq!(place.direct_opens(), 1);
    }
}

#[test]
fn every_chunk_is_synced_after_its_last_write_and_before_it_has_a_name() {
    let place = DirectTestFolder::simulated();
    let store = place.open();
    drop(place.faults.take_completed());
    store.put(name(1, 0), &noise(1, 9 * CHUNK_BYTES + DIRECT_BYTES + 100)).expect("durable");
    let done = place.faults.take_completed();
    let temporaries: Vec<_> =
        done.iter().filter(|done| is_of(done, FileOperation::Create, "tmp")).collect();
    assert_eq!(temporaries.len(), 10);
    for CompletedOperation { path, .. } in temporaries {
        let of = done.iter().filter(|done| done.path == *path).map(|done| done.operation);
        let mut of: Vec<_> =
            of.skip_while(|operation| *operation != FileOperation::Write).collect();
        of.dedup();
        assert_eq!(
            of,
            [FileOperation::Write, FileOperation::Sync, FileOperation::Rename],
            "{path:?}"
        );
    }
}

fn is_of(done: &CompletedOperation, operation: FileOperation, folder: &str) -> bool {
    done.operation == operation && done.path.parent().is_some_and(|path| path.ends_with(folder))
}

#[test]
fn a_real_direct_write_is_read_whole_by_every_way() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("file");
    let mut buffered = RealFileSystem.create(&path).expect("a new file");
    // In the page cache, so that a direct write has something to make invalid there.
    buffered.write_some(0, &[1; 2 * DIRECT_BYTES]).expect("there is space");
    assert_eq!(fs::read(&path).expect("readable"), [1; 2 * DIRECT_BYTES]);
    let block = vec![2; 2 * DIRECT_BYTES];
    let start = block.as_ptr().addr().next_multiple_of(DIRECT_BYTES) - block.as_ptr().addr();
    let written = RealFileSystem
        .open_direct(&path)
        .and_then(|mut file| file.write_some(0, &block[start..start + DIRECT_BYTES]));
    match written {
        Ok(written) => assert_eq!(written, DIRECT_BYTES),
        Err(error) => return println!("skipped: this file system takes no O_DIRECT: {error}"),
    }
    buffered.sync().expect("durable");
    let expected = [[2; DIRECT_BYTES], [1; DIRECT_BYTES]].concat();
    assert_eq!(fs::read(&path).expect("readable"), expected);
    assert_eq!(RealFileSystem.read(&path, u64::MAX / 2).expect("readable"), expected);
}

/// Memory that is not aligned is refused by file systems that support O_DIRECT: then the bytes come
/// through the cache.
#[test]
fn a_real_file_of_every_length_is_read_into_aligned_and_other_memory() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("file");
    let mut memory = vec![0; CHUNK_BYTES + 2 * DIRECT_BYTES];
    let address = memory.as_ptr().addr();
    let start = address.next_multiple_of(DIRECT_BYTES) - address;
    for length in LENGTHS {
        let bytes = noise(3, length);
        fs::write(&path, &bytes).expect("there is space");
        for start in [start, start + 1] {
            memory.fill(0x5a);
            let into = &mut memory[start..start + CHUNK_BYTES];
            let read = RealFileSystem.read_direct(&path, into).expect("readable");
            assert_eq!(read, length);
            assert!(into[..read] == bytes, "{length} bytes at {start}");
        }
        let short = &mut memory[start..start + (length - 1) / DIRECT_BYTES * DIRECT_BYTES];
        let error = RealFileSystem.read_direct(&path, short).expect_err("it has more");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
