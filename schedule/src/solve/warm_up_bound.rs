//! A lower bound from forwards that are whole.
//!
//! Before its first B a stage can run nothing but F, so many as memory holds. Where those do not
//! come out even with the first B's arrival, it is idle, or it runs one F more and its B is
//! late, and with it those of all stages before it. An order that costs no more than so much leaves
//! each stage only so much time to be idle, and so the first B of each a time at which it can
//! begin at the earliest. If there is none for a stage, no order costs as little.
//!
//! For one chunk a stage.

use super::bound::tails;
use super::pipeline::PipelineIndex;
use super::problem::{ChunkCosts, TOLERANCE};

/// Halvings of the interval in which the bound lies: as many as a double has digits.
const HALVINGS: u32 = 52;

/// Sums of times differ by less, relative to the cost. It is less than two costs may differ by and
/// be the same, so that an order at the bound is found to be.
const SLACK: f64 = TOLERANCE / 10.0;

/// No order costs less, given that none costs less than `known`.
pub(super) fn lower_bound(pipeline: &PipelineIndex<'_>, known: f64) -> f64 {
    let Some(warm_up) = WarmUpBound::new(pipeline) else { return known };
    let is_possible = |cost: f64| warm_up.forwards_first(cost).is_some();
    if is_possible(known) {
        return known;
    }
    let mut below = known;
    let mut above = 2.0 * known;
    if !is_possible(above) {
        return above;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(below, above);
        if is_possible(middle) {
            above = middle;
        } else {
            below = middle;
        }
    }
    below
}

/// By stage: how many F it runs before its first B, in ways that are worth a try: as in an order
/// that costs no more than `bound` and whose first B begin early, and as many as come out about
/// even.
pub(super) fn forwards_first(pipeline: &PipelineIndex<'_>, bound: f64) -> Vec<Vec<u32>> {
    let Some(warm_up) = WarmUpBound::new(pipeline) else { return Vec::new() };
    let at_bound = warm_up.forwards_first(bound * (1.0 + TOLERANCE));
    let (about_even, _) = warm_up.count_forwards(0.0, |stage| 0.5 * pipeline.costs(stage).f);
    at_bound.into_iter().chain([about_even]).collect()
}

struct WarmUpBound<'a> {
    pipeline: &'a PipelineIndex<'a>,
    /// By stage: how long it is idle elsewhere than before its first B, in any order.
    idle_elsewhere: Vec<f64>,
    /// By stage: how many F memory holds.
    forwards_max: Vec<f64>,
}

impl<'a> WarmUpBound<'a> {
    /// `None` if a stage has several chunks.
    fn new(pipeline: &'a PipelineIndex<'a>) -> Option<Self> {
        if pipeline.chunk_count() > pipeline.stage_count() {
            return None;
        }
        let m = f64::from(pipeline.microbatch_count());
        let mut idle_elsewhere = tails(pipeline);
        let mut forwards_max = Vec::with_capacity(idle_elsewhere.len());
        for (stage, tail) in idle_elsewhere.iter_mut().enumerate() {
            let kept = pipeline.costs(stage).after_forward;
            let limit = pipeline.limit(stage) * (1.0 + TOLERANCE);
            let all_fit = m * kept <= limit;
            if all_fit {
                // All F may run before the first B, and then one wait is both head and tail.
                *tail = 0.0;
            }
            forwards_max.push(if all_fit { m } else { (limit / kept).floor() });
        }
        Some(Self { pipeline, idle_elsewhere, forwards_max })
    }

    /// By stage: how many F it runs before its first B, if all begin that as soon as an order
    /// allows that costs no more than `cost`; `None` if there is no such order.
    fn forwards_first(&self, cost: f64) -> Option<Vec<u32>> {
        let slack = cost * SLACK;
        let idle_max =
            |stage| cost - self.pipeline.cost_min(stage) - self.idle_elsewhere[stage] + slack;
        let (counts, is_possible) = self.count_forwards(slack, idle_max);
        is_possible.then_some(counts)
    }

    /// By stage: how many F it runs before its first B, if it runs one more wherever it would be
    /// idle for longer than `idle_max`; and whether memory holds as many.
    fn count_forwards(&self, slack: f64, idle_max: impl Fn(usize) -> f64) -> (Vec<u32>, bool) {
        let mut counts = vec![0; self.forwards_max.len()];
        let mut all_fit = true;
        // From the start of a stage's first F to the start of its first B.
        let mut begins = 0.0_f64;
        for stage in (0..counts.len()).rev() {
            let ChunkCosts { f, .. } = *self.pipeline.costs(stage);
            if stage + 1 < counts.len() {
                begins += self.pipeline.costs(stage + 1).b + 2.0 * self.pipeline.hop(stage + 1);
            }
            begins += f;
            let mut count = ((begins + slack) / f).floor().min(self.forwards_max[stage]);
            if begins - count * f > idle_max(stage) {
                all_fit &= count < self.forwards_max[stage];
                count = (count + 1.0).min(self.forwards_max[stage]);
            }
            begins = begins.max(count * f);
            counts[stage] = count as u32;
        }
        (counts, all_fit)
    }
}
