//! Tables: stages that stand at one place of several columns.

use std::collections::BTreeSet;

use zbelastic_types::{ChunkIndex, StageIndex};

use super::{Placement, PlacementError, PlacementShape, ShardError};

/// Cells that are not those of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Stages and chunks do not form the columns.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// There are not as many places in one column as in another.
    #[error("{found} places cannot be dealt to {columns} replicas")]
    Cells {
        /// Number of places of all columns.
        found: usize,
        /// Number of columns.
        columns: u32,
    },
    /// Stages are not numbered in the order in which columns name them.
    #[error("place {place} of replica {column}: stage {found}, expected stage {expected} at most")]
    Number {
        /// The column, counted from 0.
        column: u32,
        /// The place in it, counted from 0.
        place: u32,
        /// The number after the highest that was named before.
        expected: u32,
        /// The stage that is named.
        found: StageIndex,
    },
    /// A stage stands at two places, which have different layers.
    #[error("stage {stage} stands at the places {first} and {second}")]
    Places {
        /// The stage.
        stage: StageIndex,
        /// The place that it was found at first.
        first: u32,
        /// The other place.
        second: u32,
    },
    /// The cells name another number of stages.
    #[error("{found} stages in the table, expected {expected}")]
    Stages {
        /// Number of stages that was given.
        expected: u32,
        /// Number of stages that the cells name.
        found: u32,
    },
    /// Its columns cannot have so many shards.
    #[error(transparent)]
    Shards(#[from] ShardError),
}

/// A place of the columns that a stage was lost at, and a shard that it updated there, which no other stage
/// updates at that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no stage is left at place {place} that updates shard {shard}")]
pub struct NobodyLeft {
    /// The place, counted from 0.
    pub place: u32,
    /// The shard, counted from 0: the only one where the optimizer is not sharded.
    pub shard: u32,
}

impl Placement {
    /// Columns of `shape` of which each place stands on the stage that `cells` names for it, column
    /// by column; `sizes` are the numbers of stages and of chunks of all columns. Stages are numbered
    /// in the order in which `cells` names them, so those of column 0 are the first ones.
    ///
    /// # Errors
    /// If stages are numbered otherwise, or one stands at two places, or the columns are none.
    pub fn of_table(
        shape: PlacementShape,
        column_count: u32,
        (stage_count, chunk_count): (u32, u32),
        cells: &[StageIndex],
    ) -> Result<Self, TableError> {
        let columns = column_count.max(1);
        let is_dealt = cells.len().is_multiple_of(columns as usize);
        let places = u32::try_from(cells.len()).ok().filter(|_| is_dealt).map(|all| all / columns);
        let found = cells.len();
        let places = places.ok_or(TableError::Cells { found, columns: column_count })?;
        let grid_stages = places.saturating_mul(columns);
        let grid = Self::of_columns(shape, column_count, grid_stages, chunk_count)?;
        let mut place_of: Vec<u32> = Vec::new();
        for (index, stage) in (0u32..).zip(cells) {
            let [column, place] = [index / places, index % places];
            let expected = place_of.len() as u32;
            match place_of.get(stage.index()) {
                Some(first) if *first != place => {
                    let [first, second] = [*first, place];
                    return Err(TableError::Places { stage: *stage, first, second });
                }
                Some(_) => {}
                None if stage.0 == expected => place_of.push(place),
                None => return Err(TableError::Number { column, place, expected, found: *stage }),
            }
        }
        let found = place_of.len() as u32;
        if found != stage_count {
            return Err(TableError::Stages { expected: stage_count, found });
        }
        let stage_of_chunk = grid.stage_of_chunk.iter().map(|cell| cells[cell.index()]).collect();
        Ok(Self { stage_of_chunk, stage_count, ..grid })
    }

    /// Whether a stage stands in more than one column.
    #[must_use]
    pub fn is_table(&self) -> bool {
        self.stage_count < self.column_count * self.stages_per_column
    }

    /// Its columns by stages and places.
    #[must_use]
    pub fn table(&self) -> PlacementTable<'_> {
        PlacementTable(self)
    }
}

/// The columns of a placement: which stage stands at which place of each.
#[derive(Clone, Copy, Debug)]
pub struct PlacementTable<'a>(&'a Placement);

impl<'a> PlacementTable<'a> {
    fn chunks_per_column(self) -> u32 {
        self.0.chunk_count() / self.0.column_count
    }

    /// The stage at each place, column by column.
    #[must_use]
    pub fn cells(self) -> Vec<StageIndex> {
        let places = 0..self.0.stages_per_column;
        let column = |column| places.clone().filter_map(move |place| self.stage_at(column, place));
        (0..self.0.column_count).flat_map(column).collect()
    }

