//! Which stage holds which chunk of the model.

mod replicas;
mod shards;
mod table;

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{ChunkIndex, MicrobatchIndex, StageIndex};

use crate::limits::{COLUMNS_MAX, TEXT_COUNT_MAX};
use crate::op::Flow;

pub use shards::{PlacementShards, ShardError, deal_shards};
pub use table::{NobodyLeft, TableError};

/// The stage of every chunk, in model order. Valid by construction: every stage from 0 to the
/// highest holds all chunks of its place in one column or in several.
///
/// There may be several *replicas* of the model. Those of one pipeline stand on the same stages, in
/// two opposite directions; those of several pipelines, the *columns*, on stages of their own: column
/// `c` of `p` places each on the stages `c * p .. (c + 1) * p`, all in the same shape. Chunks are
/// counted through replica by replica, column by column, and so are the microbatches of a step, so
/// that the replica of a pass follows from its chunk and from its microbatch alike. Each runs through
/// as many of a job's lanes as any other.
///
/// A *table* ([`Self::of_table`]) has stages that stand at one place of several columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "PlacementForm", into = "PlacementForm")]
pub struct Placement {
    stage_of_chunk: Vec<StageIndex>,
    stage_count: u32,
    replica_count: u32,
    column_count: u32,
    /// Places of each column: its stages, if each stands in one column alone.
    stages_per_column: u32,
    /// Layers in each shard, by the place of their chunk along the model; empty where all replicas update all.
    shards: Vec<Vec<u32>>,
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
    shape: ShapeForm,
    stage_count: u32,
    chunk_count: u32,
}

/// A shape, and how often it is there: one column has the bytes that it had before there were more.
#[derive(Serialize, Deserialize)]
enum ShapeForm {
    Line,
    Loop,
    Vee,
    Cross,
    Columns {
        shape: PlacementShape,
        count: u32,
    },
    Table {
        shape: PlacementShape,
        count: u32,
        cells: Vec<StageIndex>,
    },
    ShardedColumns {
        shape: PlacementShape,
        count: u32,
        shards: Vec<Vec<u32>>,
    },
    ShardedTable {
        shape: PlacementShape,
        count: u32,
        cells: Vec<StageIndex>,
        shards: Vec<Vec<u32>>,
    },
}

/// Chunks and stages that do not form the columns named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{chunk_count} chunks over {stage_count} stages do not form {}", columns_text(*shape, *column_count))]
pub struct PlacementError {
    /// The shape that was to be formed.
    pub shape: PlacementShape,
    /// How many columns of it: a power of two up to [`COLUMNS_MAX`].
    pub column_count: u32,
    /// Number of stages given, over all columns.
    pub stage_count: u32,
    /// Number of chunks given, over all columns.
    pub chunk_count: u32,
}

