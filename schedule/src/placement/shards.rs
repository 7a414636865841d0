//! Which replicas update which of the layers that all of them have, where the optimizer is sharded.

use std::ops::Range;

use zbelastic_types::{ChunkIndex, StageIndex};

use super::Placement;

/// Shards that a placement cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "shards of the optimizer for {found} chunks, expected {expected}: each with the same power of two of at \
     most {columns}, the number of replicas, which are pipelines in one direction, and a stage that stands in \
     several of them in those that update the same shard"
)]
pub struct ShardError {
    /// Chunks of one replica.
    pub expected: u32,
    /// Chunks that shards were given for.
    pub found: usize,
    /// Columns of the placement.
    pub columns: u32,
}

/// The shards of a placement: which layers of a chunk its replicas update.
#[derive(Clone, Copy, Debug)]
pub struct PlacementShards<'a>(pub(super) &'a Placement);

impl<'a> PlacementShards<'a> {
    /// Shards of the layers of each chunk; one where the optimizer is not sharded.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.shards.first().map_or(1, Vec::len) as u32
    }

    /// Layers in each shard, by the place of their chunk along the model; nothing where the optimizer is not
    /// sharded.
    #[must_use]
    pub fn layers(self) -> &'a [Vec<u32>] {
        &self.0.shards
    }

    /// Levels of the tree at which replicas leave shards to others.
    #[must_use]
    pub fn levels(self) -> u8 {
        self.count().ilog2() as u8
    }

    /// The shard whose layers the replica of `chunk` updates: level by level the half that it adds.
    #[must_use]
    pub fn of_replica(self, chunk: ChunkIndex) -> u32 {
        let replica = self.0.replica_of(chunk);
        (0..self.levels()).fold(0, |shard, level| shard << 1 | replica >> level & 1)
    }

    /// Whether each stage stands in columns of one shard alone.
    pub(super) fn has_one_a_stage(self) -> bool {
        let has_one = |stage| {
            let mut columns = self.0.table().columns_of(stage);
            let first = columns.next();
            first.is_none_or(|first| columns.all(|column| self.are_twins(first, column)))
        };
        self.count() == 1
            || !self.0.is_table()
            || (0..self.0.stage_count()).map(StageIndex).all(has_one)
    }

    /// Whether two columns, counted from 0, update the same shard: each leaves the same halves to others.
    #[must_use]
    pub(super) fn are_twins(self, column: u32, other: u32) -> bool {
        column % self.count() == other % self.count()
    }

    /// The layers of a chunk that lie in a shard, of the chunk's `layers`.
    #[must_use]
    pub fn layers_in(self, chunk: ChunkIndex, shard: u32, layers: Range<u32>) -> Range<u32> {
        let Some(counts) = self.0.shards.get(self.0.position_of(chunk)) else { return layers };
        let before: u32 = counts[..shard as usize].iter().sum();
        let start = layers.end.min(layers.start + before);
        start..layers.end.min(start + counts[shard as usize])
    }

    /// The length of each shard of a chunk whose layers have these lengths: of its gradient, say.
    #[must_use]
    pub fn lens(self, chunk: ChunkIndex, layers: &[usize]) -> Vec<usize> {
        let len_of = |shard| {
            let within = self.layers_in(chunk, shard, 0..layers.len() as u32);
            layers[within.start as usize..within.end as usize].iter().sum()
        };
        (0..self.count()).map(len_of).collect()
    }

    /// The layers that the replica of `chunk` updates, of the chunk's `layers`: those of its shard.
    #[must_use]
    pub fn updated(self, chunk: ChunkIndex, layers: Range<u32>) -> Range<u32> {
        self.layers_in(chunk, self.of_replica(chunk), layers)
    }

    /// The layers that the replica of `chunk` speaks for, of the chunk's `layers`: it is the first of those that
    /// update them.
    #[must_use]
    pub fn owned(self, chunk: ChunkIndex, layers: Range<u32>) -> Range<u32> {
        let updated = self.updated(chunk, layers);
        if self.speaks(chunk) { updated } else { updated.start..updated.start }
    }

    /// The layers that the replica of `chunk` updates beside the one that speaks for them, of the chunk's
    /// `layers`.
    #[must_use]
    pub fn twins(self, chunk: ChunkIndex, layers: Range<u32>) -> Range<u32> {
        let updated = self.updated(chunk, layers);
        if self.speaks(chunk) { updated.start..updated.start } else { updated }
    }

    /// Whether the replica of `chunk` speaks for the layers that it updates: the first replica, or with a
    /// sharded optimizer the first of each shard.
    #[must_use]
    pub fn speaks(self, chunk: ChunkIndex) -> bool {
        self.0.replica_of(chunk) < self.count()
    }
}

