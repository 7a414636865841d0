//! Rules about transfers: what crosses a boundary crosses it once, at the right place.

use super::{ScheduleViolation, ViolationList, ops_of};
use crate::boundary::{receive_before, transfer_after};
use crate::op::{Compute, Flow, Op, Transfer};
use crate::pass_table::PassTable;
use crate::program::Program;

/// A program that is not lowered has neither transfers nor updates nor early weights.
pub(super) fn not_lowered(program: &Program, violations: &mut ViolationList) {
    if program.window.is_some() {
        return;
    }
    for (stage, op) in ops_of(program) {
        match op {
            Op::Compute(Compute::F | Compute::B | Compute::W | Compute::BW | Compute::R, _)
            | Op::Memory(..) => {}
            Op::Compute(Compute::WE, _) | Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) => {
                violations.add(ScheduleViolation::NotLowered { stage, op });
            }
        }
    }
}

/// A result that another chunk needs is passed on right after it was made.
pub(super) fn result_kept(program: &Program, violations: &mut ViolationList) {
    if program.window.is_none() {
        return;
    }
    for (stage, ops) in program.lists() {
        for (position, &op) in ops.iter().enumerate() {
            let Some(expected) = transfer_after(&program.placement, op) else { continue };
            let found = ops.get(position + 1).copied();
            if found != Some(expected) {
                violations.add(ScheduleViolation::ResultKept { stage, op, expected, found });
            }
        }
    }
}

/// An operand from another stage is received exactly once before the pass that needs it.
pub(super) fn operand_count(program: &Program, violations: &mut ViolationList) {
    if program.window.is_none() {
        return;
    }
    let mut received = ReceiveTable::new(program, 0u32);
    for (stage, op) in ops_of(program) {
        if let Some(count) = received.get_mut(op) {
            *count += 1;
        }
        let Some(expected) = receive_before(&program.placement, op) else { continue };
        let found = received.get_mut(expected).map_or(0, |count| *count);
        if found != 1 {
            violations.add(ScheduleViolation::OperandCount { stage, op, expected, found });
        }
    }
}

/// A transfer stands where a pass needs it: a receive somewhere before, a send or local right
/// after.
pub(super) fn stray_transfer(program: &Program, violations: &mut ViolationList) {
    let mut required = ReceiveTable::new(program, false);
    for (stage, ops) in program.lists() {
        for (position, &op) in ops.iter().enumerate().rev() {
            if let Some(receive) = receive_before(&program.placement, op)
                && let Some(is_required) = required.get_mut(receive)
            {
                *is_required = true;
            }
            let is_legal = match op {
                Op::Compute(..) | Op::Update(_) | Op::Reduce(..) | Op::Memory(..) => true,
                Op::Transfer(Transfer::Receive, ..) => {
                    required.get_mut(op).is_some_and(|is_required| *is_required)
                }
                Op::Transfer(Transfer::Send | Transfer::Local, ..) => {
                    let before = position.checked_sub(1).map(|before| ops[before]);
                    before.and_then(|before| transfer_after(&program.placement, before)) == Some(op)
                }
            };
            if !is_legal {
                violations.add(ScheduleViolation::StrayTransfer { stage, op });
            }
        }
    }
}

/// A cell for every receive a program could have.
struct ReceiveTable<T> {
    forward: PassTable<T>,
    backward: PassTable<T>,
}

impl<T: Copy> ReceiveTable<T> {
    fn new(program: &Program, cell: T) -> Self {
        Self { forward: PassTable::new(program, cell), backward: PassTable::new(program, cell) }
    }