fn columns_text(shape: PlacementShape, column_count: u32) -> String {
    match column_count {
        1 => format!("a {shape}"),
        _ => format!("{column_count} replicas of a {shape}, a power of two up to {COLUMNS_MAX}"),
    }
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
        let error = PlacementError { shape, column_count: 1, stage_count, chunk_count };
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

    /// `column_count` columns that have `stage_count` stages and `chunk_count` chunks together, each
    /// laid out in `shape`.
    ///
    /// # Errors
    /// As [`Self::of_shape`], and if columns are no power of two, or more than [`COLUMNS_MAX`].
    pub fn of_columns(
        shape: PlacementShape,
        column_count: u32,
        stage_count: u32,
        chunk_count: u32,
    ) -> Result<Self, PlacementError> {
        let error = PlacementError { shape, column_count, stage_count, chunk_count };
        let are_dealt = column_count.is_power_of_two()
            && column_count <= COLUMNS_MAX
            && (1..=TEXT_COUNT_MAX).contains(&chunk_count)
            && stage_count.is_multiple_of(column_count)
            && chunk_count.is_multiple_of(column_count);
        if !are_dealt {
            return Err(error);
        }
        let column = Self::of_shape(shape, stage_count / column_count, chunk_count / column_count);
        column.map(|column| column.repeated(column_count)).map_err(|_| error)
    }

    /// So many columns of this placement, which is one.
    fn repeated(self, column_count: u32) -> Self {
        let Self { stage_of_chunk, stage_count, replica_count, .. } = self;
        let column = |index: u32| {
            let first = index * stage_count;
            stage_of_chunk.iter().map(move |stage| StageIndex(first + stage.0))
        };
        Self {
            stage_of_chunk: (0..column_count).flat_map(column).collect(),
            stage_count: column_count * stage_count,
            replica_count: column_count * replica_count,
            column_count,
            stages_per_column: stage_count,
            shards: Vec::new(),
        }
    }

    /// One column of this placement alone.
    #[must_use]
    pub fn column(&self) -> Self {
        let stage_of_chunk =
            self.stage_of_chunk[..self.stage_of_chunk.len() / self.column_count as usize].to_vec();
        Self {
            stage_of_chunk,
            stage_count: self.stages_per_column,
            replica_count: self.direction_count(),
            column_count: 1,
            stages_per_column: self.stages_per_column,
            shards: Vec::new(),
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
        Self {
            stage_of_chunk,
            stage_count,
            replica_count: 1,
            column_count: 1,
            stages_per_column: stage_count,
            shards: Vec::new(),
        }
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
        Self {
            stage_of_chunk: down.chain(up).collect(),
            stage_count,
            replica_count: 1,
            column_count: 1,
            stages_per_column: stage_count,
            shards: Vec::new(),
        }
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

    /// The same with the layers of each chunk in shards (ZeRO stage 1, Rajbhandari et al., SC 2020, section
    /// 5.1): `layers` counts those of each shard, by the chunk's place along the model. Of D replicas `D / shards` have
    /// the moments of a shard's layers and update them, and the others get their candidate weights. With one
    /// shard all update everything.
    ///
    /// # Errors
    /// If shards are no power of two, not as many for every chunk, more than there are columns, or more than
    /// one where a column runs in two directions, or where a stage stands in columns that update several.
    pub fn sharded(self, layers: Vec<Vec<u32>>) -> Result<Self, ShardError> {
        let columns = self.column_count;
        let expected = self.chunks_per_replica();
        let error = ShardError { expected, found: layers.len(), columns };
        let shards = layers.first().map_or(0, Vec::len);
        let are_alike = layers.iter().all(|of_chunk| of_chunk.len() == shards);
        let are_counted = layers.iter().flatten().all(|count| *count <= TEXT_COUNT_MAX);
        let is_legal = layers.len() == expected as usize
            && are_alike
            && are_counted
            && shards.is_power_of_two()
            && shards <= columns as usize
            && (shards == 1 || self.direction_count() == 1);
        let sharded = match shards {
            _ if !is_legal => return Err(error),
            1 => Self { shards: Vec::new(), ..self },
            _ => Self { shards: layers, ..self },
        };
        if sharded.shards().has_one_a_stage() { Ok(sharded) } else { Err(error) }
    }

    /// Which of its replicas update which layers.
    #[must_use]
    pub fn shards(&self) -> PlacementShards<'_> {
        PlacementShards(self)
    }

    /// The shape that each column has; a single stage with one chunk counts as a line.
    #[must_use]
    pub fn shape(&self) -> PlacementShape {
        let vee = || Self::vee(self.stages_per_column()).stage_of_chunk;
        if self.direction_count() == 2 {
            PlacementShape::Cross
        } else if self.chunks_per_stage() == 1 {
            PlacementShape::Line
        } else if self.stage_of_chunk.starts_with(&vee()) && self.chunks_per_stage() == 2 {
            PlacementShape::Vee
        } else {
            PlacementShape::Loop
        }
    }

    /// The number of columns: pipelines on stages of their own.
    #[must_use]
    pub fn column_count(&self) -> u32 {
        self.column_count
    }

    /// The number of directions in which each column runs: two of a cross.
    #[must_use]
    pub fn direction_count(&self) -> u32 {
        self.replica_count / self.column_count
    }

    /// The number of places of each column.
    #[must_use]
    pub fn stages_per_column(&self) -> u32 {
        self.stages_per_column
    }

    /// The number of stages, of all columns together.
    #[must_use]
    pub fn stage_count(&self) -> u32 {
        self.stage_count
    }

    /// The number of chunks on each stage, of each column that it stands in.
    #[must_use]
    pub fn chunks_per_stage(&self) -> u32 {
        self.chunk_count() / (self.column_count * self.stages_per_column)
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

    /// The chunk at the other end of the model, whose part of a tied matrix's gradient is added to
    /// that of `chunk`; nothing between the ends. Of the two directions of a column, whose gradients are
    /// the same by then, it is the one on the stage of `chunk`. A chunk that is all of the model has
    /// both ends.
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
        let column = |of: ChunkIndex| self.replica_of(of) / self.direction_count();
        let is_here = |other: &ChunkIndex| {
            self.stage_of(*other) == self.stage_of(chunk) && column(*other) == column(chunk)
        };
        let mut group = self.group_of(other).filter(|found| !is_here(&other) && is_here(found));
        Some(group.next().unwrap_or(other))
    }

    /// The place of `chunk` along the model: the same for the same layers of all replicas.
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
        f64::from(self.direction_count()) / f64::from(self.chunks_per_stage())
    }
}

