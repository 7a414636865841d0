//! V-Half and V-Min (Qi et al., NeurIPS 2024, arXiv 2405.15362, sections 3 and 4).
//!
//! Two chunks a stage on a V-shaped placement, B split from W, each pass of a chunk one slot long.
//! A microbatch's F and B stand at fixed distances from each other, the same for all microbatches,
//! one period of six slots apart; W fills what is left. How long a chunk's activations live divided
//! by the period is how many of them are kept, so the distance from stage to stage sets the memory:
//! one slot in each direction for a third of what 1F1B keeps (V-Min), two in one and one in the
//! other for half of it (V-Half).
//!
//! In the first and last periods, passes are then pulled to the front as far as operands and the
//! peak allow: first with every W where it stands, then with W wherever a slot is free. The order
//! knows no times. Where F, B and W take unequal times, V-Min pays for its memory in every period.

use super::PipelineSize;
use super::grid::{
    BackwardMode, Grid, GridLane, GridPass, PassStream, StreamSlots, WeightPassMode, ops,
};
use super::vee::Leg;
use crate::op::{Compute, Op};

/// Slots of two F, two B and two W.
const PERIOD: usize = 6;

/// The slots of one stage's two F, of B up and of B down, for the first microbatch.
pub(super) type FirstSlots = fn(stages: usize, stage: usize) -> [usize; 4];

/// V-Half: F goes down in steps of two slots and up in single ones; B likewise.
pub(super) fn half(stages: usize, stage: usize) -> [usize; 4] {
    // Without it, passes of two microbatches would meet in a slot.
    let pause = if stages.is_multiple_of(2) { 3 } else { 0 };
    let down = 2 * stage;
    let up = 3 * stages - 2 - stage;
    [down, up, 3 * stages - 1 + pause + down, 3 * stages + pause + up]
}

/// V-Min: every pass goes in single steps.
pub(super) fn min(stages: usize, stage: usize) -> [usize; 4] {
    // As in `half`.
    let pause = if stages.is_multiple_of(3) { 2 } else { 0 };
    let down = stage;
    let up = 2 * stages - 1 - stage;
    [down, up, 2 * stages + pause + down, 2 * stages + pause + up]
}

pub(super) fn program_ops(size: PipelineSize, first_slots: FirstSlots) -> Vec<Vec<Op>> {
    let microbatches = size.microbatch_count as usize;
    let mut slots = pattern(size, first_slots);
    for weights in [WeightPassMode::Placed, WeightPassMode::FillGaps] {
        slots = reordered(slots, weights, microbatches - 1);
    }
    let lanes = slots.into_iter().map(|slots| GridLane::new(slots, WeightPassMode::FillGaps));
    (0..).zip(lanes).map(|(stage, lane)| stage_ops(size, stage, &lane)).collect()
}

fn stage_ops(size: PipelineSize, stage: u32, lane: &GridLane) -> Vec<Op> {
    let mut streams: Vec<_> = lane.streams().chain(lane.gap_weights()).collect();
    streams.sort_unstable_by_key(|(slot, _)| *slot);
    ops(size, stage, streams.into_iter().map(|(_, stream)| stream), |stream| match stream {
        PassStream::F(_) => Some(Compute::F),
        PassStream::B(_) => Some(Compute::B),
        PassStream::W(_) => Some(Compute::W),
    })
}

/// Every stage's slots before anything is pulled, without W.
fn pattern(size: PipelineSize, first_slots: FirstSlots) -> Vec<StreamSlots> {
    let stages = size.stage_count as usize;
    let microbatches = size.microbatch_count as usize;
    let of_stage = |stage| {
        let mut slots = StreamSlots::default();
        for (stream, first) in PassStream::ALL.into_iter().zip(first_slots(stages, stage)) {
            slots[stream.number()] = (0..microbatches).map(|k| first + PERIOD * k).collect();
        }
        slots
    };
    (0..stages).map(of_stage).collect()
}

