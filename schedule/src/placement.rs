//! Which stage holds which chunk of the model.

use serde::{Deserialize, Serialize};
use zbelastic_types::{ChunkIndex, StageIndex};

/// The stage of every chunk, in model order. Valid by construction: every stage from 0 to the
/// highest holds as many chunks as any other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    stage_of_chunk: Vec<StageIndex>,
    stage_count: u32,
}

/// The shapes in which chunks are laid over stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PlacementShape {
    /// Chunk `c` on stage `c`.
    Line,
    /// Chunk `c` on stage `c mod stages`: the model goes round (Narayanan et al., SC 2021).
    Loop,
    /// Two chunks a stage: down the stages and up again, so that the first stage holds both ends
    /// of the model (Qi et al., arXiv 2401.10241 v1, section 6).
    Vee,
}

impl Placement {
    /// One chunk a stage.
    ///
    /// # Panics
    /// If there is no stage.
    #[must_use]
    pub fn line(stage_count: u32) -> Self {
        Self::looped(stage_count, 1)
    }

    /// `chunks_per_stage` chunks a stage, dealt round and round.
    ///
    /// # Panics
    /// If there is no stage or no chunk.
    #[must_use]
    pub fn looped(stage_count: u32, chunks_per_stage: u32) -> Self {
        assert!(stage_count > 0 && chunks_per_stage > 0, "a placement has stages and chunks");
        let chunks = 0..stage_count * chunks_per_stage;
        let stage_of_chunk = chunks.map(|chunk| StageIndex(chunk % stage_count)).collect();
        Self { stage_of_chunk, stage_count }
    }

    /// Two chunks a stage, down and up again.
    ///
    /// # Panics
    /// If there is no stage.
    #[must_use]
    pub fn vee(stage_count: u32) -> Self {
        assert!(stage_count > 0, "a placement has stages");
        let down = (0..stage_count).map(StageIndex);
        let up = (0..stage_count).rev().map(StageIndex);
        Self { stage_of_chunk: down.chain(up).collect(), stage_count }
    }

    /// The shape this placement has; a single stage with one chunk counts as a line.
    #[must_use]
    pub fn shape(&self) -> PlacementShape {
        let chunks_per_stage = self.chunk_count() / self.stage_count;
        if chunks_per_stage == 1 {
            PlacementShape::Line
        } else if *self == Self::vee(self.stage_count) {
            PlacementShape::Vee
        } else {
            PlacementShape::Loop
        }
    }

    /// The number of stages.
    #[must_use]
    pub fn stage_count(&self) -> u32 {
        self.stage_count
    }

    /// The number of chunks.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        u32::try_from(self.stage_of_chunk.len()).expect("chunks are counted in u32")
    }

    /// The stage that holds `chunk`, or `None` beyond the model's end.
    #[must_use]
    pub fn stage_of(&self, chunk: ChunkIndex) -> Option<StageIndex> {
        self.stage_of_chunk.get(chunk.index()).copied()
    }

    /// The chunks on `stage`, in model order.
    pub fn chunks_of(&self, stage: StageIndex) -> impl Iterator<Item = ChunkIndex> + '_ {
        let holds = move |(_, holder): &(u32, &StageIndex)| **holder == stage;
        (0u32..).zip(&self.stage_of_chunk).filter(holds).map(|(chunk, _)| ChunkIndex(chunk))
    }

    /// The last chunk, which holds the head and the loss.
    #[must_use]
    pub fn last_chunk(&self) -> ChunkIndex {
        ChunkIndex(self.chunk_count() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::{Placement, PlacementShape};
    use zbelastic_types::{ChunkIndex, StageIndex};

    #[test]
    fn shapes_lay_chunks_as_drawn() {
        let check = |placement: &Placement, shape: PlacementShape, stages: &[u32]| {
            assert_eq!(placement.shape(), shape);
            assert_eq!(placement.chunk_count() as usize, stages.len());
            for (chunk, stage) in (0..).zip(stages) {
                assert_eq!(placement.stage_of(ChunkIndex(chunk)), Some(StageIndex(*stage)));
            }
            assert_eq!(placement.stage_of(ChunkIndex(placement.chunk_count())), None);
        };
        check(&Placement::line(3), PlacementShape::Line, &[0, 1, 2]);
        check(&Placement::looped(2, 2), PlacementShape::Loop, &[0, 1, 0, 1]);
        check(&Placement::vee(3), PlacementShape::Vee, &[0, 1, 2, 2, 1, 0]);
        let first: Vec<_> = Placement::vee(3).chunks_of(StageIndex(0)).collect();
        assert_eq!(first, [ChunkIndex(0), ChunkIndex(5)]);
    }
}