impl From<Placement> for PlacementForm {
    fn from(placement: Placement) -> Self {
        let shape = match (placement.column_count, placement.shape()) {
            (1, PlacementShape::Line) => ShapeForm::Line,
            (1, PlacementShape::Loop) => ShapeForm::Loop,
            (1, PlacementShape::Vee) => ShapeForm::Vee,
            (1, PlacementShape::Cross) => ShapeForm::Cross,
            (count, shape) => {
                let cells = placement.is_table().then(|| placement.table().cells());
                let shards = placement.shards.clone();
                match cells {
                    Some(cells) if shards.is_empty() => ShapeForm::Table { shape, count, cells },
                    Some(cells) => ShapeForm::ShardedTable { shape, count, cells, shards },
                    None if shards.is_empty() => ShapeForm::Columns { shape, count },
                    None => ShapeForm::ShardedColumns { shape, count, shards },
                }
            }
        };
        Self { shape, stage_count: placement.stage_count, chunk_count: placement.chunk_count() }
    }
}

impl TryFrom<PlacementForm> for Placement {
    type Error = TableError;

    fn try_from(form: PlacementForm) -> Result<Self, TableError> {
        let PlacementForm { shape, stage_count, chunk_count } = form;
        let columns = |shape, count| Self::of_columns(shape, count, stage_count, chunk_count);
        let sizes = (stage_count, chunk_count);
        Ok(match shape {
            ShapeForm::Line => columns(PlacementShape::Line, 1)?,
            ShapeForm::Loop => columns(PlacementShape::Loop, 1)?,
            ShapeForm::Vee => columns(PlacementShape::Vee, 1)?,
            ShapeForm::Cross => columns(PlacementShape::Cross, 1)?,
            ShapeForm::Columns { shape, count } => columns(shape, count)?,
            ShapeForm::Table { shape, count, cells } => {
                Self::of_table(shape, count, sizes, &cells)?
            }
            ShapeForm::ShardedColumns { shape, count, shards } => {
                columns(shape, count)?.sharded(shards)?
            }
            ShapeForm::ShardedTable { shape, count, cells, shards } => {
                Self::of_table(shape, count, sizes, &cells)?.sharded(shards)?
            }
        })
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
mod tests;