/// The phase of a step, by the passes that the first stage has run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PipelinePhase {
    /// No gradient has reached the first stage.
    WarmUp,
    Steady,
    /// No microbatch is left to begin.
    CoolDown,
}

/// With W placed, pulls the passes of warm-up and cool-down to the front; with W in the gaps, only
/// those of cool-down. Then every stage runs its passes as soon as it can.
fn reordered(
    slots: Vec<StreamSlots>,
    weights: WeightPassMode,
    last_microbatch: usize,
) -> Vec<StreamSlots> {
    let slots = match weights {
        WeightPassMode::Placed => slots.into_iter().map(with_weights).collect(),
        WeightPassMode::FillGaps => slots,
    };
    let mut grid = Grid::new(slots, weights, BackwardMode::Split);
    let limit = grid.peak();
    let mut phase = PipelinePhase::WarmUp;
    for pass in grid.passes() {
        let is_return = pass.stage == 0 && pass.stream == PassStream::B(Leg::Down);
        if phase == PipelinePhase::WarmUp && is_return {
            phase = PipelinePhase::Steady;
        }
        let is_pulled = match phase {
            PipelinePhase::WarmUp => weights == WeightPassMode::Placed,
            PipelinePhase::Steady => false,
            PipelinePhase::CoolDown => true,
        };
        if is_pulled {
            let first = first_slot(&grid, pass);
            grid.lanes[pass.stage].pull(pass, first, 1, limit);
        }
        let is_begin = pass.stream == PassStream::F(Leg::Down);
        if phase == PipelinePhase::Steady && is_begin && pass.microbatch == last_microbatch {
            phase = PipelinePhase::CoolDown;
        }
    }
    eager(match weights {
        WeightPassMode::Placed => grid,
        WeightPassMode::FillGaps => {
            let slots = grid.lanes.into_iter().map(|lane| with_weights(lane.slots)).collect();
            Grid::new(slots, WeightPassMode::Placed, BackwardMode::Split)
        }
    })
}

/// With W in the gaps. They are all in one stream: which chunk's turn it is does not matter yet.
fn with_weights(slots: StreamSlots) -> StreamSlots {
    let lane = GridLane::new(slots, WeightPassMode::FillGaps);
    let filled = lane.gap_weights().into_iter().map(|(slot, _)| slot).collect();
    let mut slots = lane.slots;
    slots[ANY_WEIGHTS.number()] = filled;
    slots
}

/// The stream that holds the W of both chunks as long as they are not distinguished.
const ANY_WEIGHTS: PassStream = PassStream::W(Leg::Up);

fn first_slot(grid: &Grid, pass: GridPass) -> usize {
    if pass.stream != ANY_WEIGHTS {
        return grid.first_slot(pass);
    }
    let lane = &grid.lanes[pass.stage];
    let backward = lane.backward_slot(pass.microbatch).expect("W stands behind its B");
    let before = pass.microbatch.checked_sub(1);
    let before = before.map_or(0, |before| lane.slots[ANY_WEIGHTS.number()][before] + 1);
    before.max(backward + 1)
}

/// The slots of F and B if every stage runs its passes in their order, each as soon as it can, with
/// a slot for each W as well.
fn eager(grid: Grid) -> Vec<StreamSlots> {
    let mut slots: Vec<StreamSlots> = grid.lanes.iter().map(|lane| lane.slots.clone()).collect();
    let mut ends = vec![0; slots.len()];
    for GridPass { stage, stream, microbatch, .. } in grid.passes() {
        let operand = match stream {
            PassStream::F(_) | PassStream::B(_) => grid.source(stage, stream),
            // It stands behind the B of its stage.
            PassStream::W(_) => None,
        };
        let ready = operand.map_or(0, |(at, of)| slots[at][of.number()][microbatch] + 1);
        let slot = ready.max(ends[stage]);
        slots[stage][stream.number()][microbatch] = slot;
        ends[stage] = slot + 1;
    }
    for slots in &mut slots {
        slots[ANY_WEIGHTS.number()].clear();
    }
    slots
}
