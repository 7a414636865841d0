//! Removals are decided so that nothing that is needed is removed, whatever there is.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use zbelastic_checkpoint::{
    CheckpointId, ChunkHash, Manifest, PieceName, PieceRecord, Removal, RemovalReason,
    RemovalTarget, RetentionRoots, StoreInventory, plan_removals,
};
use zbelastic_types::{Digest, LayerId, RunId, Step};

const VERSIONS: u64 = 8;
const LAYERS: u32 = 2;
const CHUNKS: u8 = 12;

/// Versions of two runs, in their order.
fn at(version: u64) -> CheckpointId {
    CheckpointId { run: RunId(1 + version / 4), version: Step(version) }
}

fn name(version: u64, layer: u32) -> PieceName {
    PieceName { version: at(version), layer: LayerId(layer), digest: Digest::default() }
}

fn manifest(version: u64) -> Manifest {
    let layers = (0..LAYERS).map(|layer| name(version, layer)).collect();
    let document = Vec::new();
    let program = String::new();
    let data = Digest::default();
    Manifest { version: at(version), layers, document, data, program, seed: 0 }
}

fn chunk(number: u8) -> ChunkHash {
    ChunkHash([number; 32])
}

fn inventories() -> impl Strategy<Value = StoreInventory> {
    let pieces = vec(((0..VERSIONS, 0..LAYERS), vec(0..CHUNKS, 0..3)), 0..16);
    let chunks = btree_set(0..CHUNKS, 0..12);
    (btree_set(0..VERSIONS, 0..6), pieces, chunks, btree_set(0..CHUNKS, 0..2)).prop_map(
        |(manifests, pieces, chunks, under_way)| {
            let record = |chunks: Vec<u8>| PieceRecord {
                length: 0,
                chunks: chunks.into_iter().map(chunk).collect(),
            };
            let pieces: BTreeMap<PieceName, PieceRecord> = { pieces.into_iter() }
                .map(|((version, layer), chunks)| (name(version, layer), record(chunks)))
                .collect();
            let manifests = manifests.into_iter().map(|v| (at(v), manifest(v))).collect();
            let chunks = chunks.into_iter().map(chunk).collect();
            let under_way = under_way.into_iter().map(chunk).collect();
            StoreInventory { manifests, pieces, chunks, under_way }
        },
    )
}

fn needs() -> impl Strategy<Value = RetentionRoots> {
    (btree_set(0..VERSIONS, 0..3), btree_set(0..VERSIONS, 0..3), 0..4_usize).prop_map(
        |(versions, pending, keep_last)| {
            let steps = |set: BTreeSet<u64>| set.into_iter().map(at).collect();
            RetentionRoots { versions: steps(versions), pending: steps(pending), keep_last }
        },
    )
}

fn apply(mut inventory: StoreInventory, removals: &[Removal]) -> StoreInventory {
    for removal in removals {
        let was_there = match removal.target {
            RemovalTarget::Manifest(version) => inventory.manifests.remove(&version).is_some(),
            RemovalTarget::Piece(name) => inventory.pieces.remove(&name).is_some(),
            RemovalTarget::Chunk(hash) => inventory.chunks.remove(&hash),
        };
        assert!(was_there, "{removal:?} was there");
    }
    inventory
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_needed_stays_at_every_point(inventory in inventories(), needed in needs()) {
        let removals = plan_removals(&inventory, &needed);
        let run = needed.versions.last().map(|version| version.run);
        let newest: Vec<CheckpointId> = { inventory.manifests.keys().rev() }
            .filter(|version| run.is_none_or(|run| version.run >= run))
            .take(needed.keep_last.max(1)).copied().collect();
        let newest_known = inventory.manifests.keys().last().max(needed.versions.last()).copied();
        // A crash can come after any of them.
        for count in 0..=removals.len() {
            let left = apply(inventory.clone(), &removals[..count]);
            for version in newest.iter().chain(&needed.versions).chain(&needed.pending) {
                let stays = left.manifests.contains_key(version);
                prop_assert_eq!(stays, inventory.manifests.contains_key(version));
            }
            for (name, record) in &inventory.pieces {
                let is_needed = newest.contains(&name.version)
                    || needed.versions.contains(&name.version)
                    || needed.pending.contains(&name.version)
                    || newest_known.is_none_or(|newest| name.version > newest);
                prop_assert!(!is_needed || left.pieces.contains_key(name), "{} is needed", name);
                // What has a name keeps its bytes.
                if left.pieces.contains_key(name) {
                    for hash in &record.chunks {
                        prop_assert_eq!(left.chunks.contains(hash), inventory.chunks.contains(hash));
                    }
                }
            }
            for hash in &inventory.under_way {
                prop_assert_eq!(left.chunks.contains(hash), inventory.chunks.contains(hash));
            }
        }
    }

    #[test]
    fn a_second_decision_finds_nothing_more(inventory in inventories(), needed in needs()) {
        let removals = plan_removals(&inventory, &needed);
        let left = apply(inventory, &removals);
        prop_assert_eq!(plan_removals(&left, &needed), []);
        // What is left has a reason to be.
        for hash in &left.chunks {
            let is_named = left.pieces.values().any(|record| record.chunks.contains(hash));
            prop_assert!(is_named || left.under_way.contains(hash));
        }
    }
}

