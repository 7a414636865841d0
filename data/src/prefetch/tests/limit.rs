//! Chunks of shards on a disk that does not take all of them.

use super::*;
use crate::prefetch::needed::{bound, chunks_needed, counted};

/// A mixture of which so many chunks may be here at once.
struct LimitedFetch<'a> {
    fixture: &'a Fixture,
    mixture: &'a StoreMixture,
    order: PrefetchOrder,
    chunks_max: usize,
}

impl Fixture {
    /// What the device would read if it read a chunk whose space was freed.
    fn free(&self, evicted: &ShardChunks) {
        let path = self.folders[evicted.store].path().join(format!("{}.part", evicted.shard));
        let file = File::options().write(true).open(path).expect("there");
        let length = file.metadata().expect("there").len();
        for chunk in &evicted.chunks {
            let start = chunk * CHUNK_BYTES;
            let hole = vec![0; CHUNK_BYTES.min(length - start) as usize];
            file.write_all_at(&hole, start).expect("writable");
        }
    }
}

impl<'a> LimitedFetch<'a> {
    /// With a limit of as many chunks as the run needs, and `more`.
    fn new(fixture: &'a Fixture, mixture: &'a StoreMixture, more: usize) -> Self {
        let mut order = PrefetchOrder::new(RUN);
        let refused = order.limit(Bytes(1), mixture).expect_err("no disk is so small");
        assert_eq!(refused.found, Bytes(1));
        let limit = Bytes(refused.needed.0 + more as u64 * CHUNK_BYTES);
        order.limit(limit, mixture).expect("as much as it needs");
        assert!(order.is_limited());
        Self { fixture, mixture, order, chunks_max: (limit.0 / CHUNK_BYTES) as usize }
    }

    fn count(&self) -> usize {
        let stores = self.mixture.stores().iter();
        stores.map(|store| store.chunks().filter(|chunk| store.has_chunk(*chunk)).count()).sum()
    }

    /// A round of the fetch. Yields the chunks that were evicted, or nothing if there was nothing to do.
    fn round(&mut self, max: usize) -> Option<Vec<ShardChunks>> {
        let PrefetchAction::Fetch { evicted, wanted } = self.order.next(self.mixture, max) else {
            return None;
        };
        evicted.iter().for_each(|evicted| self.fixture.free(evicted));
        wanted.iter().for_each(|wanted| self.fixture.fetch(self.mixture, wanted));
        Some(evicted)
    }

    fn fetch_step(&mut self, step: u64) {
        while !self.mixture.has_step(Step(step)) {
            assert!(self.round(3).is_some(), "step {step} waits for what is not requested");
            assert!(self.count() <= self.chunks_max, "{} are here", self.count());
        }
    }
}

/// The chunks of a mixture that a step reads.
fn read_in(mixture: &StoreMixture, step: u64) -> BTreeSet<(usize, ShardChunk)> {
    mixture.chunks_of(mixture.cursor().step_windows(Step(step))).collect()
}

fn each(groups: &[ShardChunks]) -> impl Iterator<Item = (usize, ShardChunk)> {
    groups.iter().flat_map(|ShardChunks { store, shard, chunks }| {
        chunks.iter().map(|chunk| (*store, ShardChunk { shard: *shard, chunk: *chunk }))
    })
}

#[test]
fn steps_read_the_same_batches_on_a_disk_that_takes_few_chunks_and_after_rewinds() {
    let fixture = Fixture::new();
    let whole = fixture.whole();
    let arriving = fixture.arriving();
    let mut fetch = LimitedFetch::new(&fixture, &arriving, 5);
    let all: usize = arriving.stores().iter().map(|store| store.chunks().count()).sum();
    assert!(fetch.chunks_max < all, "{} of {all} chunks", fetch.chunks_max);
    for step in (0..40).chain(10..30).chain(28..RUN.count) {
        fetch.fetch_step(step);
        assert_eq!(batches(&arriving, step), batches(&whole, step), "step {step}");
        assert_eq!(arriving.targets(Step(step), 2), whole.targets(Step(step), 2));
        while fetch.round(3).is_some() {}
        assert!(arriving.has_held_out() && fetch.count() <= fetch.chunks_max);
        assert_eq!(batches(&arriving, step), batches(&whole, step), "it is still here");
        assert_eq!(arriving.held_out(0), whole.held_out(0));
    }
    assert!(arriving.fault().is_none(), "{:?}", arriving.fault());
}

