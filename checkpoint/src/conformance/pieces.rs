//! Pieces and manifests: the bytes that are written come back.

use std::{io, thread};

use zbelastic_types::{Digest, LayerId};

use super::{StoreFixture, at, manifest, name, noise};
use crate::error::CheckpointStoreError;
use crate::manifest::{DOCUMENT_BYTES_MAX, LAYERS_MAX, Manifest, ManifestFault};
use crate::names::{
    CHUNK_BYTES, ChunkHash, PIECE_BYTES_MAX, PieceName, PieceRecord, PieceRecordFault,
};
use crate::store::CheckpointStore;

fn check(store: &impl CheckpointStore, name: PieceName, expected: &[u8]) {
    let found = store.get(name).expect("readable");
    assert!(found == expected, "{name} comes back as it was written");
    let record = store.record(name).expect("readable").expect("it is there");
    assert_eq!(record, PieceRecord::of(expected));
}

/// Case of the suite.
pub fn a_new_store_is_empty(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    assert_eq!(store.names().expect("readable"), []);
    assert_eq!(store.manifests().expect("readable"), []);
    assert_eq!(store.inventory().expect("readable"), crate::StoreInventory::default());
}

/// Case of the suite.
pub fn a_piece_comes_back(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, 1000);
    let record = store.put(name(1, 0), &bytes).expect("durable");
    assert_eq!(record, PieceRecord::of(&bytes));
    check(&store, name(1, 0), &bytes);
}

/// Case of the suite.
pub fn pieces_come_back_after_opening_again(fixture: &mut impl StoreFixture) {
    let mut store = fixture.open(None);
    for layer in 0..4 {
        store.put(name(1, layer), &noise(layer.into(), 500)).expect("durable");
        store = fixture.open(Some(store));
    }
    (0..4).for_each(|layer| check(&store, name(1, layer), &noise(layer.into(), 500)));
}

/// Case of the suite.
pub fn pieces_of_every_length_come_back(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let lengths = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 17];
    for (layer, length) in (0..).zip(lengths) {
        let bytes = noise(layer.into(), length);
        store.put(name(1, layer), &bytes).expect("durable");
        check(&store, name(1, layer), &bytes);
    }
}

/// Yields few bytes at a time, as a stream does.
struct TrickleReader<'a>(&'a [u8]);

impl io::Read for TrickleReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let few = into.len().min(1000);
        self.0.read(&mut into[..few])
    }
}

/// Case of the suite.
pub fn a_piece_that_is_read_as_it_is_written_comes_back(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    // More chunks than are written at once, the first one twice.
    let mut bytes = noise(1, 9 * CHUNK_BYTES + 3);
    bytes.copy_within(..CHUNK_BYTES, 4 * CHUNK_BYTES);
    let length = bytes.len() as u64;
    let source = &mut TrickleReader(&bytes);
    let record = store.put_from(name(1, 0), length, source).expect("durable");
    assert_eq!(record, PieceRecord::of(&bytes));
    check(&store, name(1, 0), &bytes);
}

/// Case of the suite.
pub fn a_piece_whose_source_ends_early_is_refused(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, CHUNK_BYTES + 10);
    let refused = store.put_from(name(1, 0), bytes.len() as u64 + 1, &mut TrickleReader(&bytes));
    match refused {
        Err(CheckpointStoreError::Source { name: found, source }) => {
            assert_eq!((found, source.kind()), (name(1, 0), io::ErrorKind::UnexpectedEof));
        }
        other => panic!("a byte is missing, got {other:?}"),
    }
    assert_eq!(store.names().expect("readable"), []);
    let too_long = store.put_from(name(1, 0), PIECE_BYTES_MAX + 1, &mut io::empty());
    let fault = PieceRecordFault::TooLong { found: PIECE_BYTES_MAX + 1 };
    assert!(
        matches!(too_long, Err(CheckpointStoreError::BadRecord { fault: found, .. }) if found == fault)
    );
    store.put(name(1, 0), &bytes).expect("nothing stands in the way");
    check(&store, name(1, 0), &bytes);
}

