//! A plan: which stage holds which layers, and the program that the stages run.

mod calibration;
mod choose;
mod device_claim;
mod drift;
mod grid;
mod lanes;
mod layer_costs;
mod memory;
mod memory_policy;
mod pace;
mod partition;
mod rates;
mod replica_count;
mod reroute;
mod shards;
mod slice_cut;
mod solved;
mod work;

pub use calibration::{Calibration, StageSample, StageTimes, calibrate, median, rounded_speed};
pub use choose::{
    AUTO_KINDS, ChooseRequest, ConsideredSchedule, PlanChoice, PlanPrediction, ScheduleRefusal,
    choose, plan_period,
};
pub(crate) use device_claim::asynchronous_claim;
pub use device_claim::{DeviceClaim, device_claim};
pub use drift::{
    Drift, DriftJudgement, DriftSource, GAIN_MIN, PERIOD_GROWTH, ReplanStakes, SLACK_MAX, judge,
    slack,
};
pub use grid::{Grid, GridLimits, best_grid};
pub use lanes::{LaneAddition, LaneCount, LaneError, LaneMemory, LaneOrder};
pub use layer_costs::{ClassCosts, LayerCost, class_costs};
pub use memory::{
    HeldBeside, OffloadClaim, StageMemory, offload_claims, plan_memory, stage_memory,
};
pub(crate) use memory::{claim_copy, claim_stage};
pub use memory_policy::{MemoryPolicy, PassExtent};
pub use pace::Pace;
pub use partition::partition;
pub use replica_count::ReplicaCount;
pub use reroute::{Refill, Reroute};
pub use slice_cut::{SLICES_OF_EQUAL_TIME_MAX, SliceBalance, SliceCut, TokenWork, is_legal_cut};
pub use solved::span_lower_bound;
pub use work::{LayerWork, layer_work, model_flop_per_token};

use serde::{Deserialize, Serialize};
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_schedule::{
    GenerateError, LowerOptions, PipelineSize, Placement, Program, ScheduleKind, ScheduleViolation,
    Window, check, check_size, generate_sized, lower, side_by_side, tie_ends,
};
use zbelastic_types::{ChunkIndex, Generation, StageIndex};

use crate::model::{LayerRange, MicrobatchShape, ModelConfig, Recompute};

/// A batch: so many microbatches of one shape. Fixed by configuration, for every shape of the
/// cluster, because it is part of the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchShape {
    /// Sequences of a microbatch, and tokens of each.
    pub microbatch: MicrobatchShape,
    /// Microbatches of a step, over all replicas.
    pub microbatch_count: u32,
    /// The quantity in which slices are alike, where a schedule cuts sequences.
    #[serde(default)]
    pub cut_by: SliceBalance,
    /// The partial sums that the gradient of a step is a tree of.
    #[serde(default, skip_serializing_if = "LaneCount::is_one")]
    pub lanes: LaneCount,
}

impl BatchShape {
    /// How its sequences are cut into slices.
    ///
    /// # Errors
    /// If they cannot be cut into so many.
    pub fn cut(&self, work: TokenWork, slice_count: u32) -> Result<SliceCut, PlanError> {
        SliceCut::new(self.cut_by, work, self.microbatch.sequence_len, slice_count)
    }

    /// Tokens of a step: all microbatches together.
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
        /// Number of stages that was requested.
        stage_count: u32,
        /// Transformer blocks of the model.
        blocks: u32,
    },
    /// More chunks than the model has layers.
    #[error("{stage_count} stages of {chunks_per_stage} chunks for {layer_count} parts of a model")]
    Chunks {
        /// Number of stages that was requested.
        stage_count: u32,
        /// Chunks of each stage.
        chunks_per_stage: u32,
        /// Layers of the model: its blocks' halves, the embedding and the head.
        layer_count: u32,
    },
    /// The schedule does not exist for this size.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// Slices that sequences cannot be cut into.
    #[error("{slice_count} slices of equal {} for sequences of {sequence_len} tokens", alike(*by))]
    Slices {
        /// The quantity in which they should be alike.
        by: SliceBalance,
        /// Number of slices that was requested.
        slice_count: u32,
        /// Tokens of a sequence.
        sequence_len: usize,
    },
    /// Lanes that the step or the schedule cannot have.
    #[error(transparent)]
    Lanes(#[from] LaneError),
    /// The layers named do not make up the model, one chunk after the other.
    #[error(
        "the partition has {found} chunks and ends at layer {end}; expected {expected} chunks \
             that cover {layer_count} layers in order"
    )]
    Partition {
        /// Chunks of the schedule.
        expected: u32,
        /// Chunks that were given.
        found: usize,
        /// Id of the first layer that they do not cover in order from 0.
        end: u32,
        /// Layers of the model.
        layer_count: u32,
    },
}

