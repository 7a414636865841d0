//! Lanes: the partial sums that a step's gradient is made of.
//!
//! Of `M` microbatches, lane `l` of `L` has the contiguous run from `l * M / L` on. Its gradient is
//! one chain of additions over them, in their order; the gradient of the step is a binary tree over
//! the lanes, left plus right, element by element. The tree is a part of the arithmetic of a job:
//! who computes a lane, and when, changes no bit.
//!
//! A chunk whose passes run through several lanes adds up one after the other, and the tree is
//! folded as a binary counter counts (the carries of Knuth, The Art of Computer Programming, volume
//! 2, section 4.1): where as many sums wait at a level as the tree joins, they are joined. So at
//! most one sum waits at each level.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_schedule::{Pass, Placement, ScheduleKind};

use super::{BatchShape, ReplicaCount};

/// Number of lanes of a job: a power of two, at most [`LaneCount::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct LaneCount(u32);

/// Lanes that a job, or a schedule for it, cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// No such tree is defined.
    #[error("the number of lanes is a power of two from 1 to {}, found {found}", LaneCount::MAX)]
    Count {
        /// The number requested.
        found: u32,
    },
    /// Each lane has as many microbatches as any other.
    #[error("{microbatch_count} microbatches cannot be dealt evenly to {lanes} lanes")]
    Microbatches {
        /// Lanes of the job.
        lanes: LaneCount,
        /// Microbatches of a step.
        microbatch_count: u32,
    },
    /// Replicas share the lanes evenly only if they are a power of two as well.
    #[error(
        "the number of replicas is a power of two from 1 to {}, found {found}",
        ReplicaCount::MAX
    )]
    ReplicaCount {
        /// The number requested.
        found: u32,
    },
    /// Each replica runs lanes of its own.
    #[error("{replicas} replicas of {kind} need {needed} lanes or more, found {lanes}")]
    Replicas {
        /// The schedule requested.
        kind: ScheduleKind,
        /// The replicas requested.
        replicas: ReplicaCount,
        /// Lanes that they need: one for each direction of each.
        needed: u32,
        /// Lanes of the job.
        lanes: LaneCount,
    },
    /// The schedule runs half of the lanes in each direction.
    #[error("{kind} runs lanes in two directions: expected 2 lanes or more, found {lanes}")]
    Directions {
        /// The schedule requested.
        kind: ScheduleKind,
        /// Lanes of the job.
        lanes: LaneCount,
    },
}

impl LaneCount {
    /// One chain over all microbatches.
    pub const ONE: Self = Self(1);
    /// The most lanes of a job: a tree of six levels.
    pub const MAX: u32 = 64;

    /// As many lanes as given.
    ///
    /// # Errors
    /// If that is no power of two, or more than [`Self::MAX`].
    pub const fn new(found: u32) -> Result<Self, LaneError> {
        if found.is_power_of_two() && found <= Self::MAX {
            Ok(Self(found))
        } else {
            Err(LaneError::Count { found })
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether there is one lane.
    #[must_use]
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub const fn is_one(&self) -> bool {
        self.0 == 1
    }
}

impl Default for LaneCount {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<u32> for LaneCount {
    type Error = LaneError;

    fn try_from(found: u32) -> Result<Self, LaneError> {
        Self::new(found)
    }
}

impl From<LaneCount> for u32 {
    fn from(lanes: LaneCount) -> Self {
        lanes.0
    }
}

impl fmt::Display for LaneCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl BatchShape {
    /// Whether a step of it can be added up in its lanes, and run by a schedule of this kind.
    ///
    /// # Errors
    /// If the lanes do not divide the microbatches, or are fewer than the schedule's directions.
    pub fn check_lanes(&self, kind: ScheduleKind) -> Result<(), LaneError> {
        let Self { lanes, microbatch_count, .. } = *self;
        if !microbatch_count.is_multiple_of(lanes.0) {
            return Err(LaneError::Microbatches { lanes, microbatch_count });
        }
        if kind.replica_count() > lanes.0 {
            return Err(LaneError::Directions { kind, lanes });
        }
        Ok(())
    }
}

/// The order in which additions to the gradient of a chunk are made: those of the lanes that run
/// through its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOrder {
    /// Lanes of a replica.
    lanes: u32,
    /// Microbatches of a replica.
    microbatches: u32,
    slice_count: u32,
}

/// An addition within its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneAddition {
    /// The memory that the lane is added up in.
    pub memory: LaneMemory,
    /// Whether it is the first of its lane, which writes over what was there.
    pub is_first: bool,
    /// How many levels are added to the lane's sum after it, from level 0 on: none before the
    /// lane's last.
    pub carries: usize,
}

/// The memory that a lane is added up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneMemory {
    /// The chunk's gradient: for the last lane, which all the others are added to.
    Gradient,
    /// A sum that waits: at level `k`, of `2^k` lanes.
    Level(usize),
}

impl LaneOrder {
    /// That of a program with this placement and so many slices a microbatch.
    ///
    /// # Panics
    /// If there are fewer lanes than replicas, which no plan has.
    #[must_use]
    pub fn new(batch: &BatchShape, placement: &Placement, slice_count: u32) -> Self {
        let lanes = batch.lanes.0 / placement.replica_count();
        assert!(lanes > 0, "each replica runs a lane or more");
        let microbatches = placement.microbatches_per_replica(batch.microbatch_count);
        Self { lanes, microbatches, slice_count }
    }

