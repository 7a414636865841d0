//! Questions about plans in which a worker stands in several replicas.

use zbelastic_types::StageIndex;

use super::{PlanRecord, group_of};
use crate::member::Holder;

impl PlanRecord {
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
    /// layers stand at: whoever is left goes on with the layers that it has. Columns may have been cut
    /// in two.
    #[must_use]
    pub fn reroutes(&self, before: &Self) -> bool {
        let [own, other] = [&self.program.placement, &before.program.placement];
        let keeps_layers = |(stage, holder): (StageIndex, &Holder)| {
            let place = own.table().place_of(stage);
            before.stage_of(*holder).is_some_and(|stage| other.table().place_of(stage) == place)
        };
        own.stage_count() < other.stage_count()
            && own.column_count() >= other.column_count()
            && self.has_places_of(before)
            && self.stage_indices().zip(&self.stages).all(keeps_layers)
    }
}