const fn alike(by: SliceBalance) -> &'static str {
    match by {
        SliceBalance::Tokens => "length",
        SliceBalance::Time => "time",
    }
}

/// Which stage holds which layers, and the program of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Generation number of the plan, which its messages carry.
    pub generation: Generation,
    /// The operations of each stage in order, transfers and updates included.
    pub program: Program,
    /// The layers of each chunk, in model order; those of later replicas are the first one's.
    pub chunks: Vec<LayerRange>,
    /// Shape of the microbatches and how many a step has.
    pub batch: BatchShape,
    /// The parts that DROP frees and R recomputes.
    pub recompute: Recompute,
}

/// The input that a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Shape of the model.
    pub model: &'a ModelConfig,
    /// Shape of the microbatches and how many a step has.
    pub batch: BatchShape,
    /// Kind of pipeline schedule.
    pub kind: ScheduleKind,
    /// Chunks a stage holds; if none are given, as many as the schedule has by itself.
    pub chunks_per_stage: Option<u32>,
    /// Slices of a microbatch; if none are given, as many as the schedule has by itself.
    pub slice_count: Option<u32>,
    /// Stages of each pipeline.
    pub stage_count: u32,
    /// How many times the pipeline is there.
    pub replicas: ReplicaCount,
    /// How far steps run ahead of their verdict.
    pub window: Window,
}

impl PlanRequest<'_> {
    /// The size of each pipeline.
    fn size(&self) -> Result<PipelineSize, LaneError> {
        let own = self.batch.of_replica(self.kind, self.replicas)?;
        let size = PipelineSize::of(self.kind, self.stage_count, own.microbatch_count);
        let chunks_per_stage = self.chunks_per_stage.unwrap_or(size.chunks_per_stage);
        let slice_count = self.slice_count.unwrap_or(size.slice_count);
        Ok(PipelineSize { chunks_per_stage, slice_count, ..size })
    }

    /// The stage that each chunk of one pipeline is placed on.
    ///
    /// # Errors
    /// As [`Plan::new`].
    fn column(&self) -> Result<Placement, PlanError> {
        let blocks = self.model.blocks;
        let layer_count = self.model.layer_count();
        if self.stage_count > blocks {
            return Err(PlanError::Stages { stage_count: self.stage_count, blocks });
        }
        let size = self.size()?;
        check_size(self.kind, size)?;
        self.batch.check_lanes(self.kind)?;
        let PipelineSize { stage_count, chunks_per_stage, slice_count, .. } = size;
        self.batch.cut(TokenWork::new(self.model), slice_count)?;
        let chunk_count = stage_count * chunks_per_stage;
        if chunk_count / self.kind.replica_count() > layer_count {
            return Err(PlanError::Chunks { stage_count, chunks_per_stage, layer_count });
        }
        let placement = Placement::of_shape(self.kind.shape(), stage_count, chunk_count);
        Ok(placement.expect("the size was checked"))
    }
}

/// The layers of each chunk of one replica, so that the stage that is slowest is as fast as
/// can be. `placement` is that of one pipeline, and so is the pace.
fn cut(placement: &Placement, pace: &Pace) -> Vec<LayerRange> {
    let work: Vec<f64> = pace.layers.iter().map(LayerWork::total).collect();
    let stages = (0..placement.stage_count()).map(StageIndex);
    let speeds: Vec<f64> = stages.map(|stage| pace.speed(stage)).collect();
    partition(&work, placement, &speeds)
}

/// `order` with all that a cluster needs to run it.
fn lowered(order: &Program, window: Window, is_tied: bool) -> Program {
    let early_head_weights = order.kind.splits_backward();
    let lowered = lower(order, LowerOptions { window, early_head_weights });
    if is_tied { tie_ends(&lowered) } else { lowered }
}

