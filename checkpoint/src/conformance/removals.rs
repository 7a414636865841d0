//! The data that are removed, the data that stay, and the findings of verification.

use std::collections::BTreeSet;

use super::{StoreFixture, at, manifest, name, noise};
use crate::error::CheckpointStoreError;
use crate::names::{CheckpointId, ChunkHash, PieceName, PieceRecord};
use crate::retention::{Removal, RemovalReason, RemovalTarget, RetentionRoots, plan_removals};
use crate::store::CheckpointStore;
use crate::verify::PieceHealth;

fn removal(target: RemovalTarget) -> Removal {
    Removal { target, reason: RemovalReason::NoPiece }
}

fn chunk_of(bytes: &[u8]) -> Removal {
    removal(RemovalTarget::Chunk(ChunkHash::of(bytes)))
}

fn is_gone(store: &impl CheckpointStore, name: PieceName) -> bool {
    matches!(store.get(name), Err(CheckpointStoreError::NoPiece { .. }))
}

/// Versions with a manifest and two layers each.
fn fill(store: &impl CheckpointStore, versions: std::ops::RangeInclusive<u64>) {
    for version in versions {
        for layer in 0..2 {
            let bytes = noise(version * 2 + u64::from(layer), 50);
            store.put(name(version, layer), &bytes).expect("durable");
        }
        store.put_manifest(&manifest(version, 2)).expect("durable");
    }
}

/// Case of the suite.
pub fn what_is_removed_is_gone(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    fill(&store, 1..=2);
    let chunk = chunk_of(&noise(2, 50));
    let removals =
        [removal(RemovalTarget::Manifest(at(1))), removal(RemovalTarget::Piece(name(1, 0))), chunk];
    assert_eq!(store.remove(&removals).expect("durable"), removals);
    let store = fixture.open(Some(store));
    assert_eq!(store.manifests().expect("readable"), [manifest(2, 2)]);
    assert!(is_gone(&store, name(1, 0)) && !is_gone(&store, name(1, 1)));
    assert!(matches!(
        store.chunk(ChunkHash::of(&noise(2, 50))),
        Err(CheckpointStoreError::NoChunk { .. })
    ));
}

/// Case of the suite.
pub fn removing_twice_says_so(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    fill(&store, 1..=2);
    let removals =
        [removal(RemovalTarget::Manifest(at(1))), removal(RemovalTarget::Piece(name(1, 0)))];
    assert_eq!(store.remove(&removals).expect("durable").len(), 2);
    assert_eq!(store.remove(&removals).expect("nothing to do"), []);
    assert_eq!(store.remove(&[]).expect("nothing to do"), []);
}

/// Case of the suite.
pub fn a_chunk_in_use_is_not_removed(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put(name(1, 0), &noise(1, 50)).expect("durable");
    assert_eq!(store.remove(&[chunk_of(&noise(1, 50))]).expect("nothing to do"), []);
    assert_eq!(store.get(name(1, 0)).expect("readable"), noise(1, 50));
}

/// Case of the suite.
pub fn a_shared_chunk_outlives_one_of_its_pieces(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put(name(1, 0), &noise(1, 50)).expect("durable");
    store.put(name(2, 0), &noise(1, 50)).expect("durable");
    let piece = removal(RemovalTarget::Piece(name(1, 0)));
    let removed = store.remove(&[chunk_of(&noise(1, 50)), piece]).expect("durable");
    assert_eq!(removed, [piece]);
    assert_eq!(store.get(name(2, 0)).expect("readable"), noise(1, 50));
}

/// Case of the suite.
pub fn a_chunk_under_way_is_not_removed(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, 50);
    let record = PieceRecord::of(&bytes);
    store.put_chunk(record.chunks[0], &bytes).expect("durable");
    let inventory = store.inventory().expect("readable");
    assert_eq!(inventory.under_way, BTreeSet::from([record.chunks[0]]));
    assert_eq!(plan_removals(&inventory, &RetentionRoots::default()), []);
    assert_eq!(store.remove(&[chunk_of(&bytes)]).expect("nothing to do"), []);
    store.put_record(name(1, 0), &record).expect("durable");
}