#[test]
fn what_goes_is_read_last() {
    let fixture = Fixture::new();
    let arriving = fixture.arriving();
    let mut fetch = LimitedFetch::new(&fixture, &arriving, 12);
    let held_out: BTreeSet<_> = arriving.chunks_of(arriving.held_out_places()).collect();
    let mut evictions = 0;
    for step in 0..20 {
        fetch.fetch_step(step);
        while let Some(evicted) = fetch.round(1) {
            let next_read = |chunk: &(usize, ShardChunk)| {
                let mut steps = step..RUN.count;
                let found = steps.find(|later| read_in(&arriving, *later).contains(chunk));
                found.unwrap_or(u64::MAX)
            };
            let stores = arriving.stores().iter().enumerate();
            let here =
                stores.flat_map(|(index, store)| store.chunks().map(move |chunk| (index, chunk)));
            let here = here.filter(|chunk| arriving.has_chunk(*chunk) && !held_out.contains(chunk));
            let last_kept = here.map(|chunk| next_read(&chunk)).max().unwrap_or(0);
            for chunk in each(&evicted) {
                assert!(!held_out.contains(&chunk), "held-out text stays");
                assert!(next_read(&chunk) >= last_kept, "step {step}: {chunk:?}");
                evictions += 1;
            }
        }
    }
    assert!(evictions > 20, "{evictions}");
}

#[test]
fn no_chunk_of_the_step_that_the_device_reads_goes_whatever_is_demanded() {
    let fixture = Fixture::new();
    let whole = fixture.whole();
    let arriving = fixture.arriving();
    let mut fetch = LimitedFetch::new(&fixture, &arriving, 0);
    fetch.fetch_step(7);
    // A plan is to begin elsewhere, while the device is still in its step.
    for demanded in [60, 2, 30] {
        arriving.demand(Step(demanded));
        while fetch.round(100).is_some() {}
        assert!(arriving.holds_step(Step(demanded)), "the plan can begin");
        assert_eq!(batches(&arriving, 7), batches(&whole, 7));
    }
    // Not even by a decision that was made before the device claimed it.
    let seven: Vec<_> = read_in(&arriving, 7).into_iter().collect();
    assert_eq!(arriving.evict(seven.clone()), []);
    assert!(!arriving.has_step(Step(90)));
    assert!(!arriving.evict(seven).is_empty() && !arriving.holds_step(Step(7)));
    assert!(!arriving.has_step(Step(7)), "it waits, and reads no zeros");
    fetch.fetch_step(7);
    assert_eq!(batches(&arriving, 7), batches(&whole, 7));
}

/// The device's thread goes on and back while the fetch evicts and fetches.
#[test]
fn a_device_never_reads_a_chunk_that_is_freed_beside_it() {
    let fixture = Fixture::new();
    let whole = fixture.whole();
    let arriving = fixture.arriving();
    let mut fetch = LimitedFetch::new(&fixture, &arriving, 2);
    std::thread::scope(|scope| {
        let device = scope.spawn(|| {
            for turn in 0..100 {
                let step = (turn * 7 + turn / 50 * 31) % RUN.count;
                while !arriving.has_step(Step(step)) {
                    std::thread::yield_now();
                }
                assert_eq!(batches(&arriving, step), batches(&whole, step), "step {step}");
            }
        });
        while !device.is_finished() {
            fetch.round(2);
        }
    });
    assert!(arriving.fault().is_none(), "{:?}", arriving.fault());
}

