//! Proves that a program is legal: a checked program can be run, in any order of messages, to its
//! end, and adds up gradients to the same bits as a serial run.
//!
//! Each rule is one function and one [`ScheduleViolation`]. A rule trusts nothing that another rule
//! establishes, except the size and the number of lists, which are checked first. The rules do not
//! check times or amounts of memory: a legal program may be slow or large.

mod memory;
mod passes;
mod reductions;
mod slices;
mod transfers;
mod updates;
mod violation;

pub use violation::ScheduleViolation;

use zbelastic_types::StageIndex;

use crate::limits::PASS_COUNT_MAX;
use crate::op::Op;
use crate::program::Program;
use crate::walk::walk;

/// Most violations one check reports. A program that breaks a rule breaks it often; nobody reads
/// further.
pub const VIOLATION_COUNT_MAX: usize = 1000;

/// The violations that the rules found, up to [`VIOLATION_COUNT_MAX`].
#[derive(Default)]
pub(crate) struct ViolationList(Vec<ScheduleViolation>);

impl ViolationList {
    pub(crate) fn into_violations(self) -> Vec<ScheduleViolation> {
        self.0
    }

    fn add(&mut self, violation: ScheduleViolation) {
        if self.0.len() < VIOLATION_COUNT_MAX {
            self.0.push(violation);
        }
    }
}

/// Looks for every rule that `program` breaks.
///
/// # Errors
/// The violations, rule by rule and stage by stage, [`VIOLATION_COUNT_MAX`] at most.
pub fn check(program: &Program) -> Result<(), Vec<ScheduleViolation>> {
    let mut violations = ViolationList::default();
    pass_count(program, &mut violations);
    list_count(program, &mut violations);
    passes::microbatch_count(program, &mut violations);
    slices::slice_count(program, &mut violations);
    if violations.0.is_empty() {
        let rules = [
            passes::foreign_chunk,
            passes::microbatch_range,
            passes::other_replica,
            passes::forward_count,
            passes::backward_count,
            passes::early_weights,
            passes::pass_order,
            passes::accumulation_order,
            transfers::not_lowered,
            transfers::result_kept,
            transfers::operand_count,
            transfers::stray_transfer,
            reductions::reduction_count,
            reductions::reduction_order,
            reductions::tie_order,
            updates::update_sequence,
            updates::update_tail,
            updates::gate_place,
            memory::offload_place,
            memory::reload_place,
            memory::drop_place,
            memory::recompute_place,
            memory::recompute_count,
            memory::computes_offloaded,
            memory::never_reloaded,
            memory::sliced_memory,
            deadlock,
            slices::slice_range,
            slices::forward_slices,
            slices::backward_slices,
        ];
        for rule in rules {
            rule(program, &mut violations);
        }
    }
    if violations.0.is_empty() { Ok(()) } else { Err(violations.0) }
}

/// The rules that do not speak of a step: what an asynchronous program keeps as well, without its
/// versions.
pub(crate) fn plain_rules(program: &Program, violations: &mut ViolationList) {
    let rules = [
        passes::foreign_chunk,
        passes::microbatch_range,
        passes::forward_count,
        passes::backward_count,
        passes::pass_order,
        transfers::result_kept,
        transfers::operand_count,
        transfers::stray_transfer,
        deadlock,
        slices::slice_range,
    ];
    for rule in rules {
        rule(program, violations);
    }
}

fn pass_count(program: &Program, violations: &mut ViolationList) {
    let found = program.pass_count();
    if found > PASS_COUNT_MAX {
        violations.add(ScheduleViolation::PassCount { found });
    }
}

fn list_count(program: &Program, violations: &mut ViolationList) {
    let expected = program.placement.stage_count();
    let found = program.stages.len();
    if found != expected as usize {
        violations.add(ScheduleViolation::ListCount { expected, found });
    }
}

/// The program reaches its end. One step is enough: between steps a stage waits only for reports,
/// which every stage sends before it can wait for anything of the step after.
fn deadlock(program: &Program, violations: &mut ViolationList) {
    if let Err(deadlock) = walk(program, 1, |_, _, _| {}) {
        violations.add(ScheduleViolation::Deadlock(deadlock));
    }
}

