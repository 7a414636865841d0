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

/// `microbatches` through `chunk`, `ahead` of them forward before the first one's BW.
pub(crate) fn run(chunk: u32, microbatches: Range<u32>, ahead: u32) -> Vec<Op> {
    let forwards = microbatches.clone().map(|k| compute(Compute::F, chunk, k));
    alternate(forwards, microbatches.map(|k| compute(Compute::BW, chunk, k)), ahead)
}

/// `ahead` forward passes, then one of each in turn.
pub(super) fn alternate(
    mut forwards: impl Iterator<Item = Op>,
    backwards: impl Iterator<Item = Op>,
    ahead: u32,
) -> Vec<Op> {
    let mut ops: Vec<Op> = forwards.by_ref().take(ahead as usize).collect();
    for backward in backwards {
        ops.extend(forwards.next());
        ops.push(backward);
    }
    ops
}
