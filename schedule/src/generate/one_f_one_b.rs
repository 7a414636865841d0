//! 1F1B (Narayanan et al., SOSP 2019, section 3.2; with a flush, Fan et al., PPoPP 2021).
//!
//! A stage runs one forward ahead for every stage behind it, then alternates. So it never holds
//! the activations of more microbatches than there are stages from it to the end.

use std::ops::Range;

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

pub(super) fn stage_ops(size: PipelineSize, stage: u32) -> Vec<Op> {
    run(stage, 0..size.microbatch_count, size.stage_count - 1 - stage)
}

/// `microbatches` through `chunk`, `ahead` of them forward before the first comes back.
pub(crate) fn run(chunk: u32, microbatches: Range<u32>, ahead: u32) -> Vec<Op> {
    let mut forward = microbatches.clone().map(|k| compute(Compute::F, chunk, k));
    let mut ops: Vec<Op> = forward.by_ref().take(ahead as usize).collect();
    for k in microbatches {
        ops.extend(forward.next());
        ops.push(compute(Compute::BW, chunk, k));
    }
    ops
}
