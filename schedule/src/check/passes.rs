//! Rules about arithmetic: each pass is there, once, on its stage, in an order that is legal.

use std::cmp::Reverse;

use zbelastic_types::ChunkIndex;

use super::{ScheduleViolation, ViolationList, ops_of};
use crate::op::{Compute, Op, Pass};
use crate::pass_table::PassTable;
use crate::program::Program;

/// An operation stands on the stage that holds its chunk.
pub(super) fn foreign_chunk(program: &Program, violations: &mut ViolationList) {
    for (stage, op) in ops_of(program) {
        let Some(chunk) = op.chunk() else { continue };
        let expected = program.placement.stage_of(chunk);
        if expected != Some(stage) {
            violations.add(ScheduleViolation::ForeignChunk { stage, op, expected });
        }
    }
}

/// A step has a microbatch: none at all is no step.
pub(super) fn microbatch_count(program: &Program, violations: &mut ViolationList) {
    if program.microbatch_count == 0 {
        violations.add(ScheduleViolation::MicrobatchCount);
    }
}

/// An operation is on one of the step's microbatches.
pub(super) fn microbatch_range(program: &Program, violations: &mut ViolationList) {
    let microbatch_count = program.microbatch_count;
    for (stage, op) in ops_of(program) {
        if op.pass().is_some_and(|pass| pass.microbatch.0 >= microbatch_count) {
            violations.add(ScheduleViolation::MicrobatchRange { stage, op, microbatch_count });
        }
    }
}

/// A microbatch runs through one replica.
pub(super) fn other_replica(program: &Program, violations: &mut ViolationList) {
    let placement = &program.placement;
    for (stage, op) in ops_of(program) {
        let Some(pass) = op.pass() else { continue };
        let expected = placement.replica_of_microbatch(pass.microbatch, program.microbatch_count);
        let found = placement.replica_of(pass.chunk);
        if found != expected && pass.chunk.0 < placement.chunk_count() {
            violations.add(ScheduleViolation::OtherReplica { stage, op, expected, found });
        }
    }
}

/// Every pass has exactly one F.
pub(super) fn forward_count(program: &Program, violations: &mut ViolationList) {
    for (pass, found) in count(program).iter() {
        if found.f != 1 {
            violations.add(ScheduleViolation::ForwardCount { pass, found: found.f });
        }
    }
}

/// Every pass has exactly one BW, or exactly one B and one W.
pub(super) fn backward_count(program: &Program, violations: &mut ViolationList) {
    for (pass, ComputeCounts { b, w, bw, .. }) in count(program).iter() {
        match (b, w, bw) {
            (0, 0, 1) | (1, 1, 0) => {}
            (b, w, bw) => violations.add(ScheduleViolation::BackwardCount { pass, b, w, bw }),
        }
    }
}

/// WE occurs at most once for a pass, and only where W can be split: on the last chunk of a
/// replica.
pub(super) fn early_weights(program: &Program, violations: &mut ViolationList) {
    let placement = &program.placement;
    let half = placement.chunks_per_replica();
    for (pass, found) in count(program).iter() {
        let is_split = found.w > 0;
        let last_chunk = ChunkIndex((placement.replica_of(pass.chunk) + 1) * half - 1);
        let is_legal = found.we == 0 || (found.we == 1 && is_split && pass.chunk == last_chunk);
        if !is_legal {
            violations.add(ScheduleViolation::EarlyWeights {
                pass,
                last_chunk,
                found: found.we,
                is_split,
            });
        }
    }
}

/// On a stage, a pass's operations come in the order F, R, B or BW, WE, W.
pub(super) fn pass_order(program: &Program, violations: &mut ViolationList) {
    let rank = |compute| match compute {
        Compute::F => 0,
        Compute::R => 1,
        Compute::B | Compute::BW => 2,
        Compute::WE => 3,
        Compute::W => 4,
    };
    let mut latest: PassTable<Option<Compute>> = PassTable::new(program, None);
    for (stage, op) in ops_of(program) {
        let Op::Compute(compute, pass) = op else { continue };
        let Some(latest) = latest.get_mut(pass) else { continue };
        match *latest {
            Some(later) if rank(later) > rank(compute) => {
                let after = Op::Compute(later, pass);
                violations.add(ScheduleViolation::PassOrder { stage, op, after });
            }
            Some(_) | None => *latest = Some(compute),
        }
    }
}

