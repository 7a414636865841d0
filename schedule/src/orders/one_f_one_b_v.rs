//! 1F1B-V (Qi et al., NeurIPS 2024, arXiv 2405.15362, section 4.3 and appendix F).
//!
//! Two chunks a stage on a V-shaped placement, and a backward pass in one piece, of two slots. The
//! pattern lets every pass follow the one it depends on as soon as a period of six slots has a free
//! slot for it, which is after three stages once more for backward passes. A stage keeps two thirds
//! of what 1F1B lets it keep.

use super::PipelineSize;
use super::grid::{BackwardMode, Grid, PassStream, StreamSlots, WeightPassMode, ops};
use super::vee::Leg;
use crate::op::{Compute, Op};

/// Slots of two F, two B and two W.
const PERIOD: usize = 6;
/// Stages whose backward passes of one leg fill a period with two slots each.
const STAGES_A_ROUND: usize = 3;

pub(super) fn program_ops(size: PipelineSize) -> Vec<Vec<Op>> {
    let mut grid = Grid::new(pattern(size), WeightPassMode::Placed, BackwardMode::Fused);
    let limit = grid.peak();
    for pass in grid.passes() {
        let width = match pass.stream {
            PassStream::B(_) => 2,
            PassStream::F(_) | PassStream::W(_) => 1,
        };
        let first = grid.first_slot(pass);
        grid.lanes[pass.stage].pull(pass, first, width, limit);
    }
    // B and the W behind it are one operation.
    let pass_of = |stream| match stream {
        PassStream::F(_) => Some(Compute::F),
        PassStream::B(_) => Some(Compute::BW),
        PassStream::W(_) => None,
    };
    let lanes = (0..).zip(&grid.lanes);
    let streams = lanes.map(|(stage, lane)| (stage, lane.streams().map(|(_, stream)| stream)));
    streams.map(|(stage, streams)| ops(size, stage, streams, pass_of)).collect()
}

/// Every stage's slots before anything is pulled.
fn pattern(size: PipelineSize) -> Vec<StreamSlots> {
    let stages = size.stage_count as usize;
    let microbatches = size.microbatch_count as usize;
    let mut slots: Vec<StreamSlots> = vec![StreamSlots::default(); stages];
    let place = |first: usize| (0..microbatches).map(|k| first + PERIOD * k).collect();
    let phases = phases(stages);
    let next_at = |slot: usize, phase: usize| (slot..).find(|slot| slot % PERIOD == phase);
    // A period is left free for what is pulled to the front.
    let mut slot = PERIOD;
    for stream in [
        PassStream::F(Leg::Down),
        PassStream::F(Leg::Up),
        PassStream::B(Leg::Up),
        PassStream::B(Leg::Down),
    ] {
        for stage in stages_passed(stream, stages) {
            let phase = phases[stage][stream.number()];
            let at = next_at(slot, phase).expect("every phase comes again");
            slots[stage][stream.number()] = place(at);
            slot = at + 1;
            if let PassStream::B(leg) = stream {
                slots[stage][PassStream::W(leg).number()] = place(at + 1);
            }
        }
    }
    slots
}

/// The stages in the order in which a microbatch passes them.
fn stages_passed(stream: PassStream, stages: usize) -> Box<dyn Iterator<Item = usize>> {
    match stream {
        PassStream::F(Leg::Down) | PassStream::B(Leg::Up) => Box::new(0..stages),
        PassStream::F(Leg::Up) | PassStream::B(Leg::Down) | PassStream::W(_) => {
            Box::new((0..stages).rev())
        }
    }
}

/// Which slot of a period each stage's F and B take.
fn phases(stages: usize) -> Vec<[usize; PassStream::ALL.len()]> {
    let mut phases = vec![[0; PassStream::ALL.len()]; stages];
    let mut slot = 0;
    for stream in [PassStream::F(Leg::Down), PassStream::F(Leg::Up)] {
        for stage in stages_passed(stream, stages) {
            slot += 1;
            phases[stage][stream.number()] = slot % PERIOD;
        }
    }
    slot += if stages.is_multiple_of(STAGES_A_ROUND) { 1 + PERIOD / 2 } else { 1 };
    // Backward passes of two slots would meet those of an earlier microbatch after three stages, so
    // then they wait for half a period.
    let mut in_round = (STAGES_A_ROUND - (stages + 2) % STAGES_A_ROUND) % STAGES_A_ROUND;
    for stream in [PassStream::B(Leg::Up), PassStream::B(Leg::Down)] {
        for stage in stages_passed(stream, stages) {
            phases[stage][stream.number()] = slot % PERIOD;
            slot += 2;
            in_round += 1;
            if in_round == STAGES_A_ROUND {
                in_round = 0;
                slot += PERIOD / 2;
            }
        }
    }
    phases
}
