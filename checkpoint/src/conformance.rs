//! The duties of every log and every store, as tests that an implementation instantiates in one
//! line.
//!
//! ```text
//! zbelastic_checkpoint::log_conformance!(memory, MemoryLogFixture::default);
//! zbelastic_checkpoint::store_conformance!(memory, MemoryStoreFixture::default);
//! ```
//!
//! A fixture opens a log or a store. The cases open it, close it and open it again; a log or store
//! that lies in memory alone is returned as it is. A failing medium and a loss of power are not
//! tested here: they depend on the medium.

mod log;
mod pieces;
mod removals;
mod transfers;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use zbelastic_types::{Digest, LayerId, RunId, Step};

use crate::log::RecordLog;
use crate::manifest::Manifest;
use crate::names::{CheckpointId, PieceName};
use crate::store::CheckpointStore;

pub use log::*;
pub use pieces::*;
pub use removals::*;
pub use transfers::*;

/// Opens a log for the cases of the suite.
pub trait LogFixture {
    /// Type of the log under test.
    type Log: RecordLog;

    /// Opens it, again if it was open before.
    fn open(&mut self, before: Option<Self::Log>) -> Self::Log;
}

/// Opens a store for the cases of the suite.
pub trait StoreFixture {
    /// Type of the store under test.
    type Store: CheckpointStore;

    /// Opens it, again if it was open before.
    fn open(&mut self, before: Option<Self::Store>) -> Self::Store;
}

/// A version of the first run.
fn at(version: u64) -> CheckpointId {
    CheckpointId { run: RunId(1), version: Step(version) }
}

/// The name of a piece, its digest made up from both.
fn name(version: u64, layer: u32) -> PieceName {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&version.to_le_bytes());
    digest[8..12].copy_from_slice(&layer.to_le_bytes());
    PieceName { version: at(version), layer: LayerId(layer), digest: Digest(digest) }
}

/// A manifest of so many layers.
fn manifest(version: u64, layers: u32) -> Manifest {
    Manifest {
        version: at(version),
        layers: (0..layers).map(|layer| name(version, layer)).collect(),
        document: format!("version = {version}").into_bytes(),
        data: Digest([7; 32]),
        program: "0.1.0".to_owned(),
        seed: 1,
    }
}

/// Bytes that differ from seed to seed and from one chunk to the next.
#[must_use]
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SplitMix64::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Instantiates the suite of logs: a module of tests over the fixture that `$make` yields.
#[macro_export]
macro_rules! log_conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            use super::*;

            $crate::log_conformance!(@tests $make;
                a_new_log_is_empty, records_come_back_in_order, numbers_go_on_after_opening_again,
                an_empty_batch_changes_nothing, an_empty_record_is_one, records_of_any_length_come_back,
                a_record_that_is_too_long_is_refused_with_its_batch, trimming_keeps_numbers,
                trimming_everything_keeps_the_next_number, trimming_twice_is_trimming_once,
                trimming_beyond_the_end_is_refused, trimming_what_is_gone_is_refused,
                cutting_the_last_record_frees_its_number, cutting_everything_keeps_the_first_number,
                cutting_what_is_not_there_is_refused, a_cut_is_there_after_opening_again,
                a_trimmed_log_goes_on_after_opening_again, many_batches_come_back,
                a_large_record_that_is_cut_leaves_nothing, reading_changes_nothing
            );
        }
    };
    (@tests $make:expr; $($test:ident),*) => {
        $(
            #[test]
            fn $test() {
                $crate::conformance::$test(&mut ($make)());
            }
        )*
    };
}

/// Instantiates the suite of stores: a module of tests over the fixture that `$make` yields.
#[macro_export]
macro_rules! store_conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            use super::*;

            $crate::store_conformance!(@tests $make;
                a_new_store_is_empty, a_piece_comes_back, pieces_come_back_after_opening_again,
                pieces_of_every_length_come_back,
                a_piece_that_is_read_as_it_is_written_comes_back,
                a_piece_whose_source_ends_early_is_refused, a_record_tells_length_and_chunks,
                a_piece_that_is_not_there_is_named, the_same_piece_twice_is_one,
                another_content_replaces_the_record, equal_chunks_are_kept_once,
                a_piece_of_one_chunk_repeated_comes_back, names_are_in_order,
                digests_tell_pieces_apart, several_threads_write_at_once,
                threads_that_write_the_same_agree, a_chunk_comes_back,
                a_chunk_that_is_not_there_is_named, a_transfer_makes_a_piece,
                a_chunk_is_told_its_name,
                a_chunk_under_a_wrong_name_is_refused, a_chunk_of_a_wrong_length_is_refused,
                a_record_without_its_chunks_is_refused, a_record_with_chunks_of_a_wrong_length_is_refused,
                a_record_that_contradicts_itself_is_refused, missing_chunks_are_listed_once,
                a_transfer_goes_on_after_opening_again, a_manifest_comes_back,
                manifests_are_in_order, a_manifest_of_the_same_version_replaces,
                a_bad_manifest_is_refused, a_large_manifest_comes_back,
                a_manifest_may_name_pieces_elsewhere, what_is_removed_is_gone,
                removing_twice_says_so, a_chunk_in_use_is_not_removed,
                a_shared_chunk_outlives_one_of_its_pieces, a_chunk_under_way_is_not_removed,
                a_chunk_given_up_may_go, a_removed_piece_can_be_written_again,
                an_inventory_lists_all, retention_leaves_the_newest_restorable,
                a_walk_finds_everything_whole, a_walk_names_what_is_absent,
                a_walk_lists_chunks_without_a_name, removals_go_names_first
            );
        }
    };
    (@tests $make:expr; $($test:ident),*) => {
        $(
            #[test]
            fn $test() {
                $crate::conformance::$test(&mut ($make)());
            }
        )*
    };
}
