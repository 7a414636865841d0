//! Stores whose chunks arrive one by one, beside the same stores as they are.

mod limit;

use std::fs::File;
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use zbelastic_trainer::model::MicrobatchShape;
use zbelastic_types::MicrobatchIndex;

use super::*;
use crate::cursor::CursorConfig;
use crate::source::SourceCounts;
use crate::store::{ShardRecord, StoreError, StoreManifest, TokenStore, shard_name};
use crate::window::Packing;

const CHUNK_BYTES: u64 = 64;
const CONFIG: CursorConfig = CursorConfig {
    shape: MicrobatchShape { sequences: 2, sequence_len: 8 },
    microbatch_count: 2,
    held_out_share: 0.2,
    seed: 5,
};
const RUN: RunSteps = RunSteps { count: 100, evaluate_every: 4, islands: (1, 0) };

/// Shards of 400 ids in documents of 10, each with a loss mask in which every third id counts.
fn make_store(folder: &Path, shards: u16) -> StoreManifest {
    let shard = |index: u16| {
        let mut bytes: Vec<u8> =
            (0..400).flat_map(|id: u16| (id + 400 * index).to_le_bytes()).collect();
        bytes.extend((1..=40_u32).flat_map(|document| (document * 10).to_le_bytes()));
        bytes.extend((0..50).map(|byte: u8| 0b0100_1001 << (byte % 3)));
        std::fs::write(folder.join(shard_name(index.into())), &bytes).expect("writable");
        ShardRecord { tokens: 400, documents: 40, has_loss_mask: true, hash: blake3::hash(&bytes) }
    };
    StoreManifest {
        version: 1,
        tokenizer: blake3::hash(b""),
        vocabulary: 4000,
        end_of_text: None,
        sources: SourceCounts::default(),
        shards: (0..shards).map(shard).collect(),
    }
}

/// Two stores in their folders, and a mixture of them that has them whole or gets them chunk by
/// chunk.
struct Fixture {
    folders: [tempfile::TempDir; 2],
    manifests: [StoreManifest; 2],
}

impl Fixture {
    fn new() -> Self {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let manifests = [make_store(folders[0].path(), 5), make_store(folders[1].path(), 2)];
        Self { folders, manifests }
    }

    fn mixture(&self, stores: Vec<TokenStore>) -> StoreMixture {
        let weights = [3, 1].map(|weight| NonZeroU32::new(weight).expect("a weight"));
        let shares = self.manifests.iter().zip(weights);
        let mixture = StoreMixture::new(shares, Packing::Concat, &CONFIG).expect("long enough");
        mixture.provide(stores);
        mixture
    }

    fn whole(&self) -> StoreMixture {
        let store = |(folder, manifest): (&tempfile::TempDir, &StoreManifest)| {
            let paths = (0..manifest.shards.len()).map(|at| folder.path().join(shard_name(at)));
            TokenStore::of_shards(manifest.clone(), paths.collect()).expect("sound")
        };
        self.mixture(self.folders.iter().zip(&self.manifests).map(store).collect())
    }

    fn arriving(&self) -> StoreMixture {
        let store = |manifest: &StoreManifest| {
            TokenStore::arriving(manifest.clone(), CHUNK_BYTES).expect("sound")
        };
        self.mixture(self.manifests.iter().map(store).collect())
    }

    /// What a fetch does: the file has its length first, and then one chunk after the other.
    fn fetch(&self, mixture: &StoreMixture, request: &ShardChunks) {
        let ShardChunks { store, shard, chunks } = request;
        let folder = self.folders[*store].path();
        let bytes = std::fs::read(folder.join(shard_name(*shard))).expect("there");
        let path = folder.join(format!("{shard}.part"));
        let store = &mixture.stores()[*store];
        if !store.is_mapped(*shard) {
            let file = File::create_new(&path).expect("writable");
            file.set_len(bytes.len() as u64).expect("writable");
            let file = File::options().read(true).open(&path).expect("there");
            store.map_arriving(*shard, Arc::new(file), path.clone()).expect("as long");
        }
        let file = File::options().write(true).open(&path).expect("there");
        for chunk in chunks {
            let start = (chunk * CHUNK_BYTES) as usize;
            let end = bytes.len().min(start + CHUNK_BYTES as usize);
            file.write_all_at(&bytes[start..end], start as u64).expect("writable");
            store.note_chunk(ShardChunk { shard: *shard, chunk: *chunk });
        }
    }
}

