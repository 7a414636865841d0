//! Rules about memory: offloaded activations are reloaded, dropped ones are recomputed, and nothing
//! is computed with activations that are not resident.

use super::passes::count;
use super::{ScheduleViolation, ViolationList, ops_of};
use crate::op::{Compute, MemoryOp, Op};
use crate::pass_table::PassTable;
use crate::program::Program;

/// OFFLOAD comes after the F of its pass, or its DROP, and so once and before R, B and BW.
pub(super) fn offload_place(program: &Program, violations: &mut ViolationList) {
    each_after(program, |stage, op, after| {
        let is_legal =
            matches!(after, Some(Op::Compute(Compute::F, _) | Op::Memory(MemoryOp::Drop, _)));
        if matches!(op, Op::Memory(MemoryOp::Offload, _)) && !is_legal {
            violations.add(ScheduleViolation::OffloadPlace { stage, op, after });
        }
    });
}

/// RELOAD comes after the OFFLOAD of its pass, before anything else is done with that.
pub(super) fn reload_place(program: &Program, violations: &mut ViolationList) {
    each_after(program, |stage, op, after| {
        let is_legal = matches!(after, Some(Op::Memory(MemoryOp::Offload, _)));
        if matches!(op, Op::Memory(MemoryOp::Reload, _)) && !is_legal {
            violations.add(ScheduleViolation::ReloadPlace { stage, op, after });
        }
    });
}

/// DROP comes after the F of its pass, before anything else is done with that.
pub(super) fn drop_place(program: &Program, violations: &mut ViolationList) {
    each_after(program, |stage, op, after| {
        let is_legal = matches!(after, Some(Op::Compute(Compute::F, _)));
        if matches!(op, Op::Memory(MemoryOp::Drop, _)) && !is_legal {
            violations.add(ScheduleViolation::DropPlace { stage, op, after });
        }
    });
}

/// R comes after the DROP of its pass, or the RELOAD after it, and so before B and BW.
pub(super) fn recompute_place(program: &Program, violations: &mut ViolationList) {
    each_after(program, |stage, op, after| {
        let is_legal = matches!(after, Some(Op::Memory(MemoryOp::Drop | MemoryOp::Reload, _)));
        if matches!(op, Op::Compute(Compute::R, _)) && !is_legal {
            violations.add(ScheduleViolation::RecomputePlace { stage, op, after });
        }
    });
}

/// A pass has as many R as DROP: one of each, or none.
pub(super) fn recompute_count(program: &Program, violations: &mut ViolationList) {
    let mut drops = PassTable::new(program, 0_u32);
    for (_, op) in ops_of(program) {
        if let Op::Memory(MemoryOp::Drop, pass) = op
            && let Some(drops) = drops.get_mut(pass)
        {
            *drops += 1;
        }
    }
    for ((pass, counts), (_, drops)) in count(program).iter().zip(drops.iter()) {
        if counts.r != drops {
            violations.add(ScheduleViolation::RecomputeCount { pass, drops, found: counts.r });
        }
    }
}

/// Nothing is computed with offloaded activations.
pub(super) fn computes_offloaded(program: &Program, violations: &mut ViolationList) {
    each_after(program, |stage, op, after| {
        let is_offloaded = matches!(after, Some(Op::Memory(MemoryOp::Offload, _)));
        if matches!(op, Op::Compute(..)) && is_offloaded {
            violations.add(ScheduleViolation::ComputesOffloaded { stage, op });
        }
    });
}

/// Nothing is offloaded when the step ends.
pub(super) fn never_reloaded(program: &Program, violations: &mut ViolationList) {
    let mut offloaded = PassTable::new(program, false);
    each_after(program, |_, op, _| {
        let Some(is_offloaded) = op.pass().and_then(|pass| offloaded.get_mut(pass)) else { return };
        match op {
            Op::Memory(MemoryOp::Offload, _) => *is_offloaded = true,
            Op::Memory(MemoryOp::Reload, _) => *is_offloaded = false,
            Op::Memory(MemoryOp::Drop, _)
            | Op::Compute(..)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..) => {}
        }
    });
    for (pass, _) in offloaded.iter().filter(|(_, is_offloaded)| *is_offloaded) {
        violations.add(ScheduleViolation::NeverReloaded { pass });
    }
}

