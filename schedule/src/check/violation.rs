//! The report of a rule when a program breaks it: one variant a rule.

use zbelastic_types::{ChunkIndex, SliceIndex, StageIndex};

use crate::limits::PASS_COUNT_MAX;
use crate::op::{Op, Pass, UpdateOp};
use crate::walk::Deadlock;

/// A rule that a program breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleViolation {
    /// Chunks times microbatches times slices are more than any reader accepts. Nothing else was
    /// checked.
    #[error("expected at most {PASS_COUNT_MAX} passes, found {found}")]
    PassCount {
        /// Number of passes of the program.
        found: u64,
    },
    /// A program with no microbatch at all. Nothing else was checked.
    #[error("expected 1 microbatch a step or more, found 0")]
    MicrobatchCount,
    /// There is not one list a stage. Nothing else was checked.
    #[error("expected {expected} lists of operations, one a stage, found {found}")]
    ListCount {
        /// Number of stages of the placement.
        expected: u32,
        /// Number of lists of the program.
        found: usize,
    },
    /// An operation on a chunk that another stage holds, or that does not exist.
    #[error("stage {stage}: {op} is on a chunk of {}", stage_text(*expected))]
    ForeignChunk {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// The stage that holds the chunk; `None` beyond the model's end.
        expected: Option<StageIndex>,
    },
    /// An operation on a microbatch the step does not have.
    #[error("stage {stage}: {op} is beyond the step's {microbatch_count} microbatches")]
    MicrobatchRange {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// Microbatches in a step.
        microbatch_count: u32,
    },
    /// An operation on a microbatch that runs through another replica.
    #[error(
        "stage {stage}: {op} is on a chunk of replica {found}; its microbatch runs through \
         replica {expected}"
    )]
    OtherReplica {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// Number of the replica that the microbatch runs through.
        expected: u32,
        /// Number of the replica that the chunk belongs to.
        found: u32,
    },
    /// A pass has not exactly one F.
    #[error("{}: expected one F, found {found}", pass_text(*pass))]
    ForwardCount {
        /// The pass: its chunk, microbatch and slice.
        pass: Pass,
        /// How often F was found.
        found: u32,
    },
    /// A pass has neither exactly one BW nor exactly one B and one W.
    #[error(
        "{}: expected either one BW or one B and one W, found {b} B, {w} W, {bw} BW",
        pass_text(*pass)
    )]
    BackwardCount {
        /// The pass: its chunk, microbatch and slice.
        pass: Pass,
        /// How often B was found.
        b: u32,
        /// How often W was found.
        w: u32,
        /// How often BW was found.
        bw: u32,
    },
    /// WE more than once, on a pass that is not split, or not on the last chunk.
    #[error(
        "{}: expected at most one WE, on a split pass of chunk {last_chunk}, found {found}{}",
        pass_text(*pass),
        if *is_split { "" } else { " on a pass without W" }
    )]
    EarlyWeights {
        /// The pass: its chunk, microbatch and slice.
        pass: Pass,
        /// The chunk that may have WE.
        last_chunk: ChunkIndex,
        /// How often WE was found.
        found: u32,
        /// Whether the pass has a W that WE could compute a share of.
        is_split: bool,
    },
    /// The operations of a pass are not in the order F, R, B or BW, WE, W.
    #[error("stage {stage}: expected {op} before {after}, found it after")]
    PassOrder {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that comes too late.
        op: Op,
        /// The operation of the same pass that should have come later.
        after: Op,
    },
    /// A gradient is not summed in microbatch order, or slices not in reverse, so its bits would
    /// depend on the schedule.
    #[error(
        "stage {stage}: {op} adds to a gradient that microbatch {} was added to before",
        after.microbatch_text(1)
    )]
    AccumulationOrder {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// The pass that was added first and belongs behind it.
        after: Pass,
    },
    /// A transfer, update or WE in a program without a window, which is not lowered.
    #[error(
        "stage {stage}: {op} in a program without a window; \
         only passes and what moves their memory belong there"
    )]
    NotLowered {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
    },
    /// A result that another chunk needs is not sent at once.
    #[error("stage {stage}: expected {expected} right after {op}, found {}", op_text(*found))]
    ResultKept {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that made the result.
        op: Op,
        /// The transfer that should follow.
        expected: Op,
        /// The operation that follows; `None` at the end of the list.
        found: Option<Op>,
    },
    /// An operand from another stage is not received exactly once before it is needed.
    #[error("stage {stage}: expected one {expected} before {op}, found {found}")]
    OperandCount {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that needs it.
        op: Op,
        /// The transfer that should come first.
        expected: Op,
        /// How often it was found there.
        found: u32,
    },
    /// A transfer that no pass needs at that place.
    #[error("stage {stage}: no pass needs {op} there")]
    StrayTransfer {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The transfer that is not needed.
        op: Op,
    },
    /// The updates of a step are not those of its window, in their order.
    #[error(
        "stage {stage}: expected the updates {}, found {}",
        updates_text(expected),
        updates_text(found)
    )]
    UpdateSequence {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The updates of the window.
        expected: Vec<UpdateOp>,
        /// The updates that the stage has.
        found: Vec<UpdateOp>,
    },
    /// The step does not end with its updates.
    #[error(
        "stage {stage}: expected {} at the end, found {}",
        updates_text(expected),
        ops_text(found)
    )]
    UpdateTail {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The updates that should come last.
        expected: Vec<UpdateOp>,
        /// As many operations from the end.
        found: Vec<Op>,
    },
    /// With window one, `GATE_PREVIOUS COMMIT` does not stand before the first accumulation.
    #[error(
        "stage {stage}: expected GATE_PREVIOUS COMMIT before {}, found {} before it",
        op_text(*accumulation),
        ops_text(found)
    )]
    GatePlace {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The first operation that adds to the weights' gradient.
        accumulation: Option<Op>,
        /// The operations before it, from the gate on, at most two operations.
        found: Vec<Op>,
    },
    /// An operation that makes one gradient of those of a chunk's replicas is missing, or occurs
    /// too often.
    #[error("expected {op} {expected} times, found it {found} times")]
    ReductionCount {
        /// The operation, on its chunk.
        op: Op,
        /// How often it belongs into a step.
        expected: u32,
        /// How often it was found.
        found: u32,
    },
    /// A gradient is passed or added to its sibling's before it is complete, or passed after it was
    /// added, or added at a level of the tree before the one below.
    #[error("stage {stage}: expected {op} before {after}, found it after")]
    ReductionOrder {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that comes too late.
        op: Op,
        /// The operation on the same chunk that should have come later.
        after: Op,
    },
    /// OFFLOAD does not follow the pass's F or its DROP.
    #[error(
        "stage {stage}: expected {op} after F or DROP of its pass, found it after {}",
        latest_text(*after)
    )]
    OffloadPlace {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// The stage's last operation on the pass.
        after: Option<Op>,
    },
    /// RELOAD does not follow the pass's OFFLOAD.
    #[error(
        "stage {stage}: expected {op} after OFFLOAD of its pass, found it after {}",
        latest_text(*after)
    )]
    ReloadPlace {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// The stage's last operation on the pass.
        after: Option<Op>,
    },
    /// DROP does not follow the pass's F.
    #[error(
        "stage {stage}: expected {op} after F of its pass, found it after {}",
        latest_text(*after)
    )]
    DropPlace {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// The stage's last operation on the pass.
        after: Option<Op>,
    },
    /// R does not follow the pass's DROP or RELOAD.
    #[error(
        "stage {stage}: expected {op} after DROP or RELOAD of its pass, found it after {}",
        latest_text(*after)
    )]
    RecomputePlace {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// The stage's last operation on the pass.
        after: Option<Op>,
    },
    /// A pass has not as many R as DROP.
    #[error("{}: expected one R for each DROP, found {found} for {drops}", pass_text(*pass))]
    RecomputeCount {
        /// The pass: its chunk, microbatch and slice.
        pass: Pass,
        /// How often DROP was found.
        drops: u32,
        /// How often R was found.
        found: u32,
    },
    /// Arithmetic on a pass whose memory is offloaded.
    #[error("stage {stage}: {op} needs what was offloaded and not reloaded")]
    ComputesOffloaded {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
    },
    /// Activations of a slice are offloaded or reloaded, and later slices read them.
    #[error("stage {stage}: expected what a slice keeps to stay here until its B, found {op}")]
    SlicedMemory {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
    },
    /// The step ends and the activations of a pass are still offloaded.
    #[error("{}: expected RELOAD after OFFLOAD, found the end", pass_text(*pass))]
    NeverReloaded {
        /// The pass: its chunk, microbatch and slice.
        pass: Pass,
    },
    /// The stages come to a point where each waits for another, or for something that never comes.
    #[error(transparent)]
    Deadlock(Deadlock),
    /// A program with no slice at all. Nothing else was checked.
    #[error("expected 1 slice a microbatch or more, found 0")]
    SliceCount,
    /// An operation on a slice that microbatches do not have.
    #[error("stage {stage}: {op} is beyond the {slice_count} slices of a microbatch")]
    SliceRange {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that breaks the rule.
        op: Op,
        /// Slices of a microbatch.
        slice_count: u32,
    },
    /// A slice goes forward before one whose keys and values it attends to.
    #[error("stage {stage}: expected {expected} before {op}, found it after")]
    ForwardSlices {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that comes too early.
        op: Op,
        /// The F that it needs.
        expected: Op,
    },
    /// A slice goes backward before one that adds to the gradients of its keys and values.
    #[error(
        "stage {stage}: expected the backward pass of slice {behind} before {op}, found it after"
    )]
    BackwardSlices {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// The operation that comes too early.
        op: Op,
        /// The slice behind it.
        behind: SliceIndex,
    },
}