impl Plan {
    /// A plan with layers spread so that the busiest stage has as little to do as can be.
    ///
    /// # Errors
    /// If there are more stages than blocks or more chunks than layers, or the schedule does not
    /// exist for this size.
    pub fn new(request: PlanRequest<'_>) -> Result<Self, PlanError> {
        let pace = Pace::estimated(request.model, request.batch.microbatch);
        let chunks = cut(&request.column()?, &pace);
        Self::with_chunks(request, chunks)
    }

    /// A plan with layers spread as given, over the chunks that make up the model once.
    ///
    /// # Errors
    /// If the chunks do not make up the model, or the schedule does not exist for this size.
    pub fn with_chunks(
        request: PlanRequest<'_>,
        chunks: Vec<LayerRange>,
    ) -> Result<Self, PlanError> {
        request.column()?;
        let compute = generate_sized(request.kind, request.size()?)?;
        Self::with_program(request, chunks, &compute)
    }

    /// A plan with layers spread as given, and arithmetic in an order of the same schedule: that of
    /// one pipeline, which each of the replicas runs.
    fn with_program(
        request: PlanRequest<'_>,
        chunks: Vec<LayerRange>,
        column: &Program,
    ) -> Result<Self, PlanError> {
        let PlanRequest { model, batch, window, replicas, .. } = request;
        let columns = vec![column.clone(); replicas.get() as usize];
        let compute = side_by_side(&columns).expect("as many are alike as may be");
        let placement = &compute.placement;
        let expected = placement.chunks_per_replica();
        let layer_count = model.layer_count();
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
        let chunks = chunks.repeat(placement.replica_count() as usize);
        let program = lowered(&compute, window, model.ties_gradients());
        let violations: Result<(), Vec<ScheduleViolation>> = check(&program);
        assert_eq!(violations, Ok(()), "what is generated or solved, and lowered, is legal");
        let recompute = Recompute::None;
        Ok(Self { generation: Generation(0), program, chunks, batch, recompute })
    }

    /// The same with activations recomputed: DROP and R in the program, for every schedule.
    #[must_use]
    pub fn with_recompute(self, recompute: Recompute) -> Self {
        if !recompute.is_any() {
            return self;
        }
        let window = self.program.window.expect("a plan is lowered");
        let order = zbelastic_schedule::recompute(&self.program);
        let program = lowered(&order, window, self.program.is_tied());
        assert_eq!(check(&program), Ok(()), "R goes with every legal program");
        Self { program, recompute, ..self }
    }

    /// The plan that is in the log, for a batch and with the recomputation of its job: they are in
    /// no plan of the log.
    #[must_use]
    pub fn of_record(record: &PlanRecord, batch: BatchShape, recompute: Recompute) -> Self {
        Self {
            generation: record.generation,
            program: record.program.clone(),
            chunks: record.chunks.clone(),
            batch,
            recompute,
        }
    }

    /// The stage that each chunk is placed on.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.program.placement
    }

    /// Microbatches of a step that run through each replica.
    #[must_use]
    pub fn microbatches_per_replica(&self) -> u32 {
        self.placement().microbatches_per_replica(self.batch.microbatch_count)
    }

    /// How the sequences of its batch are cut.
    ///
    /// # Panics
    /// If they have fewer tokens than the program has slices.
    #[must_use]
    pub fn cut(&self, model: &ModelConfig) -> SliceCut {
        self.cut_of(TokenWork::new(model))
    }

    fn cut_of(&self, work: TokenWork) -> SliceCut {
        let cut = self.batch.cut(work, self.program.slice_count);
        cut.expect("a plan has slices that its sequences can be cut into")
    }

    /// The order in which gradients add up.
    #[must_use]
    pub fn lane_order(&self) -> LaneOrder {
        LaneOrder::new(&self.batch, self.placement(), self.program.slice_count)
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

    /// The layers that `stage` has the state of, chunk by chunk: those of several chunks once.
    pub fn states_at(&self, stage: StageIndex) -> impl Iterator<Item = LayerRange> + '_ {
        let placement = self.placement();
        let chunks = placement.chunks_of(stage);
        let first = chunks.filter(|chunk| placement.table().first_on_stage(*chunk) == *chunk);
        first.map(|chunk| self.layers_of(chunk))
    }
}
