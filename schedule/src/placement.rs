//! Which stage holds which chunk of the model.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{ChunkIndex, StageIndex};

use crate::program::TEXT_COUNT_MAX;

/// The stage of every chunk, in model order. Valid by construction: every stage from 0 to the
/// highest holds as many chunks as any other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "PlacementForm", into = "PlacementForm")]
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

/// Shape and size, from which a placement is laid out again.
#[derive(Serialize, Deserialize)]
struct PlacementForm {
    shape: PlacementShape,
    stage_count: u32,
    chunk_count: u32,
}

/// Chunks and stages that do not form the shape named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{chunk_count} chunks over {stage_count} stages do not form a {shape}")]
pub struct PlacementError {
    /// The shape named.
    pub shape: PlacementShape,
    /// Stages named.
    pub stage_count: u32,
    /// Chunks named.
    pub chunk_count: u32,
}

impl Placement {
    /// `chunk_count` chunks laid over `stage_count` stages in `shape`.
    ///
    /// # Errors
    /// If every stage cannot hold as many chunks as the shape asks for, or if there are more than
    /// [`TEXT_COUNT_MAX`] chunks.
    pub fn of_shape(
        shape: PlacementShape,
        stage_count: u32,
        chunk_count: u32,
    ) -> Result<Self, PlacementError> {
        let error = PlacementError { shape, stage_count, chunk_count };
        let chunks_are_dealt = stage_count > 0
            && (1..=TEXT_COUNT_MAX).contains(&chunk_count)
            && chunk_count.is_multiple_of(stage_count);
        if !chunks_are_dealt {
            return Err(error);
        }
        match (shape, chunk_count / stage_count) {
            (PlacementShape::Line, 1) => Ok(Self::line(stage_count)),
            (PlacementShape::Loop, chunks_per_stage) => {
                Ok(Self::looped(stage_count, chunks_per_stage))
            }
            (PlacementShape::Vee, 2) => Ok(Self::vee(stage_count)),
            (PlacementShape::Line | PlacementShape::Vee, _) => Err(error),
        }
    }

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
        if self.chunks_per_stage() == 1 {
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

    /// The number of chunks on each stage.
    #[must_use]
    pub fn chunks_per_stage(&self) -> u32 {
        self.chunk_count() / self.stage_count
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

impl From<Placement> for PlacementForm {
    fn from(placement: Placement) -> Self {
        let shape = placement.shape();
        Self { shape, stage_count: placement.stage_count, chunk_count: placement.chunk_count() }
    }
}

impl TryFrom<PlacementForm> for Placement {
    type Error = PlacementError;

    fn try_from(form: PlacementForm) -> Result<Self, PlacementError> {
        Self::of_shape(form.shape, form.stage_count, form.chunk_count)
    }
}

impl fmt::Display for PlacementShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Line => "line",
            Self::Loop => "loop",
            Self::Vee => "vee",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Placement, PlacementError, PlacementShape};
    use crate::program::TEXT_COUNT_MAX;
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

    #[test]
    fn chunks_and_stages_must_form_the_shape() {
        let check = |shape, stage_count, chunk_count, is_legal: bool| {
            let expected = if is_legal {
                Ok(chunk_count)
            } else {
                Err(PlacementError { shape, stage_count, chunk_count })
            };
            let found = Placement::of_shape(shape, stage_count, chunk_count);
            assert_eq!(found.map(|placement| placement.chunk_count()), expected);
        };
        check(PlacementShape::Line, 3, 3, true);
        check(PlacementShape::Line, 3, 6, false);
        check(PlacementShape::Loop, 3, 9, true);
        check(PlacementShape::Loop, 3, 8, false);
        check(PlacementShape::Vee, 3, 6, true);
        check(PlacementShape::Vee, 3, 3, false);
        check(PlacementShape::Line, 0, 0, false);
        check(PlacementShape::Loop, 1, TEXT_COUNT_MAX, true);
        check(PlacementShape::Loop, 1, TEXT_COUNT_MAX + 1, false);
    }
}
