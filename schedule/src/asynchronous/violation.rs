//! What a rule reports when an asynchronous program breaks it: one variant a rule.

use zbelastic_types::{ChunkIndex, StageIndex};

use super::kind::AsyncKind;
use super::op::{AsyncOp, WeightVersion};
use super::program::ASYNC_PASS_COUNT_MAX;
use super::variant::AsyncVariant;
use crate::check::ScheduleViolation;

/// A rule that an asynchronous program breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsyncViolation {
    /// A count is zero, or there are more passes than any reader accepts. Nothing else was checked.
    #[error("expected 1 to {ASYNC_PASS_COUNT_MAX} passes and no count of zero, found {found}")]
    Size {
        /// Number of passes of the program.
        found: u64,
    },
    /// There is not one list a stage. Nothing else was checked.
    #[error("expected {expected} lists of operations, one a stage, found {found}")]
    ListCount {
        /// Number of stages of the placement.
        expected: u32,
        /// Number of lists of the program.
        found: usize,
    },
    /// The header names a variant that its schedule does not have. Nothing else was checked.
    #[error("{kind} has no{variant}")]
    Variant {
        /// Schedule of the program.
        kind: AsyncKind,
        /// The variant that it names.
        variant: AsyncVariant,
    },
    /// A rule that synchronous programs keep as well: about passes, transfers, or reaching the end.
    #[error(transparent)]
    Plain(ScheduleViolation),
    /// An operation that this kind of program does not have.
    #[error("stage {stage}: {op} does not belong in such a program")]
    Foreign {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: AsyncOp,
    },
    /// A version that is not there: not made yet, overwritten, or freed.
    #[error("stage {stage}: {op} names a version that is not there; the newest is {newest}")]
    Missing {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: AsyncOp,
        /// The newest version of the chunk's weights in that pipeline.
        newest: WeightVersion,
    },
    /// A stash or a prediction that is there already.
    #[error("stage {stage}: {op} makes a version that is there already")]
    Twice {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: AsyncOp,
    },
    /// A pass reads another version than its kind declares.
    #[error("stage {stage}: expected {op} to read version {expected}")]
    Semantics {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: AsyncOp,
        /// The version it should read.
        expected: WeightVersion,
    },
    /// A gradient is not summed in the order of microbatches.
    #[error("stage {stage}: {op} is not the next microbatch of its pipeline, {expected}")]
    MicrobatchOrder {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: AsyncOp,
        /// The microbatch that is next.
        expected: u64,
    },
    /// An update, or an average, that is not where the gradient is complete.
    #[error("stage {stage}: expected {}, found {}", op_text(*expected), op_text(*found))]
    UpdatePlace {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The update that the accumulated gradients require; `None` for anything but an update.
        expected: Option<AsyncOp>,
        /// The operation that stands there; `None` if there is none.
        found: Option<AsyncOp>,
    },
    /// The reference model averages the minibatches of a chunk in another order than theirs, so its
    /// bits would depend on the schedule.
    #[error("stage {stage}: expected the average of version {expected} before {op}")]
    AverageOrder {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The average that was found.
        op: AsyncOp,
        /// The version whose turn it is.
        expected: WeightVersion,
    },
    /// More versions are kept beside the newest than the kind allows.
    #[error("stage {stage}: chunk {chunk} keeps {found} versions at {op}, at most {limit} may be")]
    Kept {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// Index of the chunk in model order.
        chunk: ChunkIndex,
        /// The operation that makes it too many.
        op: AsyncOp,
        /// Number of versions that are kept.
        found: usize,
        /// Versions that may be.
        limit: usize,
    },
    /// A version is kept when the program ends.
    #[error("stage {stage}: version {version} of chunk {chunk} is never freed")]
    NeverFreed {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// Index of the chunk in model order.
        chunk: ChunkIndex,
        /// The version that is still kept.
        version: WeightVersion,
    },
}

fn op_text(op: Option<AsyncOp>) -> String {
    op.map_or_else(|| "no update".to_owned(), |op| op.to_string())
}
