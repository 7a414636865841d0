//! Two replicas of the model on the same stages, in opposite directions: GEMS (Jain et al., SC
//! 2020) and Chimera (Li and Hoefler, SC 2021).
//!
//! Where one direction has its pipeline full the other has its end, so each works in the other's
//! bubble. The price is a second copy of the weights on every stage, and one exchange of gradients
//! a step. Microbatches take turns: even ones run down the stages, odd ones up.

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

/// One microbatch after the other, for a memory of one. The F of the next begins where the B of
/// this one began and follows it from stage to stage, so at most two are in flight.
pub(super) fn gems(size: PipelineSize, stage: u32) -> Vec<Op> {
    let passes = |k: u32| {
        let chunk = chunk_of(size, stage, k);
        [compute(Compute::F, chunk, k), compute(Compute::BW, chunk, k)]
    };
    (0..size.microbatch_count).flat_map(passes).collect()
}

/// The order in which slots of one length would run. In units of as many microbatches as stages,
/// half of them in each direction, every other slot of a stage belongs to the same direction and
/// the same pass, which is why two directions never meet if the stages are even. A unit fills what
/// the one before leaves at its end, so units follow each other without a gap (the paper's direct
/// concatenation; it has two more ways to do it for backward passes that are longer).
pub(super) fn chimera(size: PipelineSize, stage: u32) -> Vec<Op> {
    let mut slots = slots(size, stage);
    slots.sort_unstable_by_key(|(slot, _)| *slot);
    slots.into_iter().map(|(_, op)| op).collect()
}

fn slots(size: PipelineSize, stage: u32) -> Vec<(u64, Op)> {
    let stages = u64::from(size.stage_count);
    let mut slots = Vec::new();
    for k in 0..size.microbatch_count {
        let behind = if k.is_multiple_of(2) { stage } else { size.stage_count - 1 - stage };
        let turn = u64::from(k / 2);
        let half = stages / 2;
        let begins = turn / half * 2 * stages + turn % half * 2;
        let chunk = chunk_of(size, stage, k);
        slots.push((begins + u64::from(behind), compute(Compute::F, chunk, k)));
        let back = 2 * stages - 1 - u64::from(behind);
        slots.push((begins + back, compute(Compute::BW, chunk, k)));
    }
    slots
}

/// The stage's chunk of the replica that microbatch `k` runs through.
fn chunk_of(size: PipelineSize, stage: u32, k: u32) -> u32 {
    if k.is_multiple_of(2) { stage } else { 2 * size.stage_count - 1 - stage }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{PipelineSize, slots};

    #[test]
    fn directions_never_share_a_slot() {
        for (stages, microbatches) in [(2, 7), (4, 4), (4, 13), (6, 18), (8, 40)] {
            let size = PipelineSize {
                stage_count: stages,
                chunks_per_stage: 2,
                microbatch_count: microbatches,
                slice_count: 1,
            };
            for stage in 0..stages {
                let taken: BTreeSet<u64> =
                    slots(size, stage).into_iter().map(|(slot, _)| slot).collect();
                assert_eq!(taken.len() as u32, 2 * microbatches, "{size:?} stage {stage}");
            }
        }
    }
}