    /// The stage at a place of a column.
    #[must_use]
    pub fn stage_at(self, column: u32, place: u32) -> Option<StageIndex> {
        // In every shape the first chunks of a column stand at its places in order.
        let is_there = column < self.0.column_count && place < self.0.stages_per_column;
        let chunk = column * self.chunks_per_column() + place;
        self.0.stage_of(ChunkIndex(chunk)).filter(|_| is_there)
    }

    /// The columns that `stage` stands in, counted from 0.
    pub fn columns_of(self, stage: StageIndex) -> impl Iterator<Item = u32> + use<'a> {
        let place = self.place_of(stage).0;
        (0..self.0.column_count).filter(move |column| self.stage_at(*column, place) == Some(stage))
    }

    /// The stage of column 0 that holds the chunks of the same layers as `stage`.
    #[must_use]
    pub fn place_of(self, stage: StageIndex) -> StageIndex {
        let found = self.0.stage_of_chunk.iter().position(|found| *found == stage);
        let chunk = found.map_or(stage.0, |chunk| chunk as u32);
        let first = chunk % self.chunks_per_column();
        self.0.stage_of(ChunkIndex(first)).unwrap_or(stage)
    }

    /// The column that `chunk` belongs to, counted from 0.
    #[must_use]
    pub fn column_of(self, chunk: ChunkIndex) -> u32 {
        self.0.replica_of(chunk) / self.0.direction_count()
    }

    /// The first of the chunks of the same layers that stand on the stage of `chunk`: that whose
    /// weights all of them read.
    #[must_use]
    pub fn first_on_stage(self, chunk: ChunkIndex) -> ChunkIndex {
        let stage = self.0.stage_of(chunk);
        self.0.group_of(chunk).find(|found| self.0.stage_of(*found) == stage).unwrap_or(chunk)
    }

    /// The stages that read the sums of squares up to `stage`, its own among them: the one behind it
    /// in its column, if its replica speaks for layers, and those in its place in columns that do not.
    pub fn prefix_readers(self, stage: StageIndex) -> impl Iterator<Item = StageIndex> + use<> {
        let place = self.place_of(stage).0;
        let at = |place: u32| (0..self.0.column_count).filter_map(move |c| self.stage_at(c, place));
        // One that stands in several of them reads once.
        let near: BTreeSet<StageIndex> = at(place).chain(at(place + 1)).collect();
        let reads = |other: &StageIndex| self.prefix_source(*other) == Some(stage);
        let mut readers: Vec<StageIndex> = near.into_iter().filter(reads).collect();
        // The chain goes on first.
        readers.sort_by_key(|other| self.place_of(*other).0 == place);
        readers.into_iter()
    }

    /// The stage that `stage` has the sums of those before it from; none for the first of a column whose
    /// replica speaks for layers: the first column's, or with a sharded optimizer the first for each shard. The others
    /// have those of their place, of the replica that speaks for their shard.
    #[must_use]
    pub fn prefix_source(self, stage: StageIndex) -> Option<StageIndex> {
        let places = self.0.stages_per_column;
        let [column, place] = if self.0.is_table() {
            [self.columns_of(stage).next()?, self.place_of(stage).0]
        } else {
            [stage.0 / places, stage.0 % places]
        };
        if column >= self.0.shards().count() {
            self.stage_at(column % self.0.shards().count(), place)
        } else {
            self.stage_at(column, place.checked_sub(1)?)
        }
    }

    /// The table in which the places of the stages in `lost` stand on others of the same place that update the
    /// same shard, each on one that stands in fewest columns, of these on the one whose sums meet the lost stage's
    /// first in the tree of the columns; and the stages of this table that its stages are.
    ///
    /// # Errors
    /// If nobody is left at a place, or of those that update a shard there.
    pub fn rerouted(self, lost: &[StageIndex]) -> Result<(Placement, Vec<StageIndex>), NobodyLeft> {
        let Placement { stages_per_column: places, column_count, .. } = *self.0;
        let shards = self.0.shards();
        let mut cells = self.cells();
        let mut columns = self.columns_by_stage();
        let lost_cells = (0..).zip(&mut cells).filter(|(_, stage)| lost.contains(stage));
        for (cell, stage) in lost_cells.collect::<Vec<_>>() {
            let [column, place] = [cell / places, cell % places];
            let twins = (0..column_count).filter(|other| shards.are_twins(*other, column));
            let at_place = twins.filter_map(|other| self.stage_at(other, place));
            let others = at_place.filter(|other| !lost.contains(other));
            let nearest = |of: &StageIndex| {
                let apart = columns[of.index()].iter().map(|other| other ^ column).min();
                (columns[of.index()].len(), apart, *of)
            };
            let shard = shards.of_replica(ChunkIndex(column * self.chunks_per_column()));
            let to = others.min_by_key(nearest).ok_or(NobodyLeft { place, shard })?;
            columns[to.index()].push(column);
            *stage = to;
        }
        Ok(self.numbered(cells))
    }

    /// The table in which up to `count` further stages stand at places of stages that stand in several
    /// columns: one after the other at the place of one that stands in most, from which and the others of
    /// that place it gets a column at a time until none has two more than it. Where the optimizer is sharded, those
    /// of a place are those alone that update the same shard. A place gets one only if
    /// as many are left as make the most columns there fewer. And for each of its stages the stage
    /// of this table that it is; `None` of a further one. It is `None` if there is no further stage, or no
    /// place for one.
    #[must_use]
    pub fn refilled(self, count: u32) -> Option<(Placement, Vec<Option<StageIndex>>)> {
        let Placement { stages_per_column: places, stage_count, .. } = *self.0;
        let shards = self.0.shards().count();
        let columns = self.columns_by_stage();
        let stages = (0..stage_count).map(StageIndex);
        let stages = stages.map(|stage| self.place_of(stage).0).zip(columns);
        let shard_of = |columns: &[u32]| columns.first().map_or(0, |first| first % shards);
        let stages = stages.map(|(place, columns)| ((place, shard_of(&columns)), columns));
        let mut stages: Vec<ColumnsAtPlace> = stages.collect();
        for left in (1..=count as usize).rev() {
            let Some(place) = place_to_refill(&stages, left) else { break };
            let columns = taken_columns(&mut stages, place);
            stages.push((place, columns));
        }
        if stages.len() == stage_count as usize {
            return None;
        }
        let mut cells = self.cells();
        for (stage, ((place, _), columns)) in (0..).map(StageIndex).zip(&stages) {
            let of_column = |column: &u32| (column * places + place) as usize;
            columns.iter().for_each(|column| cells[of_column(column)] = stage);
        }
        let (table, stages) = self.numbered(cells);
        let known = |stage: StageIndex| (stage.0 < stage_count).then_some(stage);
        Some((table, stages.into_iter().map(known).collect()))
    }

    fn columns_by_stage(self) -> Vec<Vec<u32>> {
        let stages = (0..self.0.stage_count).map(StageIndex);
        stages.map(|stage| self.columns_of(stage).collect()).collect()
    }

    /// The table of these cells, with its stages numbered in their order; and which they were.
    fn numbered(self, mut cells: Vec<StageIndex>) -> (Placement, Vec<StageIndex>) {
        let mut stages: Vec<StageIndex> = Vec::new();
        for stage in &mut cells {
            let known = stages.iter().position(|known| known == stage);
            let number = known.unwrap_or_else(|| {
                stages.push(*stage);
                stages.len() - 1
            });
            *stage = StageIndex(number as u32);
        }
        let sizes = (stages.len() as u32, self.0.chunk_count());
        let table = Placement::of_table(self.0.shape(), self.0.column_count, sizes, &cells);
        let mut table = table.expect("numbered in order, each at its place");
        table.shards.clone_from(&self.0.shards);
        assert!(table.shards().has_one_a_stage(), "who takes a column over updates its shard");
        (table, stages)
    }
}