/// Every gradient is summed in microbatch order, and within a microbatch from its last slice to its
/// first, which makes its bits independent of the schedule.
///
/// A chunk sums two parts: the share that WE may run early, and the rest. Each has an order of its
/// own. W and BW add to the rest, and also to the early share of a pass that has no WE.
pub(super) fn accumulation_order(program: &Program, violations: &mut ViolationList) {
    let counts = count(program);
    let mut latest = vec![LatestPasses::default(); program.placement.chunk_count() as usize];
    for (stage, op) in ops_of(program) {
        let Op::Compute(compute, pass) = op else { continue };
        let Some(found) = counts.get(pass) else { continue };
        let LatestPasses { early, rest } = &mut latest[pass.chunk.index()];
        let after = match compute {
            Compute::F | Compute::B | Compute::R => None,
            Compute::WE => add_to(early, pass),
            Compute::W | Compute::BW => {
                let after_rest = add_to(rest, pass);
                let after_early = if found.we == 0 { add_to(early, pass) } else { None };
                after_rest.or(after_early)
            }
        };
        if let Some(after) = after {
            violations.add(ScheduleViolation::AccumulationOrder { stage, op, after });
        }
    }
}

/// The latest pass added to each part of a chunk's gradient.
#[derive(Clone, Copy, Default)]
struct LatestPasses {
    early: Option<Pass>,
    rest: Option<Pass>,
}

/// The pass that was added before `pass` and belongs behind it, if there is one.
fn add_to(latest: &mut Option<Pass>, pass: Pass) -> Option<Pass> {
    let place = |pass: &Pass| (pass.microbatch, Reverse(pass.slice));
    let after = latest.filter(|latest| place(latest) > place(&pass));
    *latest = after.or(Some(pass));
    after
}

/// How often each kind of arithmetic occurs for a pass, wherever it stands.
#[derive(Clone, Copy, Default)]
pub(super) struct ComputeCounts {
    f: u32,
    b: u32,
    w: u32,
    we: u32,
    bw: u32,
    pub(super) r: u32,
}

