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
/// found while it ran is excepted: to take what comes is its method.
pub(super) fn microbatch_order(program: &AsyncProgram, findings: &mut AsyncViolationList) {
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
                findings.add(AsyncViolation::MicrobatchOrder { stage, op, expected });
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

/// Directly after the gradient that completes it there is the update, but for what keeps the old
/// version and passes results on, and nowhere else; an average directly after its update. A
/// gradient left over at the end of an order that was found makes an update as well.
pub(super) fn update_place(program: &AsyncProgram, findings: &mut AsyncViolationList) {
    for (stage, ops) in program.lists() {
        let mut lines: BTreeMap<(ChunkIndex, u32), UpdateProgress> = BTreeMap::new();
        // What must come before anything else happens on the stage.
        let mut due: Option<AsyncOp> = None;
        for &op in ops {
            let is_update = matches!(op, AsyncOp::Step(..) | AsyncOp::Average(..));
            let is_aside = matches!(op, AsyncOp::Transfer(..) | AsyncOp::Stash(..))
                || matches!(op, AsyncOp::Free(..));
            let is_left_over = is_left_over(program, &mut lines, op);
            if (is_update && due != Some(op) && !is_left_over)
                || (due.is_some() && !is_update && !is_aside)
            {
                let (expected, found) = (due.take(), Some(op));
                findings.add(AsyncViolation::UpdatePlace { stage, expected, found });
            }
            match op {
                AsyncOp::Compute(Compute::BW, pass, _) => {
                    let replica = program.replica_of(pass.microbatch);
                    let line = lines.entry((pass.chunk, replica)).or_default();
                    line.accumulated += 1;
                    if line.accumulated == program.update_every {
                        let base = line.newest + 1;
                        let version = WeightVersion { replica, base, shift: VersionShift::None };
                        due = Some(AsyncOp::Step(pass.chunk, version));
                    }
                }
                AsyncOp::Step(chunk, version) => {
                    let newest = version.base;
                    lines.insert(
                        (chunk, version.replica),
                        UpdateProgress { newest, accumulated: 0 },
                    );
                    let averages = program.kind == AsyncKind::AvgPipe;
                    due = averages.then_some(AsyncOp::Average(chunk, version));
                }
                AsyncOp::Average(..) => due = None,
                AsyncOp::Compute(..)
                | AsyncOp::Transfer(..)
                | AsyncOp::Predict(..)
                | AsyncOp::Stash(..)
                | AsyncOp::Free(..)
                | AsyncOp::Dynamic(..) => {}
            }
        }
        let due = due.or_else(|| left_over(program, &lines));
        if due.is_some() {
            findings.add(AsyncViolation::UpdatePlace { stage, expected: due, found: None });
        }
    }
}

/// The averages of a chunk come in the order of minibatches, which are dealt round.
pub(super) fn average_order(program: &AsyncProgram, findings: &mut AsyncViolationList) {
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
                findings.add(AsyncViolation::AverageOrder { stage, op, expected });
            }
        }
    }
}

/// What has happened to a chunk's weights in one pipeline.
#[derive(Clone, Copy, Default)]
struct UpdateProgress {
    newest: u32,
    accumulated: u32,
}

/// The update that an order which was found still owes when its list ends.
fn left_over(
    program: &AsyncProgram,
    lines: &BTreeMap<(ChunkIndex, u32), UpdateProgress>,
) -> Option<AsyncOp> {
    let (&(chunk, replica), line) = lines.iter().find(|(_, line)| line.accumulated > 0)?;
    let version = WeightVersion { replica, base: line.newest + 1, shift: VersionShift::None };
    (program.kind == AsyncKind::AmpNet).then_some(AsyncOp::Step(chunk, version))
}

/// Whether `op` is an update of gradients that are fewer than usual because no more come.
fn is_left_over(
    program: &AsyncProgram,
    lines: &mut BTreeMap<(ChunkIndex, u32), UpdateProgress>,
    op: AsyncOp,
) -> bool {
    let AsyncOp::Step(chunk, version) = op else { return false };
    let line = lines.entry((chunk, version.replica)).or_default();
    let seen = u64::from(line.newest) * u64::from(program.update_every);
    program.kind == AsyncKind::AmpNet
        && line.accumulated > 0
        && seen + u64::from(line.accumulated) == program.microbatches_total()
}
