//! Everything a life draws, from one seed, in streams that do not disturb each other.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The purposes of draws. A new kind of fault has its own stream, so that old seeds keep theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum DrawPurpose {
    /// Which options a life has.
    Options = 1,
    /// When which fault comes.
    Faults = 2,
    /// The faults of the network.
    Network = 3,
    /// The faults of disks, and their times.
    Disk = 4,
    /// The durations of operations.
    Work = 5,
    /// Which nodes a fault hits.
    Targets = 6,
    /// The faults of the checkpoint store.
    Store = 7,
    /// The choice of long work.
    Pace = 8,
    /// Which lives are large, and have checkpoints by time: the draws for other purposes stay as
    /// they were.
    Extent = 9,
    /// Which options and faults a life of housekeeping has.
    Housekeeping = 10,
    /// The durations of work there, and the acts of hostile members.
    HousekeepingWork = 11,
    /// Which machines have which program.
    Programs = 12,
    /// How fast machines are in lives where that changes.
    Speed = 13,
    /// Which models have a head that is tied to the embedding.
    Tied = 14,
    /// Which models have frozen tensors.
    Frozen = 15,
    /// Which models are trained by Muon.
    Muon = 16,
    /// Which models have low-rank adapters.
    Lora = 17,
    /// How many lanes a job has.
    Lanes = 18,
    /// How many replicas of a pipeline there are.
    Replicas = 19,
    /// When authorities follow each other in a life of housekeeping.
    HousekeepingRotation = 20,
    /// When lists of hashes of a text's chunks are damaged there.
    HousekeepingHashes = 21,
    /// When operations of disks fail there.
    HousekeepingDisks = 22,
    /// Which disks keep the pieces of checkpoints.
    Keepers = 23,
    /// Which lives are an island among others, and how they exchange weights.
    Islands = 24,
    /// How long folders of islands take.
    IslandFolders = 25,
    /// When operations of folders of islands fail, and when the other island sends.
    IslandFaults = 26,
    /// What changes bits and no order: decay, z-loss, features of the model.
    Arithmetic = 27,
    /// Where documents begin in sequences, and which targets count.
    Documents = 28,
    /// When the disks of controllers' logs fill in a life of housekeeping.
    HousekeepingLogs = 29,
    /// Which replicas share the optimizer.
    Shards = 31,
    /// When the index of a store is damaged while its process runs, in a life of housekeeping.
    HousekeepingIndexes = 32,
}

/// A stream of draws: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Draws(SplitMix64);

impl Draws {
    /// The draws of a seed for a purpose.
    #[must_use]
    pub fn new(seed: u64, purpose: DrawPurpose) -> Self {
        let start = seed ^ (purpose as u64).wrapping_mul(0xA076_1D64_78BD_642F);
        let first = SplitMix64::seed_from_u64(start).next_u64();
        Self(SplitMix64::seed_from_u64(first ^ seed.rotate_left(32)))
    }

    /// Draws a number, uniformly from all 64-bit numbers.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `[0, 1)`.
    pub fn share(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.share() < probability
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// One of these.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
