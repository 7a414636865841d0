//! Grouped interleaving: GIS, GIS-H and the order of PipeOffload (Wan et al., ICML 2025, arXiv
//! 2503.01328, sections 3 and 4).
//!
//! Chunks are dealt round, B and W are separate, and a group of microbatches passes through one
//! chunk of a stage before it turns to the stage's next one. A block of slots fixes where the
//! passes of one group stand, one pass a slot; the blocks of all groups are the same, one period
//! apart. Period and distances are such that blocks never share a slot. The larger the group, the
//! smaller the bubble:
//!
//! - GIS: a group of one microbatch a stage keeps what 1F1B keeps.
//! - GIS-H: half as many keep about `(v + 1) / 2v` of that, for `v` chunks a stage.
//! - PO: groups of one microbatch, repeated evenly, so that a chunk's activations live as long for
//!   one microbatch as for any other; it keeps about what GIS-H keeps. PipeOffload offloads
//!   activations meanwhile. That is not done here: this is the order.
//!
//! The blocks are those for stages on which neither F nor B takes more than half of a microbatch's
//! time. For longer ones the authors spread blocks further; a generator has no times.

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

/// Slots of the passes F, B and W.
const PASS_SLOTS: u32 = 3;
/// Slots from a stage's B to the B of the stage before it.
const BACKWARD_HOP: u32 = 2;
/// Slots from a stage's F to the next stage's.
const FORWARD_HOP: u32 = 1;

pub(super) fn stage_ops(size: PipelineSize, stage: u32, group: u32) -> Vec<Op> {
    let PipelineSize { stage_count, chunks_per_stage: turns, microbatch_count, .. } = size;
    let block = SlotBlock::new(size, group);
    let behind = stage_count - 1 - stage;
    let forward = stage * FORWARD_HOP;
    let backward = block.slot(turns - 1) + forward + 1 + behind * (FORWARD_HOP + BACKWARD_HOP);
    let mut passes = Vec::new();
    for microbatch in 0..microbatch_count {
        let first = block.first_slot(microbatch);
        for turn in 0..turns {
            let forward_chunk = chunk_of(turn, stage, stage_count);
            let backward_chunk = chunk_of(turns - 1 - turn, stage, stage_count);
            let at = first + block.slot(turn);
            passes.push((at + forward, compute(Compute::F, forward_chunk, microbatch)));
            passes.push((at + backward, compute(Compute::B, backward_chunk, microbatch)));
            passes.push((at + backward + 1, compute(Compute::W, backward_chunk, microbatch)));
        }
    }
    passes.sort_unstable_by_key(|(slot, _)| *slot);
    assert!(passes.windows(2).all(|pair| pair[0].0 < pair[1].0), "one pass a slot");
    passes.into_iter().map(|(_, op)| op).collect()
}

fn chunk_of(turn: u32, stage: u32, stage_count: u32) -> u32 {
    turn * stage_count + stage
}

/// The slots of the passes of a group.
struct SlotBlock {
    group: u32,
    turns: u32,
    /// Groups that fit between two turns of one microbatch: so many that it is through the last
    /// stage before the first stage takes it up again.
    spread: u32,
    /// Turns after which passes would meet those of an earlier group, and move on by one group.
    turns_apart: u32,
}

impl SlotBlock {
    fn new(size: PipelineSize, group: u32) -> Self {
        let turns = size.chunks_per_stage;
        let spread = size.stage_count.div_ceil(2).div_ceil(group);
        Self { group, turns, spread, turns_apart: turns / common_divisor(turns, spread) }
    }

    /// The first slot of a turn.
    fn slot(&self, turn: u32) -> u32 {
        PASS_SLOTS * self.group * (self.spread * turn + turn / self.turns_apart)
    }

    /// The slot of a microbatch's first F on the first stage.
    fn first_slot(&self, microbatch: u32) -> u32 {
        let period = PASS_SLOTS * self.group * self.turns;
        microbatch / self.group * period + microbatch % self.group * PASS_SLOTS
    }
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
