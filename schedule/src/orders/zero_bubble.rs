//! ZB-H1 and ZB-H2 (Qi et al., ICLR 2024, sections 2.1 to 2.3): one rule with a depth.
//!
//! A stage runs `depth` forwards ahead for every stage behind it and keeps its W back by `depth`
//! microbatches for every stage before it. What W leaves open early, where a stage would wait for
//! a B, is filled by forwards; what it leaves open late is filled by the W kept back. Depth 1 (H1)
//! holds as many microbatches as 1F1B. Depth 2 (H2) holds about twice as many and has no bubble
//! when F, B and W take equally long.

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

pub(super) fn stage_ops(size: PipelineSize, stage: u32, depth: u32) -> Vec<Op> {
    let microbatches = size.microbatch_count;
    let ahead = (depth * (size.stage_count - 1 - stage)).min(microbatches);
    let behind = (depth * stage).min(microbatches);
    let mut ops: Vec<Op> = (0..ahead).map(|k| compute(Compute::F, stage, k)).collect();
    for k in 0..microbatches {
        if ahead + k < microbatches {
            ops.push(compute(Compute::F, stage, ahead + k));
        }
        ops.push(compute(Compute::B, stage, k));
        if k >= behind {
            ops.push(compute(Compute::W, stage, k - behind));
        }
    }
    ops.extend((microbatches - behind..microbatches).map(|k| compute(Compute::W, stage, k)));
    ops
}
