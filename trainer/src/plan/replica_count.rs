//! How many times a pipeline is there.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_schedule::{COLUMNS_MAX, Placement, ScheduleKind};
use zbelastic_types::StageIndex;

use super::{BatchShape, LaneCount, LaneError, Pace};

/// Number of pipelines side by side, each on workers of its own: a power of two, at most
/// [`ReplicaCount::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ReplicaCount(u32);

impl ReplicaCount {
    /// One pipeline.
    pub const ONE: Self = Self(1);
    /// The most there may be: one for each lane of a job.
    pub const MAX: u32 = COLUMNS_MAX;

    /// As many as given.
    ///
    /// # Errors
    /// If that is no power of two, or more than [`Self::MAX`].
    pub const fn new(found: u32) -> Result<Self, LaneError> {
        if found.is_power_of_two() && found <= Self::MAX {
            Ok(Self(found))
        } else {
            Err(LaneError::ReplicaCount { found })
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether there is one pipeline.
    #[must_use]
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub const fn is_one(&self) -> bool {
        self.0 == 1
    }

    /// Those of a placement.
    #[must_use]
    pub fn of(placement: &Placement) -> Self {
        Self(placement.column_count())
    }

    /// Every number, from one pipeline on.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::MAX.ilog2()).map(|power| Self(1 << power))
    }
}

impl Default for ReplicaCount {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<u32> for ReplicaCount {
    type Error = LaneError;

    fn try_from(found: u32) -> Result<Self, LaneError> {
        Self::new(found)
    }
}

impl From<ReplicaCount> for u32 {
    fn from(replicas: ReplicaCount) -> Self {
        replicas.0
    }
}

impl fmt::Display for ReplicaCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl BatchShape {
    /// The share of a step that each of so many replicas of a pipeline runs: as many microbatches,
    /// in as many lanes, as any other.
    ///
    /// # Errors
    /// If the lanes do not divide the microbatches, or each replica would have fewer of them than
    /// the schedule has directions.
    pub fn of_replica(
        &self,
        kind: ScheduleKind,
        replicas: ReplicaCount,
    ) -> Result<Self, LaneError> {
        let Self { lanes, microbatch_count, .. } = *self;
        if replicas.is_one() {
            return Ok(*self);
        }
        if !microbatch_count.is_multiple_of(lanes.get()) {
            return Err(LaneError::Microbatches { lanes, microbatch_count });
        }
        let needed = replicas.get() * kind.replica_count();
        match LaneCount::new(lanes.get() / replicas.get()) {
            Ok(own) if lanes.get() >= needed => Ok(Self {
                lanes: own,
                microbatch_count: microbatch_count / replicas.get(),
                ..*self
            }),
            Ok(_) | Err(_) => Err(LaneError::Replicas { kind, replicas, needed, lanes }),
        }
    }
}

impl Pace {
    /// The pace of one pipeline of `stage_count` stages that is there several times: each of its
    /// stages is as slow as the slowest that stands there, which the others wait for at the end of a
    /// step.
    #[must_use]
    pub fn of_column(&self, stage_count: u32, replicas: ReplicaCount) -> Self {
        if replicas.is_one() {
            return self.clone();
        }
        let slowest = |place: u32| {
            let holders = (0..replicas.get()).map(|column| column * stage_count + place);
            holders.map(|stage| self.speed(StageIndex(stage))).fold(f64::INFINITY, f64::min)
        };
        Self { speeds: (0..stage_count).map(slowest).collect(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::ScheduleKind;

    use super::ReplicaCount;
    use crate::model::MicrobatchShape;
    use crate::plan::{BatchShape, LaneCount, LaneError, SliceBalance};

    #[test]
    fn replicas_are_a_power_of_two() {
        for (found, is_legal) in
            [(0, false), (1, true), (2, true), (3, false), (64, true), (128, false)]
        {
            let expected =
                if is_legal { Ok(found) } else { Err(LaneError::ReplicaCount { found }) };
            assert_eq!(ReplicaCount::new(found).map(ReplicaCount::get), expected);
        }
        assert_eq!(ReplicaCount::all().count(), 7);
    }

    #[test]
    fn each_replica_has_a_lane_for_each_direction() {
        let check = |lanes, count, kind: ScheduleKind, expected: Option<(u32, u32)>| {
            let lanes = LaneCount::new(lanes).expect("legal");
            let replicas = ReplicaCount::new(count).expect("legal");
            let batch = BatchShape {
                microbatch: MicrobatchShape { sequences: 1, sequence_len: 8 },
                microbatch_count: 8,
                cut_by: SliceBalance::Tokens,
                lanes,
            };
            let needed = count * kind.replica_count();
            let refused = LaneError::Replicas { kind, replicas, needed, lanes };
            let found = batch.of_replica(kind, replicas);
            let found = found.map(|own| (own.lanes.get(), own.microbatch_count));
            assert_eq!(found, expected.ok_or(refused));
        };
        check(1, 1, ScheduleKind::ZbH1, Some((1, 8)));
        check(1, 2, ScheduleKind::ZbH1, None);
        check(2, 2, ScheduleKind::ZbH1, Some((1, 4)));
        check(8, 2, ScheduleKind::ZbH1, Some((4, 4)));
        check(8, 8, ScheduleKind::ZbH1, Some((1, 1)));
        check(2, 2, ScheduleKind::Gems, None);
        check(4, 2, ScheduleKind::Gems, Some((2, 4)));
    }
}
