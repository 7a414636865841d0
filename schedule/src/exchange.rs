//! What the replicas of a placement exchange of a gradient, in which order, and which floats of it.

use std::ops::Range;

use zbelastic_types::ChunkIndex;

use crate::placement::Placement;
use crate::reduction::TreeExchange;

impl TreeExchange {
    /// What a chunk and its siblings do with each other's floats in a step, in order: up the tree, and
    /// from below the top down again. Nothing for one replica.
    pub fn all_of(placement: &Placement) -> impl Iterator<Item = Self> + use<> {
        let down = placement.levels().rev().skip(1).map(Self::Gather);
        placement.levels().map(Self::Reduce).chain(down)
    }

    /// Its place among [`TreeExchange::all_of`]; behind all of them if it is none of these.
    #[must_use]
    pub fn number(self, placement: &Placement) -> usize {
        Self::all_of(placement).take_while(|before| *before != self).count()
    }

    /// The floats that become part of the sum of `chunk`, of a gradient of `len`. It has the same floats
    /// from its sibling.
    #[must_use]
    pub fn merged_floats(
        self,
        placement: &Placement,
        chunk: ChunkIndex,
        len: usize,
    ) -> Range<usize> {
        let replica = placement.replica_of(chunk);
        let adds = match self {
            Self::Reduce(_) => replica,
            Self::Gather(level) => replica ^ (1 << level.0),
        };
        let half = |range: Range<usize>, level: u32| {
            let middle = range.start + range.len() / 2;
            if adds >> level & 1 == 0 { range.start..middle } else { middle..range.end }
        };
        (0..self.halvings(placement)).fold(0..len, half)
    }

    /// The part of a gradient that moves, in each direction.
    #[must_use]
    pub fn part(self, placement: &Placement) -> f64 {
        0.5f64.powi(self.halvings(placement) as i32)
    }

    /// How often the floats of a gradient were halved by then: at every level up to its own, but for the
    /// top, where both add all that they have left.
    fn halvings(self, placement: &Placement) -> u32 {
        let top = placement.replica_count().ilog2().saturating_sub(1);
        (u32::from(self.level().0) + 1).min(top)
    }
}
