//! All forward passes, then all backward passes: GPipe (Huang et al., NeurIPS 2019, section 2.3),
//! and breadth-first order for stages that hold several chunks, dealt round (Lamy-Poirier, MLSys
//! 2023, section 4.1; PyTorch's looped BFS).
//!
//! Every microbatch passes through a chunk before the first goes through the stage's next one, and
//! backward takes the chunks in reverse. So the weights of a chunk are in use in two stretches, one
//! forward and one backward, for the price of keeping the activations of all microbatches. PyTorch
//! runs microbatches backward in reverse as well; here they run in turn, as all sums of gradients
//! do.

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

pub(super) fn stage_ops(size: PipelineSize, stage: u32) -> Vec<Op> {
    let chunk = |turn: u32| turn * size.stage_count + stage;
    let passes =
        |pass, turn| (0..size.microbatch_count).map(move |k| compute(pass, chunk(turn), k));
    let turns = 0..size.chunks_per_stage;
    let forwards = turns.clone().flat_map(|turn| passes(Compute::F, turn));
    let backwards = turns.rev().flat_map(|turn| passes(Compute::BW, turn));
    forwards.chain(backwards).collect()
}