/// Case of the suite.
pub fn a_chunk_given_up_may_go(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, 50);
    let record = PieceRecord::of(&bytes);
    store.put_chunk(record.chunks[0], &bytes).expect("durable");
    store.abandon(&record);
    let decided = plan_removals(&store.inventory().expect("readable"), &RetentionRoots::default());
    assert_eq!(decided, [chunk_of(&bytes)]);
    assert_eq!(store.remove(&decided).expect("durable"), decided);
    assert!(matches!(
        store.put_record(name(1, 0), &record),
        Err(CheckpointStoreError::NoChunk { .. })
    ));
}

/// Case of the suite.
pub fn a_removed_piece_can_be_written_again(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    let bytes = noise(1, 50);
    store.put(name(1, 0), &bytes).expect("durable");
    let removals = [removal(RemovalTarget::Piece(name(1, 0))), chunk_of(&bytes)];
    assert_eq!(store.remove(&removals).expect("durable").len(), 2);
    store.put(name(1, 0), &bytes).expect("durable");
    assert_eq!(fixture.open(Some(store)).get(name(1, 0)).expect("readable"), bytes);
}

/// Case of the suite.
pub fn an_inventory_lists_all(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    fill(&store, 3..=4);
    let inventory = store.inventory().expect("readable");
    assert_eq!(inventory.manifests.into_keys().collect::<Vec<_>>(), [at(3), at(4)]);
    assert_eq!(inventory.pieces.into_keys().collect::<Vec<_>>(), store.names().expect("readable"));
    assert_eq!(inventory.chunks, (6..10).map(|seed| ChunkHash::of(&noise(seed, 50))).collect());
    assert!(inventory.under_way.is_empty());
}

/// Case of the suite.
pub fn retention_leaves_the_newest_restorable(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    fill(&store, 1..=5);
    let needed = RetentionRoots {
        versions: BTreeSet::from([at(2)]),
        keep_last: 2,
        ..RetentionRoots::default()
    };
    let decided = plan_removals(&store.inventory().expect("readable"), &needed);
    assert_eq!(store.remove(&decided).expect("durable"), decided);
    let store = fixture.open(Some(store));
    let found = store.verify().expect("readable");
    let versions: Vec<CheckpointId> = found.manifests.iter().map(|health| health.version).collect();
    assert_eq!(versions, [at(2), at(4), at(5)]);
    assert!(found.manifests.iter().all(crate::ManifestHealth::is_whole));
    assert_eq!((found.pieces.len(), found.unnamed.len()), (6, 0));
    let inventory = store.inventory().expect("readable");
    assert_eq!(plan_removals(&inventory, &needed), [], "nothing is left to decide");
}

/// Case of the suite.
pub fn a_walk_finds_everything_whole(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    fill(&store, 1..=2);
    let found = store.verify().expect("readable");
    assert!(found.is_whole() && found.manifests.iter().all(crate::ManifestHealth::is_whole));
    assert_eq!((found.manifests.len(), found.pieces.len()), (2, 4));
    assert_eq!((found.unnamed, found.stray_entries, found.bytes_read), (vec![], vec![], 200));
}

/// Case of the suite.
pub fn a_walk_names_what_is_absent(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put(name(1, 1), &noise(1, 50)).expect("durable");
    store.put_manifest(&manifest(1, 2)).expect("durable");
    let found = store.verify().expect("readable");
    assert!(found.is_whole() && !found.manifests[0].is_whole());
    let expected = [(name(1, 0), PieceHealth::Absent), (name(1, 1), PieceHealth::Whole)];
    assert_eq!(found.manifests[0].pieces, expected);
}

/// Case of the suite.
pub fn a_walk_lists_chunks_without_a_name(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    store.put(name(1, 0), &noise(1, 50)).expect("durable");
    store.remove(&[removal(RemovalTarget::Piece(name(1, 0)))]).expect("durable");
    let found = store.verify().expect("readable");
    assert_eq!(found.unnamed, [ChunkHash::of(&noise(1, 50))]);
}

/// Case of the suite.
pub fn removals_go_names_first(fixture: &mut impl StoreFixture) {
    let store = fixture.open(None);
    fill(&store, 1..=2);
    let piece = removal(RemovalTarget::Piece(name(1, 0)));
    let chunk = chunk_of(&noise(2, 50));
    let removed = store.remove(&[chunk, piece, chunk]).expect("durable");
    assert_eq!(removed, [piece, chunk], "the order given does not matter");
}
