//! An order in the making: passes are placed on stages one after another, each as early as it can.

use super::pipeline::PipelineIndex;
use super::problem::{ChunkCosts, TOLERANCE};
use crate::op::Compute;

/// A pass of a stage; microbatches of one kind and chunk come in their own order, so these two
/// identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedPass {
    pub(super) compute: Compute,
    pub(super) chunk: u32,
}

/// The time of a pass that is not placed yet.
const NEVER: f64 = f64::INFINITY;

/// The order of a stage so far, with its times and its memory.
#[derive(Clone, Debug)]
pub(super) struct StageProgress {
    /// When its last pass ends.
    pub(super) clock: f64,
    /// When its first one began.
    pub(super) started_at: f64,
    /// When its first W began: there it waits for the verdict on the step before.
    pub(super) gate_at: f64,
    /// Memory that its passes keep by now.
    pub(super) kept: f64,
    /// For how long it was idle since it began.
    pub(super) idle: f64,
    pub(super) order: Vec<PlacedPass>,
}

/// Forwards, input gradients and weight gradients of a chunk so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassCounts {
    pub(super) f: u32,
    pub(super) b: u32,
    pub(super) w: u32,
}

/// All stages with their orders so far.
pub(super) struct OrderBuilder<'a> {
    pub(super) pipeline: &'a PipelineIndex<'a>,
    pub(super) stages: Vec<StageProgress>,
    /// Passes so far, by chunk.
    pub(super) passes: Vec<PassCounts>,
    /// By chunk and microbatch: when the result of its F and of its B is where it is read, and on
    /// the last chunk when its F ends.
    arrivals_f: Vec<f64>,
    arrivals_b: Vec<f64>,
    /// By chunk and microbatch: when its B ends.
    ends_b: Vec<f64>,
    /// By stage: when the links from it are free, to the stage before it, to the one after it, and
    /// to the other end of the pipeline.
    links_free_at: Vec<[f64; 3]>,
}

impl<'a> OrderBuilder<'a> {
    pub(super) fn new(pipeline: &'a PipelineIndex<'a>) -> Self {
        let stage_count = pipeline.stage_count();
        let chunk_count = pipeline.chunk_count();
        let cells = chunk_count * pipeline.microbatch_count() as usize;
        let capacity = pipeline.pass_count() / stage_count;
        let progress = || StageProgress {
            clock: 0.0,
            started_at: 0.0,
            gate_at: NEVER,
            kept: 0.0,
            idle: 0.0,
            order: Vec::with_capacity(capacity),
        };
        Self {
            pipeline,
            stages: (0..stage_count).map(|_| progress()).collect(),
            passes: vec![PassCounts::default(); chunk_count],
            arrivals_f: vec![NEVER; cells],
            arrivals_b: vec![NEVER; cells],
            ends_b: vec![NEVER; cells],
            links_free_at: vec![[0.0; 3]; stage_count],
        }
    }

    pub(super) fn microbatch_count(&self) -> u32 {
        self.pipeline.microbatch_count()
    }

    pub(super) fn costs(&self, chunk: usize) -> &ChunkCosts {
        self.pipeline.costs(chunk)
    }

    fn cell(&self, chunk: usize, microbatch: u32) -> usize {
        chunk * self.microbatch_count() as usize + microbatch as usize
    }

    /// When the input of a chunk's next F has arrived; infinite as long as no pass makes it.
    pub(super) fn arrival_f(&self, chunk: usize) -> f64 {
        let next = self.passes[chunk].f;
        match chunk.checked_sub(1) {
            None => 0.0,
            Some(before) => self.arrivals_f[self.cell(before, next)],
        }
    }

    /// When the input of a chunk's next B has arrived; infinite as long as no pass makes it.
    pub(super) fn arrival_b(&self, chunk: usize) -> f64 {
        let next = self.passes[chunk].b;
        if chunk + 1 == self.passes.len() {
            self.arrivals_f[self.cell(chunk, next)]
        } else {
            self.arrivals_b[self.cell(chunk + 1, next)]
        }
    }

    /// Whether there is memory for another F, and `more` besides.
    pub(super) fn has_memory(&self, chunk: usize, more: f64) -> bool {
        let stage = self.pipeline.stage_of(chunk);
        let needed = self.stages[stage].kept + self.costs(chunk).after_forward + more;
        needed <= self.pipeline.limit(stage) * (1.0 + TOLERANCE)
    }