    /// The cell of `op`, if that is a receive.
    fn get_mut(&mut self, op: Op) -> Option<&mut T> {
        match op {
            Op::Transfer(Transfer::Receive, Flow::Forward, pass) => self.forward.get_mut(pass),
            Op::Transfer(Transfer::Receive, Flow::Backward, pass) => self.backward.get_mut(pass),
            Op::Transfer(Transfer::Send | Transfer::Local, ..)
            | Op::Compute(..)
            | Op::Update(_)
            | Op::Reduce(..)
            | Op::Memory(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use crate::check::ScheduleViolation;
    use crate::check::tests::{COMPUTE_ONLY, FUSED, SPLIT, VEE, find, op};

    #[test]
    fn without_a_window_there_is_arithmetic_only() {
        let check = |extra: &str| {
            let not_lowered = ScheduleViolation::NotLowered { stage: StageIndex(1), op: op(extra) };
            find(COMPUTE_ONLY, "1BW0", &format!("1BW0 {extra}"), not_lowered);
        };
        check("1SEND_B0");
        check("REPORT");
        check("1WE0");
        check("1REDUCE");
    }

    #[test]
    fn results_are_passed_on_at_once() {
        let kept =
            |stage, result: &str, expected: &str, found: &str| ScheduleViolation::ResultKept {
                stage: StageIndex(stage),
                op: op(result),
                expected: op(expected),
                found: Some(op(found)),
            };
        find(SPLIT, "0F0 0SEND_F0 ", "0F0 ", kept(0, "0F0", "0SEND_F0", "0F1"));
        find(SPLIT, "1SEND_B1 1WE1 ", "1WE1 1SEND_B1 ", kept(1, "1B1", "1SEND_B1", "1WE1"));
        find(FUSED, "1BW1 1SEND_B1 ", "1BW1 ", kept(1, "1BW1", "1SEND_B1", "REPORT"));
        find(VEE, "1LOCAL_F0", "1SEND_F0", kept(1, "1F0", "1LOCAL_F0", "1SEND_F0"));
    }

    #[test]
    fn operands_are_received_once_before_use() {
        let operand = |stage, needs: &str, expected: &str, found| ScheduleViolation::OperandCount {
            stage: StageIndex(stage),
            op: op(needs),
            expected: op(expected),
            found,
        };
        find(SPLIT, "1RECV_F1 1F1", "1F1", operand(1, "1F1", "1RECV_F1", 0));
        find(SPLIT, "1RECV_F1 1F1", "1F1 1RECV_F1", operand(1, "1F1", "1RECV_F1", 0));
        find(SPLIT, "1RECV_F1", "1RECV_F1 1RECV_F1", operand(1, "1F1", "1RECV_F1", 2));
        find(FUSED, "0RECV_B1 ", "", operand(0, "0BW1", "0RECV_B1", 0));
        find(VEE, "3RECV_F0 ", "", operand(0, "3F0", "3RECV_F0", 0));
    }

    #[test]
    fn receives_may_come_early() {
        use crate::check::tests::legal;
        legal(&SPLIT.replace("1RECV_F1 ", "").replace("1RECV_F0 1F0", "1RECV_F0 1F0 1RECV_F1"));
    }

    #[test]
    fn transfers_are_required() {
        let stray = |stage, op: &str| ScheduleViolation::StrayTransfer {
            stage: StageIndex(stage),
            op: self::op(op),
        };
        find(SPLIT, "1F1 ", "1F1 1SEND_F1 ", stray(1, "1SEND_F1"));
        find(SPLIT, "0F1 ", "0RECV_F1 0F1 ", stray(0, "0RECV_F1"));
        find(SPLIT, "0W1 ", "0W1 0RECV_B1 ", stray(0, "0RECV_B1"));
        find(SPLIT, "0F0 0SEND_F0", "0F0 0SEND_F0 0SEND_F0", stray(0, "0SEND_F0"));
        find(FUSED, "0BW1", "0BW1 0LOCAL_B1", stray(0, "0LOCAL_B1"));
        find(VEE, "2RECV_B0 ", "2RECV_B0 2RECV_F0 ", stray(1, "2RECV_F0"));
    }
}
