//! Asynchronous schedules: programs in which stages update their weights without a common step.
//!
//! A synchronous [`crate::Program`] is one step, and its weights are those of the step. Here there
//! is no such thing: a program covers a whole segment of training, every chunk has its own line of
//! weight versions, and each operation names the version it reads. So what a system of the field
//! does about staleness (stash, predict, correct, average, or nothing) stands in the text, and is
//! checked and executed as it stands there. `docs/schedules.md` describes the schedules.
//!
//! These are types beside the synchronous ones and not variants of them: the step's rules, its
//! verdict and the replicated log know nothing of versions, and so cannot be handed any. What the
//! two have in common (passes, transfers, placements, and every rule about them) is shared.

mod check;
mod generate;
mod kind;
mod memory;
mod op;
mod program;
mod region;
mod simulate;
mod variant;
mod versions;
mod violation;

pub use check::check_async;
pub use generate::{AsyncGenerateError, AsyncRequest, generate_async};
pub use kind::{AsyncKind, UnknownAsyncKind};
pub use memory::{AsyncPeakMemory, peak_memory_async};
pub use op::{
    AsyncOp, AsyncOpParseError, DynamicOptions, DynamicRule, VersionShift, WeightPrediction,
    WeightVersion,
};
pub use program::{ASYNC_PASS_COUNT_MAX, AsyncProgram, AsyncProgramParseError};
pub use region::{ArrivedOperands, DynamicRegion};
pub use simulate::{AsyncSimulation, SteadyPipeline, simulate_async};
pub use variant::AsyncVariant;
pub use violation::AsyncViolation;
