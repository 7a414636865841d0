//! Rules about slices of a microbatch: attention reads what earlier slices left, so they go forward
//! first; later slices add to their gradients, so they go backward last.

use zbelastic_types::SliceIndex;

use super::{ScheduleViolation, ViolationList, ops_of};
use crate::op::{Compute, Op, Pass};
use crate::pass_table::PassTable;
use crate::program::Program;

/// A microbatch that is not cut has one slice: none at all is no program.
pub(super) fn slice_count(program: &Program, violations: &mut ViolationList) {
    if program.slice_count == 0 {
        violations.add(ScheduleViolation::SliceCount);
    }
}

/// An operation is on one of its microbatch's slices.
pub(super) fn slice_range(program: &Program, violations: &mut ViolationList) {
    let slice_count = program.slice_count;
    for (stage, op) in ops_of(program) {
        if op.pass().is_some_and(|pass| pass.slice.0 >= slice_count) {
            violations.add(ScheduleViolation::SliceRange { stage, op, slice_count });
        }
    }
}

/// F of a slice runs after F of the slice before it, whose keys and values it attends to.
pub(super) fn forward_slices(program: &Program, violations: &mut ViolationList) {
    let mut has_run = PassTable::new(program, false);
    for (stage, op) in ops_of(program) {
        let Op::Compute(Compute::F, pass) = op else { continue };
        let before = pass.slice.0.checked_sub(1).map(|slice| with_slice(pass, slice));
        if let Some(before) = before
            && has_run.get(before) == Some(false)
        {
            let expected = Op::Compute(Compute::F, before);
            violations.add(ScheduleViolation::ForwardSlices { stage, op, expected });
        }
        if let Some(has_run) = has_run.get_mut(pass) {
            *has_run = true;
        }
    }
}

/// B or BW of a slice runs after that of the slice behind it, which adds to the gradients of its
/// keys and values.
pub(super) fn backward_slices(program: &Program, violations: &mut ViolationList) {
    let mut has_run = PassTable::new(program, false);
    for (stage, op) in ops_of(program) {
        let Op::Compute(Compute::B | Compute::BW, pass) = op else { continue };
        let behind = pass.slice.0.checked_add(1).map(|slice| with_slice(pass, slice));
        if let Some(behind) = behind
            && has_run.get(behind) == Some(false)
        {
            violations.add(ScheduleViolation::BackwardSlices { stage, op, behind: behind.slice });
        }
        if let Some(has_run) = has_run.get_mut(pass) {
            *has_run = true;
        }
    }
}

const fn with_slice(pass: Pass, slice: u32) -> Pass {
    Pass { slice: SliceIndex(slice), ..pass }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{SliceIndex, StageIndex};

    use crate::check::tests::{COMPUTE_ONLY, SLICED, find, legal, op};
    use crate::check::{ScheduleViolation, check};
    use crate::op::Pass;
    use crate::program::Program;

    const STAGE: StageIndex = StageIndex(0);

    #[test]
    fn slices_are_those_of_the_program() {
        let beyond = |word: &str, slice_count| {
            let op = op(word);
            ScheduleViolation::SliceRange { stage: STAGE, op, slice_count }
        };
        find(SLICED, "0F1.1 ", "0F1.1 0F1.2 ", beyond("0F1.2", 2));
        find(COMPUTE_ONLY, "0F1 ", "0F1 0F1.1 ", beyond("0F1.1", 1));
        let mut none: Program = SLICED.parse().expect("the text is a program");
        none.slice_count = 0;
        assert_eq!(check(&none), Err(vec![ScheduleViolation::SliceCount]));
    }

    #[test]
    fn every_slice_goes_forward_and_backward() {
        let pass = Pass::sliced(0, 1, 1);
        find(SLICED, "0F1.1 ", "", ScheduleViolation::ForwardCount { pass, found: 0 });
        let missing = ScheduleViolation::BackwardCount { pass, b: 1, w: 0, bw: 0 };
        find(SLICED, "0W1.1 ", "", missing);
    }

    #[test]
    fn slices_go_forward_in_turn() {
        legal(SLICED);
        let order = |late: &str, expected: &str| {
            let (op, expected) = (op(late), op(expected));
            ScheduleViolation::ForwardSlices { stage: STAGE, op, expected }
        };
        find(SLICED, "0F0.0 0F0.1", "0F0.1 0F0.0", order("0F0.1", "0F0.0"));
    }

    #[test]
    fn slices_go_backward_in_reverse() {
        let order = |early: &str| {
            let op = op(early);
            let behind = SliceIndex(1);
            ScheduleViolation::BackwardSlices { stage: STAGE, op, behind }
        };
        find(SLICED, "0B0.1 0F1.0 0B0.0", "0B0.0 0F1.0 0B0.1", order("0B0.0"));
        let fused = SLICED.replace("0B1.1 0W1.1 0B1.0 0W1.0", "0BW1.1 0BW1.0");
        find(&fused, "0BW1.1 0BW1.0", "0BW1.0 0BW1.1", order("0BW1.0"));
    }

    /// Beside the order of B, in which W of the slices need not follow.
    #[test]
    fn gradients_are_summed_from_the_last_slice_on() {
        let after = Pass::sliced(0, 0, 0);
        let order = ScheduleViolation::AccumulationOrder { stage: STAGE, op: op("0W0.1"), after };
        find(SLICED, "0W0.1 0W0.0", "0W0.0 0W0.1", order);
    }
}
