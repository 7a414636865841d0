//! GPipe (Huang et al., NeurIPS 2019, section 2.3): all forward passes, then all backward passes.

use super::{Size, compute};
use crate::op::{Compute, Op};

pub(super) fn stage_ops(size: Size, stage: u32) -> Vec<Op> {
    let forwards = (0..size.microbatch_count).map(|k| compute(Compute::F, stage, k));
    let backwards = (0..size.microbatch_count).map(|k| compute(Compute::BW, stage, k));
    forwards.chain(backwards).collect()
}
