//! Pipeline schedules as data.
//!
//! A [`Program`] lists, for every stage, the operations of one step in the order in which the
//! stage runs them. Everything else here reads or writes that data: generators make it, `check`
//! proves it legal, `lower` adds what arithmetic alone leaves out, `simulate` gives it times, and
//! `render` draws it. This package knows no tensor, no address, no clock and no consensus.

mod appearance;
pub mod asynchronous;
mod boundary;
mod check;
mod columns;
mod cost;
mod exchange;
mod generate;
mod halves;
mod kind;
mod limits;
mod lower;
mod memory;
mod offload;
mod op;
mod orders;
mod packed;
mod pass_table;
mod placement;
mod program;
pub mod pytorch;
mod recompute;
mod reduction;
pub mod render;
mod shared;
mod simulate;
mod solve;
mod ties;
mod timeline;
mod wakeup_queue;
mod walk;

pub use appearance::{OpAppearance, TimelineMark, TimelineOp};
pub use check::{ScheduleViolation, VIOLATION_COUNT_MAX, check};
pub use columns::{ColumnsError, side_by_side};
pub use cost::{ChunkTimes, CopyLanes, CostError, Costs, MemoryCosts, MemoryTimes};
pub use generate::{generate, generate_sized};
pub use halves::{halved, joined};
pub use kind::{ChunkCounts, OffloadChunks, ScheduleKind, UnknownScheduleKind};
pub use limits::{COLUMNS_MAX, PASS_COUNT_MAX, TEXT_COUNT_MAX};
pub use lower::{LowerOptions, lower};
pub use memory::{
    ChunkMemory, LivePasses, live_passes, live_passes_of, live_passes_on, peak_memory,
};
pub use offload::{OffloadRequest, offload};
pub use op::{Compute, Flow, MemoryOp, Op, OpParseError, Pass, Transfer, UpdateOp};
pub use orders::{GenerateError, PipelineSize, check_size};
pub use placement::{
    NobodyLeft, Placement, PlacementError, PlacementShape, PlacementShards, ShardError, TableError,
    deal_shards,
};
pub use program::{Program, ProgramParseError, Window};
pub use recompute::recompute;
pub use reduction::{Reduction, TreeExchange, TreeLevel, TreeSide};
pub use shared::{SharedOrder, on_table};
pub use simulate::{STEP_COUNT_MAX, SimulateError, simulate, simulate_with};
pub use solve::{
    ChunkCosts, CostOwner, MemorySavings, OffloadTransfer, RecomputeCost, ScheduleProblem,
    ScheduleSolution, SolveError, StageCosts, StepEnding, fit_memory_limits, lower_bound, solve,
    solve_any,
};
pub use ties::tie_ends;
pub use timeline::{Timeline, TimelineExtent, TimelineSlice};
pub use walk::{Deadlock, DeadlockedStage};
