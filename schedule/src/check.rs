//! Proves that a program is legal: what a checked program says can be run, in any order of
//! messages, to its end, and adds up gradients to the same bits as a serial run.
//!
//! Each rule is one function and one [`Violation`]. A rule trusts nothing that another rule
//! establishes, except the size and the number of lists, which are looked at first. The rules do
//! not look at times or memory: a legal program may be slow or large.

mod passes;
mod transfers;
mod updates;

use zbelastic_types::{ChunkIndex, MicrobatchIndex, StageIndex};

use crate::op::{Op, Pass, Update};
use crate::program::{PASS_COUNT_MAX, Program};
use crate::walk::{Stuck, walk};

/// Most violations one check reports. A program that breaks a rule breaks it often; nobody reads
/// further.
pub const VIOLATION_COUNT_MAX: usize = 1000;

/// A rule that a program breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Chunks times microbatches are more than any reader accepts. Nothing else was checked.
    #[error("expected at most {PASS_COUNT_MAX} passes, found {found}")]
    PassCount {
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
    /// An operation on a chunk that lives elsewhere or does not exist.
    #[error("stage {stage}: {op} is on a chunk of {}", home_text(*expected))]
    ForeignChunk {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: Op,
        /// The stage that holds the chunk; `None` beyond the model's end.
        expected: Option<StageIndex>,
    },
    /// An operation on a microbatch the step does not have.
    #[error("stage {stage}: {op} is beyond the step's {microbatch_count} microbatches")]
    MicrobatchRange {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: Op,
        /// Microbatches in a step.
        microbatch_count: u32,
    },
    /// A pass has not exactly one F.
    #[error("chunk {}, microbatch {}: expected one F, found {found}", pass.chunk, pass.microbatch)]
    ForwardCount {
        /// The pass.
        pass: Pass,
        /// How often F was found.
        found: u32,
    },
    /// A pass has neither exactly one BW nor exactly one B and one W.
    #[error(
        "chunk {}, microbatch {}: expected either one BW or one B and one W, \
         found {b} B, {w} W, {bw} BW",
        pass.chunk,
        pass.microbatch
    )]
    BackwardCount {
        /// The pass.
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
        "chunk {}, microbatch {}: expected at most one WE, on a split pass of chunk {last_chunk}, \
         found {found}{}",
        pass.chunk,
        pass.microbatch,
        if *is_split { "" } else { " on a pass without W" }
    )]
    EarlyWeights {
        /// The pass.
        pass: Pass,
        /// The chunk that may have WE.
        last_chunk: ChunkIndex,
        /// How often WE was found.
        found: u32,
        /// Whether the pass has a W that WE could take a share of.
        is_split: bool,
    },
    /// The operations of a pass are not in the order F, B or BW, WE, W.
    #[error("stage {stage}: expected {op} before {after}, found it after")]
    PassOrder {
        /// The stage.
        stage: StageIndex,
        /// The operation that comes too late.
        op: Op,
        /// The operation of the same pass that should have come later.
        after: Op,
    },
    /// A gradient is not summed in microbatch order, so its bits would depend on the schedule.
    #[error("stage {stage}: {op} adds to a gradient that microbatch {after} was added to before")]
    AccumulationOrder {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: Op,
        /// The later microbatch that was added first.
        after: MicrobatchIndex,
    },
    /// A transfer, update or WE in a program that says it is not lowered.
    #[error("stage {stage}: {op} in a program without a window; only F, B, W and BW belong there")]
    NotLowered {
        /// The stage.
        stage: StageIndex,
        /// The operation.
        op: Op,
    },
    /// A result that another chunk needs is not passed on at once.
    #[error("stage {stage}: expected {expected} right after {op}, found {}", op_text(*found))]
    ResultKept {
        /// The stage.
        stage: StageIndex,
        /// The operation whose result it is.
        op: Op,
        /// The transfer that should follow.
        expected: Op,
        /// What follows.
        found: Option<Op>,
    },
    /// An operand from another stage is not received exactly once before it is needed.
    #[error("stage {stage}: expected one {expected} before {op}, found {found}")]
    OperandCount {
        /// The stage.
        stage: StageIndex,
        /// The operation that needs it.
        op: Op,
        /// The transfer that should come first.
        expected: Op,
        /// How often it was found there.
        found: u32,
    },
    /// A transfer that no pass asks for at that place.
    #[error("stage {stage}: nothing asks for {op} there")]
    StrayTransfer {
        /// The stage.
        stage: StageIndex,
        /// The transfer.
        op: Op,
    },
    /// The updates of a step are not those of its window, in their order.
    #[error(
        "stage {stage}: expected the updates {}, found {}",
        updates_text(expected),
        updates_text(found)
    )]
    UpdateSequence {
        /// The stage.
        stage: StageIndex,
        /// The updates of the window.
        expected: Vec<Update>,
        /// The updates found.
        found: Vec<Update>,
    },
    /// The step does not end with its updates.
    #[error(
        "stage {stage}: expected {} at the end, found {}",
        updates_text(expected),
        ops_text(found)
    )]
    UpdateTail {
        /// The stage.
        stage: StageIndex,
        /// The updates that should come last.
        expected: Vec<Update>,
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
        /// The stage.
        stage: StageIndex,
        /// The first operation that adds to the weights' gradient.
        accumulation: Option<Op>,
        /// What stands before it, from the gate on, at most two operations.
        found: Vec<Op>,
    },
    /// The stages come to a point where each waits for another, or for nothing that comes.
    #[error(transparent)]
    Stuck(Stuck),
}

