//! What the replicas of a placement exchange of a gradient, in which order, and which floats of it.

use std::ops::Range;

use zbelastic_types::ChunkIndex;

use crate::placement::Placement;
use crate::reduction::TreeExchange;

impl TreeExchange {
    /// What a chunk and its siblings do with each other's floats in a step, in order: up the tree, and
    /// from below the top down again. Where the optimizer is sharded, candidates come down instead of
    /// sums, from the levels at which shards were left to others. Nothing for one replica.
    pub fn all_of(placement: &Placement) -> impl Iterator<Item = Self> + use<> {
        let sharded = placement.shards().levels();
        let of_sums = placement.levels().rev().skip(1).filter(move |level| level.0 >= sharded);
        let of_candidates = placement.levels().rev().filter(move |level| level.0 < sharded);
        placement
            .levels()
            .map(Self::Reduce)
            .chain(of_sums.map(Self::Gather))
            .chain(of_candidates.map(Self::GatherCandidates))
    }

    /// Its place among [`TreeExchange::all_of`]; behind all of them if it is none of these.
    #[must_use]
    pub fn number(self, placement: &Placement) -> usize {
        Self::all_of(placement).take_while(|before| *before != self).count()
    }

    /// The floats that become part of what `chunk` has, of a gradient whose shards have these lengths, in
    /// their order ([`PlacementShards::count`] of them). It has the same floats from its sibling.
    ///
    /// Where shards are left to others they are halved, so that each is whole in one of the halves, and
    /// above these levels floats are.
    ///
    /// # Panics
    /// If the placement has another number of shards.
    ///
    /// [`PlacementShards::count`]: crate::PlacementShards::count
    #[must_use]
    pub fn merged_floats(
        self,
        placement: &Placement,
        chunk: ChunkIndex,
        shards: &[usize],
    ) -> Range<usize> {
        assert_eq!(shards.len(), placement.shards().count() as usize, "a length for each shard");
        let replica = placement.replica_of(chunk);
        let adds = match self {
            Self::Reduce(_) => replica,
            Self::Gather(level) | Self::GatherCandidates(level) => replica ^ (1 << level.0),
        };
        let half = |range: Range<usize>, level: u32| {
            let middle = range.start + range.len() / 2;
            if adds >> level & 1 == 0 { range.start..middle } else { middle..range.end }
        };
        let halvings = self.halvings(placement);
        let of_shards = halvings.min(u32::from(placement.shards().levels()));
        let left = (0..of_shards).fold(0..shards.len(), half);
        let start: usize = shards[..left.start].iter().sum();
        let floats = start..start + shards[left].iter().sum::<usize>();
        (of_shards..halvings).fold(floats, half)
    }

    /// The part of a gradient that moves, in each direction, where its shards are of one length.
    #[must_use]
    pub fn part(self, placement: &Placement) -> f64 {
        0.5f64.powi(self.halvings(placement) as i32)
    }

    /// How often the floats of a gradient were halved by then: at every level up to its own, but for the
    /// top, where both add all that they have left, if they have the same shard.
    fn halvings(self, placement: &Placement) -> u32 {
        let top = placement.replica_count().ilog2().saturating_sub(1);
        (u32::from(self.level().0) + 1).min(top.max(u32::from(placement.shards().levels())))
    }
}