/// How many layers of a chunk lie in each shard, of so many: in order, so that the largest shard is as small
/// as can be. `lengths` are those of the chunk's layers.
#[must_use]
pub fn deal_shards(lengths: &[usize], shards: u32) -> Vec<u32> {
    let counts_below = |limit: usize| {
        let mut counts = Vec::new();
        let (mut count, mut len) = (0, 0);
        for (layer, length) in lengths.iter().enumerate() {
            // A layer at least is left for each shard behind this one.
            let behind = shards as usize - (counts.len() + 1).min(shards as usize);
            let is_last = lengths.len() - layer <= behind;
            if count > 0 && (is_last || len + length > limit) {
                counts.push(count);
                (count, len) = (0, 0);
            }
            count += 1;
            len += length;
        }
        counts.push(count);
        (counts.len() <= shards as usize).then_some(counts)
    };
    // The limit lies between the longest layer and all of them.
    let mut low = lengths.iter().copied().max().unwrap_or(0);
    let mut high = lengths.iter().sum();
    while low < high {
        let middle = low + (high - low) / 2;
        if counts_below(middle).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let mut counts = counts_below(high).expect("all layers fit into one shard");
    counts.resize(shards as usize, 0);
    counts
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{ChunkIndex, StageIndex};

    use super::{ShardError, deal_shards};
    use crate::placement::{NobodyLeft, Placement, PlacementForm, PlacementShape};

    #[test]
    fn replicas_that_add_the_same_half_update_the_same_shard() {
        let lines = Placement::of_columns(PlacementShape::Line, 8, 8, 8).expect("legal");
        let sharded = lines.clone().sharded(vec![vec![1, 2, 3, 0]]).expect("legal");
        let chunks = (0..8).map(ChunkIndex);
        let shards: Vec<u32> =
            chunks.clone().map(|chunk| sharded.shards().of_replica(chunk)).collect();
        assert_eq!(shards, [0, 2, 1, 3, 0, 2, 1, 3]);
        let layers = 4..10;
        let updated = chunks.clone().map(|chunk| sharded.shards().updated(chunk, layers.clone()));
        let by_replica = [4..5, 7..10, 5..7, 10..10];
        assert_eq!(updated.collect::<Vec<_>>(), [by_replica.clone(), by_replica.clone()].concat());
        let owned = chunks.map(|chunk| sharded.shards().owned(chunk, layers.clone()));
        let none = [4..4, 7..7, 5..5, 10..10];
        assert_eq!(owned.collect::<Vec<_>>(), [by_replica, none].concat());
        assert_eq!(lines.clone().sharded(vec![vec![6]]), Ok(lines));
    }

    #[test]
    fn shards_that_replicas_cannot_share_are_refused() {
        let lines = Placement::of_columns(PlacementShape::Line, 2, 4, 4).expect("legal");
        let check = |placement: &Placement, layers: &[&[u32]]| {
            let found = layers.len();
            let error = ShardError { expected: 2, found, columns: 2 };
            let layers = layers.iter().map(|of_chunk| of_chunk.to_vec()).collect();
            assert_eq!(placement.clone().sharded(layers), Err(error));
        };
        check(&lines, &[]);
        check(&lines, &[&[1, 1]]);
        check(&lines, &[&[1, 1], &[1]]);
        check(&lines, &[&[1, 1, 1], &[1, 1, 1]]);
        check(&lines, &[&[1, 1, 1, 1], &[1, 1, 1, 1]]);
        let cross = Placement::of_columns(PlacementShape::Cross, 2, 4, 8).expect("legal");
        check(&cross, &[&[1, 1], &[1, 1]]);
        let cells = [0, 1, 0, 2].map(StageIndex);
        let shared = Placement::of_table(PlacementShape::Line, 2, (3, 4), &cells).expect("legal");
        check(&shared, &[&[1, 1], &[1, 1]]);
    }

    /// Whoever takes over a lost stage's columns updates the same shard, speaks for it if the lost one did, and
    /// counts as one; where nobody else does nobody takes over.
    #[test]
    fn a_lost_stage_is_followed_by_one_that_updates_its_shard() {
        let lines = Placement::of_columns(PlacementShape::Line, 8, 16, 16).expect("legal");
        let layers = vec![vec![1, 2, 3, 1], vec![2, 2, 2, 2]];
        let whole = lines.sharded(layers.clone()).expect("legal");
        for lost in (0..16).map(StageIndex) {
            let (table, stages) = whole.table().rerouted(&[lost]).expect("another is left");
            assert_eq!((table.shards().layers(), stages.len()), (&layers[..], 15));
            let chunks = (0..16).map(ChunkIndex).filter(|of| whole.stage_of(*of) == Some(lost));
            for chunk in chunks {
                let to = stages[table.stage_of(chunk).expect("a chunk").index()];
                let own = whole.chunks_of(to).next().expect("a chunk a stage");
                assert_eq!(whole.shards().of_replica(own), whole.shards().of_replica(chunk));
                assert_eq!(whole.position_of(own), whole.position_of(chunk));
            }
            let speaks = |chunk: &ChunkIndex| table.shards().speaks(*chunk);
            let by_stage = (0..15).map(|stage| table.chunks_of(StageIndex(stage)).filter(speaks));
            let most = by_stage.map(Iterator::count).max();
            assert_eq!(most, Some(1), "a stage speaks for a shard once");
            for stage in (0..15).map(StageIndex) {
                let chunk = table.chunks_of(stage).next().expect("a chunk");
                let source = table.table().prefix_source(stage);
                let of = |stage: StageIndex| table.chunks_of(stage).next();
                let shard = source.and_then(of).map(|of| table.shards().of_replica(of));
                let expected = source.map(|_| table.shards().of_replica(chunk));
                assert_eq!(shard, expected, "sums go along the columns that speak for a shard");
            }
            assert_eq!(Placement::try_from(PlacementForm::from(table.clone())), Ok(table.clone()));
            let refilled = table.table().refilled(3).expect("a place is shared").0;
            assert_eq!(refilled, whole);
        }
        let both = [StageIndex(3), StageIndex(11)];
        let nobody = NobodyLeft { place: 1, shard: 2 };
        assert_eq!(whole.table().rerouted(&both), Err(nobody));
    }

    /// Of two shards of a place that lost stages both, each gets a further stage for its own columns.
    #[test]
    fn further_stages_get_columns_of_one_shard() {
        let lines = Placement::of_columns(PlacementShape::Line, 8, 8, 8).expect("legal");
        let whole = lines.sharded(vec![vec![1, 2]]).expect("legal");
        let lost = [2, 3, 4, 5, 6].map(StageIndex);
        let (table, _) = whole.table().rerouted(&lost).expect("one of each is left");
        assert_eq!(table.table().cells(), [0, 1, 0, 1, 0, 2, 0, 2].map(StageIndex));
        for count in 1..6 {
            let (refilled, stages) = table.table().refilled(count).expect("places are shared");
            assert!(refilled.shards().has_one_a_stage());
            assert_eq!(stages.len(), refilled.stage_count() as usize);
        }
        assert_eq!(table.table().refilled(5).expect("places are shared").0, whole);
    }

    #[test]
    fn layers_are_dealt_so_that_no_shard_is_longer_than_it_must_be() {
        assert_eq!(deal_shards(&[39, 7, 7, 7, 7, 7], 2), [1, 5]);
        assert_eq!(deal_shards(&[1, 1, 1, 1], 2), [2, 2]);
        assert_eq!(deal_shards(&[39, 7, 7, 7, 7], 4), [1, 2, 1, 1]);
        assert_eq!(deal_shards(&[5, 1, 5, 1], 1), [4]);
        // There are fewer layers than shards, and layers of no length.
        assert_eq!(deal_shards(&[4], 2), [1, 0]);
        assert_eq!(deal_shards(&[0, 0], 2), [1, 1]);
    }
}