/// Every operation with its stage, stage by stage in list order.
fn ops_of(program: &Program) -> impl Iterator<Item = (StageIndex, Op)> + '_ {
    program.lists().flat_map(|(stage, ops)| ops.iter().map(move |op| (stage, *op)))
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use super::{ScheduleViolation, VIOLATION_COUNT_MAX, check};
    use crate::generate::generate_sized;
    use crate::kind::ScheduleKind;
    use crate::limits::PASS_COUNT_MAX;
    use crate::lower::{LowerOptions, lower};
    use crate::op::Op;
    use crate::orders::{GenerateError, PipelineSize};
    use crate::program::{Program, Window};
    use crate::ties::tie_ends;
    use crate::walk::{Deadlock, DeadlockedStage};

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

    /// A program with two replicas.
    pub(super) const CROSS: &str = "program chimera cross stages 2 chunks 4 microbatches 2 window 0
        stage 0: 0F0 0SEND_F0 3RECV_F1 3F1 3BW1 3SEND_B1 3SEND_G 0RECV_B0 0BW0 0SEND_G \
            0RECV_G 0REDUCE 3RECV_G 3REDUCE REPORT GATE_THIS STEP COMMIT
        stage 1: 2F1 2SEND_F1 1RECV_F0 1F0 1BW0 1SEND_B0 1SEND_G 2RECV_B1 2BW1 2SEND_G \
            1RECV_G 1REDUCE 2RECV_G 2REDUCE REPORT GATE_THIS STEP COMMIT";

    /// Two replicas on one stage.
    pub(super) const CROSS_ON_ONE: &str =
        "program gems cross stages 1 chunks 2 microbatches 2 window 0
        stage 0: 0F0 0BW0 0LOCAL_G 1F1 1BW1 1LOCAL_G 0REDUCE 1REDUCE REPORT GATE_THIS STEP COMMIT";

    /// A program that is not lowered.
    pub(super) const COMPUTE_ONLY: &str =
        "program 1f1b line stages 2 chunks 2 microbatches 2 window -
        stage 0: 0F0 0F1 0BW0 0BW1
        stage 1: 1F0 1BW0 1F1 1BW1";

    /// Two slices, split backward.
    pub(super) const SLICED: &str =
        "program seq1f1b line stages 1 chunks 1 microbatches 2 slices 2 window -
        stage 0: 0F0.0 0F0.1 0B0.1 0F1.0 0B0.0 0W0.1 0W0.0 0F1.1 0B1.1 0W1.1 0B1.0 0W1.0";

    pub(super) fn op(text: &str) -> Op {
        text.parse().expect("the word is an operation")
    }

    pub(super) fn legal(text: &str) {
        assert_eq!(check(&text.parse().expect("the text is a program")), Ok(()), "{text}");
    }

    /// `text` is legal, and breaks the rule `violation` when `right` in it becomes `wrong`.
    pub(super) fn find(text: &str, right: &str, wrong: &str, violation: ScheduleViolation) {
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
                check_size(kind, PipelineSize::of(kind, p, m));
                if kind.chunk_counts().allow(3) {
                    let size = PipelineSize::of(kind, p, m);
                    check_size(kind, PipelineSize { chunks_per_stage: 3, ..size });
                }
            }
        }
    }

    fn check_size(kind: ScheduleKind, size: PipelineSize) {
        let program = match generate_sized(kind, size) {
            Ok(program) => program,
            Err(
                GenerateError::UnevenGroups { .. }
                | GenerateError::FewMicrobatches { .. }
                | GenerateError::OddMicrobatches { .. }
                | GenerateError::OddStages { .. },
            ) => {
                return;
            }
            Err(error) => panic!("{size:?}: {error}"),
        };
        assert_eq!(check(&program), Ok(()), "{kind} {size:?}");
        for window in [Window::Zero, Window::One] {
            for early_head_weights in [false, true] {
                let options = LowerOptions { window, early_head_weights };
                let lowered = lower(&program, options);
                assert_eq!(check(&lowered), Ok(()), "{kind} {size:?} {options:?}");
                if window == Window::One {
                    let tied = tie_ends(&lowered);
                    assert_eq!(check(&tied), Ok(()), "{kind} {size:?} {options:?}, tied");
                }
            }
        }
    }

    #[test]
    fn a_program_has_a_list_a_stage() {
        let mut program: Program = COMPUTE_ONLY.parse().expect("the text is a program");
        assert_eq!(check(&program), Ok(()));
        program.stages.push(Vec::new());
        assert_eq!(
            check(&program),
            Err(vec![ScheduleViolation::ListCount { expected: 2, found: 3 }])
        );
        program.stages.truncate(1);
        assert_eq!(
            check(&program),
            Err(vec![ScheduleViolation::ListCount { expected: 2, found: 1 }])
        );
    }

    #[test]
    fn a_program_is_not_larger_than_its_readers_can_hold() {
        let mut program: Program = COMPUTE_ONLY.parse().expect("the text is a program");
        let most = u32::try_from(PASS_COUNT_MAX / 2).expect("the limit fits");
        program.microbatch_count = most + 1;
        let found = PASS_COUNT_MAX + 2;
        assert_eq!(check(&program), Err(vec![ScheduleViolation::PassCount { found }]));
        program.microbatch_count = most;
        let found = check(&program).expect_err("most passes are missing");
        assert_eq!(found.len(), VIOLATION_COUNT_MAX);
    }

    #[test]
    fn stages_that_wait_for_each_other_are_shown() {
        let places = [(0, "0BW0"), (1, "1F1")].map(|(stage, waits_at)| DeadlockedStage {
            stage: StageIndex(stage),
            step: 0,
            op: Some(op(waits_at)),
        });
        let deadlock = ScheduleViolation::Deadlock(Deadlock { places: places.to_vec() });
        let text = "the program stops: stage 0 waits at 0BW0 in step 0, \
                    stage 1 waits at 1F1 in step 0";
        assert_eq!(deadlock.to_string(), text);
        let gpipe = COMPUTE_ONLY.replace("1F0 1BW0 1F1 1BW1", "1F0 1F1 1BW0 1BW1");
        find(&gpipe, "0F1 0BW0", "0BW0 0F1", deadlock);
    }

    #[test]
    fn a_message_that_never_comes_is_shown() {
        let at = |stage, op| DeadlockedStage { stage: StageIndex(stage), step: 0, op };
        let places = vec![
            DeadlockedStage { step: 0, ..at(0, Some(op("0RECV_B0"))) },
            at(1, Some(op("1RECV_B0"))),
        ];
        let deadlock = ScheduleViolation::Deadlock(Deadlock { places });
        find(FUSED, "1RECV_F0 1F0", "1RECV_F0 1F0 1RECV_B0", deadlock);
    }
}
