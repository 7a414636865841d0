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

    /// Whether it is the plan `before` without some of its stages, whose places others of the same
    /// layers stand at: whoever is left goes on with the layers that it has.
    #[must_use]
    pub fn reroutes(&self, before: &Self) -> bool {
        let [own, other] = [&self.program.placement, &before.program.placement];
        let keeps_layers = |(stage, holder): (StageIndex, &Holder)| {
            let place = own.table().place_of(stage);
            before.stage_of(*holder).is_some_and(|stage| other.table().place_of(stage) == place)
        };
        let is_of_columns =
            (own.shape(), own.column_count()) == (other.shape(), other.column_count());
        own.stage_count() < other.stage_count()
            && is_of_columns
            && self.chunks == before.chunks
            && self.stage_indices().zip(&self.stages).all(keeps_layers)
    }
}