/// Activations of a slice are not offloaded: later slices of its microbatch read them in F, R
/// and B. DROP keeps the tensors they read.
pub(super) fn sliced_memory(program: &Program, violations: &mut ViolationList) {
    if program.slice_count <= 1 {
        return;
    }
    for (stage, op) in ops_of(program) {
        if matches!(op, Op::Memory(MemoryOp::Offload | MemoryOp::Reload, _)) {
            violations.add(ScheduleViolation::SlicedMemory { stage, op });
        }
    }
}

/// Every pass and every operation on memory, with the same stage's operation before it on the same
/// pass.
fn each_after(
    program: &Program,
    mut visit: impl FnMut(zbelastic_types::StageIndex, Op, Option<Op>),
) {
    let mut latest: PassTable<Option<Op>> = PassTable::new(program, None);
    for (stage, op) in ops_of(program) {
        let pass = match op {
            Op::Compute(_, pass) | Op::Memory(_, pass) => pass,
            Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) => continue,
        };
        let Some(latest) = latest.get_mut(pass) else { continue };
        visit(stage, op, *latest);
        *latest = Some(op);
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use crate::check::ScheduleViolation;
    use crate::check::tests::{find, legal, op};
    use crate::op::{Op, Pass};

    const STAGE: StageIndex = StageIndex(0);

    /// Microbatch 0 is offloaded, microbatch 1 dropped, microbatch 2 both.
    const MOVED: &str = "program gpipe line stages 1 chunks 1 microbatches 3 window 0
        stage 0: 0F0 0OFFLOAD0 0F1 0DROP1 0F2 0DROP2 0OFFLOAD2 \
            0RELOAD0 0BW0 0R1 0BW1 0RELOAD2 0R2 0BW2 REPORT GATE_THIS STEP COMMIT";

    fn after(text: &str) -> Option<Op> {
        Some(op(text)).filter(|_| !text.is_empty())
    }

    #[test]
    fn an_offload_is_once_between_forward_and_backward() {
        let place = |found: &str| ScheduleViolation::OffloadPlace {
            stage: STAGE,
            op: op("0OFFLOAD0"),
            after: (!found.is_empty()).then(|| op(found)),
        };
        find(MOVED, "0F0 0OFFLOAD0", "0OFFLOAD0 0F0", place(""));
        find(MOVED, "0F0 0OFFLOAD0", "0F0 0OFFLOAD0 0OFFLOAD0", place("0OFFLOAD0"));
        find(MOVED, "0RELOAD0 0BW0", "0RELOAD0 0OFFLOAD0 0RELOAD0 0BW0", place("0RELOAD0"));
        find(MOVED, "0BW0 ", "0BW0 0OFFLOAD0 0RELOAD0 ", place("0BW0"));
        let late = ScheduleViolation::OffloadPlace {
            stage: STAGE,
            op: op("0OFFLOAD2"),
            after: after("0R2"),
        };
        find(MOVED, "0RELOAD2 0R2 ", "0RELOAD2 0R2 0OFFLOAD2 0RELOAD2 ", late);
    }

    #[test]
    fn a_reload_follows_its_offload() {
        let place = |op_text: &str, found: &str| ScheduleViolation::ReloadPlace {
            stage: STAGE,
            op: op(op_text),
            after: after(found),
        };
        find(MOVED, "0F0 0OFFLOAD0 ", "0F0 ", place("0RELOAD0", "0F0"));
        find(MOVED, "0RELOAD0 ", "0RELOAD0 0RELOAD0 ", place("0RELOAD0", "0RELOAD0"));
        find(MOVED, "0RELOAD0 0BW0", "0BW0 0RELOAD0", place("0RELOAD0", "0BW0"));
    }

    #[test]
    fn a_drop_follows_its_forward() {
        let place = |found: Option<Op>| ScheduleViolation::DropPlace {
            stage: STAGE,
            op: op("0DROP1"),
            after: found,
        };
        find(MOVED, "0F1 0DROP1", "0DROP1 0F1", place(None));
        find(MOVED, "0DROP1 ", "0DROP1 0DROP1 ", place(after("0DROP1")));
        find(MOVED, "0R1 0BW1", "0R1 0DROP1 0BW1", place(after("0R1")));
    }

    #[test]
    fn a_recompute_follows_its_drop_and_reload() {
        let place = |op_text: &str, found: &str| ScheduleViolation::RecomputePlace {
            stage: STAGE,
            op: op(op_text),
            after: after(found),
        };
        find(MOVED, "0R1 0BW1", "0BW1 0R1", place("0R1", "0BW1"));
        find(MOVED, "0F1 0DROP1", "0F1 0R1 0DROP1", place("0R1", "0F1"));
        find(MOVED, "0R1 ", "0R1 0R1 ", place("0R1", "0R1"));
    }

    #[test]
    fn each_drop_has_one_recomputation() {
        let count = |microbatch, drops, found| ScheduleViolation::RecomputeCount {
            pass: Pass::new(0, microbatch),
            drops,
            found,
        };
        find(MOVED, "0R1 ", "", count(1, 1, 0));
        find(MOVED, "0R1 ", "0R1 0R1 ", count(1, 1, 2));
        find(MOVED, "0DROP1 ", "", count(1, 0, 1));
        find(MOVED, "0RELOAD0 ", "0RELOAD0 0R0 ", count(0, 0, 1));
    }

    #[test]
    fn nothing_is_computed_with_what_is_offloaded() {
        let computes =
            |text: &str| ScheduleViolation::ComputesOffloaded { stage: STAGE, op: op(text) };
        find(MOVED, "0RELOAD0 0BW0", "0BW0 0RELOAD0", computes("0BW0"));
        find(MOVED, "0RELOAD2 0R2", "0R2 0RELOAD2", computes("0R2"));
    }

    /// The first slice is dropped before the second one, which reads it, has run.
    const SLICED: &str = "program seq1f1b line stages 1 chunks 1 microbatches 1 slices 2 window 0
        stage 0: 0F0.0 0DROP0.0 0F0.1 0BW0.1 0R0.0 0BW0.0 REPORT GATE_THIS STEP COMMIT";

    #[test]
    fn slices_are_dropped_and_recomputed_each_for_itself() {
        legal(SLICED);
        legal(&SLICED.replace("0BW0.1 0R0.0", "0R0.0 0BW0.1"));
        let late =
            ScheduleViolation::RecomputePlace { stage: STAGE, op: op("0R0"), after: after("0BW0") };
        find(SLICED, "0R0.0 0BW0.0", "0BW0.0 0R0.0", late);
        let count =
            ScheduleViolation::RecomputeCount { pass: Pass::sliced(0, 0, 1), drops: 1, found: 0 };
        find(SLICED, "0F0.1 ", "0F0.1 0DROP0.1 ", count);
    }

    #[test]
    fn what_later_slices_read_is_not_offloaded() {
        let offloads = |text: &str| ScheduleViolation::SlicedMemory { stage: STAGE, op: op(text) };
        find(SLICED, "0F0.1 ", "0OFFLOAD0.0 0F0.1 0RELOAD0.0 ", offloads("0OFFLOAD0"));
        find(SLICED, "0F0.1 ", "0OFFLOAD0.0 0F0.1 0RELOAD0.0 ", offloads("0RELOAD0"));
    }

    #[test]
    fn nothing_is_offloaded_at_the_end() {
        find(MOVED, "0RELOAD0 ", "", ScheduleViolation::NeverReloaded { pass: Pass::new(0, 0) });
    }
}
