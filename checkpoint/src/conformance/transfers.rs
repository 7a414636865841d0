//! Chunks that come from elsewhere.

use super::{StoreFixture, name, noise};
use crate::error::CheckpointStoreError;
use crate::names::{CHUNK_BYTES, ChunkDamage, ChunkHash, PieceRecord, PieceRecordFault};
use crate::store::CheckpointStore;

/// Case of the suite.
pub fn a_chunk_comes_back(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let record = store.put(name(1, 0), &noise(1, CHUNK_BYTES + 3)).expect("durable");
    let chunks: Vec<u8> =
        record.chunks.iter().flat_map(|hash| store.chunk(*hash).expect("readable")).collect();
    assert!(chunks == noise(1, CHUNK_BYTES + 3), "the chunks make up the piece");
}

/// Case of the suite.
pub fn a_chunk_that_is_not_there_is_named(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let absent = ChunkHash::of(b"absent");
    match store.chunk(absent) {
        Err(CheckpointStoreError::NoChunk { hash }) => assert_eq!(hash, absent),
        other => panic!("no such chunk, got {other:?}"),
    }
}

/// Case of the suite.
pub fn a_transfer_makes_a_piece(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, CHUNK_BYTES + 3);
    let record = PieceRecord::of(&bytes);
    for (hash, chunk) in record.chunks.iter().zip(bytes.chunks(CHUNK_BYTES)).rev() {
        store.put_chunk(*hash, chunk).expect("durable");
    }
    assert_eq!(store.names().expect("readable"), []);
    store.put_record(name(1, 0), &record).expect("durable");
    let store = fixture.open(Some(store));
    assert!(store.get(name(1, 0)).expect("readable") == bytes, "it is the piece");
    assert!(store.inventory().expect("readable").under_way.is_empty());
}

/// Case of the suite.
pub fn a_chunk_is_told_its_name(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, CHUNK_BYTES + 3);
    let mut transfer = Default::default();
    let put = |chunk| store.put_new_chunk(chunk, &mut transfer).expect("written");
    let chunks: Vec<_> = bytes.chunks(CHUNK_BYTES).map(put).collect();
    let record = PieceRecord::of(&bytes);
    assert_eq!(chunks, record.chunks);
    assert_eq!(store.inventory().expect("readable").under_way, chunks.into_iter().collect());
    store.name_chunks(transfer).expect("synced");
    store.put_record(name(1, 0), &record).expect("durable");
    assert!(store.get(name(1, 0)).expect("readable") == bytes, "it is the piece");
    for length in [0, CHUNK_BYTES + 1] {
        let refused = store.put_new_chunk(&noise(2, length), &mut Default::default());
        assert!(
            matches!(refused, Err(CheckpointStoreError::ChunkLength { found }) if found == length)
        );
    }
}

/// Case of the suite.
pub fn a_chunk_under_a_wrong_name_is_refused(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let announced = ChunkHash::of(b"one");
    match store.put_chunk(announced, b"two") {
        Err(CheckpointStoreError::WrongChunk { expected, found }) => {
            assert_eq!((expected, found), (announced, ChunkHash::of(b"two")));
        }
        other => panic!("other bytes, got {other:?}"),
    }
    assert!(store.inventory().expect("readable").chunks.is_empty());
}

/// Case of the suite.
pub fn a_chunk_of_a_wrong_length_is_refused(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    for length in [0, CHUNK_BYTES + 1] {
        let bytes = noise(1, length);
        match store.put_chunk(ChunkHash::of(&bytes), &bytes) {
            Err(CheckpointStoreError::ChunkLength { found }) => assert_eq!(found, length),
            other => panic!("{length} bytes are none, got {other:?}"),
        }
    }
    for length in [1, CHUNK_BYTES] {
        let bytes = noise(1, length);
        store.put_chunk(ChunkHash::of(&bytes), &bytes).expect("durable");
    }
}

/// Case of the suite.
pub fn a_record_without_its_chunks_is_refused(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, CHUNK_BYTES + 3);
    let record = PieceRecord::of(&bytes);
    store.put_chunk(record.chunks[0], &bytes[..CHUNK_BYTES]).expect("durable");
    match store.put_record(name(1, 0), &record) {
        Err(CheckpointStoreError::NoChunk { hash }) => assert_eq!(hash, record.chunks[1]),
        other => panic!("a chunk is missing, got {other:?}"),
    }
    assert_eq!(store.names().expect("readable"), []);
}

/// Case of the suite.
pub fn a_record_with_chunks_of_a_wrong_length_is_refused(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let expected = ChunkHash::of(b"four");
    store.put_chunk(expected, b"four").expect("durable");
    let record = PieceRecord { length: 5, chunks: vec![expected] };
    match store.put_record(name(1, 0), &record) {
        Err(CheckpointStoreError::Damaged { damage, .. }) => {
            let expected_bytes = 5;
            let found_bytes = 4;
            let length = ChunkDamage::Length { index: 0, expected, expected_bytes, found_bytes };
            assert_eq!(damage, [length]);
        }
        other => panic!("another length, got {other:?}"),
    }
}

/// Case of the suite.
pub fn a_record_that_contradicts_itself_is_refused(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let check = |record: PieceRecord, expected: PieceRecordFault| match store
        .put_record(name(1, 0), &record)
    {
        Err(CheckpointStoreError::BadRecord { fault, .. }) => assert_eq!(fault, expected),
        other => panic!("{expected}, got {other:?}"),
    };
    let chunks = vec![ChunkHash::of(b"one")];
    let expected = 0;
    let found = 1;
    check(PieceRecord { length: 0, chunks }, PieceRecordFault::ChunkCount { expected, found });
    let expected = 2;
    let found = 0;
    let length = CHUNK_BYTES as u64 + 1;
    check(
        PieceRecord { length, chunks: Vec::new() },
        PieceRecordFault::ChunkCount { expected, found },
    );
    let length = u64::MAX;
    check(PieceRecord { length, chunks: Vec::new() }, PieceRecordFault::TooLong { found: length });
}

/// Case of the suite.
pub fn missing_chunks_are_listed_once(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let mut bytes = vec![0; 2 * CHUNK_BYTES];
    bytes.extend(noise(1, 3));
    let record = PieceRecord::of(&bytes);
    let mut expected = vec![record.chunks[0], record.chunks[2]];
    expected.sort();
    assert_eq!(store.missing(&record).expect("readable"), expected);
    store.put_chunk(record.chunks[0], &bytes[..CHUNK_BYTES]).expect("durable");
    assert_eq!(store.missing(&record).expect("readable"), [record.chunks[2]]);
}

/// Case of the suite.
pub fn a_transfer_goes_on_after_opening_again(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, CHUNK_BYTES + 3);
    let record = PieceRecord::of(&bytes);
    store.put_chunk(record.chunks[0], &bytes[..CHUNK_BYTES]).expect("durable");
    let store = fixture.open(Some(store));
    assert_eq!(store.missing(&record).expect("readable"), [record.chunks[1]]);
    store.put_chunk(record.chunks[1], &bytes[CHUNK_BYTES..]).expect("durable");
    store.put_record(name(1, 0), &record).expect("durable");
    assert!(store.get(name(1, 0)).expect("readable") == bytes, "it is the piece");
}
