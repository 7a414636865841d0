//! Resident memory of a process that trains on a store. Alone in its file, since the system counts a
//! process's.

use std::fs::File;
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;

use zbelastic_data::cursor::CursorConfig;
use zbelastic_data::encode::{BytesEncoder, EncodeDocuments};
use zbelastic_data::mixture::StoreMixture;
use zbelastic_data::source::SourceCounts;
use zbelastic_data::store::{ShardRecord, StoreManifest, TokenStore};
use zbelastic_data::window::Packing;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::model::MicrobatchShape;
use zbelastic_types::{MicrobatchIndex, Step};

/// Ids of the store, which takes 2 GiB; all are 0.
const TOKENS: u64 = 1 << 30;
/// Batches of a thousand short sequences, each on a page of its own: 234 MiB of pages.
const STEPS: u64 = 60;
const SHAPE: MicrobatchShape = MicrobatchShape { sequences: 1000, sequence_len: 16 };
const RESIDENT_BYTES_MAX: u64 = 100 << 20;

/// The most memory that this process has had, by the system.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn pages_of_a_large_store_do_not_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("00000.shard");
    let file = File::create(&path).expect("writable");
    // A hole where the ids are takes no space on the disk.
    let end = (TOKENS as u32).to_le_bytes();
    file.write_all_at(&end, TOKENS * 2).expect("writable");
    let tokenizer = BytesEncoder.tokenizer_hash().0;
    let record =
        ShardRecord { tokens: TOKENS, documents: 1, has_loss_mask: false, hash: tokenizer };
    let manifest = StoreManifest {
        version: 1,
        tokenizer,
        vocabulary: 256,
        end_of_text: None,
        sources: SourceCounts::default(),
        shards: vec![record],
    };
    let store = TokenStore::of_shards(manifest, vec![path]).expect("a store");
    let config = CursorConfig { shape: SHAPE, microbatch_count: 1, held_out_share: 0.0, seed: 5 };
    let shares = [(store.manifest(), NonZeroU32::MIN)];
    let mixture = StoreMixture::new(shares, Packing::Concat, &config).expect("long enough");
    mixture.provide(vec![store]);
    let before = peak_bytes();
    for step in 0..STEPS {
        assert_eq!(mixture.training(Step(step), MicrobatchIndex(0)).inputs, vec![0; 16_000]);
    }
    assert!(mixture.fault().is_none());
    let grown = peak_bytes() - before;
    println!("resident memory has grown by {} KiB", grown >> 10);
    assert!(grown < RESIDENT_BYTES_MAX, "{grown} bytes");
}
