//! What a rule reports when an asynchronous program breaks it: one variant a rule.

use zbelastic_types::{ChunkIndex, StageIndex};

use super::kind::AsyncKind;
use super::op::{AsyncOp, Version};
use super::program::ASYNC_PASS_COUNT_MAX;
use super::variant::AsyncVariant;
use crate::check::Violation;

/// A rule that an asynchronous program breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsyncViolation {
    /// A count is zero, or there are more passes than any reader accepts. Nothing else was checked.
    #[error("expected 1 to {ASYNC_PASS_COUNT_MAX} passes and no count of zero, found {found}")]
    Size {
        /// The program's passes.
        found: u64,
    },
    /// There is not one list a stage. Nothing else was checked.
    #[error("expected {expected} lists of operations, one a stage, found {found}")]
    ListCount {
        /// The placement's stages.
        expected: u32,
        /// The program's lists.
        found: usize,
    },
    /// The header names a way of running that its schedule does not have. Nothing else was checked.
    #[error("{kind} has no{variant}")]
    Variant {
        /// The program's schedule.
        kind: AsyncKind,
        /// The way that it names.
        variant: AsyncVariant,
    },
    /// A rule that synchronous programs keep as well: about passes, transfers, or reaching the end.
    #[error(transparent)]
    Plain(Violation),
    /// An operation that this kind of program does not have.
    #[error("stage {stage}: {op} has no place in such a program")]
    Foreign {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: AsyncOp,
    },
    /// A version that is not there: not made yet, overwritten, or freed.
    #[error("stage {stage}: {op} names a version that is not there; the newest is {newest}")]
    Missing {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: AsyncOp,
        /// The newest version of that line.
        newest: Version,
    },
    /// A stash or a prediction that is there already.
    #[error("stage {stage}: {op} makes a version that is there already")]
    Twice {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: AsyncOp,
    },
    /// A pass reads another version than its kind declares.
    #[error("stage {stage}: expected {op} to read version {expected}")]
    Semantics {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: AsyncOp,
        /// The version it should read.
        expected: Version,
    },
    /// A gradient is not summed in the order of microbatches.
    #[error("stage {stage}: {op} is not the next microbatch of its pipeline, {expected}")]
    MicrobatchOrder {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: AsyncOp,
        /// The microbatch that is next.
        expected: u64,
    },
    /// An update, or an average, that is not where the gradient is complete.
    #[error("stage {stage}: expected {}, found {}", op_text(*expected), op_text(*found))]
    UpdatePlace {
        /// The stage.
        stage: StageIndex,
        /// The update that the accumulated gradients require; `None` for anything but an update.
        expected: Option<AsyncOp>,
        /// What stands there.
        found: Option<AsyncOp>,
    },
    /// The reference model meets the minibatches of a chunk in another order than theirs, so its bits
    /// would depend on the schedule.
    #[error("stage {stage}: expected the average of version {expected} before {op}")]
    AverageOrder {
        /// The stage.
        stage: StageIndex,
        /// The average found.
        op: AsyncOp,
        /// The version whose turn it is.
        expected: Version,
    },
    /// More versions are kept beside the newest than the kind allows.
    #[error("stage {stage}: chunk {chunk} keeps {found} versions at {op}, at most {limit} may be")]
    Kept {
        /// The stage.
        stage: StageIndex,
        /// The chunk.
        chunk: ChunkIndex,
        /// The operation that makes it too many.
        op: AsyncOp,
        /// Versions kept.
        found: usize,
        /// Versions that may be.
        limit: usize,
    },
    /// A version is kept when the program ends.
    #[error("stage {stage}: version {version} of chunk {chunk} is never freed")]
    NeverFreed {
        /// The stage.
        stage: StageIndex,
        /// The chunk.
        chunk: ChunkIndex,
        /// The version.
        version: Version,
    },
}

fn op_text(op: Option<AsyncOp>) -> String {
    op.map_or_else(|| "no update".to_owned(), |op| op.to_string())
}