#[test]
fn removals_tell_why() {
    let record = |number| PieceRecord { length: 1, chunks: vec![chunk(number)] };
    let inventory = StoreInventory {
        manifests: [1, 2, 3].map(|version| (at(version), manifest(version))).into(),
        pieces: [(name(1, 0), record(1)), (name(2, 0), record(2)), (name(3, 0), record(3))].into(),
        chunks: (1..=4).map(chunk).collect(),
        under_way: BTreeSet::new(),
    };
    let needed = RetentionRoots { keep_last: 2, ..RetentionRoots::default() };
    let version = at(1);
    let layer = LayerId(0);
    let expected = [
        (RemovalTarget::Manifest(version), RemovalReason::Superseded { oldest_kept: at(2) }),
        (RemovalTarget::Piece(name(1, 0)), RemovalReason::NoManifest { layer, version }),
        (RemovalTarget::Chunk(chunk(1)), RemovalReason::NoPiece),
        (RemovalTarget::Chunk(chunk(4)), RemovalReason::NoPiece),
    ];
    let expected = expected.map(|(target, reason)| Removal { target, reason });
    assert_eq!(plan_removals(&inventory, &needed), expected);
    let all = RetentionRoots { keep_last: 3, ..RetentionRoots::default() };
    assert_eq!(plan_removals(&inventory, &all), expected[3..]);
}

#[test]
fn a_store_without_manifests_keeps_what_is_needed_and_what_is_newer() {
    let record = |number| PieceRecord { length: 1, chunks: vec![chunk(number)] };
    let inventory = StoreInventory {
        pieces: (1..=5_u8).map(|n| (name(u64::from(n), 0), record(n))).collect(),
        chunks: (1..=5).map(chunk).collect(),
        ..StoreInventory::default()
    };
    let needed = RetentionRoots { versions: [at(2), at(4)].into(), ..RetentionRoots::default() };
    let left = apply(inventory.clone(), &plan_removals(&inventory, &needed));
    let versions: Vec<u64> = left.pieces.keys().map(|name| name.version.version.0).collect();
    assert_eq!(versions, [2, 4, 5], "5 may belong to a checkpoint that is being written");
    assert_eq!(left.chunks, [2, 4, 5].map(chunk).into());
    // No version is needed and there are no manifests: nothing goes.
    assert_eq!(plan_removals(&inventory, &RetentionRoots::default()), []);
}

#[test]
fn what_is_needed_of_runs_that_ended_stays_and_no_more_of_them() {
    let of = |run, version| CheckpointId { run: RunId(run), version: Step(version) };
    let piece = |run, version| PieceName { version: of(run, version), ..name(0, 0) };
    let record = |number| PieceRecord { length: 1, chunks: vec![chunk(number)] };
    let pieces = [(1, 500), (1, 600), (2, 40), (2, 50), (3, 7)].map(|(run, at)| piece(run, at));
    let inventory = StoreInventory {
        pieces: pieces.into_iter().zip((1..).map(record)).collect(),
        ..StoreInventory::default()
    };
    let left = |versions: &[CheckpointId]| -> Vec<(u64, u64)> {
        let needed = RetentionRoots {
            versions: versions.iter().copied().collect(),
            ..RetentionRoots::default()
        };
        let left = apply(inventory.clone(), &plan_removals(&inventory, &needed));
        left.pieces.keys().map(|name| (name.version.run.0, name.version.version.0)).collect()
    };
    assert_eq!(left(&[of(1, 600), of(2, 40)]), [(1, 600), (2, 40), (2, 50), (3, 7)]);
    assert_eq!(left(&[of(1, 600), of(3, 0)]), [(1, 600), (3, 7)], "run 2 was removed");
    assert_eq!(left(&[of(4, 0)]), [], "all were, and the next has not begun");
    let manifests = [(of(1, 600), manifest(600))].into();
    let named = StoreInventory { manifests, ..StoreInventory::default() };
    let needed =
        RetentionRoots { versions: [of(2, 0)].into(), keep_last: 1, ..RetentionRoots::default() };
    let removals = plan_removals(&named, &needed);
    assert_eq!(removals[0].reason, RemovalReason::NoRun { run: RunId(1) });
}
