//! Removal beside writing: neither waits for the other, and what a writer counts on stays.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use zbelastic_checkpoint::conformance::noise;
use zbelastic_checkpoint::files::RealFileSystem;
use zbelastic_checkpoint::{
    CHUNK_BYTES, CheckpointId, CheckpointStore, ChunkHash, PieceName, Removal, RemovalReason,
    RemovalTarget, RetentionRoots, SledStore, plan_removals,
};
use zbelastic_types::{Digest, LayerId, RunId, Step};

/// What takes longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(60);

fn at(version: u64) -> CheckpointId {
    CheckpointId { run: RunId(1), version: Step(version) }
}

fn name(version: u64, layer: u32) -> PieceName {
    PieceName { version: at(version), layer: LayerId(layer), digest: Digest([3; 32]) }
}

/// Bytes whose second half comes when it is let through.
struct HeldSource {
    bytes: io::Cursor<Vec<u8>>,
    held_at: u64,
    arrived: Sender<()>,
    go_on: Receiver<()>,
}

impl Read for HeldSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let at = self.bytes.position();
        if at == self.held_at {
            self.arrived.send(()).map_err(io::Error::other)?;
            self.go_on.recv().map_err(io::Error::other)?;
            // Once.
            self.held_at = u64::MAX;
        }
        let count =
            into.len().min(self.held_at.saturating_sub(at).try_into().unwrap_or(usize::MAX));
        self.bytes.read(&mut into[..count])
    }
}

/// A put that has used its first chunk and is held, and what is done meanwhile, in a thread of its
/// own: what waits for the put would wait for ever.
fn while_a_put_is_held(
    bytes: &[u8],
    meanwhile: impl FnOnce(&SledStore) + Send,
) -> (TempDir, SledStore) {
    let root = TempDir::new().expect("a folder");
    let store =
        SledStore::open(Arc::new(RealFileSystem), &root.path().join("store")).expect("made");
    store.put(name(1, 0), &bytes[..CHUNK_BYTES]).expect("room");
    thread::scope(|scope| {
        let (arrived, is_held) = channel();
        let (release, go_on) = channel();
        let mut source = HeldSource {
            bytes: io::Cursor::new(bytes.to_vec()),
            held_at: CHUNK_BYTES as u64,
            arrived,
            go_on,
        };
        let length = bytes.len() as u64;
        let store = &store;
        let put = scope.spawn(move || store.put_from(name(2, 0), length, &mut source));
        is_held.recv_timeout(PATIENCE).expect("it reads");
        let (done, is_done) = channel();
        scope.spawn(move || {
            meanwhile(store);
            done.send(()).expect("waited for");
        });
        let found = is_done.recv_timeout(PATIENCE);
        release.send(()).expect("the put waits");
        found.expect("it waits for the put");
        put.join().expect("no panic").expect("room");
    });
    (root, store)
}

fn remove_all_but(store: &SledStore, version: u64) -> BTreeMap<RemovalTarget, RemovalReason> {
    let versions = [at(version)].into();
    let needed = RetentionRoots { versions, keep_last: 1, ..RetentionRoots::default() };
    let planned = plan_removals(&store.inventory().expect("readable"), &needed);
    let removed = store.remove(&planned).expect("the disk works");
    removed.into_iter().map(|Removal { target, reason }| (target, reason)).collect()
}

#[test]
fn nothing_waits_for_a_long_put() {
    let bytes = noise(5, 2 * CHUNK_BYTES);
    let (_root, store) = while_a_put_is_held(&bytes, |store| {
        let other = noise(6, 1000);
        store.put(name(1, 1), &other).expect("room");
        let removed = remove_all_but(store, 2);
        assert!(removed.contains_key(&RemovalTarget::Piece(name(1, 1))));
        assert!(removed.contains_key(&RemovalTarget::Chunk(ChunkHash::of(&other))));
        store.put(name(3, 0), &noise(7, 1000)).expect("a keeper goes on");
        let mut transfer = Default::default();
        store.put_new_chunk(&noise(8, 1000), &mut transfer).expect("a fetch goes on");
        store.name_chunks(transfer).expect("to its end");
    });
    assert_eq!(store.get(name(2, 0)).expect("whole"), bytes);
}

/// The first chunk of the put is that of a piece whose record is removed meanwhile.
#[test]
fn a_chunk_that_a_put_found_stays_when_its_last_record_goes() {
    let bytes = noise(5, 2 * CHUNK_BYTES);
    let first = ChunkHash::of(&bytes[..CHUNK_BYTES]);
    let (_root, store) = while_a_put_is_held(&bytes, |store| {
        let targets = [RemovalTarget::Piece(name(1, 0)), RemovalTarget::Chunk(first)];
        let removals = targets.map(|target| Removal { target, reason: RemovalReason::NoPiece });
        let gone = store.remove(&removals).expect("the disk works");
        assert_eq!(gone, removals[..1], "the chunk is in use");
    });
    assert!(store.verify().expect("readable").is_whole());
    assert_eq!(store.get(name(2, 0)).expect("whole"), bytes);
}