pub(super) fn count(program: &Program) -> PassTable<ComputeCounts> {
    let mut counts = PassTable::new(program, ComputeCounts::default());
    for (_, op) in ops_of(program) {
        let Op::Compute(compute, pass) = op else { continue };
        let Some(counts) = counts.get_mut(pass) else { continue };
        match compute {
            Compute::F => counts.f += 1,
            Compute::B => counts.b += 1,
            Compute::W => counts.w += 1,
            Compute::WE => counts.we += 1,
            Compute::BW => counts.bw += 1,
            Compute::R => counts.r += 1,
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{ChunkIndex, StageIndex};

    use crate::check::tests::{CROSS, FUSED, SPLIT, find, op};
    use crate::check::{ScheduleViolation, check};
    use crate::op::Pass;
    use crate::program::Program;

    const STAGE: StageIndex = StageIndex(0);

    #[test]
    fn chunks_run_where_they_live() {
        let foreign =
            |expected| ScheduleViolation::ForeignChunk { stage: STAGE, op: op("1F0"), expected };
        let expected = Some(StageIndex(1));
        find(SPLIT, "0F0 0SEND_F0", "0F0 0SEND_F0 1F0", foreign(expected));
        let nowhere =
            ScheduleViolation::ForeignChunk { stage: STAGE, op: op("2F0"), expected: None };
        find(SPLIT, "0F0 0SEND_F0", "0F0 0SEND_F0 2F0", nowhere);
    }

    #[test]
    fn microbatches_are_those_of_the_step() {
        let beyond =
            ScheduleViolation::MicrobatchRange { stage: STAGE, op: op("0F2"), microbatch_count: 2 };
        find(SPLIT, "0F0 0SEND_F0", "0F0 0SEND_F0 0F2", beyond);
        let mut none: Program = SPLIT.parse().expect("the text is a program");
        none.microbatch_count = 0;
        assert_eq!(check(&none), Err(vec![ScheduleViolation::MicrobatchCount]));
    }

    #[test]
    fn microbatches_stay_in_their_replica() {
        let expected = 1;
        let found = 0;
        let other =
            ScheduleViolation::OtherReplica { stage: STAGE, op: op("0F1"), expected, found };
        find(CROSS, "0F0 0SEND_F0", "0F0 0SEND_F0 0F1", other);
        // Microbatch 0 does not run through chunk 3: nothing is missing there.
        let forwards = ScheduleViolation::ForwardCount { pass: Pass::new(3, 1), found: 0 };
        find(CROSS, "3F1 ", "", forwards);
    }

    #[test]
    fn every_pass_goes_forward_once() {
        let forwards = |found| ScheduleViolation::ForwardCount { pass: Pass::new(1, 1), found };
        find(SPLIT, "1F1 ", "", forwards(0));
        find(SPLIT, "1F1 ", "1F1 1F1 ", forwards(2));
    }

    #[test]
    fn every_pass_goes_backward_once_in_one_way() {
        let pass = Pass::new(0, 1);
        let backwards = |b, w, bw| ScheduleViolation::BackwardCount { pass, b, w, bw };
        find(SPLIT, "0B1 ", "", backwards(0, 1, 0));
        find(SPLIT, "0W1 ", "", backwards(1, 0, 0));
        find(SPLIT, "0W1 ", "0W1 0W1 ", backwards(1, 2, 0));
        find(SPLIT, "0W1 ", "0W1 0BW1 ", backwards(1, 1, 1));
        find(FUSED, "0BW1 ", "", backwards(0, 0, 0));
        find(FUSED, "0BW1 ", "0BW1 0BW1 ", backwards(0, 0, 2));
        find(FUSED, "0BW1 ", "0B1 0BW1 ", backwards(1, 0, 1));
    }

    #[test]
    fn early_weights_are_the_last_chunks_and_come_once() {
        let last_chunk = ChunkIndex(1);
        let early = |chunk, found, is_split| {
            let pass = Pass::new(chunk, 1);
            ScheduleViolation::EarlyWeights { pass, last_chunk, found, is_split }
        };
        find(SPLIT, "1WE1 ", "1WE1 1WE1 ", early(1, 2, true));
        find(SPLIT, "0W1 ", "0WE1 0W1 ", early(0, 1, true));
        find(FUSED, "1SEND_B1 ", "1SEND_B1 1WE1 ", early(1, 1, false));
    }

    #[test]
    fn a_pass_runs_in_order() {
        let order = |stage, late: &str, early: &str| {
            let (op, after) = (op(late), op(early));
            ScheduleViolation::PassOrder { stage: StageIndex(stage), op, after }
        };
        find(SPLIT, "0B1 0W1", "0W1 0B1", order(0, "0B1", "0W1"));
        find(SPLIT, "1WE1 1W0 1W1", "1W0 1W1 1WE1", order(1, "1WE1", "1W1"));
        find(SPLIT, "1B1 1SEND_B1 1WE1", "1WE1 1B1 1SEND_B1", order(1, "1B1", "1WE1"));
        find(
            FUSED,
            "0F1 0SEND_F1 0RECV_B0 GATE_PREVIOUS COMMIT 0BW0 0RECV_B1 0BW1",
            "0RECV_B0 GATE_PREVIOUS COMMIT 0BW0 0RECV_B1 0BW1 0F1 0SEND_F1",
            order(0, "0F1", "0BW1"),
        );
    }

    #[test]
    fn gradients_are_summed_in_microbatch_order() {
        let order = |stage, late: &str| {
            let op = op(late);
            let after = Pass::new(stage, 1);
            ScheduleViolation::AccumulationOrder { stage: StageIndex(stage), op, after }
        };
        find(SPLIT, "1W0 1W1", "1W1 1W0", order(1, "1W0"));
        let early = "1B0 1SEND_B0 GATE_PREVIOUS COMMIT 1WE0 1RECV_F1 1F1 1B1 1SEND_B1 1WE1";
        let turned = "1B0 1SEND_B0 GATE_PREVIOUS COMMIT 1RECV_F1 1F1 1B1 1SEND_B1 1WE1 1WE0";
        find(SPLIT, early, turned, order(1, "1WE0"));
        // Without WE, W0 adds the early share as well, and that of microbatch 1 is already there.
        find(SPLIT, "1WE0 ", "", order(1, "1W0"));
    }
}
