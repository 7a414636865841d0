//! Which layers a stage of a plan has, and questions about plans in which a worker stands in several replicas.

use std::ops::Range;

use zbelastic_schedule::{Placement, PlacementShards};
use zbelastic_types::{ChunkIndex, LayerId, StageIndex};

use super::{PlanRecord, group_of};
use crate::member::Holder;

impl PlanRecord {
    /// The layers that a stage speaks for, chunk by chunk: its own. Of the replicas that update a layer
    /// the first one's stage does, so that each layer has one owner.
    pub fn layers_of(&self, stage: StageIndex) -> impl Iterator<Item = LayerId> + '_ {
        self.layers_where(stage, |shards, chunk, layers| shards.owned(chunk, layers))
    }

    /// The layers that a stage updates and other stages speak for, or the stage itself as a first replica's:
    /// those of later replicas, chunk by chunk.
    pub fn twins_at(&self, stage: StageIndex) -> impl Iterator<Item = LayerId> + '_ {
        self.layers_where(stage, |shards, chunk, layers| shards.twins(chunk, layers))
    }

    /// Every layer that a stage trains, chunk by chunk: also those whose candidates it gets from others, where
    /// the optimizer is sharded.
    pub fn layers_at(&self, stage: StageIndex) -> impl Iterator<Item = LayerId> + '_ {
        self.layers_where(stage, |_, _, layers| layers)
    }

    fn layers_where(
        &self,
        stage: StageIndex,
        part: fn(PlacementShards<'_>, ChunkIndex, Range<u32>) -> Range<u32>,
    ) -> impl Iterator<Item = LayerId> + '_ {
        let placement = &self.program.placement;
        let chunks = placement.chunks_of(stage);
        let layers = move |chunk: ChunkIndex| {
            part(placement.shards(), chunk, self.chunks[chunk.index()].ids())
        };
        chunks.flat_map(layers).map(LayerId)
    }

    /// The other stages that train the layers that a stage speaks for, in the order of replicas.
    #[must_use]
    pub fn twins_of(&self, of: StageIndex) -> Vec<StageIndex> {
        let mut group = group_of(&self.program.placement, of);
        group.retain(|stage| *stage != of);
        group
    }

    /// The holder at each place of each replica, replica by replica: one that stands in several is
    /// named for each.
    pub fn cells(&self) -> impl Iterator<Item = Holder> + '_ {
        let cells = self.program.placement.table().cells().into_iter();
        cells.filter_map(|stage| self.stages.get(stage.index()).copied())
    }

    /// Whether its columns are those of `before`, in chunks of the same layers: as many, or cut in two.
    #[must_use]
    pub fn has_places_of(&self, before: &Self) -> bool {
        let once = |plan: &Self| plan.program.placement.chunks_per_replica() as usize;
        let [own, other] = [self, before].map(|plan| plan.program.placement.column());
        own == other && self.chunks.get(..once(self)) == before.chunks.get(..once(before))
    }

    /// Whether it is the plan `before` without some of its stages, whose places others of the same
    /// layers stand at: whoever is left goes on with the layers that it has, and with a sharded optimizer
    /// updates those that it did. Columns may have been cut in two.
    #[must_use]
    pub fn reroutes(&self, before: &Self) -> bool {
        let [own, other] = [&self.program.placement, &before.program.placement];
        let place = |of: &Placement, stage| {
            let shard = of.chunks_of(stage).next().map(|chunk| of.shards().of_replica(chunk));
            (of.table().place_of(stage), shard)
        };
        let keeps_layers = |(stage, holder): (StageIndex, &Holder)| {
            let known = before.stage_of(*holder);
            known.is_some_and(|known| place(other, known) == place(own, stage))
        };
        own.stage_count() < other.stage_count()
            && own.shards().layers() == other.shards().layers()
            && own.column_count() >= other.column_count()
            && self.has_places_of(before)
            && self.stage_indices().zip(&self.stages).all(keeps_layers)
    }
}