/// Case of the suite.
pub fn a_record_tells_length_and_chunks(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(3, CHUNK_BYTES + 5);
    let record = store.put(name(1, 0), &bytes).expect("durable");
    assert_eq!(record.length, bytes.len() as u64);
    let (first, last) = bytes.split_at(CHUNK_BYTES);
    assert_eq!(record.chunks, [ChunkHash::of(first), ChunkHash::of(last)]);
    assert_eq!((record.chunk_bytes(0), record.chunk_bytes(1)), (CHUNK_BYTES as u64, 5));
}

/// Case of the suite.
pub fn a_piece_that_is_not_there_is_named(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    assert_eq!(store.record(name(1, 0)).expect("readable"), None);
    match store.get(name(1, 0)) {
        Err(CheckpointStoreError::NoPiece { name: found }) => assert_eq!(found, name(1, 0)),
        other => panic!("no such piece, got {other:?}"),
    }
}

/// Case of the suite.
pub fn the_same_piece_twice_is_one(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, CHUNK_BYTES + 1);
    let first = store.put(name(1, 0), &bytes).expect("durable");
    let second = store.put(name(1, 0), &bytes).expect("durable");
    assert_eq!(first, second);
    assert_eq!(store.names().expect("readable"), [name(1, 0)]);
    check(&store, name(1, 0), &bytes);
}

/// Case of the suite.
pub fn another_content_replaces_the_record(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put(name(1, 0), &noise(1, 100)).expect("durable");
    store.put(name(1, 0), &noise(2, 90)).expect("durable");
    check(&fixture.open(Some(store)), name(1, 0), &noise(2, 90));
}

/// Case of the suite.
pub fn equal_chunks_are_kept_once(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put(name(1, 0), &noise(1, 100)).expect("durable");
    store.put(name(1, 1), &noise(1, 100)).expect("durable");
    assert_eq!(store.inventory().expect("readable").chunks.len(), 1);
}

/// Case of the suite.
pub fn a_piece_of_one_chunk_repeated_comes_back(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = vec![0; 3 * CHUNK_BYTES];
    let record = store.put(name(0, 0), &bytes).expect("durable");
    assert_eq!(record.chunks.len(), 3);
    assert_eq!(store.inventory().expect("readable").chunks.len(), 1);
    check(&fixture.open(Some(store)), name(0, 0), &bytes);
}

/// Case of the suite.
pub fn names_are_in_order(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let mut expected = vec![name(300, 0), name(2, 1), name(2, 0), name(300, 7)];
    for &name in &expected {
        store.put(name, &noise(1, 10)).expect("durable");
    }
    expected.sort();
    assert_eq!(store.names().expect("readable"), expected);
}

/// Case of the suite.
pub fn digests_tell_pieces_apart(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let other = PieceName { digest: Digest([9; 32]), ..name(1, 0) };
    store.put(name(1, 0), &noise(1, 10)).expect("durable");
    store.put(other, &noise(2, 10)).expect("durable");
    check(&store, name(1, 0), &noise(1, 10));
    check(&store, other, &noise(2, 10));
}

/// Case of the suite.
pub fn several_threads_write_at_once(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let store = &store;
            scope.spawn(move || {
                for version in 0..3 {
                    let bytes = noise(version * 10 + u64::from(thread), 2000);
                    store.put(name(version, thread), &bytes).expect("durable");
                }
            });
        }
    });
    let store = fixture.open(Some(store));
    assert_eq!(store.names().expect("readable").len(), 12);
    for (version, thread) in (0..3).flat_map(|version| (0..4).map(move |thread| (version, thread)))
    {
        let bytes = noise(version * 10 + u64::from(thread), 2000);
        check(&store, name(version, thread), &bytes);
    }
}