/// The chunks that are fetched next; none if the fetch waits or ends.
fn requests(order: &mut PrefetchOrder, mixture: &StoreMixture, max: usize) -> Vec<ShardChunks> {
    match order.next(mixture, max) {
        PrefetchAction::Fetch { evicted, wanted } => {
            assert_eq!(evicted, [], "without a limit all chunks stay");
            wanted
        }
        PrefetchAction::Wait | PrefetchAction::End => Vec::new(),
    }
}

fn batches(mixture: &StoreMixture, step: u64) -> Vec<zbelastic_trainer::data::TokenBatch> {
    let microbatches = (0..CONFIG.microbatch_count).map(MicrobatchIndex);
    microbatches.map(|microbatch| mixture.training(Step(step), microbatch)).collect()
}

#[test]
fn steps_read_the_same_batches_while_chunks_arrive_as_of_whole_stores() {
    let fixture = Fixture::new();
    let whole = fixture.whole();
    let arriving = fixture.arriving();
    let mut order = PrefetchOrder::new(RUN);
    let mut fetched = 0;
    for step in 0..RUN.count {
        while !arriving.has_step(Step(step)) {
            let requests = requests(&mut order, &arriving, 4);
            assert!(!requests.is_empty(), "step {step} waits for what is not requested");
            fetched += requests.iter().map(|request| request.chunks.len()).sum::<usize>();
            requests.iter().for_each(|request| fixture.fetch(&arriving, request));
        }
        if step == 0 {
            let all: usize = arriving.stores().iter().map(|store| store.chunks().count()).sum();
            assert!(fetched < all / 2, "{fetched} of {all} chunks for one step of {}", RUN.count);
        }
        assert_eq!(batches(&arriving, step), batches(&whole, step));
        assert_eq!(arriving.targets(Step(step), 2), whole.targets(Step(step), 2));
        if RUN.evaluates_at(step + 1) {
            while !arriving.has_held_out() {
                let requests = requests(&mut order, &arriving, 4);
                requests.iter().for_each(|request| fixture.fetch(&arriving, request));
            }
            let held_out = |mixture: &StoreMixture| {
                let count = mixture.held_out_count(HELD_OUT_COUNT_MAX);
                (0..count).map(|index| mixture.held_out(index)).collect::<Vec<_>>()
            };
            assert_eq!(held_out(&arriving), held_out(&whole));
        }
    }
    assert!(arriving.fault().is_none(), "{:?}", arriving.fault());
    assert_eq!(order.next(&arriving, 4), PrefetchAction::End, "an epoch was read");
}

/// A run that ends before it has read all fetches what it reads, and goes on to look: it may go back.
#[test]
fn a_short_run_does_not_fetch_what_it_never_reads() {
    let fixture = Fixture::new();
    let arriving = fixture.arriving();
    let mut order = PrefetchOrder::new(RunSteps { count: 2, evaluate_every: 0, ..RUN });
    arriving.demand(Step(1));
    let mut fetch_all = |arriving: &StoreMixture| {
        while let PrefetchAction::Fetch { wanted, .. } = order.next(arriving, 100) {
            wanted.iter().for_each(|request| fixture.fetch(arriving, request));
        }
        order.next(arriving, 100)
    };
    assert_eq!(fetch_all(&arriving), PrefetchAction::Wait);
    assert!(arriving.has_step(Step(1)) && arriving.has_held_out() && !arriving.has_step(Step(0)));
    assert_eq!(fetch_all(&arriving), PrefetchAction::Wait);
    assert!(arriving.has_step(Step(0)) && !arriving.has_step(Step(2)));
}

/// More held-out microbatches than the stores have.
const HELD_OUT_COUNT_MAX: u32 = 100;