/// A place of the columns, and which of those it is of: by the remainder that the columns of one shard have.
type ShardPlace = (u32, u32);

/// The place of a stage, and the columns that it stands in.
type ColumnsAtPlace = (ShardPlace, Vec<u32>);

/// The place of the stage in most columns, of those at which as many further stages as are left make the
/// most columns fewer.
fn place_to_refill(stages: &[ColumnsAtPlace], left: usize) -> Option<ShardPlace> {
    let becomes_fewer = |(place, columns): &&ColumnsAtPlace| {
        let at_place = || stages.iter().filter(|(of, _)| of == place);
        let all: usize = at_place().map(|(_, columns)| columns.len()).sum();
        columns.len() > 1 && all.div_ceil(columns.len() - 1) <= at_place().count() + left
    };
    // The last of equals is the first stage.
    let stages = stages.iter().rev().filter(becomes_fewer);
    stages.max_by_key(|(_, columns)| columns.len()).map(|(place, _)| *place)
}

/// Columns for a further stage at `place`, from those who stand in most there, until none has two more.
fn taken_columns(stages: &mut [ColumnsAtPlace], place: ShardPlace) -> Vec<u32> {
    let mut taken = Vec::new();
    loop {
        let at_place = stages.iter_mut().rev().filter(|(of, _)| *of == place);
        let from = at_place.map(|(_, columns)| columns).max_by_key(|columns| columns.len());
        let Some(from) = from.filter(|from| from.len() > taken.len() + 1) else { return taken };
        // The last one whose sibling it has not, so that halves of a column meet again.
        let is_alone = |column: &u32| !from.contains(&(column ^ 1));
        let at = from.iter().rposition(is_alone).unwrap_or(from.len() - 1);
        taken.push(from.remove(at));
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{ChunkIndex, StageIndex};

    use super::{NobodyLeft, TableError};
    use crate::placement::{Placement, PlacementShape};

    fn table(shape: PlacementShape, columns: u32, chunks: u32, cells: &[u32]) -> Placement {
        let stages = cells.iter().max().expect("a place") + 1;
        let cells: Vec<StageIndex> = cells.iter().copied().map(StageIndex).collect();
        Placement::of_table(shape, columns, (stages, chunks), &cells).expect("legal")
    }

    #[test]
    fn a_table_without_shared_places_is_a_grid() {
        for (shape, chunks) in [(PlacementShape::Line, 6), (PlacementShape::Cross, 12)] {
            let grid = Placement::of_columns(shape, 2, 6, chunks).expect("legal");
            assert_eq!(table(shape, 2, chunks, &[0, 1, 2, 3, 4, 5]), grid);
            assert!(!grid.is_table());
        }
    }

    #[test]
    fn a_shared_stage_stands_in_several_columns() {
        let table = table(PlacementShape::Line, 2, 4, &[0, 1, 0, 2]);
        assert!(table.is_table());
        assert_eq!((table.stage_count(), table.stages_per_column()), (3, 2));
        let columns = |stage| table.table().columns_of(StageIndex(stage)).collect::<Vec<_>>();
        assert_eq!([columns(0), columns(1), columns(2)], [vec![0, 1], vec![0], vec![1]]);
        let places = [0, 1, 2].map(|stage| table.table().place_of(StageIndex(stage)).0);
        assert_eq!(places, [0, 1, 1]);
        let first = [0, 1, 2, 3].map(|chunk| table.table().first_on_stage(ChunkIndex(chunk)).0);
        assert_eq!(first, [0, 1, 0, 3]);
        let chunks: Vec<_> = table.chunks_of(StageIndex(0)).collect();
        assert_eq!((chunks, table.chunks_per_stage()), (vec![ChunkIndex(0), ChunkIndex(2)], 1));
        let readers = |stage| table.table().prefix_readers(StageIndex(stage)).collect::<Vec<_>>();
        let one = vec![StageIndex(1)];
        assert_eq!([readers(0), readers(1), readers(2)], [one, vec![StageIndex(2)], vec![]]);
        assert_eq!(table.table().prefix_source(StageIndex(2)), Some(StageIndex(1)));
    }

    /// Also a stage whose columns are not next to each other has the sums sent to it once.
    #[test]
    fn sums_are_read_once_by_each_stage() {
        let grid = Placement::of_columns(PlacementShape::Line, 8, 8, 8).expect("legal");
        let (table, _) = grid.table().rerouted(&[6, 7].map(StageIndex)).expect("others are left");
        assert_eq!(table.table().cells(), [0, 1, 2, 3, 4, 5, 4, 5].map(StageIndex));
        let readers: Vec<_> = table.table().prefix_readers(StageIndex(0)).collect();
        assert_eq!(readers, [1, 2, 3, 4, 5].map(StageIndex));
    }

    /// Each direction's ends are tied within its column.
    #[test]
    fn ends_of_a_shared_cross_are_of_one_column() {
        let table = table(PlacementShape::Cross, 2, 8, &[0, 1, 0, 1]);
        let ends = [0, 1, 2, 3, 4, 5, 6, 7]
            .map(|chunk| table.other_end_of(ChunkIndex(chunk)).map(|end| end.0));
        assert_eq!(ends, [3, 2, 1, 0, 7, 6, 5, 4].map(Some));
    }

    #[test]
    fn cells_that_are_no_table_are_named() {
        let check = |columns, stages, cells: &[u32], expected: TableError| {
            let cells: Vec<StageIndex> = cells.iter().copied().map(StageIndex).collect();
            let chunks = cells.len() as u32;
            let found =
                Placement::of_table(PlacementShape::Line, columns, (stages, chunks), &cells);
            assert_eq!(found, Err(expected));
        };
        check(2, 3, &[0, 1, 2], TableError::Cells { found: 3, columns: 2 });
        let number = TableError::Number { column: 1, place: 0, expected: 2, found: StageIndex(3) };
        check(2, 3, &[0, 1, 3, 2], number);
        let places = TableError::Places { stage: StageIndex(0), first: 0, second: 1 };
        check(2, 3, &[0, 1, 2, 0], places);
        check(2, 4, &[0, 1, 0, 2], TableError::Stages { expected: 4, found: 3 });
        let three = Placement::of_columns(PlacementShape::Line, 3, 3, 3).expect_err("not a power");
        check(3, 2, &[0, 0, 1], TableError::Placement(three));
        let none = Placement::of_columns(PlacementShape::Line, 0, 1, 1).expect_err("none");
        check(0, 1, &[0], TableError::Placement(none));
    }

    #[test]
    fn lost_places_go_to_the_nearest_of_those_that_have_least() {
        let grid = Placement::of_columns(PlacementShape::Line, 4, 8, 8).expect("legal");
        let check = |from: &Placement, lost: &[u32], cells: &[u32], stages: &[u32]| {
            let lost: Vec<StageIndex> = lost.iter().copied().map(StageIndex).collect();
            let (found, holders) = from.table().rerouted(&lost).expect("others are left");
            assert_eq!(found, table(PlacementShape::Line, 4, 8, cells));
            assert_eq!(holders, stages.iter().copied().map(StageIndex).collect::<Vec<_>>());
            found
        };
        check(&grid, &[], &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 1, 2, 3, 4, 5, 6, 7]);
        let one = check(&grid, &[0], &[0, 1, 0, 2, 3, 4, 5, 6], &[2, 1, 3, 4, 5, 6, 7]);
        // The next one at the same place: stage 0 has two columns by now.
        check(&one, &[3], &[0, 1, 0, 2, 3, 4, 3, 5], &[0, 1, 2, 5, 4, 6]);
        check(&one, &[0], &[0, 1, 2, 3, 0, 4, 2, 5], &[3, 1, 5, 2, 4, 6]);
        check(&grid, &[1, 3, 5], &[0, 1, 2, 1, 3, 1, 4, 1], &[0, 7, 2, 4, 6]);
        let all = [1, 3, 5, 7].map(StageIndex);
        assert_eq!(grid.table().rerouted(&all), Err(NobodyLeft { place: 1, shard: 0 }));
    }

    #[test]
    fn further_stages_get_columns_of_those_with_most() {
        let check = |from: &[u32], count, cells: &[u32], stages: &[Option<u32>]| {
            let from = table(PlacementShape::Line, 4, 8, from);
            let (found, known) = from.table().refilled(count).expect("a place is shared");
            assert_eq!(found, table(PlacementShape::Line, 4, 8, cells));
            assert_eq!(known, stages.iter().map(|at| at.map(StageIndex)).collect::<Vec<_>>());
        };
        let one = [0, 1, 0, 2, 3, 4, 5, 6];
        let grid = [0, 1, 2, 3, 4, 5, 6, 7];
        let all = |further: usize| {
            let known = (0..8).map(|at| at - u32::from(at > further as u32));
            let mut known: Vec<Option<u32>> = known.map(Some).collect();
            known[further] = None;
            known
        };
        check(&one, 1, &grid, &all(2));
        check(&one, 3, &grid, &all(2));
        // Of four columns two, then both stages with two give one up, for which it takes two.
        let three = [0, 1, 2, 1, 3, 1, 4, 1];
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(Some);
        check(&three, 1, &[0, 1, 2, 1, 3, 4, 5, 4], &[a, b, c, d, None, e]);
        check(&three, 2, &[0, 1, 2, 1, 3, 4, 5, 4], &[a, b, c, d, None, e]);
        check(&three, 3, &grid, &[a, b, c, None, d, None, e, None]);
        let whole = table(PlacementShape::Line, 4, 8, &grid);
        assert_eq!(whole.table().refilled(1), None, "no place is shared");
        let shared = table(PlacementShape::Line, 4, 8, &one);
        assert_eq!(shared.table().refilled(0), None, "nobody joined");
        // Of eight halves, three on each of two stages: one that joins gets one of both, and no other a place.
        let halves = [0, 1, 0, 0, 1, 1, 2, 2];
        let from = Placement::of_table(PlacementShape::Line, 8, (3, 8), &halves.map(StageIndex));
        let from = from.expect("legal");
        let grid = [0, 0, 1, 1, 2, 2, 3, 3].map(StageIndex);
        for count in 1..=3 {
            let (found, _) = from.table().refilled(count).expect("two have three");
            assert_eq!(found.table().cells(), grid);
        }
    }
}