fn home_text(stage: Option<StageIndex>) -> String {
    stage.map_or_else(|| "no stage".to_owned(), |stage| format!("stage {stage}"))
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

fn updates_text(updates: &[Update]) -> String {
    ops_text(&updates.iter().map(|update| Op::Update(*update)).collect::<Vec<_>>())
}

/// What the rules found, up to [`VIOLATION_COUNT_MAX`].
#[derive(Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, violation: Violation) {
        if self.0.len() < VIOLATION_COUNT_MAX {
            self.0.push(violation);
        }
    }
}

/// Looks for every rule that `program` breaks.
///
/// # Errors
/// The violations, rule by rule and stage by stage, [`VIOLATION_COUNT_MAX`] at most.
pub fn check(program: &Program) -> Result<(), Vec<Violation>> {
    let mut findings = Findings::default();
    pass_count(program, &mut findings);
    list_count(program, &mut findings);
    if findings.0.is_empty() {
        let rules = [
            passes::foreign_chunk,
            passes::microbatch_range,
            passes::forward_count,
            passes::backward_count,
            passes::early_weights,
            passes::pass_order,
            passes::accumulation_order,
            transfers::not_lowered,
            transfers::result_kept,
            transfers::operand_count,
            transfers::stray_transfer,
            updates::update_sequence,
            updates::update_tail,
            updates::gate_place,
            stuck,
        ];
        for rule in rules {
            rule(program, &mut findings);
        }
    }
    if findings.0.is_empty() { Ok(()) } else { Err(findings.0) }
}

fn pass_count(program: &Program, findings: &mut Findings) {
    let found = program.pass_count();
    if found > PASS_COUNT_MAX {
        findings.add(Violation::PassCount { found });
    }
}

fn list_count(program: &Program, findings: &mut Findings) {
    let (expected, found) = (program.placement.stage_count(), program.stages.len());
    if found != expected as usize {
        findings.add(Violation::ListCount { expected, found });
    }
}

/// One step is enough: between steps a stage waits only for reports, which every stage sends
/// before it can wait for anything of the step after.
fn stuck(program: &Program, findings: &mut Findings) {
    if let Err(stuck) = walk(program, 1, |_, _, _| {}) {
        findings.add(Violation::Stuck(stuck));
    }
}