    /// Weight gradients of a chunk that can be computed now.
    pub(super) fn pending(&self, chunk: usize) -> u32 {
        self.passes[chunk].b - self.passes[chunk].w
    }

    /// The chunk of a stage whose next W has waited for longest, if there is one.
    pub(super) fn longest_pending(&self, stage: usize) -> Option<usize> {
        let mut longest = None;
        for chunk in self.pipeline.chunks_of(stage).iter().copied() {
            if self.pending(chunk) == 0 {
                continue;
            }
            let since = self.ends_b[self.cell(chunk, self.passes[chunk].w)];
            if longest.is_none_or(|(least, _)| since < least) {
                longest = Some((since, chunk));
            }
        }
        longest.map(|(_, chunk)| chunk)
    }

    /// Places a pass on its chunk's stage; its input is made by a pass that was placed before.
    pub(super) fn place(&mut self, chunk: usize, compute: Compute) {
        let ChunkCosts { f, b, w, after_forward, after_input_gradient } = *self.costs(chunk);
        let (arrival, time, kept) = match compute {
            Compute::F => (self.arrival_f(chunk), f, after_forward),
            Compute::B => (self.arrival_b(chunk), b, after_input_gradient - after_forward),
            Compute::W => (0.0, w, -after_input_gradient),
            Compute::BW | Compute::WE | Compute::R => {
                unreachable!("a solver splits every backward pass in two and runs no pass again")
            }
        };
        let stage = self.pipeline.stage_of(chunk);
        let is_first = self.stages[stage].order.is_empty();
        let start = self.stages[stage].clock.max(arrival);
        let end = start + time;
        let PassCounts { f, b, .. } = self.passes[chunk];
        match compute {
            Compute::F => {
                let cell = self.cell(chunk, f);
                let is_last = chunk + 1 == self.passes.len();
                self.arrivals_f[cell] =
                    if is_last { end } else { self.arrival(chunk, chunk + 1, end) };
                self.passes[chunk].f += 1;
            }
            Compute::B => {
                let cell = self.cell(chunk, b);
                self.ends_b[cell] = end;
                if let Some(before) = chunk.checked_sub(1) {
                    self.arrivals_b[cell] = self.arrival(chunk, before, end);
                }
                self.passes[chunk].b += 1;
            }
            Compute::W | Compute::BW | Compute::WE | Compute::R => {
                self.passes[chunk].w += 1;
                let gate_at = &mut self.stages[stage].gate_at;
                *gate_at = gate_at.min(start);
            }
        }
        let progress = &mut self.stages[stage];
        if is_first {
            progress.started_at = start;
        } else {
            progress.idle += start - progress.clock;
        }
        progress.clock = end;
        progress.kept += kept;
        progress.order.push(PlacedPass { compute, chunk: chunk as u32 });
    }

    /// When what is made on a chunk at `end` is on a neighbour of the chunk.
    fn arrival(&mut self, from: usize, to: usize, end: f64) -> f64 {
        let hop = self.pipeline.hop(from.max(to));
        let occupancy = self.pipeline.problem.occupancy;
        let from = self.pipeline.stage_of(from);
        let to = self.pipeline.stage_of(to);
        if occupancy == 0.0 || from == to {
            return end + hop;
        }
        let direction = if to + 1 == from {
            0
        } else if from + 1 == to {
            1
        } else {
            2
        };
        let free_at = &mut self.links_free_at[from][direction];
        let departure = free_at.max(end);
        *free_at = departure + occupancy;
        departure + hop
    }

    /// How long the stage was idle that was idle for longest.
    pub(super) fn idle_max(&self) -> f64 {
        self.stages.iter().map(|progress| progress.idle).fold(0.0, f64::max)
    }

    /// What the step costs, by what ends it.
    pub(super) fn cost(&self) -> f64 {
        let longest = |of: fn(&StageProgress) -> f64| {
            let ends = self.stages.iter().enumerate();
            ends.map(|(stage, progress)| of(progress) + self.pipeline.work_after(stage))
                .fold(0.0, f64::max)
        };
        self.pipeline.problem.ending.cost(
            || longest(|progress| progress.clock - progress.started_at),
            || longest(|progress| progress.clock),
            || self.stages.iter().map(|progress| progress.gate_at).fold(NEVER, f64::min),
        )
    }

    /// The list of each stage.
    pub(super) fn into_orders(self) -> Vec<Vec<PlacedPass>> {
        self.stages.into_iter().map(|progress| progress.order).collect()
    }
}