#[test]
fn a_disk_that_takes_too_little_is_refused_and_one_that_takes_all_has_no_limit() {
    let fixture = Fixture::new();
    let arriving = fixture.arriving();
    let mut order = PrefetchOrder::new(RUN);
    let needed = order.limit(Bytes(0), &arriving).expect_err("nothing fits").needed;
    let error = order.limit(Bytes(needed.0 - 1), &arriving).expect_err("a byte is missing");
    for part in ["--data-cache", &format!("{} bytes", needed.0)] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(!order.is_limited());
    let all = arriving.stores().iter().map(TokenStore::shard_bytes).sum();
    order.limit(Bytes(all), &arriving).expect("all fits");
    assert!(!order.is_limited());
    order.limit(needed, &arriving).expect("it fits");
    assert!(order.is_limited());
    order.lift_limit();
    assert!(!order.is_limited());
}

/// Mixtures of shards of other lengths, packings and shapes of steps: no two steps read more than is found
/// when the run begins, by a count of all steps or by a bound that counts none.
#[test]
fn no_two_steps_read_more_than_a_limit_that_was_accepted() {
    let fixture = Fixture::new();
    for draw in 0..60_u64 {
        let sequence_len = [3, 8, 31, 100][draw as usize % 4];
        let sequences = 1 + draw as usize % 3;
        let config = CursorConfig {
            shape: MicrobatchShape { sequences, sequence_len },
            microbatch_count: 1 + draw as u32 % 2,
            held_out_share: 0.35,
            seed: draw,
        };
        let packing = [Packing::Concat, Packing::Documents][draw as usize / 4 % 2];
        let mixture = fixture.drawn(draw, packing, &config);
        let run = RunSteps { count: 12, evaluate_every: 3, islands: (1 + draw % 2, draw % 2) };
        let needed = [chunks_needed, counted, bound].map(|needed| needed(run, &mixture));
        let most = most_of_two_steps(run, &mixture);
        assert!(needed.iter().all(|needed| *needed >= most), "{draw}: {needed:?}, {most} are read");
        assert!(needed[1] <= needed[2], "{draw}: a count is no more than the bound: {needed:?}");
    }
}

impl Fixture {
    /// A mixture of stores like those of the fixture with shards of 1 to 400 ids, by a number.
    fn drawn(&self, draw: u64, packing: Packing, config: &CursorConfig) -> StoreMixture {
        let mut manifests = self.manifests.clone();
        let shards = manifests.iter_mut().flat_map(|manifest| &mut manifest.shards);
        // The last shard of each is the longest, so that no source is too short.
        for (shard, record) in shards.enumerate().filter(|(shard, _)| ![4, 6].contains(shard)) {
            record.tokens = 1 + (draw * 37 + shard as u64 * 101) % [3, 20, 400][draw as usize % 3];
            record.documents = record.tokens.div_ceil(10);
            record.has_loss_mask = draw % 5 > 1;
        }
        let weights = [3, 1].map(|weight| NonZeroU32::new(weight).expect("a weight"));
        let mixture = StoreMixture::new(manifests.iter().zip(weights), packing, config);
        let mixture = mixture.expect("long enough");
        let chunk_bytes = [1, 64, 300][draw as usize / 2 % 3];
        let arriving = |manifest| TokenStore::arriving(manifest, chunk_bytes).expect("sound");
        mixture.provide(manifests.into_iter().map(arriving).collect());
        mixture
    }
}

fn most_of_two_steps(run: RunSteps, mixture: &StoreMixture) -> u64 {
    let held_out: BTreeSet<_> = mixture.chunks_of(mixture.held_out_places()).collect();
    let read = |step| read_in(mixture, run.batch_step(step).0);
    let steps: Vec<_> = (0..run.count).map(read).collect();
    let pairs = steps.iter().flat_map(|one| steps.iter().map(move |other| one | other));
    pairs.map(|pair| (&pair | &held_out).len() as u64).max().unwrap_or(0)
}
