//! Two replicas of the model on the same stages, in opposite directions: GEMS (Jain et al., SC
//! 2020) and Chimera (Li and Hoefler, SC 2021).
//!
//! Where one direction has its pipeline full the other has its end, so each works in the other's
//! bubble. The price is a second copy of the weights on every stage, and one exchange of gradients
//! a step. The first half of a step's microbatches run down the stages, the second half up; the two
//! directions take turns.

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

/// One microbatch after the other, for a memory of one. The F of the next begins where the B of
/// this one began and follows it from stage to stage, so at most two are in flight.
pub(super) fn gems(size: PipelineSize, stage: u32) -> Vec<Op> {
    let passes = |begun: u32| {
        let TurnPlace { chunk, microbatch, .. } = TurnPlace::new(size, stage, begun);
        [compute(Compute::F, chunk, microbatch), compute(Compute::BW, chunk, microbatch)]
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
    for begun in 0..size.microbatch_count {
        let TurnPlace { turn, behind, chunk, microbatch } = TurnPlace::new(size, stage, begun);
        let half = stages / 2;
        let begins = turn / half * 2 * stages + turn % half * 2;
        let behind = u64::from(behind);
        slots.push((begins + behind, compute(Compute::F, chunk, microbatch)));
        let back = 2 * stages - 1 - behind;
        slots.push((begins + back, compute(Compute::BW, chunk, microbatch)));
    }
    slots
}

/// A microbatch at a stage: directions take turns to begin one.
struct TurnPlace {
    /// How many of its direction began before it.
    turn: u64,
    /// How many stages of its direction come before this one.
    behind: u32,
    /// The stage's chunk of the replica that it runs through.
    chunk: u32,
    microbatch: u32,
}

impl TurnPlace {
    /// The one that begins after `begun` others.
    fn new(size: PipelineSize, stage: u32, begun: u32) -> Self {
        let turn = begun / 2;
        let up = size.stage_count - 1 - stage;
        let (behind, chunk, first) = match begun % 2 {
            0 => (stage, stage, 0),
            _ => (up, size.stage_count + up, size.microbatch_count / 2),
        };
        Self { turn: turn.into(), behind, chunk, microbatch: first + turn }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{PipelineSize, slots};

    #[test]
    fn directions_never_share_a_slot() {
        for (stages, microbatches) in [(2, 6), (4, 4), (4, 14), (6, 18), (8, 40)] {
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
