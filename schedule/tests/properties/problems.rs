//! Problems to solve, drawn at random.

use proptest::prelude::*;
use zbelastic_schedule::{
    ChunkCosts, MemorySavings, Placement, Program, ScheduleProblem, StepEnding, Window, simulate,
};
use zbelastic_types::StageIndex;

/// The costs of a chunk, where B keeps a share of what F keeps.
pub fn chunk_costs() -> impl Strategy<Value = ChunkCosts> {
    (0.0..10.0, 0.0..10.0, 0.0..10.0, 0.1..10.0, 0.0..=1.0).prop_map(
        |(f, b, w, after_forward, share): (f64, f64, f64, f64, f64)| {
            let after_input_gradient = share * after_forward;
            ChunkCosts { f, b, w, after_forward, after_input_gradient }
        },
    )
}

/// A problem over this placement, whose stages' memory holds one to eight microbatches.
pub fn problem(
    placement: Placement,
    microbatches_max: u32,
) -> impl Strategy<Value = ScheduleProblem> {
    let chunks = prop::collection::vec(chunk_costs(), placement.chunk_count() as usize);
    let limits = prop::collection::vec(1.0..8.0, placement.stage_count() as usize);
    let occupancy = prop_oneof![Just(0.0), 0.0..6.0];
    let links = (0.0..3.0, occupancy);
    let ending = ending(placement.stage_count() as usize);
    (chunks, limits, links, 1..=microbatches_max, ending).prop_map(
        move |(chunks, limits, (link, occupancy), microbatch_count, ending)| {
            let limits: Vec<f64> = limits;
            let limit = |(stage, limit): (u32, f64)| {
                let kept = placement.chunks_of(StageIndex(stage));
                limit * kept.map(|chunk| chunks[chunk.index()].after_forward).sum::<f64>()
            };
            let limits = (0..).zip(limits).map(limit).collect();
            let placement = placement.clone();
            let memory_savings = MemorySavings::default();
            ScheduleProblem {
                placement,
                chunks,
                limits,
                link,
                occupancy,
                microbatch_count,
                ending,
                memory_savings,
            }
        },
    )
}

/// A verdict that takes as long as a pass.
pub const SHORT: f64 = 6.0;

/// With a step left open, as mostly, or with none.
pub fn ending(stage_count: usize) -> impl Strategy<Value = StepEnding> {
    let window = prop_oneof![2 => Just(Window::One), 1 => Just(Window::Zero)];
    let after = prop::collection::vec(0.0..6.0, stage_count);
    let after = prop_oneof![2 => Just(Vec::new()), 1 => after];
    let verdict = prop_oneof![2 => 0.0..SHORT, 1 => 0.0..60.0];
    (window, verdict, after).prop_map(|(window, verdict, after)| StepEnding {
        window,
        verdict,
        after,
    })
}

pub fn line(stages_max: u32, microbatches_max: u32) -> impl Strategy<Value = ScheduleProblem> {
    let sized = move |stages| problem(Placement::line(stages), microbatches_max);
    (1..=stages_max).prop_flat_map(sized)
}

pub fn vee(stages_max: u32, microbatches_max: u32) -> impl Strategy<Value = ScheduleProblem> {
    let sized = move |stages| problem(Placement::vee(stages), microbatches_max);
    (1..=stages_max).prop_flat_map(sized)
}

pub fn cross(stages_max: u32, microbatches_max: u32) -> impl Strategy<Value = ScheduleProblem> {
    let sized = move |stages| problem(Placement::cross(stages), microbatches_max);
    (1..=stages_max).prop_flat_map(sized)
}

/// Two chunks a stage or three, dealt round.
pub fn looped(stages_max: u32, microbatches_max: u32) -> impl Strategy<Value = ScheduleProblem> {
    let sized =
        move |(stages, chunks)| problem(Placement::looped(stages, chunks), microbatches_max);
    (1..=stages_max, 2..=3_u32).prop_flat_map(sized)
}

/// What a program costs at a problem's times; `None` if a stage's memory does not hold it.
pub fn cost_of(problem: &ScheduleProblem, program: &Program) -> Option<f64> {
    let timeline =
        simulate(program, &problem.costs(), 1).ok().filter(|_| problem.fits_memory(program))?;
    Some(problem.cost(&timeline))
}
