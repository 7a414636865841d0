//! A lower bound on what any order of a step costs: the longest span of a stage, from the start of
//! its first forward pass to the end of its last weight gradient.
//!
//! Three things take time on every stage, whatever the order. Its own work, with what it must wait
//! before its first B (the *head*: a microbatch has to go down the pipeline and back, and memory
//! allows only so many forward passes meanwhile) and after its last F (the *tail*, likewise). The
//! way through a busier stage behind it and back. And memory times time: what each microbatch keeps
//! for as long as it must.

use super::problem::{Problem, StageCosts, TOLERANCE};

/// No order of `problem` costs less.
pub(super) fn lower_bound(problem: &Problem) -> f64 {
    let stage_count = problem.stages.len();
    let trips = trips(problem);
    let heads: Vec<f64> =
        (0..stage_count).map(|stage| head(problem, stage, trips[stage])).collect();
    let mut bound = 0.0_f64;
    for stage in 0..stage_count {
        bound = bound
            .max(alone(problem, stage, trips[stage], heads[stage]))
            .max(by_memory(problem, stage, trips[stage]))
            .max(through_others(problem, stage, &heads));
    }
    bound
}

/// By stage: from the start of its first F to the start of its first B, if nothing waits.
pub(super) fn trips(problem: &Problem) -> Vec<f64> {
    let mut trips = vec![0.0; problem.stages.len()];
    let mut behind = 0.0;
    for (stage, costs) in problem.stages.iter().enumerate().rev() {
        trips[stage] = costs.f + behind;
        behind = trips[stage] + costs.b + 2.0 * problem.link;
    }
    trips
}

/// Microbatches whose activations fit.
fn room(costs: &StageCosts, microbatch_count: u32) -> u32 {
    how_many(costs.limit * (1.0 + TOLERANCE), costs.after_forward, microbatch_count)
}

/// So many of a size fit into a room, `most` at most; of nothing, all.
fn how_many(room: f64, size: f64, most: u32) -> u32 {
    let count = if size > 0.0 { room / size } else { f64::INFINITY };
    if count >= f64::from(most) { most } else { count as u32 }
}

fn head(problem: &Problem, stage: usize, trip: f64) -> f64 {
    let costs = &problem.stages[stage];
    (trip - f64::from(room(costs, problem.microbatch_count)) * costs.f).max(0.0)
}

/// After its last F a stage has at most this much to do until that microbatch comes back.
fn left_over(problem: &Problem, stage: usize) -> f64 {
    let StageCosts { b, w, after_forward, after_input_gradient, limit, .. } = problem.stages[stage];
    let m = problem.microbatch_count;
    let with_forwards = |x: u32| {
        let rest = (limit - f64::from(x) * after_forward).max(0.0) + TOLERANCE * limit;
        let y = how_many(rest, after_input_gradient, m - x);
        f64::from(x) * (b + w) + f64::from(y) * w
    };
    (1..=room(&problem.stages[stage], m).max(1)).map(with_forwards).fold(0.0, f64::max)
}

/// A stage's own work, with what it waits at both ends.
fn alone(problem: &Problem, stage: usize, trip: f64, head: f64) -> f64 {
    let StageCosts { f, b, w, .. } = problem.stages[stage];
    let chain = trip - f + b + w;
    let tail = (chain - left_over(problem, stage)).max(0.0);
    let is_apart =
        problem.microbatch_count > room(&problem.stages[stage], problem.microbatch_count);
    let waits = if is_apart { head + tail } else { head.max(tail) };
    problem.work(stage) + waits
}

/// What each microbatch keeps, for as long as it must, against the memory there is.
fn by_memory(problem: &Problem, stage: usize, trip: f64) -> f64 {
    let StageCosts { b, after_forward, after_input_gradient, limit, .. } = problem.stages[stage];
    let kept = after_forward * trip + after_input_gradient * b;
    f64::from(problem.microbatch_count) * kept / limit
}

/// All of a stage behind it, and the way there and back.
fn through_others(problem: &Problem, stage: usize, heads: &[f64]) -> f64 {
    let m = f64::from(problem.microbatch_count);
    let mut way = 0.0;
    let mut bound = 0.0_f64;
    for (other, costs) in problem.stages.iter().enumerate().skip(stage) {
        let there = m * (costs.f + costs.b) + heads[other];
        bound = bound.max(way + there + problem.stages[stage].w);
        way += costs.f + costs.b + 2.0 * problem.link;
    }
    bound
}
