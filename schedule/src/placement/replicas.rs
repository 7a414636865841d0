//! Questions about the replicas of the model: which exchange what, in which order.

use std::ops::Range;

use zbelastic_types::ChunkIndex;

use super::Placement;
use crate::reduction::{TreeLevel, TreeSide};

impl Placement {
    /// The levels of the tree in which the gradients of replicas are added: none for one replica.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = TreeLevel> + use<> {
        let count = self.replica_count.ilog2();
        (0..count as u8).map(TreeLevel)
    }

    /// The chunk of the same layers that `chunk` exchanges sums with at `level` of the tree: replicas
    /// `r` and `r XOR 2^level` have floats of the sums of `2^level` replicas each then, which are next to each
    /// other.
    #[must_use]
    pub fn sibling_at(&self, chunk: ChunkIndex, level: TreeLevel) -> Option<ChunkIndex> {
        let apart =
            1u32.checked_shl(u32::from(level.0)).filter(|apart| *apart < self.replica_count)?;
        let is_here = chunk.0 < self.chunk_count();
        let replica = (self.replica_of(chunk)) ^ apart;
        let sibling = replica * self.chunks_per_replica() + chunk.0 % self.chunks_per_replica();
        is_here.then_some(ChunkIndex(sibling))
    }

    /// The replicas whose gradients `chunk` has the sum of before `level` of the tree.
    #[must_use]
    pub fn replicas_below(&self, chunk: ChunkIndex, level: TreeLevel) -> Range<u32> {
        let first = self.replica_of(chunk) >> level.0 << level.0;
        first..first + (1 << level.0)
    }

    /// The side that the sum of `chunk` is on when it is added to its sibling's at `level`.
    #[must_use]
    pub fn side_of(&self, chunk: ChunkIndex, level: TreeLevel) -> TreeSide {
        let is_left = self.replica_of(chunk) >> level.0 & 1 == 0;
        if is_left { TreeSide::Left } else { TreeSide::Right }
    }

    /// The chunks of the same layers in all replicas, that of the first one first: `chunk` among them.
    pub fn group_of(&self, chunk: ChunkIndex) -> impl Iterator<Item = ChunkIndex> + use<> {
        let per_replica = self.chunks_per_replica();
        let position = chunk.0 % per_replica;
        (0..self.replica_count).map(move |replica| ChunkIndex(replica * per_replica + position))
    }
}
