//! Pipeline schedules as data.
//!
//! A [`Program`] lists, for every stage, the operations of one step in the order in which the
//! stage runs them. Everything else here reads or writes that data: generators make it, `check`
//! proves it legal, `lower` adds what arithmetic alone leaves out, `simulate` gives it times, and
//! `render` draws it. This package knows no tensor, no address, no clock and no consensus.

pub mod asynchronous;
mod boundary;
mod check;
mod cost;
mod generate;
mod kind;
mod lower;
mod memory;
mod offload;
mod op;
mod packed;
mod pass_table;
mod placement;
mod program;
pub mod pytorch;
mod recompute;
pub mod render;
mod shown;
mod simulate;
mod solve;
mod timeline;
mod walk;

pub use check::{VIOLATION_COUNT_MAX, Violation, check};
pub use cost::{ChunkTimes, CopyLanes, CostError, Costs, MemoryCosts, MemoryTimes};
pub use generate::{GenerateError, PipelineSize, check_size, generate, generate_sized};
pub use kind::{ChunkCounts, ScheduleKind, UnknownKind};
pub use lower::{LowerOptions, lower};
pub use memory::{ChunkMemory, PassesLive, live_passes, live_passes_of, peak_memory};
pub use offload::{OffloadChunks, OffloadRequest, offload};
pub use op::{Compute, Flow, Memory, Op, OpParseError, Pass, Reduction, Transfer, Update};
pub use placement::{Placement, PlacementError, PlacementShape};
pub use program::{PASS_COUNT_MAX, Program, ProgramParseError, TEXT_COUNT_MAX, Window};
pub use recompute::recompute;
pub use shown::{Mark, Operation, Shown};
pub use simulate::{STEP_COUNT_MAX, SimulateError, simulate, simulate_with};
pub use solve::{
    ChunkCosts, Ending, Owner, Problem, Relief, Remake, Solution, SolveError, StageCosts, Trip,
    lower_bound, relieve, solve, solve_any,
};
pub use timeline::{Extent, Slice, Timeline};
pub use walk::{Stuck, StuckAt};
