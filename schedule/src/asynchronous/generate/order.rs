//! The order of F and BW on a stage, without versions.

use zbelastic_types::StageIndex;

use crate::asynchronous::kind::AsyncKind;
use crate::asynchronous::program::AsyncProgram;
use crate::generate::one_f_one_b_run;
use crate::op::{Compute, Op, Pass};

/// Forward passes that AvgPipe runs further ahead than 1F1B, so that a stage has something to do
/// while results travel (Chen et al., PPoPP 2023: advance forward propagation).
const ADVANCE: u32 = 1;

/// The passes of `stage`, in the order in which it runs them.
pub(super) fn stage_order(program: &AsyncProgram, stage: StageIndex) -> Vec<Op> {
    let total = u32::try_from(program.microbatches_total()).expect("the size was checked");
    let ahead = program.placement.stage_count() - 1 - stage.0;
    match program.kind {
        AsyncKind::PipeDream
        | AsyncKind::PipeDream2Bw
        | AsyncKind::PipeMare
        | AsyncKind::XPipe
        | AsyncKind::SpecTrain => one_f_one_b_run(stage.0, 0..total, ahead),
        AsyncKind::WPipe => folded(program, stage),
        AsyncKind::AvgPipe => side_by_side(program, stage, ahead + ADVANCE),
        AsyncKind::AmpNet => unreachable!("its order is found while it runs"),
    }
}

/// WPipe: for each minibatch the rear chunk's F and B, then the front chunk's F of the next
/// minibatch before its B of this one.
fn folded(program: &AsyncProgram, stage: StageIndex) -> Vec<Op> {
    let (front, rear) = (stage.0, stage.0 + program.placement.stage_count());
    let ahead = program.ahead_of(zbelastic_types::ChunkIndex(front));
    let microbatches = program.microbatch_count;
    let of = |minibatch: u32| minibatch * microbatches..(minibatch + 1) * microbatches;
    let pass = |compute, microbatch| Op::Compute(compute, Pass::new(front, microbatch));
    let mut ops: Vec<Op> = of(0).map(|k| pass(Compute::F, k)).collect();
    for minibatch in 0..program.minibatch_count {
        ops.extend(one_f_one_b_run(rear, of(minibatch), ahead));
        let next = minibatch + 1;
        let forward = if next < program.minibatch_count { of(next) } else { 0..0 };
        let forward: Vec<Op> = forward.map(|k| pass(Compute::F, k)).collect();
        let warm = forward.len().min(ahead as usize);
        ops.extend(&forward[..warm]);
        let mut rest = forward[warm..].iter();
        for k in of(minibatch) {
            ops.extend(rest.next());
            ops.push(pass(Compute::BW, k));
        }
        ops.extend(rest);
    }
    ops
}

/// AvgPipe: a round of minibatches, one a pipeline, each in 1F1B with a flush; the pipelines take
/// turns, so that one works while another waits.
fn side_by_side(program: &AsyncProgram, stage: StageIndex, ahead: u32) -> Vec<Op> {
    let (microbatches, replicas) = (program.microbatch_count, program.replica_count);
    let mut ops = Vec::new();
    for round in 0..program.minibatch_count / replicas {
        let runs: Vec<Vec<Op>> = (0..replicas)
            .map(|replica| {
                let begin = (round * replicas + replica) * microbatches;
                one_f_one_b_run(stage.0, begin..begin + microbatches, ahead)
            })
            .collect();
        // All runs are equally long: two passes a microbatch.
        for position in 0..2 * microbatches as usize {
            ops.extend(runs.iter().map(|run| run[position]));
        }
    }
    ops
}
