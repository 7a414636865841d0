//! Rules about updates: gradients add up in the order of microbatches, and make an update as soon
//! as there are as many as the header requires.

use std::collections::BTreeMap;

use zbelastic_types::ChunkIndex;

use super::AsyncViolationList;
use crate::asynchronous::kind::AsyncKind;
use crate::asynchronous::op::{AsyncOp, VersionShift, WeightVersion};
use crate::asynchronous::program::AsyncProgram;
use crate::asynchronous::violation::AsyncViolation;
use crate::op::Compute;

/// Each pipeline's microbatches go backward through a chunk in their order. An order that was
/// found while it ran is excepted: to run what has arrived is its method.
pub(super) fn microbatch_order(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    if program.kind == AsyncKind::AmpNet {
        return;
    }
    for (stage, ops) in program.lists() {
        let mut done: BTreeMap<(ChunkIndex, u32), u64> = BTreeMap::new();
        for &op in ops {
            let AsyncOp::Compute(Compute::BW, pass, _) = op else { continue };
            let replica = program.replica_of(pass.microbatch);
            let done = done.entry((pass.chunk, replica)).or_default();
            let expected = nth_microbatch(program, replica, *done);
            *done += 1;
            if u64::from(pass.microbatch.0) != expected {
                violations.add(AsyncViolation::MicrobatchOrder { stage, op, expected });
            }
        }
    }
}

/// The microbatch that is number `n` of its pipeline.
fn nth_microbatch(program: &AsyncProgram, replica: u32, n: u64) -> u64 {
    let (microbatches, replicas) =
        (u64::from(program.microbatch_count), u64::from(program.replica_count));
    let round = n / microbatches;
    (round * replicas + u64::from(replica)) * microbatches + n % microbatches
}

/// Directly after the gradient that completes it there is the update, but for operations that keep
/// the old version or send results, and nowhere else; an average directly after its update. A
/// gradient left over at the end of an order that was found makes an update as well.
pub(super) fn update_place(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    for (stage, ops) in program.lists() {
        let mut progress_of: BTreeMap<(ChunkIndex, u32), UpdateProgress> = BTreeMap::new();
        // The operation that must come before any other on the stage.
        let mut expected_op: Option<AsyncOp> = None;
        for &op in ops {
            let is_update = matches!(op, AsyncOp::Step(..) | AsyncOp::Average(..));
            let may_come_between = matches!(op, AsyncOp::Transfer(..) | AsyncOp::Stash(..))
                || matches!(op, AsyncOp::Free(..));
            let is_left_over = is_left_over(program, &mut progress_of, op);
            if (is_update && expected_op != Some(op) && !is_left_over)
                || (expected_op.is_some() && !is_update && !may_come_between)
            {
                let expected = expected_op.take();
                let found = Some(op);
                violations.add(AsyncViolation::UpdatePlace { stage, expected, found });
            }
            match op {
                AsyncOp::Compute(Compute::BW, pass, _) => {
                    let replica = program.replica_of(pass.microbatch);
                    let progress = progress_of.entry((pass.chunk, replica)).or_default();
                    progress.accumulated += 1;
                    if progress.accumulated == program.update_every {
                        let base = progress.newest + 1;
                        let version = WeightVersion { replica, base, shift: VersionShift::None };
                        expected_op = Some(AsyncOp::Step(pass.chunk, version));
                    }
                }
                AsyncOp::Step(chunk, version) => {
                    let newest = version.base;
                    progress_of.insert(
                        (chunk, version.replica),
                        UpdateProgress { newest, accumulated: 0 },
                    );
                    let averages = program.kind == AsyncKind::AvgPipe;
                    expected_op = averages.then_some(AsyncOp::Average(chunk, version));
                }
                AsyncOp::Average(..) => expected_op = None,
                AsyncOp::Compute(..)
                | AsyncOp::Transfer(..)
                | AsyncOp::Predict(..)
                | AsyncOp::Stash(..)
                | AsyncOp::Free(..)
                | AsyncOp::Dynamic(..) => {}
            }
        }
        let expected_op = expected_op.or_else(|| left_over(program, &progress_of));
        if expected_op.is_some() {
            violations.add(AsyncViolation::UpdatePlace {
                stage,
                expected: expected_op,
                found: None,
            });
        }
    }
}

/// The averages of a chunk come in the order of minibatches, which are dealt round.
pub(super) fn average_order(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    for (stage, ops) in program.lists() {
        let mut averaged: BTreeMap<ChunkIndex, u32> = BTreeMap::new();
        for &op in ops {
            let AsyncOp::Average(chunk, version) = op else { continue };
            let minibatch = averaged.entry(chunk).or_default();
            let replica = *minibatch % program.replica_count;
            let base = *minibatch / program.replica_count + 1;
            let expected = WeightVersion { replica, base, shift: VersionShift::None };
            *minibatch += 1;
            if version != expected {
                violations.add(AsyncViolation::AverageOrder { stage, op, expected });
            }
        }
    }
}

/// The newest version of a chunk's weights in one pipeline, and the gradients accumulated since.
#[derive(Clone, Copy, Default)]
struct UpdateProgress {
    newest: u32,
    accumulated: u32,
}

/// The update that an order which was found still owes when its list ends.
fn left_over(
    program: &AsyncProgram,
    progress_of: &BTreeMap<(ChunkIndex, u32), UpdateProgress>,
) -> Option<AsyncOp> {
    let (&(chunk, replica), progress) =
        progress_of.iter().find(|(_, progress)| progress.accumulated > 0)?;
    let version = WeightVersion { replica, base: progress.newest + 1, shift: VersionShift::None };
    (program.kind == AsyncKind::AmpNet).then_some(AsyncOp::Step(chunk, version))
}

/// Whether `op` is an update of gradients that are fewer than usual because no more come.
fn is_left_over(
    program: &AsyncProgram,
    progress_of: &mut BTreeMap<(ChunkIndex, u32), UpdateProgress>,
    op: AsyncOp,
) -> bool {
    let AsyncOp::Step(chunk, version) = op else { return false };
    let progress = progress_of.entry((chunk, version.replica)).or_default();
    let seen = u64::from(progress.newest) * u64::from(program.update_every);
    program.kind == AsyncKind::AmpNet
        && progress.accumulated > 0
        && seen + u64::from(progress.accumulated) == program.microbatches_total()
}