    /// How many additions make up the gradient of a chunk.
    #[must_use]
    pub const fn additions(&self) -> u32 {
        self.microbatches * self.slice_count
    }

    /// Sums that may wait beside the gradient.
    #[must_use]
    pub const fn levels(&self) -> usize {
        self.lanes.ilog2() as usize
    }

    /// How many additions to the gradient of its chunk come before that of a pass: microbatches
    /// add up in order, and slices of one from the last to the first.
    #[must_use]
    pub const fn place_of(&self, pass: Pass) -> u32 {
        let microbatch = pass.microbatch.0 % self.microbatches;
        microbatch * self.slice_count + self.slice_count - 1 - pass.slice.0
    }

    /// The addition at a place. The lane's number in binary counts the sums that wait, as in a
    /// counter: its trailing ones are the levels that its sum is joined with.
    #[must_use]
    pub const fn at(&self, place: u32) -> LaneAddition {
        let length = self.additions() / self.lanes;
        let lane = place / length;
        let within = place % length;
        let level = lane.trailing_ones() as usize;
        let is_last_lane = lane + 1 == self.lanes;
        LaneAddition {
            memory: if is_last_lane { LaneMemory::Gradient } else { LaneMemory::Level(level) },
            is_first: within == 0,
            carries: if within + 1 == length { level } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::{Pass, Placement, ScheduleKind};

    use super::{LaneCount, LaneError, LaneMemory, LaneOrder};
    use crate::model::MicrobatchShape;
    use crate::plan::{BatchShape, SliceBalance};

    fn batch(lanes: u32, microbatch_count: u32) -> BatchShape {
        BatchShape {
            microbatch: MicrobatchShape { sequences: 1, sequence_len: 8 },
            microbatch_count,
            cut_by: SliceBalance::Tokens,
            lanes: LaneCount::new(lanes).expect("legal"),
        }
    }

    #[test]
    fn lanes_are_a_power_of_two() {
        let check = |found, is_legal: bool| {
            let expected = if is_legal { Ok(found) } else { Err(LaneError::Count { found }) };
            assert_eq!(LaneCount::new(found).map(LaneCount::get), expected);
        };
        for (found, is_legal) in [(0, false), (1, true), (2, true), (3, false), (6, false)] {
            check(found, is_legal);
        }
        check(64, true);
        check(65, false);
        check(128, false);
    }

    #[test]
    fn lanes_divide_the_microbatches_and_directions_have_some_each() {
        let check = |lanes, microbatch_count, kind, expected| {
            assert_eq!(batch(lanes, microbatch_count).check_lanes(kind), expected);
        };
        let lanes = LaneCount::new(4).expect("legal");
        let uneven = LaneError::Microbatches { lanes, microbatch_count: 6 };
        check(4, 6, ScheduleKind::ZbH1, Err(uneven));
        check(4, 8, ScheduleKind::ZbH1, Ok(()));
        let kind = ScheduleKind::Chimera;
        check(1, 8, kind, Err(LaneError::Directions { kind, lanes: LaneCount::ONE }));
        check(2, 8, kind, Ok(()));
    }

    /// The sum of each tree as it is written, by a counter that adds as the order says.
    #[test]
    fn a_counter_folds_the_tree() {
        let check = |lanes: u32, placement: &Placement, slices: u32, first: u32, expected: &str| {
            let batch = batch(lanes, 8);
            let order = LaneOrder::new(&batch, placement, slices);
            let mut waiting = vec![String::new(); order.levels()];
            let mut gradient = String::new();
            let per_replica = order.additions() / slices;
            let passes = (first..first + per_replica)
                .flat_map(|k| (0..slices).rev().map(move |slice| Pass::sliced(0, k, slice)));
            for (place, pass) in (0..).zip(passes) {
                assert_eq!(order.place_of(pass), place);
                let addition = order.at(place);
                let mut sum = match addition.memory {
                    LaneMemory::Gradient => std::mem::take(&mut gradient),
                    LaneMemory::Level(level) => std::mem::take(&mut waiting[level]),
                };
                if addition.is_first {
                    sum.clear();
                }
                sum += &pass.microbatch.to_string();
                for left in &waiting[..addition.carries] {
                    sum = format!("({left}+{sum})");
                }
                match addition.memory {
                    LaneMemory::Gradient => gradient = sum,
                    LaneMemory::Level(level) => waiting[level] = sum,
                }
            }
            assert_eq!(gradient, expected);
        };
        let line = Placement::line(2);
        check(1, &line, 1, 0, "01234567");
        check(2, &line, 1, 0, "(0123+4567)");
        check(4, &line, 1, 0, "((01+23)+(45+67))");
        check(8, &line, 1, 0, "(((0+1)+(2+3))+((4+5)+(6+7)))");
        check(4, &line, 2, 0, "((0011+2233)+(4455+6677))");
        let cross = Placement::cross(2);
        check(2, &cross, 1, 4, "4567");
        check(4, &cross, 1, 0, "(01+23)");
        check(8, &cross, 1, 4, "((4+5)+(6+7))");
    }
}