/// Every operation with its stage, stage by stage in list order.
fn ops_of(program: &Program) -> impl Iterator<Item = (StageIndex, Op)> + '_ {
    program.lists().flat_map(|(stage, ops)| ops.iter().map(move |op| (stage, *op)))
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use super::{VIOLATION_COUNT_MAX, Violation, check};
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::op::Op;
    use crate::program::{PASS_COUNT_MAX, Program, Window};
    use crate::walk::{Stuck, StuckAt};

    /// Split backward, window one, early weights.
    pub(super) const SPLIT: &str = "program zb-h1 line stages 2 chunks 2 microbatches 2 window 1
        stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 GATE_PREVIOUS COMMIT 0W0 \
            0RECV_B1 0B1 0W1 REPORT STEP
        stage 1: 1RECV_F0 1F0 1B0 1SEND_B0 GATE_PREVIOUS COMMIT 1WE0 \
            1RECV_F1 1F1 1B1 1SEND_B1 1WE1 1W0 1W1 REPORT STEP";

    /// Fused backward, window one.
    pub(super) const FUSED: &str = "program 1f1b line stages 2 chunks 2 microbatches 2 window 1
        stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 GATE_PREVIOUS COMMIT 0BW0 \
            0RECV_B1 0BW1 REPORT STEP
        stage 1: 1RECV_F0 1F0 GATE_PREVIOUS COMMIT 1BW0 1SEND_B0 \
            1RECV_F1 1F1 1BW1 1SEND_B1 REPORT STEP";

    /// Fused backward, window zero.
    pub(super) const WINDOW_ZERO: &str =
        "program gpipe line stages 2 chunks 2 microbatches 2 window 0
        stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1 \
            REPORT GATE_THIS STEP COMMIT
        stage 1: 1RECV_F0 1F0 1RECV_F1 1F1 1BW0 1SEND_B0 1BW1 1SEND_B1 \
            REPORT GATE_THIS STEP COMMIT";

    /// Two chunks a stage, the middle boundary on one stage.
    pub(super) const VEE: &str = "program zb-v vee stages 2 chunks 4 microbatches 1 window 1
        stage 0: 0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 GATE_PREVIOUS COMMIT 3W0 \
            0RECV_B0 0B0 0W0 REPORT STEP
        stage 1: 1RECV_F0 1F0 1LOCAL_F0 2F0 2SEND_F0 2RECV_B0 2B0 2LOCAL_B0 \
            GATE_PREVIOUS COMMIT 2W0 1B0 1SEND_B0 1W0 REPORT STEP";

    /// Not lowered.
    pub(super) const COMPUTE_ONLY: &str =
        "program 1f1b line stages 2 chunks 2 microbatches 2 window -
        stage 0: 0F0 0F1 0BW0 0BW1
        stage 1: 1F0 1BW0 1F1 1BW1";

    pub(super) fn op(text: &str) -> Op {
        text.parse().expect("the word is an operation")
    }

    pub(super) fn legal(text: &str) {
        assert_eq!(check(&text.parse().expect("the text is a program")), Ok(()), "{text}");
    }

    /// `text` is legal, and breaks the rule `violation` when `right` in it becomes `wrong`.
    pub(super) fn find(text: &str, right: &str, wrong: &str, violation: Violation) {
        legal(text);
        assert_eq!(text.matches(right).count(), 1, "`{right}` says where");
        let broken = text.replace(right, wrong);
        let found = check(&broken.parse().expect("the text is a program"));
        let found = found.expect_err("the program is not legal");
        assert!(found.contains(&violation), "expected {violation:?}, found {found:#?}\n{broken}");
    }

    #[test]
    fn every_schedule_is_legal_at_every_size() {
        let sizes = (1..=8).flat_map(|p| (1..=24).map(move |m| (p, m)));
        for (p, m) in sizes {
            for kind in ScheduleKind::ALL {
                let Ok(program) = generate(kind, p, m) else {
                    assert!(kind == ScheduleKind::Interleaved && m % p != 0, "{kind} {p} {m}");
                    continue;
                };
                assert_eq!(check(&program), Ok(()), "{kind} {p} {m}");
                for window in [Window::Zero, Window::One] {
                    for early_head_weights in [false, true] {
                        let options = LowerOptions { window, early_head_weights };
                        let lowered = lower(&program, options);
                        assert_eq!(check(&lowered), Ok(()), "{kind} {p} {m} {options:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_program_has_a_list_a_stage() {
        let mut program: Program = COMPUTE_ONLY.parse().expect("the text is a program");
        assert_eq!(check(&program), Ok(()));
        program.stages.push(Vec::new());
        assert_eq!(check(&program), Err(vec![Violation::ListCount { expected: 2, found: 3 }]));
        program.stages.truncate(1);
        assert_eq!(check(&program), Err(vec![Violation::ListCount { expected: 2, found: 1 }]));
    }

    #[test]
    fn a_program_is_not_larger_than_its_readers_can_hold() {
        let mut program: Program = COMPUTE_ONLY.parse().expect("the text is a program");
        let most = u32::try_from(PASS_COUNT_MAX / 2).expect("the limit fits");
        program.microbatch_count = most + 1;
        let found = PASS_COUNT_MAX + 2;
        assert_eq!(check(&program), Err(vec![Violation::PassCount { found }]));
        program.microbatch_count = most;
        let found = check(&program).expect_err("most passes are missing");
        assert_eq!(found.len(), VIOLATION_COUNT_MAX);
    }

    #[test]
    fn stages_that_wait_for_each_other_are_shown() {
        let places = [(0, "0BW0"), (1, "1F1")].map(|(stage, waits_at)| StuckAt {
            stage: StageIndex(stage),
            step: 0,
            op: Some(op(waits_at)),
        });
        let stuck = Violation::Stuck(Stuck { places: places.to_vec() });
        let text = "the program stops: stage 0 waits at 0BW0 in step 0, \
                    stage 1 waits at 1F1 in step 0";
        assert_eq!(stuck.to_string(), text);
        let gpipe = COMPUTE_ONLY.replace("1F0 1BW0 1F1 1BW1", "1F0 1F1 1BW0 1BW1");
        find(&gpipe, "0F1 0BW0", "0BW0 0F1", stuck);
    }

    #[test]
    fn a_message_that_never_comes_is_shown() {
        let at = |stage, op| StuckAt { stage: StageIndex(stage), step: 0, op };
        let places =
            vec![StuckAt { step: 0, ..at(0, Some(op("0RECV_B0"))) }, at(1, Some(op("1RECV_B0")))];
        let stuck = Violation::Stuck(Stuck { places });
        find(FUSED, "1RECV_F0 1F0", "1RECV_F0 1F0 1RECV_B0", stuck);
    }
}
