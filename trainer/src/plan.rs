//! A plan: who holds which layers, and the program they run.

mod choose;
mod memory;
mod partition;
mod work;

pub use choose::{
    Choice, ChooseRequest, Considered, Prediction, Refusal, choose, chunk_costs, predicted_costs,
};
pub use memory::{StageMemory, plan_memory, stage_memory};
pub use partition::partition;
pub use work::{LayerWork, layer_work, model_flop_per_token};

use serde::{Deserialize, Serialize};
use zbelastic_schedule::{
    GenerateError, LowerOptions, Placement, Program, ScheduleKind, Violation, Window, check,
    generate, lower,
};
use zbelastic_types::{ChunkIndex, Generation, StageIndex};

use crate::model::{LayerRange, MicrobatchShape, ModelConfig};

/// A batch: so many microbatches of one shape. Fixed by configuration, whatever the cluster looks
/// like, because it is part of the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchShape {
    /// A microbatch.
    pub microbatch: MicrobatchShape,
    /// Microbatches a step.
    pub microbatch_count: u32,
}

impl BatchShape {
    /// Tokens a step.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.microbatch.rows() as u64 * self.microbatch_count as u64
    }
}

/// Why a plan cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// More stages than the model has blocks.
    #[error("{stage_count} stages for {blocks} layers")]
    Stages {
        /// Stages asked for.
        stage_count: u32,
        /// The model's blocks.
        blocks: u32,
    },
    /// The schedule does not exist for this size.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The layers named do not make up the model, one chunk after the other.
    #[error(
        "the partition has {found} chunks and ends at layer {end}; expected {expected} chunks \
             that cover {layer_count} layers in order"
    )]
    Partition {
        /// Chunks of the schedule.
        expected: u32,
        /// Chunks given.
        found: usize,
        /// Where they end.
        end: u32,
        /// Layers of the model.
        layer_count: u32,
    },
}

/// Who holds what, and what everybody does.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The plan's number.
    pub generation: Generation,
    /// The lowered program.
    pub program: Program,
    /// The layers of each chunk, in model order.
    pub chunks: Vec<LayerRange>,
    /// The batch.
    pub batch: BatchShape,
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// The batch.
    pub batch: BatchShape,
    /// The schedule.
    pub kind: ScheduleKind,
    /// Stages.
    pub stage_count: u32,
    /// How far steps run ahead of their verdict.
    pub window: Window,
}

impl Plan {
    /// A plan with layers spread so that the busiest stage has as little to do as can be.
    ///
    /// # Errors
    /// If there are more stages than blocks, or the schedule does not exist for this size.
    pub fn new(request: PlanRequest<'_>) -> Result<Self, PlanError> {
        let blocks = request.model.blocks;
        if request.stage_count > blocks {
            return Err(PlanError::Stages { stage_count: request.stage_count, blocks });
        }
        let placement = request.kind.placement(request.stage_count);
        let work: Vec<f64> = layer_work(request.model, request.batch.microbatch)
            .iter()
            .map(LayerWork::total)
            .collect();
        Self::with_chunks(request, partition(&work, &placement))
    }

    /// A plan with layers spread as told.
    ///
    /// # Errors
    /// If the chunks do not make up the model, or the schedule does not exist for this size.
    pub fn with_chunks(
        request: PlanRequest<'_>,
        chunks: Vec<LayerRange>,
    ) -> Result<Self, PlanError> {
        let PlanRequest { model, batch, kind, stage_count, window } = request;
        let compute = generate(kind, stage_count, batch.microbatch_count)?;
        let (expected, layer_count) = (compute.placement.chunk_count(), model.layer_count());
        let mut end = 0;
        for chunk in &chunks {
            if chunk.ids().start == end {
                end = chunk.ids().end;
            }
        }
        if chunks.len() != expected as usize || end != layer_count {
            let found = chunks.len();
            return Err(PlanError::Partition { expected, found, end, layer_count });
        }
        let early_head_weights = kind.splits_backward();
        let program = lower(&compute, LowerOptions { window, early_head_weights });
        let violations: Result<(), Vec<Violation>> = check(&program);
        assert_eq!(violations, Ok(()), "what is generated and lowered is legal");
        Ok(Self { generation: Generation(0), program, chunks, batch })
    }

    /// Where chunks stand.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.program.placement
    }

    /// The layers of `chunk`.
    #[must_use]
    pub fn layers_of(&self, chunk: ChunkIndex) -> LayerRange {
        self.chunks[chunk.index()]
    }

    /// The chunks of `stage` with their layers.
    pub fn chunks_of(
        &self,
        stage: StageIndex,
    ) -> impl Iterator<Item = (ChunkIndex, LayerRange)> + '_ {
        self.placement().chunks_of(stage).map(|chunk| (chunk, self.layers_of(chunk)))
    }
}
