//! 1F1B (Narayanan et al., SOSP 2019, section 3.2; with a flush, Fan et al., PPoPP 2021).
//!
//! A stage runs one forward ahead for every stage behind it, then alternates. So it never holds
//! the activations of more microbatches than there are stages from it to the end.

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

pub(super) fn stage_ops(size: PipelineSize, stage: u32) -> Vec<Op> {
    let microbatches = size.microbatch_count;
    let ahead = (size.stage_count - 1 - stage).min(microbatches);
    let mut ops: Vec<Op> = (0..ahead).map(|k| compute(Compute::F, stage, k)).collect();
    for k in 0..microbatches {
        if ahead + k < microbatches {
            ops.push(compute(Compute::F, stage, ahead + k));
        }
        ops.push(compute(Compute::BW, stage, k));
    }
    ops
}