/// Case of the suite.
pub fn threads_that_write_the_same_agree(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, CHUNK_BYTES + 9);
    thread::scope(|scope| {
        for layer in 0..4 {
            let store = &store;
            let bytes = &bytes;
            scope.spawn(move || store.put(name(1, layer), bytes).expect("durable"));
        }
    });
    (0..4).for_each(|layer| check(&store, name(1, layer), &bytes));
    assert_eq!(store.inventory().expect("readable").chunks.len(), 2);
}

/// Case of the suite.
pub fn a_manifest_comes_back(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put_manifest(&manifest(5, 3)).expect("durable");
    let store = fixture.open(Some(store));
    assert_eq!(store.manifest(at(5)).expect("readable"), Some(manifest(5, 3)));
    assert_eq!(store.manifest(at(6)).expect("readable"), None);
}

/// Case of the suite.
pub fn manifests_are_in_order(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    for version in [256, 3, 255] {
        store.put_manifest(&manifest(version, 1)).expect("durable");
    }
    let expected = [manifest(3, 1), manifest(255, 1), manifest(256, 1)];
    assert_eq!(store.manifests().expect("readable"), expected);
}

/// Case of the suite.
pub fn a_manifest_of_the_same_version_replaces(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put_manifest(&manifest(5, 3)).expect("durable");
    store.put_manifest(&manifest(5, 2)).expect("durable");
    assert_eq!(store.manifests().expect("readable"), [manifest(5, 2)]);
}

/// Case of the suite.
pub fn a_bad_manifest_is_refused(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let check = |change: fn(&mut Manifest), expected: ManifestFault| {
        let mut manifest = manifest(5, 3);
        change(&mut manifest);
        match store.put_manifest(&manifest) {
            Err(CheckpointStoreError::BadManifest(found)) => assert_eq!(found, expected),
            other => panic!("{expected}, got {other:?}"),
        }
    };
    check(|manifest| manifest.layers.clear(), ManifestFault::Empty);
    let expected = LayerId(1);
    let found = LayerId(0);
    check(
        |manifest| manifest.layers[1] = name(5, 0),
        ManifestFault::WrongLayer { expected, found },
    );
    let expected = LayerId(1);
    let found = LayerId(2);
    check(
        |manifest| manifest.layers.retain(|name| name.layer != LayerId(1)),
        ManifestFault::WrongLayer { expected, found },
    );
    let layer = LayerId(2);
    let expected = at(5);
    let found = at(6);
    let wrong = ManifestFault::WrongVersion { layer, expected, found };
    check(|manifest| manifest.layers[2] = name(6, 2), wrong);
    let long = ManifestFault::LongDocument { found: DOCUMENT_BYTES_MAX + 1 };
    check(|manifest| manifest.document = vec![0; DOCUMENT_BYTES_MAX + 1], long);
    check(|manifest| manifest.program = "1".repeat(257), ManifestFault::LongProgram { found: 257 });
    let many = ManifestFault::TooManyLayers { found: LAYERS_MAX + 1 };
    check(|manifest| manifest.layers = vec![name(5, 0); LAYERS_MAX + 1], many);
    assert_eq!(store.manifests().expect("readable"), []);
}

/// Case of the suite.
pub fn a_large_manifest_comes_back(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let mut large = manifest(9, 2000);
    large.document = noise(1, DOCUMENT_BYTES_MAX);
    store.put_manifest(&large).expect("durable");
    let found = fixture.open(Some(store)).manifest(at(9)).expect("readable");
    assert!(found == Some(large), "it comes back as it was written");
}

/// Case of the suite.
pub fn a_manifest_may_name_pieces_elsewhere(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put(name(5, 1), &noise(1, 10)).expect("durable");
    store.put_manifest(&manifest(5, 3)).expect("durable");
    assert_eq!(store.names().expect("readable"), [name(5, 1)]);
}
