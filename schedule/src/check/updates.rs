//! Rules about updates: a step is reported, gated, taken and committed where its window requires.

use super::{ScheduleViolation, ViolationList};
use crate::lower::{closing, opening};
use crate::op::{Op, UpdateOp};
use crate::program::{Program, Window};

/// The updates of a step are those of its window, each once, in their order.
pub(super) fn update_sequence(program: &Program, violations: &mut ViolationList) {
    let Some(window) = program.window else { return };
    let expected = [opening(window), closing(window)].concat();
    for (stage, ops) in program.lists() {
        let found: Vec<UpdateOp> = ops.iter().filter_map(|op| update_of(*op)).collect();
        if found != expected {
            let expected = expected.clone();
            violations.add(ScheduleViolation::UpdateSequence { stage, expected, found });
        }
    }
}

/// The report and what follows it are the last operations of the step: nothing is added to a
/// gradient that was reported, and nothing runs on weights that were stepped. Candidates are gathered right
/// behind STEP and nowhere else.
pub(super) fn update_tail(program: &Program, violations: &mut ViolationList) {
    let Some(window) = program.window else { return };
    let expected = closing(window);
    for (stage, ops) in program.lists() {
        let behind_step = ops.iter().rposition(|op| *op == Op::Update(UpdateOp::Step));
        let behind_step = behind_step.map_or(ops.len(), |step| step + 1);
        let gathered = ops[behind_step..].iter().take_while(|op| op.gathers_candidates()).count();
        let others = [&ops[..behind_step], &ops[behind_step + gathered..]].concat();
        let found = &others[others.len().saturating_sub(expected.len())..];
        let is_tail = found.iter().copied().map(update_of).eq(expected.iter().copied().map(Some));
        if !is_tail || others.iter().any(|op| op.gathers_candidates()) {
            let expected = expected.to_vec();
            let found = found.to_vec();
            violations.add(ScheduleViolation::UpdateTail { stage, expected, found });
        }
    }
}

/// With window one the step before is gated, and at once committed, before the first operation
/// that destroys what dropping it would need (rule R1 of `docs/validation.md`).
pub(super) fn gate_place(program: &Program, violations: &mut ViolationList) {
    if program.window != Some(Window::One) {
        return;
    }
    const GATE: [Op; 2] = [Op::Update(UpdateOp::GatePrevious), Op::Update(UpdateOp::Commit)];
    for (stage, ops) in program.lists() {
        let first = ops.iter().position(|op| op.accumulates());
        let before = &ops[..first.unwrap_or(ops.len())];
        let gate = before.iter().position(|op| *op == GATE[0]).unwrap_or(before.len());
        let found: Vec<Op> = before[gate..].iter().take(GATE.len()).copied().collect();
        if found != GATE {
            let accumulation = first.map(|first| ops[first]);
            violations.add(ScheduleViolation::GatePlace { stage, accumulation, found });
        }
    }
}

fn update_of(op: Op) -> Option<UpdateOp> {
    match op {
        Op::Update(update) => Some(update),
        Op::Compute(..) | Op::Transfer(..) | Op::Reduce(..) | Op::Memory(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use crate::check::ScheduleViolation;
    use crate::check::tests::{FUSED, SPLIT, WINDOW_ZERO, find, legal, op};
    use crate::op::{Op, UpdateOp};

    const STAGE: StageIndex = StageIndex(0);

    fn updates(text: &str) -> Vec<UpdateOp> {
        let update = |op: Op| match op {
            Op::Update(update) => update,
            Op::Compute(..) | Op::Transfer(..) | Op::Reduce(..) | Op::Memory(..) => {
                panic!("{op} is no update")
            }
        };
        ops(text).into_iter().map(update).collect()
    }

    fn ops(text: &str) -> Vec<Op> {
        text.split_whitespace().map(op).collect()
    }

    #[test]
    fn updates_are_those_of_the_window() {
        let sequence = |expected: &str, found: &str| ScheduleViolation::UpdateSequence {
            stage: STAGE,
            expected: updates(expected),
            found: updates(found),
        };
        let one = "GATE_PREVIOUS COMMIT REPORT STEP";
        find(SPLIT, "0W1 REPORT STEP", "0W1 REPORT", sequence(one, "GATE_PREVIOUS COMMIT REPORT"));
        let twice = "GATE_PREVIOUS COMMIT REPORT REPORT STEP";
        find(SPLIT, "0W1 REPORT STEP", "0W1 REPORT REPORT STEP", sequence(one, twice));
        find(SPLIT, "0B0 GATE_PREVIOUS COMMIT ", "0B0 ", sequence(one, "REPORT STEP"));
        let zero = "REPORT GATE_THIS STEP COMMIT";
        find(
            WINDOW_ZERO,
            "0BW1 REPORT GATE_THIS STEP COMMIT",
            "0BW1 REPORT STEP GATE_THIS COMMIT",
            sequence(zero, "REPORT STEP GATE_THIS COMMIT"),
        );
        find(
            WINDOW_ZERO,
            "0BW1 REPORT",
            "0BW1 GATE_PREVIOUS REPORT",
            sequence(zero, "GATE_PREVIOUS REPORT GATE_THIS STEP COMMIT"),
        );
    }

    #[test]
    fn a_step_ends_with_its_updates() {
        let tail = |expected: &str, found: &str| ScheduleViolation::UpdateTail {
            stage: STAGE,
            expected: updates(expected),
            found: ops(found),
        };
        find(SPLIT, "0W1 REPORT STEP", "REPORT 0W1 STEP", tail("REPORT STEP", "0W1 STEP"));
        find(SPLIT, "0W1 REPORT STEP", "REPORT STEP 0W1", tail("REPORT STEP", "STEP 0W1"));
        find(
            WINDOW_ZERO,
            "0BW1 REPORT GATE_THIS",
            "REPORT 0BW1 GATE_THIS",
            tail("REPORT GATE_THIS STEP COMMIT", "0BW1 GATE_THIS STEP COMMIT"),
        );
    }

    #[test]
    fn the_gate_stands_before_the_first_accumulation() {
        let place = |stage, accumulation: &str, found: &str| ScheduleViolation::GatePlace {
            stage: StageIndex(stage),
            accumulation: Some(op(accumulation)),
            found: ops(found),
        };
        let gate = "GATE_PREVIOUS COMMIT";
        find(SPLIT, &format!("{gate} 0W0"), &format!("0W0 {gate}"), place(0, "0W0", ""));
        find(SPLIT, &format!("{gate} 1WE0"), &format!("1WE0 {gate}"), place(1, "1WE0", ""));
        find(FUSED, &format!("{gate} 0BW0"), &format!("0BW0 {gate}"), place(0, "0BW0", ""));
        let split = "GATE_PREVIOUS 0W0 COMMIT";
        find(SPLIT, &format!("{gate} 0W0"), split, place(0, "0W0", "GATE_PREVIOUS"));
        let apart = "GATE_PREVIOUS 0B0 COMMIT";
        find(SPLIT, &format!("0B0 {gate}"), apart, place(0, "0W0", "GATE_PREVIOUS 0B0"));
        legal(&SPLIT.replace(&format!("0B0 {gate}"), &format!("{gate} 0B0")));
    }
}
