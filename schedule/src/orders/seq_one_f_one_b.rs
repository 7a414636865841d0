//! Seq1F1B: 1F1B over slices of a microbatch's sequences (Sun et al., NAACL 2025, arXiv
//! 2406.03488, section 3).
//!
//! The passes that alternate are those of slices, each a share of a microbatch's. Slices go forward
//! in turn and backward in reverse, so the first to come back is the last of its microbatch: a
//! stage runs as many slices ahead as a microbatch has beside that one, and one more for every
//! stage behind it, as in 1F1B. Ramps are as much shorter as a slice is than a microbatch, and a
//! stage keeps the activations of as many slices as are in flight.

use super::PipelineSize;
use super::one_f_one_b::alternate;
use crate::op::{Compute, Op, Pass};

pub(super) fn stage_ops(size: PipelineSize, stage: u32) -> Vec<Op> {
    let PipelineSize { stage_count, microbatch_count, slice_count, .. } = size;
    let ahead = stage_count - 1 - stage + slice_count - 1;
    let op = |compute, k, slice| Op::Compute(compute, Pass::sliced(stage, k, slice));
    let microbatches = 0..microbatch_count;
    let forwards = microbatches
        .clone()
        .flat_map(|k| (0..slice_count).map(move |slice| op(Compute::F, k, slice)));
    let backwards = microbatches
        .flat_map(|k| (0..slice_count).rev().map(move |slice| op(Compute::BW, k, slice)));
    alternate(forwards, backwards, ahead)
}
