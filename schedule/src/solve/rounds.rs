//! Orders made in rounds, one microbatch's B each: the search of the zero-bubble paper (Qi et al.,
//! ICLR 2024, section 3.1), with times of each stage's own. One
//! chunk a stage, so the index of one is that of the other.
//!
//! A weight gradient that is longer than the gap it would fill is placed there if the gap would
//! make the stage that is idle for longest idle for longer, and otherwise as the style has it.

use super::order_builder::OrderBuilder;
use super::pipeline::PipelineIndex;
use super::problem::{ScheduleProblem, TOLERANCE};
use crate::op::Compute;

/// How the open questions of the search are answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundStyle {
    /// Whether a stage rather waits for its first B than runs another F into it.
    pub(super) waits_for_first_b: bool,
    /// Whether a stage that is ahead lets its next B go first.
    pub(super) prefers_b: bool,
    /// Whether gaps are filled that cost nothing.
    pub(super) fills_gaps: bool,
}

impl RoundStyle {
    /// Every one there is.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..8_u8).map(|bits| Self {
            waits_for_first_b: bits & 1 == 0,
            prefers_b: bits & 2 == 0,
            fills_gaps: bits & 4 == 0,
        })
    }
}

/// The order of a style; `None` if it leaves a stage without memory for its next F.
pub(super) fn in_rounds<'a>(
    pipeline: &'a PipelineIndex<'a>,
    style: RoundStyle,
) -> Option<OrderBuilder<'a>> {
    let mut rounds = Rounds { builder: OrderBuilder::new(pipeline), style };
    rounds.warm_up();
    for _ in 1..pipeline.microbatch_count() {
        rounds.forwards()?;
        rounds.backwards();
    }
    for stage in 0..pipeline.stage_count() {
        rounds.place_pending_w(stage);
    }
    Some(rounds.builder)
}

struct Rounds<'a> {
    builder: OrderBuilder<'a>,
    style: RoundStyle,
}

impl Rounds<'_> {
    fn stage_count(&self) -> usize {
        self.builder.stages.len()
    }

    fn link(&self) -> f64 {
        let ScheduleProblem { link, occupancy, .. } = *self.builder.pipeline.problem;
        link + occupancy
    }

    fn warm_up(&mut self) {
        for stage in 0..self.stage_count() {
            self.builder.place(stage, Compute::F);
        }
        for (stage, count) in self.ahead().into_iter().enumerate() {
            for _ in 0..count {
                self.builder.place(stage, Compute::F);
            }
        }
        for stage in (0..self.stage_count()).rev() {
            self.builder.place(stage, Compute::B);
        }
    }

    /// Forwards of each stage between its first F and its first B.
    fn ahead(&self) -> Vec<u32> {
        let last = self.stage_count() - 1;
        let mut counts = vec![0_u32; self.stage_count()];
        let mut returned = self.builder.stages[last].clock + self.builder.costs(last).b;
        for stage in (0..last).rev() {
            let (count, until) = self.ahead_of(stage, returned + self.link());
            counts[stage] = count;
            let arrived = returned + self.link();
            returned = until.max(arrived) + self.builder.costs(stage).b;
        }
        let m = self.builder.microbatch_count();
        for stage in 1..counts.len() {
            let before = counts[stage - 1];
            let is_below = |count: u32| count == 0 || count < before || count + 1 >= m;
            while !is_below(counts[stage]) {
                counts[stage] -= 1;
            }
        }
        counts
    }

    /// How many forwards a stage runs until its first B arrives, and when it is done with them.
    fn ahead_of(&self, stage: usize, arrives: f64) -> (u32, f64) {
        let costs = self.builder.costs(stage);
        let mut now = self.builder.stages[stage].clock;
        let mut count = 0;
        let slack = TOLERANCE * arrives;
        while count + 1 < self.builder.microbatch_count() {
            let kept = f64::from(count + 2) * costs.after_forward;
            let is_full = kept > self.builder.pipeline.limit(stage) * (1.0 + TOLERANCE);
            let is_late = if self.style.waits_for_first_b {
                now + costs.f > arrives + slack
            } else {
                now >= arrives - slack
            };
            if is_full || is_late {
                break;
            }
            now += costs.f;
            count += 1;
        }
        (count, now)
    }

    /// The forward passes of a round.
    fn forwards(&mut self) -> Option<()> {
        let runs_forward = self.forward_stages();
        for stage in (0..self.stage_count()).filter(|stage| runs_forward[*stage]) {
            while !self.builder.has_memory(stage, 0.0) {
                if self.builder.pending(stage) == 0 {
                    return None;
                }
                self.builder.place(stage, Compute::W);
            }
            if stage > 0 {
                self.fill_until(stage, self.builder.arrival_f(stage));
            }
            self.builder.place(stage, Compute::F);
        }
        Some(())
    }

    /// Which stages run an F this round; none runs ahead of one behind it that does not.
    fn forward_stages(&self) -> Vec<bool> {
        let mut runs_forward: Vec<bool> =
            (0..self.stage_count()).map(|stage| self.runs_forward(stage)).collect();
        for stage in (1..runs_forward.len()).rev() {
            runs_forward[stage - 1] &= runs_forward[stage];
        }
        runs_forward
    }

    fn runs_forward(&self, stage: usize) -> bool {
        let progress = &self.builder.stages[stage];
        let begun = self.builder.passes[stage].f;
        if begun == self.builder.microbatch_count() {
            return false;
        }
        let Some(next) = self.builder.stages.get(stage + 1) else { return true };
        if !self.style.prefers_b || begun < self.builder.passes[stage + 1].f + 2 {
            return true;
        }
        let behind = self.builder.costs(stage + 1);
        let returns = next.clock + behind.f + behind.b + self.link();
        if progress.clock >= returns {
            return false;
        }
        let costs = self.builder.costs(stage);
        let missing = progress.kept + costs.after_forward
            - self.builder.pipeline.limit(stage) * (1.0 + TOLERANCE);
        let freed = (missing / costs.after_input_gradient).ceil().max(0.0);
        let freed = if missing > 0.0 { freed } else { 0.0 };
        if progress.clock + costs.f + freed * costs.w <= returns * (1.0 + TOLERANCE) {
            return true;
        }
        returns - progress.clock > self.builder.idle_max() - progress.idle
    }

    /// A round's input gradients.
    fn backwards(&mut self) {
        for stage in (0..self.stage_count()).rev() {
            if stage + 1 < self.stage_count() {
                self.fill_until(stage, self.builder.arrival_b(stage));
            }
            if stage == 0 && self.builder.passes[0].f == self.builder.microbatch_count() {
                self.place_pending_w(0);
            }
            self.builder.place(stage, Compute::B);
        }
    }

    /// Weight gradients until something arrives.
    fn fill_until(&mut self, stage: usize, arrives: f64) {
        let w = self.builder.costs(stage).w;
        let slack = TOLERANCE * arrives;
        while self.builder.pending(stage) > 0
            && self.builder.stages[stage].clock + w <= arrives + slack
        {
            self.builder.place(stage, Compute::W);
        }
        let gap = arrives - self.builder.stages[stage].clock;
        if gap <= slack || self.builder.pending(stage) == 0 {
            return;
        }
        let is_free = gap <= self.builder.idle_max() - self.builder.stages[stage].idle;
        if !is_free || self.style.fills_gaps {
            self.builder.place(stage, Compute::W);
        }
    }

    fn place_pending_w(&mut self, stage: usize) {
        for _ in 0..self.builder.pending(stage) {
            self.builder.place(stage, Compute::W);
        }
    }
}