fn pass_text(pass: Pass) -> String {
    format!("chunk {}, microbatch {}", pass.chunk, pass.microbatch_text(1))
}

fn stage_text(stage: Option<StageIndex>) -> String {
    stage.map_or_else(|| "no stage".to_owned(), |stage| format!("stage {stage}"))
}

fn latest_text(op: Option<Op>) -> String {
    op.map_or_else(|| "nothing".to_owned(), |op| op.to_string())
}

fn op_text(op: Option<Op>) -> String {
    op.map_or_else(|| "the end".to_owned(), |op| op.to_string())
}

fn ops_text(ops: &[Op]) -> String {
    if ops.is_empty() {
        return "nothing".to_owned();
    }
    ops.iter().map(Op::to_string).collect::<Vec<_>>().join(" ")
}

fn updates_text(updates: &[UpdateOp]) -> String {
    ops_text(&updates.iter().map(|update| Op::Update(*update)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{ChunkIndex, StageIndex};

    use super::ScheduleViolation;
    use crate::check::tests::op;
    use crate::op::{Pass, UpdateOp};

    #[test]
    fn messages_say_where_and_what() {
        let check = |violation: ScheduleViolation, expected: &str| {
            assert_eq!(violation.to_string(), expected);
        };
        let stage = StageIndex(1);
        check(
            ScheduleViolation::ForeignChunk { stage, op: op("9F0"), expected: None },
            "stage 1: 9F0 is on a chunk of no stage",
        );
        let last_chunk = ChunkIndex(3);
        let pass = Pass::new(3, 5);
        check(
            ScheduleViolation::EarlyWeights { pass, last_chunk, found: 1, is_split: false },
            "chunk 3, microbatch 5: expected at most one WE, on a split pass of chunk 3, \
             found 1 on a pass without W",
        );
        check(
            ScheduleViolation::AccumulationOrder { stage, op: op("1W1"), after: Pass::new(1, 2) },
            "stage 1: 1W1 adds to a gradient that microbatch 2 was added to before",
        );
        let b = op("1B1");
        let send = op("1SEND_B1");
        check(
            ScheduleViolation::ResultKept { stage, op: b, expected: send, found: None },
            "stage 1: expected 1SEND_B1 right after 1B1, found the end",
        );
        let expected = vec![UpdateOp::Report, UpdateOp::Step];
        check(
            ScheduleViolation::UpdateTail { stage, expected, found: vec![op("1W1"), op("REPORT")] },
            "stage 1: expected REPORT STEP at the end, found 1W1 REPORT",
        );
        check(
            ScheduleViolation::GatePlace { stage, accumulation: Some(op("1W0")), found: vec![] },
            "stage 1: expected GATE_PREVIOUS COMMIT before 1W0, found nothing before it",
        );
    }
}
