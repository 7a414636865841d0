//! Rules about replicas: all end a step with one gradient, the sum of what each has of it.

use std::collections::BTreeMap;

use zbelastic_types::ChunkIndex;

use super::{ScheduleViolation, ViolationList, ops_of};
use crate::lower::passing_of;
use crate::op::Op;
use crate::placement::Placement;
use crate::program::Program;
use crate::reduction::{Reduction, TreeExchange};
use crate::ties::{TiedOps, ties_of};

/// What a chunk has of the gradient is passed to its sibling in each exchange and merged with the sibling's,
/// each exactly once, and so are those of the ends of a model that are tied; no other gradient is.
pub(super) fn reduction_count(program: &Program, violations: &mut ViolationList) {
    if program.window.is_none() {
        return;
    }
    let placement = &program.placement;
    let mut counts: BTreeMap<(ChunkIndex, Reduction), (u32, u32)> = BTreeMap::new();
    for chunk in (0..placement.chunk_count()).map(ChunkIndex) {
        let exchanges = TreeExchange::all_of(placement).flat_map(|exchange| {
            let merge = Op::Reduce(Reduction::Merge(exchange), chunk);
            passing_of(placement, chunk, exchange).into_iter().flatten().chain([merge])
        });
        for op in exchanges {
            if let Op::Reduce(reduction, chunk) = op {
                counts.entry((chunk, reduction)).or_default().0 += 1;
            }
        }
    }
    for op in ties_of(program) {
        if let Op::Reduce(reduction, chunk) = op {
            counts.entry((chunk, reduction)).or_default().0 += 1;
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

/// A sum is complete before it is sent, both are there before they are merged, and the exchanges
/// follow each other up the tree and down: so replicas are added in the order of the tree, and what is
/// gathered is the sum of all. The sibling's may arrive early.
pub(super) fn reduction_order(program: &Program, violations: &mut ViolationList) {
    let placement = &program.placement;
    let mut latest: BTreeMap<ChunkIndex, (ReductionProgress, Op)> = BTreeMap::new();
    for (stage, op) in ops_of(program) {
        let progress = match op {
            Op::Reduce(Reduction::Merge(exchange), _) => {
                ReductionProgress::merged(placement, exchange)
            }
            Op::Reduce(Reduction::Send(exchange) | Reduction::Local(exchange), _) => {
                ReductionProgress::sent(placement, exchange)
            }
            Op::Reduce(Reduction::Receive(exchange), chunk) => {
                let merged = ReductionProgress::merged(placement, exchange);
                let late = latest.get(&chunk).filter(|(progress, _)| *progress >= merged);
                if let Some((_, after)) = late {
                    violations.add(ScheduleViolation::ReductionOrder { stage, op, after: *after });
                }
                continue;
            }
            // Those of tied ends have a rule of their own.
            Op::Reduce(Reduction::SendTied | Reduction::ReceiveTied | Reduction::Tie, _) => {
                continue;
            }
            Op::Compute(..) if op.accumulates() => ReductionProgress::ACCUMULATED,
            Op::Compute(..) | Op::Transfer(..) | Op::Update(_) | Op::Memory(..) => continue,
        };
        let chunk = op.chunk().expect("operations without a chunk were left out");
        match latest.get(&chunk) {
            Some((later, after)) if progress < *later => {
                violations.add(ScheduleViolation::ReductionOrder { stage, op, after: *after });
            }
            Some((later, _)) if *later == progress => {}
            Some(_) | None => {
                latest.insert(chunk, (progress, op));
            }
        }
    }
}

/// The parts of a tied matrix's gradient are complete before they are sent and before they are
/// added, and nothing adds to the sum.
pub(super) fn tie_order(program: &Program, violations: &mut ViolationList) {
    for (stage, ops) in program.lists() {
        let tied = TiedOps::new(&program.placement, ops);
        let is_tie = |(_, op): &(usize, &Op)| matches!(op, Op::Reduce(reduction, _) if reduction.is_of_tied());
        for (position, &after) in ops.iter().enumerate().filter(is_tie) {
            let late = ops[position + 1..].iter().filter(|op| tied.must_precede(after, **op));
            for &op in late {
                violations.add(ScheduleViolation::ReductionOrder { stage, op, after });
            }
        }
    }
}

/// How far a chunk's gradient has come: accumulated, then sent and merged exchange by exchange. An exchange that
/// the program's replicas do not have comes behind theirs: it is a violation of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReductionProgress(usize);

impl ReductionProgress {
    const ACCUMULATED: Self = Self(0);

    fn sent(placement: &Placement, exchange: TreeExchange) -> Self {
        Self(2 * exchange.number(placement) + 1)
    }

    fn merged(placement: &Placement, exchange: TreeExchange) -> Self {
        Self(2 * exchange.number(placement) + 2)
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

    /// Four replicas of one stage, the last two of which are on one.
    const FOUR: &str =
        "program 1f1b line replicas 4 table 0/1/2/2 stages 3 chunks 4 microbatches 4 window 0
        stage 0: 0F0 0BW0 0SEND_G 0RECV_G 0REDUCE 0SEND_G.1 0RECV_G.1 0REDUCE.1 \
            0SEND_S 0RECV_S 0GATHER REPORT GATE_THIS STEP COMMIT
        stage 1: 1F1 1BW1 1SEND_G 1RECV_G 1REDUCE 1SEND_G.1 1RECV_G.1 1REDUCE.1 \
            1SEND_S 1RECV_S 1GATHER REPORT GATE_THIS STEP COMMIT
        stage 2: 2F2 2BW2 2LOCAL_G 3F3 3BW3 3LOCAL_G 2REDUCE 2SEND_G.1 3REDUCE 3SEND_G.1 \
            2RECV_G.1 2REDUCE.1 2LOCAL_S 3RECV_G.1 3REDUCE.1 3LOCAL_S 2GATHER 3GATHER \
            REPORT GATE_THIS STEP COMMIT";

    #[test]
    fn sums_are_gathered_once_and_on_every_stage() {
        legal(FOUR);
        find(FOUR, "0RECV_S 0GATHER ", "0RECV_S ", count("0GATHER", 1, 0));
        find(FOUR, "3GATHER", "3GATHER 3GATHER", count("3GATHER", 1, 2));
        find(FOUR, "3LOCAL_S ", "", count("3LOCAL_S", 1, 0));
        find(FOUR, "1SEND_S ", "", count("1SEND_S", 1, 0));
        let at_the_top = "0GATHER 0SEND_S.1 0GATHER.1 ";
        find(FOUR, "0GATHER ", at_the_top, count("0GATHER.1", 0, 1));
    }

    #[test]
    fn what_is_gathered_is_the_sum_of_all() {
        let order = |stage, late: &str, early: &str| {
            let (op, after) = (op(late), op(early));
            ScheduleViolation::ReductionOrder { stage: StageIndex(stage), op, after }
        };
        find(FOUR, "0REDUCE.1 0SEND_S", "0SEND_S 0REDUCE.1", order(0, "0REDUCE.1", "0SEND_S"));
        find(FOUR, "0RECV_S 0GATHER", "0GATHER 0RECV_S", order(0, "0RECV_S", "0GATHER"));
        find(FOUR, "2REDUCE.1 2LOCAL_S", "2LOCAL_S 2REDUCE.1", order(2, "2REDUCE.1", "2LOCAL_S"));
    }

    /// Ends on two stages, with early weights.
    const TIED: &str = "program zb-h1 line stages 2 chunks 2 microbatches 2 window 1
        stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 GATE_PREVIOUS COMMIT 0W0 \
            0RECV_B1 0B1 0W1 0SEND_T 0RECV_T 0TIE REPORT STEP
        stage 1: 1RECV_F0 1F0 1B0 1SEND_B0 GATE_PREVIOUS COMMIT 1WE0 \
            1RECV_F1 1F1 1B1 1SEND_B1 1WE1 1SEND_T 1W0 1W1 1RECV_T 1TIE REPORT STEP";

    /// Both ends on one stage.
    const TIED_VEE: &str = "program zb-v vee stages 2 chunks 4 microbatches 1 window 1
        stage 0: 0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 GATE_PREVIOUS COMMIT 3W0 \
            0RECV_B0 0B0 0W0 0TIE REPORT STEP
        stage 1: 1RECV_F0 1F0 1LOCAL_F0 2F0 2SEND_F0 2RECV_B0 2B0 2LOCAL_B0 \
            GATE_PREVIOUS COMMIT 2W0 1B0 1SEND_B0 1W0 REPORT STEP";

    #[test]
    fn gradients_of_tied_ends_are_added_once_at_both() {
        find(TIED, "1TIE ", "", count("1TIE", 1, 0));
        find(TIED, "0TIE ", "0TIE 0TIE ", count("0TIE", 1, 2));
        find(TIED, "0SEND_T ", "", count("0SEND_T", 1, 0));
        find(TIED, "1RECV_T ", "", count("1RECV_T", 1, 0));
        find(TIED_VEE, "0TIE ", "0TIE 3TIE ", count("3TIE", 0, 1));
        find(TIED_VEE, "1W0 REPORT", "1W0 1TIE REPORT", count("1TIE", 0, 1));
    }

    #[test]
    fn parts_of_a_tied_gradient_are_complete_before_they_leave() {
        let order = |stage, late: &str, early: &str| {
            let (op, after) = (op(late), op(early));
            ScheduleViolation::ReductionOrder { stage: StageIndex(stage), op, after }
        };
        find(TIED, "1WE1 1SEND_T", "1SEND_T 1WE1", order(1, "1WE1", "1SEND_T"));
        find(TIED, "0W1 0SEND_T", "0SEND_T 0W1", order(0, "0W1", "0SEND_T"));
        find(TIED, "0RECV_T 0TIE", "0TIE 0RECV_T", order(0, "0RECV_T", "0TIE"));
        find(TIED_VEE, "0W0 0TIE", "0TIE 0W0", order(0, "0W0", "0TIE"));
        find(TIED_VEE, "3W0 ", "0TIE 3W0 ", order(0, "3W0", "0TIE"));
        legal(&TIED.replace("1SEND_T 1W0 1W1", "1W0 1W1 1SEND_T"));
        // It may have arrived long before.
        legal(&TIED.replace("0W1 0SEND_T 0RECV_T", "0RECV_T 0W1 0SEND_T"));
        let wait = TIED.replace("1SEND_T 1W0 1W1 1RECV_T", "1RECV_T 1SEND_T 1W0 1W1");
        let at =
            |stage, text| DeadlockedStage { stage: StageIndex(stage), step: 0, op: Some(op(text)) };
        let places = vec![at(0, "0RECV_T"), at(1, "1RECV_T")];
        let found = crate::check::check(
            &wait.replace("0SEND_T 0RECV_T", "0RECV_T 0SEND_T").parse().expect("a program"),
        );
        let deadlock = ScheduleViolation::Deadlock(Deadlock { places });
        assert!(found.expect_err("each waits for the other").contains(&deadlock));
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