#[test]
fn what_is_read_before_it_is_here_is_a_fault_and_never_zeros() {
    let fixture = Fixture::new();
    let arriving = fixture.arriving();
    assert!(!arriving.has_step(Step(0)) && !arriving.has_held_out());
    for chunk in requests(&mut PrefetchOrder::new(RUN), &arriving, 1) {
        // Its file is mapped, and zeros where nothing was written yet.
        fixture.fetch(&arriving, &ShardChunks { chunks: Vec::new(), ..chunk });
    }
    let _ = batches(&arriving, 0);
    assert!(matches!(arriving.fault(), Some(StoreError::Absent { .. })), "{:?}", arriving.fault());
}

#[test]
fn the_demanded_step_comes_first_after_a_rewind_as_well() {
    let fixture = Fixture::new();
    let arriving = fixture.arriving();
    let chunks_of = |step: u64| {
        let windows = arriving.cursor().step_windows(Step(step));
        let chunks = windows.flat_map(|(source, first)| {
            let tokens = arriving.window_tokens(first);
            arriving.stores()[source].chunks_of(tokens).map(move |chunk| (source, chunk))
        });
        chunks.collect::<BTreeSet<_>>()
    };
    let requested = |requests: &[ShardChunks]| {
        let chunks = requests.iter().flat_map(|request| {
            let ShardChunks { store, shard, chunks } = request.clone();
            chunks.into_iter().map(move |chunk| (store, ShardChunk { shard, chunk }))
        });
        chunks.collect::<BTreeSet<_>>()
    };
    let mut order = PrefetchOrder::new(RUN);
    arriving.demand(Step(9));
    let nine = chunks_of(9);
    let first = requests(&mut order, &arriving, nine.len());
    assert_eq!(requested(&first), nine);
    assert_eq!(
        requests(&mut order, &arriving, nine.len()),
        first,
        "what did not come is requested again"
    );
    first.iter().for_each(|request| fixture.fetch(&arriving, request));
    assert!(arriving.has_step(Step(9)));
    assert!(requested(&requests(&mut order, &arriving, 1)).is_subset(&chunks_of(10)));
    // The run goes back.
    arriving.demand(Step(3));
    let three: BTreeSet<_> = chunks_of(3).difference(&nine).copied().collect();
    assert_eq!(requested(&requests(&mut order, &arriving, three.len())), three);
    for request in requests(&mut order, &arriving, 100) {
        assert!(request.chunks.is_sorted(), "a shard's chunks are requested in order");
    }
}

#[test]
fn an_island_fetches_what_it_reads_itself() {
    let run = RunSteps { count: 20, islands: (3, 2), ..RUN };
    assert_eq!([0, 1, 7].map(|step| run.batch_step(step)), [2, 5, 23].map(Step));
    assert_eq!([2, 5, 23].map(|step| run.own_step(Step(step))), [0, 1, 7]);
    let evaluated: Vec<u64> =
        (0..=run.count).filter(|version| run.evaluates_at(*version)).collect();
    assert_eq!(evaluated, [4, 8, 12, 16, 20]);
    let last = RunSteps { evaluate_every: 0, ..run };
    assert!((0..=20).filter(|version| last.evaluates_at(*version)).eq([20]));
}

/// A round requests few chunks of a store that has many: it looks at those that it takes.
#[test]
fn a_full_list_looks_at_no_more_chunks() {
    let fixture = Fixture::new();
    let arriving = fixture.arriving();
    let all: Vec<_> = arriving.stores()[0].chunks().map(|chunk| (0, chunk)).collect();
    let mut looked_at = 0;
    let mut missing = MissingChunks::new(&arriving, 3);
    missing.extend(all.iter().copied().inspect(|_| looked_at += 1));
    assert_eq!(missing.found, all[..3]);
    assert_eq!(looked_at, 3, "of {}", all.len());
    missing.add_all_read();
    assert_eq!(missing.found, all[..3], "a full list stays");
    let mut missing = MissingChunks::new(&arriving, usize::MAX);
    missing.add_all_read();
    let read = missing.found.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(read.len(), missing.found.len(), "each once");
    assert!(all.iter().all(|chunk| read.contains(chunk)), "all of a store are read in an epoch");
}
