//! A problem with the values that a search reads again and again.

use super::problem::{ChunkCosts, ScheduleProblem, StepEnding};
use crate::placement::PlacementShape;
use crate::program::Window;

/// Chunks and stages are indices here: a search counts in millions of passes.
pub(super) struct PipelineIndex<'a> {
    pub(super) problem: &'a ScheduleProblem,
    /// By chunk: the stage that holds it.
    stage_of: Vec<usize>,
    /// By stage, in model order.
    chunks_of: Vec<Vec<usize>>,
    /// By chunk: how long a result of the chunk before takes to reach it, and its gradient to go
    /// back.
    hops: Vec<f64>,
    /// By chunk, if nothing waits: from the start of its F to the start of its B.
    turnarounds: Vec<f64>,
    /// By chunk, if nothing waits: from the start of the model's first F to the start of its own.
    forward_delays: Vec<f64>,
    /// By chunk, if nothing waits: from the end of its B to the end of the model's last B.
    backward_delays: Vec<f64>,
}

impl<'a> PipelineIndex<'a> {
    /// The index of a problem that was checked.
    pub(super) fn new(problem: &'a ScheduleProblem) -> Self {
        let stage_count = problem.limits.len();
        let chunk_count = problem.chunks.len();
        let stage_of = |chunk: usize| match problem.placement.shape() {
            PlacementShape::Line | PlacementShape::Loop => chunk % stage_count,
            PlacementShape::Vee | PlacementShape::Cross => chunk.min(chunk_count - 1 - chunk),
        };
        let stage_of: Vec<usize> = (0..chunk_count).map(stage_of).collect();
        let mut chunks_of = vec![Vec::with_capacity(2); stage_count];
        for (chunk, stage) in stage_of.iter().enumerate() {
            chunks_of[*stage].push(chunk);
        }
        let hop = |chunk: usize| {
            let is_local = chunk == 0 || stage_of[chunk - 1] == stage_of[chunk];
            if is_local { 0.0 } else { problem.link + problem.occupancy }
        };
        let hops: Vec<f64> = (0..chunk_count).map(hop).collect();
        let mut forward_delays = vec![0.0; chunk_count];
        let mut backward_delays = vec![0.0; chunk_count];
        for chunk in 1..chunk_count {
            let ChunkCosts { f, b, .. } = problem.chunks[chunk - 1];
            forward_delays[chunk] = forward_delays[chunk - 1] + f + hops[chunk];
            backward_delays[chunk] = backward_delays[chunk - 1] + b + hops[chunk];
        }
        let turnarounds = turnarounds(problem, &hops);
        Self { problem, stage_of, chunks_of, hops, turnarounds, forward_delays, backward_delays }
    }

    pub(super) fn stage_count(&self) -> usize {
        self.chunks_of.len()
    }

    pub(super) fn chunk_count(&self) -> usize {
        self.stage_of.len()
    }

    pub(super) fn microbatch_count(&self) -> u32 {
        self.problem.microbatch_count
    }

    /// How many F, B and W a step has.
    pub(super) fn pass_count(&self) -> usize {
        3 * self.chunk_count() * self.microbatch_count() as usize
    }

    pub(super) fn stage_of(&self, chunk: usize) -> usize {
        self.stage_of[chunk]
    }

    /// In model order; a stage has one at least.
    pub(super) fn chunks_of(&self, stage: usize) -> &[usize] {
        &self.chunks_of[stage]
    }

    pub(super) fn costs(&self, chunk: usize) -> &ChunkCosts {
        &self.problem.chunks[chunk]
    }

    /// Of all chunks of a stage, in sum.
    pub(super) fn sum(&self, stage: usize, of: impl Fn(&ChunkCosts) -> f64) -> f64 {
        self.chunks_of(stage).iter().map(|chunk| of(self.costs(*chunk))).sum()
    }

    pub(super) fn limit(&self, stage: usize) -> f64 {
        self.problem.limits[stage]
    }

    /// How long a stage works behind its last W.
    pub(super) fn work_after(&self, stage: usize) -> f64 {
        self.problem.ending.after.get(stage).copied().unwrap_or(0.0)
    }

    /// How long a result takes between a chunk and the one before it, if the link is free.
    pub(super) fn hop(&self, chunk: usize) -> f64 {
        self.hops[chunk]
    }

    /// Work that a stage has in a step.
    pub(super) fn work(&self, stage: usize) -> f64 {
        f64::from(self.microbatch_count()) * self.sum(stage, |costs| costs.f + costs.b + costs.w)
    }

    /// What the step costs at least if this stage is never idle.
    pub(super) fn cost_min(&self, stage: usize) -> f64 {
        self.work(stage) + self.cost_beside_span(stage)
    }

    /// What the step costs beside the span of a stage, at least.
    pub(super) fn cost_beside_span(&self, stage: usize) -> f64 {
        let StepEnding { window, verdict, .. } = &self.problem.ending;
        let others = match window {
            Window::One => 0.0,
            Window::Zero => self.forward_delays[self.ends_of(stage).0] + verdict,
        };
        others + self.work_after(stage)
    }

    /// From the start of a chunk's F to the start of the same microbatch's B, if nothing waits.
    pub(super) fn turnaround(&self, chunk: usize) -> f64 {
        self.turnarounds[chunk]
    }

    /// From the start of a chunk's F to the start of a later chunk's, if nothing waits.
    pub(super) fn forward_delay(&self, from: usize, to: usize) -> f64 {
        self.forward_delays[to] - self.forward_delays[from]
    }

    /// From the start of a chunk's F to the start of a later chunk's, and from the end of that
    /// one's B to the end of this one's, if nothing waits.
    pub(super) fn round_trip_delay(&self, from: usize, to: usize) -> f64 {
        self.forward_delay(from, to) + self.backward_delays[to] - self.backward_delays[from]
    }

    /// The chunk that a stage meets first of a microbatch, and the one that it meets last, which
    /// may be the same.
    pub(super) fn ends_of(&self, stage: usize) -> (usize, usize) {
        let chunks = self.chunks_of(stage);
        (chunks[0], chunks[chunks.len() - 1])
    }

    /// From the start of a stage's first F to the start of its first B, if nothing waits.
    pub(super) fn first_turnaround(&self, stage: usize) -> f64 {
        let (lower, upper) = self.ends_of(stage);
        self.forward_delay(lower, upper) + self.turnaround(upper)
    }
}

fn turnarounds(problem: &ScheduleProblem, hops: &[f64]) -> Vec<f64> {
    let mut turnarounds = vec![0.0; hops.len()];
    let mut behind = 0.0;
    for (chunk, costs) in problem.chunks.iter().enumerate().rev() {
        turnarounds[chunk] = costs.f + behind;
        behind = turnarounds[chunk] + costs.b + 2.0 * hops[chunk];
    }
    turnarounds
}
