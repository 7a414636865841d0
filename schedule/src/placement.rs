//! Which stage holds which chunk of the model.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{ChunkIndex, MicrobatchIndex, StageIndex};

use crate::op::Flow;
use crate::program::TEXT_COUNT_MAX;

/// The stage of every chunk, in model order. Valid by construction: every stage from 0 to the
/// highest holds as many chunks as any other.
///
/// There may be two *replicas* of the model on the same stages, in opposite directions. The first
/// half of the chunks are then replica 0, the second half replica 1; so is it with the microbatches
/// of a step, so that the replica of a pass follows from its chunk and from its microbatch alike.
/// Each runs through half of a job's lanes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "PlacementForm", into = "PlacementForm")]
pub struct Placement {
    stage_of_chunk: Vec<StageIndex>,
    stage_count: u32,
    replica_count: u32,
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
    /// Two replicas of a line in opposite directions: chunk `c` of the first on stage `c`, the same
    /// layers of the second on stage `stages - 1 - c` (Jain et al., SC 2020; Li and Hoefler, SC
    /// 2021).
    Cross,
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
    /// The shape that was to be formed.
    pub shape: PlacementShape,
    /// Number of stages given.
    pub stage_count: u32,
    /// Number of chunks given.
    pub chunk_count: u32,
}

