//! Interleaved 1F1B (Narayanan et al., SC 2021, section 2.2).
//!
//! A stage holds several chunks, dealt round, and lets a group of as many microbatches as there
//! are stages pass through one chunk before it turns to the next. Backward takes the chunks in
//! reverse. The warm-up is long enough that the first group has left the last chunk in time.

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

pub(super) fn stage_ops(size: PipelineSize, stage: u32) -> Vec<Op> {
    let stages = size.stage_count;
    let turns = size.chunks_per_stage;
    let chunk = |turn: u32| turn * stages + stage;
    let forward = |n: u32| {
        let (turn, microbatch) = nth_pass(n, size);
        compute(Compute::F, chunk(turn), microbatch)
    };
    let backward = |n: u32| {
        let (turn, microbatch) = nth_pass(n, size);
        compute(Compute::BW, chunk(turns - 1 - turn), microbatch)
    };
    let passes = size.microbatch_count * turns;
    let ahead = (2 * (stages - 1 - stage) + (turns - 1) * stages).min(passes);
    let mut ops: Vec<Op> = (0..ahead).map(forward).collect();
    for n in 0..passes {
        if ahead + n < passes {
            ops.push(forward(ahead + n));
        }
        ops.push(backward(n));
    }
    ops
}

/// The turn (how many of the stage's chunks come before) and the microbatch of a stage's `n`-th
/// pass: a group of `stages` microbatches goes through every chunk before the next group begins.
fn nth_pass(n: u32, size: PipelineSize) -> (u32, u32) {
    let stages = size.stage_count;
    let group_passes = stages * size.chunks_per_stage;
    let turn = n % group_passes / stages;
    (turn, n / group_passes * stages + n % stages)
}
