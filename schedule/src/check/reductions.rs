//! Rules about replicas: both end a step with one gradient, the sum of what each has of it.

use std::collections::BTreeMap;

use zbelastic_types::ChunkIndex;

use super::{ScheduleViolation, ViolationList, ops_of};
use crate::lower::exchange_of;
use crate::op::{Op, Reduction};
use crate::program::Program;

/// The gradient of a chunk with a twin is passed to it and added to its own, each exactly once; no
/// other gradient is.
pub(super) fn reduction_count(program: &Program, violations: &mut ViolationList) {
    if program.window.is_none() {
        return;
    }
    let placement = &program.placement;
    let mut counts: BTreeMap<(ChunkIndex, Reduction), (u32, u32)> = BTreeMap::new();
    for chunk in (0..placement.chunk_count()).map(ChunkIndex) {
        let add = placement.twin_of(chunk).map(|_| Op::Reduce(Reduction::Add, chunk));
        for op in exchange_of(placement, chunk).into_iter().chain([add]).flatten() {
            if let Op::Reduce(reduction, chunk) = op {
                counts.entry((chunk, reduction)).or_default().0 += 1;
            }
        }
    }
    for (_, op) in ops_of(program) {
        if let Op::Reduce(reduction, chunk) = op {
            counts.entry((chunk, reduction)).or_default().1 += 1;
        }
    }
    for ((chunk, reduction), (expected, found)) in counts {
        if found != expected {
            let op = Op::Reduce(reduction, chunk);
            violations.add(ScheduleViolation::ReductionCount { op, expected, found });
        }
    }
}

/// A gradient is complete before it is sent, and both are there before they are added. The twin's
/// may arrive early.
pub(super) fn reduction_order(program: &Program, violations: &mut ViolationList) {
    let mut latest: BTreeMap<ChunkIndex, (ReductionProgress, Op)> = BTreeMap::new();
    for (stage, op) in ops_of(program) {
        let rank = match op {
            Op::Reduce(Reduction::Add, _) => ReductionProgress::Added,
            Op::Reduce(Reduction::Send | Reduction::Local, _) => ReductionProgress::Sent,
            Op::Reduce(Reduction::Receive, _) => ReductionProgress::Arrived,
            Op::Compute(..) if op.accumulates() => ReductionProgress::Accumulated,
            Op::Compute(..) | Op::Transfer(..) | Op::Update(_) | Op::Memory(..) => continue,
        };
        let chunk = op.chunk().expect("operations without a chunk were left out");
        match latest.get(&chunk) {
            Some((later, after)) if !rank.may_follow(*later) => {
                violations.add(ScheduleViolation::ReductionOrder { stage, op, after: *after });
            }
            Some((later, _)) if *later >= rank => {}
            Some(_) | None => {
                latest.insert(chunk, (rank, op));
            }
        }
    }
}

/// How far a chunk's gradient has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReductionProgress {
    Arrived,
    Accumulated,
    Sent,
    Added,
}

impl ReductionProgress {
    fn may_follow(self, before: Self) -> bool {
        match self {
            Self::Arrived => before < Self::Added,
            Self::Accumulated | Self::Sent | Self::Added => before <= self,
        }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use crate::check::ScheduleViolation;
    use crate::check::tests::{CROSS, CROSS_ON_ONE, FUSED, find, legal, op};
    use crate::op::Op;
    use crate::walk::{Deadlock, DeadlockedStage};

    fn count(op: &str, expected: u32, found: u32) -> ScheduleViolation {
        ScheduleViolation::ReductionCount { op: self::op(op), expected, found }
    }

    #[test]
    fn gradients_of_twins_are_added_once() {
        find(CROSS, "0RECV_G 0REDUCE ", "0RECV_G ", count("0REDUCE", 1, 0));
        find(CROSS, "3REDUCE", "3REDUCE 3REDUCE", count("3REDUCE", 1, 2));
        find(FUSED, "0BW1 ", "0BW1 0REDUCE ", count("0REDUCE", 0, 1));
    }

    #[test]
    fn both_twins_send_to_each_other() {
        find(CROSS, "0SEND_G ", "", count("0SEND_G", 1, 0));
        find(CROSS, "2SEND_G ", "2SEND_G 2SEND_G ", count("2SEND_G", 1, 2));
        find(CROSS, "2RECV_G ", "", count("2RECV_G", 1, 0));
        find(CROSS, "0SEND_G", "0LOCAL_G", count("0LOCAL_G", 0, 1));
        find(CROSS_ON_ONE, "1LOCAL_G ", "", count("1LOCAL_G", 1, 0));
        find(CROSS_ON_ONE, "1REDUCE", "1RECV_G 1REDUCE", count("1RECV_G", 0, 1));
    }

    #[test]
    fn a_gradient_is_complete_before_it_is_sent_and_sent_before_it_is_added() {
        let order = |stage, late: &str, early: &str| {
            let (op, after) = (op(late), op(early));
            ScheduleViolation::ReductionOrder { stage: StageIndex(stage), op, after }
        };
        let early = "0SEND_G 0BW0";
        find(CROSS, "0BW0 0SEND_G", early, order(0, "0BW0", "0SEND_G"));
        find(
            CROSS,
            "0SEND_G 0RECV_G 0REDUCE",
            "0RECV_G 0REDUCE 0SEND_G",
            order(0, "0SEND_G", "0REDUCE"),
        );
        find(CROSS, "2RECV_G 2REDUCE", "2REDUCE 2RECV_G", order(1, "2RECV_G", "2REDUCE"));
        let early = "0RECV_B0 0RECV_G 0BW0 0SEND_G 0REDUCE";
        legal(&CROSS.replace("0RECV_B0 0BW0 0SEND_G 0RECV_G 0REDUCE", early));
    }

    #[test]
    fn a_step_is_reported_after_its_gradients_are_one() {
        let tail = |expected: &str, found: &str| {
            let ops = |text: &str| text.split_whitespace().map(op).collect::<Vec<_>>();
            let update = |op| match op {
                Op::Update(update) => update,
                Op::Compute(..) | Op::Transfer(..) | Op::Reduce(..) | Op::Memory(..) => {
                    panic!("{op} is no update")
                }
            };
            let expected = ops(expected).into_iter().map(update).collect();
            ScheduleViolation::UpdateTail { stage: StageIndex(0), expected, found: ops(found) }
        };
        let updates = "REPORT GATE_THIS STEP COMMIT";
        find(
            CROSS,
            &format!("3REDUCE {updates}"),
            "REPORT 3REDUCE GATE_THIS STEP COMMIT",
            tail(updates, "3REDUCE GATE_THIS STEP COMMIT"),
        );
        find(
            CROSS,
            &format!("3REDUCE {updates}"),
            "REPORT GATE_THIS STEP 3REDUCE COMMIT",
            tail(updates, "GATE_THIS STEP 3REDUCE COMMIT"),
        );
    }

    /// Each waits for the other's gradient before it sends its own.
    #[test]
    fn twins_that_wait_for_each_other_are_shown() {
        let first = CROSS.replace("0BW0 0SEND_G 0RECV_G", "0BW0 0RECV_G 0SEND_G");
        let right = "2SEND_G 1RECV_G 1REDUCE 2RECV_G";
        let wrong = "2RECV_G 2SEND_G 1RECV_G 1REDUCE";
        let at =
            |stage, text| DeadlockedStage { stage: StageIndex(stage), step: 0, op: Some(op(text)) };
        let places = vec![at(0, "0RECV_G"), at(1, "2RECV_G")];
        find(&first, right, wrong, ScheduleViolation::Deadlock(Deadlock { places }));
    }
}