impl Placement {
    /// `chunk_count` chunks laid over `stage_count` stages in `shape`.
    ///
    /// # Errors
    /// If every stage cannot hold as many chunks as the shape requires, or if there are more than
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
            (PlacementShape::Cross, 2) => Ok(Self::cross(stage_count)),
            (PlacementShape::Line | PlacementShape::Vee | PlacementShape::Cross, _) => Err(error),
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
        Self { stage_of_chunk, stage_count, replica_count: 1 }
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
        Self { stage_of_chunk: down.chain(up).collect(), stage_count, replica_count: 1 }
    }

    /// Two replicas of one chunk a stage, the second from the last stage to the first.
    ///
    /// # Panics
    /// If there is no stage.
    #[must_use]
    pub fn cross(stage_count: u32) -> Self {
        // The stages are those of a vee; what differs is where the model ends.
        Self { replica_count: 2, ..Self::vee(stage_count) }
    }

    /// The shape this placement has; a single stage with one chunk counts as a line.
    #[must_use]
    pub fn shape(&self) -> PlacementShape {
        if self.replica_count == 2 {
            PlacementShape::Cross
        } else if self.chunks_per_stage() == 1 {
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

    /// The last chunk of replica 0, which holds the head and the loss.
    #[must_use]
    pub fn last_chunk(&self) -> ChunkIndex {
        ChunkIndex(self.chunks_per_replica() - 1)
    }

    /// How many times the model is there.
    #[must_use]
    pub fn replica_count(&self) -> u32 {
        self.replica_count
    }

    /// The number of chunks that make up the model once.
    #[must_use]
    pub fn chunks_per_replica(&self) -> u32 {
        self.chunk_count() / self.replica_count
    }

    /// The replica that `chunk` is a part of, counted from 0.
    #[must_use]
    pub fn replica_of(&self, chunk: ChunkIndex) -> u32 {
        chunk.0 / self.chunks_per_replica()
    }

    /// How many of a step's microbatches run through each replica: the first ones through the first.
    #[must_use]
    pub fn microbatches_per_replica(&self, microbatch_count: u32) -> u32 {
        microbatch_count.div_ceil(self.replica_count).max(1)
    }

    /// The replica that `microbatch` of a step of so many runs through.
    #[must_use]
    pub fn replica_of_microbatch(&self, microbatch: MicrobatchIndex, microbatch_count: u32) -> u32 {
        microbatch.0 / self.microbatches_per_replica(microbatch_count)
    }

    /// The chunk with the same layers in the other replica, if there is one.
    #[must_use]
    pub fn twin_of(&self, chunk: ChunkIndex) -> Option<ChunkIndex> {
        let half = self.chunks_per_replica();
        let count = self.chunk_count();
        (self.replica_count == 2 && chunk.0 < count).then(|| ChunkIndex((chunk.0 + half) % count))
    }

    /// The chunk at the other end of the model, whose part of a tied matrix's gradient is added to
    /// that of `chunk`; nothing between the ends. Of two replicas, whose gradients are the same by
    /// then, it is the one on the stage of `chunk`. A chunk that is all of the model has both ends.
    #[must_use]
    pub fn other_end_of(&self, chunk: ChunkIndex) -> Option<ChunkIndex> {
        if chunk.0 >= self.chunk_count() {
            return None;
        }
        let first = self.replica_of(chunk) * self.chunks_per_replica();
        let last = first + self.chunks_per_replica() - 1;
        let other = match (self.is_first(chunk), self.is_last(chunk)) {
            (true, _) => ChunkIndex(last),
            (false, true) => ChunkIndex(first),
            (false, false) => return None,
        };
        let is_here = |other: &ChunkIndex| self.stage_of(*other) == self.stage_of(chunk);
        let twin = self.twin_of(other).filter(|twin| !is_here(&other) && is_here(twin));
        Some(twin.unwrap_or(other))
    }

    /// The place of `chunk` along the model: the same for the same layers of both replicas.
    #[must_use]
    pub fn position_of(&self, chunk: ChunkIndex) -> usize {
        (chunk.0 % self.chunks_per_replica()) as usize
    }

    /// Whether `chunk` begins the model: it reads the tokens.
    #[must_use]
    pub fn is_first(&self, chunk: ChunkIndex) -> bool {
        self.position_of(chunk) == 0
    }

    /// Whether `chunk` ends the model: it holds the head and the loss.
    #[must_use]
    pub fn is_last(&self, chunk: ChunkIndex) -> bool {
        self.position_of(chunk) + 1 == self.chunks_per_replica() as usize
    }

    /// The chunk that `chunk` passes its result on to.
    #[must_use]
    pub fn chunk_after(&self, chunk: ChunkIndex, flow: Flow) -> Option<ChunkIndex> {
        let is_end = match flow {
            Flow::Forward => self.is_last(chunk),
            Flow::Backward => self.is_first(chunk),
        };
        let after = match flow {
            Flow::Forward => chunk.0.checked_add(1),
            Flow::Backward => chunk.0.checked_sub(1),
        };
        after.filter(|after| !is_end && *after < self.chunk_count()).map(ChunkIndex)
    }

    /// The chunk that `chunk` has its operand from.
    #[must_use]
    pub fn chunk_before(&self, chunk: ChunkIndex, flow: Flow) -> Option<ChunkIndex> {
        self.chunk_after(chunk, flow.reverse())
    }

    /// The share of a stage's times and memory, as they are given for one microbatch, that one
    /// chunk takes: a microbatch runs through the chunks of one replica.
    #[must_use]
    pub fn chunk_share(&self) -> f64 {
        f64::from(self.replica_count) / f64::from(self.chunks_per_stage())
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
            Self::Cross => "cross",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Placement, PlacementError, PlacementShape};
    use crate::op::Flow;
    use crate::program::TEXT_COUNT_MAX;
    use zbelastic_types::{ChunkIndex, MicrobatchIndex, StageIndex};

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
        check(&Placement::cross(3), PlacementShape::Cross, &[0, 1, 2, 2, 1, 0]);
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
        check(PlacementShape::Cross, 3, 6, true);
        check(PlacementShape::Cross, 3, 3, false);
        check(PlacementShape::Line, 0, 0, false);
        check(PlacementShape::Loop, 1, TEXT_COUNT_MAX, true);
        check(PlacementShape::Loop, 1, TEXT_COUNT_MAX + 1, false);
    }

    #[test]
    fn the_ends_of_the_model_find_each_other() {
        let check = |placement: &Placement, ends: &[(u32, u32)]| {
            let found = (0..placement.chunk_count())
                .filter_map(|c| Some((c, placement.other_end_of(ChunkIndex(c))?.0)));
            assert_eq!(found.collect::<Vec<_>>(), ends);
        };
        check(&Placement::line(1), &[(0, 0)]);
        check(&Placement::line(3), &[(0, 2), (2, 0)]);
        check(&Placement::looped(2, 2), &[(0, 3), (3, 0)]);
        check(&Placement::vee(3), &[(0, 5), (5, 0)]);
        check(&Placement::cross(1), &[(0, 0), (1, 1)]);
        // Each end's twin is on the stage of the other end.
        check(&Placement::cross(3), &[(0, 5), (2, 3), (3, 2), (5, 0)]);
    }

    #[test]
    fn two_replicas_have_two_ends_each_and_share_the_microbatches() {
        let cross = Placement::cross(3);
        assert_eq!((cross.replica_count(), cross.chunks_per_replica()), (2, 3));
        let ends = |is_end: fn(&Placement, ChunkIndex) -> bool| -> Vec<u32> {
            (0..6).filter(|chunk| is_end(&cross, ChunkIndex(*chunk))).collect()
        };
        assert_eq!((ends(Placement::is_first), ends(Placement::is_last)), (vec![0, 3], vec![2, 5]));
        let after: Vec<_> = (0..7)
            .map(|chunk| cross.chunk_after(ChunkIndex(chunk), Flow::Forward).map(|after| after.0))
            .collect();
        assert_eq!(after, [Some(1), Some(2), None, Some(4), Some(5), None, None]);
        let before: Vec<_> = (0..6)
            .map(|chunk| cross.chunk_after(ChunkIndex(chunk), Flow::Backward).map(|after| after.0))
            .collect();
        assert_eq!(before, [None, Some(0), Some(1), None, Some(3), Some(4)]);
        let twins: Vec<_> = (0..7).map(|chunk| cross.twin_of(ChunkIndex(chunk))).collect();
        assert_eq!(
            twins,
            [3, 4, 5, 0, 1, 2]
                .map(|c| Some(ChunkIndex(c)))
                .into_iter()
                .chain([None])
                .collect::<Vec<_>>()
        );
        assert_eq!(Placement::line(3).twin_of(ChunkIndex(1)), None);
        let replicas = |placement: &Placement, count| -> Vec<_> {
            let all = (0..count).map(MicrobatchIndex);
            all.map(|k| placement.replica_of_microbatch(k, count)).collect()
        };
        assert_eq!(replicas(&cross, 4), [0, 0, 1, 1]);
        assert_eq!(replicas(&Placement::vee(3), 3), [0, 0, 0]);
        assert_eq!(cross.microbatches_per_replica(4), 2);
        assert_eq!(Placement::vee(3).microbatches_per_replica(5), 5);
    }
}
