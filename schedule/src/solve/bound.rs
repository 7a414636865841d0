//! A lower bound on the cost of any order of a step: the longest span of a stage, from the start of
//! its first forward pass to the end of its last weight gradient, and the cost that the step's
//! ending adds.
//!
//! Three things need time on every stage, whatever the order. Its own work, with the time that it
//! must wait before its first B (the *head*: a microbatch has to go through the rest of the model
//! and back, and memory allows only so many forward passes meanwhile) and after its last F (the
//! *tail*, likewise). The round trip through a busier stage behind it. And memory times time: the
//! memory that each microbatch keeps for as long as it must.
//!
//! Where a step is left open, each stage waits for the verdict on the step before at its first
//! weight gradient: from there on a stage has work of its own, and behind that comes the verdict.
//!
//! A stage that holds two chunks meets a microbatch first in the *lower* and then in the *upper*
//! one: its first pass is an F of the lower chunk, its first B one of the upper chunk, its last F
//! one of the upper chunk, and the last microbatch to leave it leaves the lower chunk. With one
//! chunk the two are the same. With more than two, the lower and the upper one are the ends, and
//! less is known of its waiting.

use super::pipeline::PipelineIndex;
use super::problem::{ChunkCosts, TOLERANCE};
use super::warm_up_bound;

/// No order of the problem costs less.
pub(super) fn lower_bound(pipeline: &PipelineIndex<'_>) -> f64 {
    let stages: Vec<StageBound<'_>> = StageBound::all(pipeline);
    let heads: Vec<f64> = stages.iter().map(StageBound::head).collect();
    let mut bound = 0.0_f64;
    for (stage, head) in stages.iter().zip(&heads) {
        let span =
            stage.alone(*head).max(stage.by_memory()).max(stage.through_others(&stages, &heads));
        bound = bound.max(span + pipeline.cost_beside_span(stage.index));
    }
    let spans = bound.max(warm_up_bound::lower_bound(pipeline, bound));
    let ending = &pipeline.problem.ending;
    if !ending.is_gated() {
        return spans;
    }
    let known = |stage: &StageBound<'_>| {
        stage.behind_gate() + pipeline.work_after(stage.index) + ending.verdict
    };
    stages.iter().map(known).fold(spans, f64::max)
}

/// By stage: how long it is idle after its last F in any order.
pub(super) fn tails(pipeline: &PipelineIndex<'_>) -> Vec<f64> {
    StageBound::all(pipeline).iter().map(StageBound::tail).collect()
}

struct StageBound<'a> {
    pipeline: &'a PipelineIndex<'a>,
    index: usize,
    lower: usize,
    upper: usize,
    limit: f64,
}

/// How many of a size fit into `space`, `most` at most; of size 0, all.
fn fit_count(space: f64, size: f64, most: u32) -> u32 {
    let count = if size > 0.0 { space / size } else { f64::INFINITY };
    if count >= f64::from(most) { most } else { count.max(0.0) as u32 }
}

impl<'a> StageBound<'a> {
    fn all(pipeline: &'a PipelineIndex<'a>) -> Vec<Self> {
        let stage = |index| {
            let (lower, upper) = pipeline.ends_of(index);
            let limit = pipeline.limit(index) * (1.0 + TOLERANCE);
            Self { pipeline, index, lower, upper, limit }
        };
        (0..pipeline.stage_count()).map(stage).collect()
    }

    fn microbatch_count(&self) -> u32 {
        self.pipeline.microbatch_count()
    }

    fn chunk_count(&self) -> usize {
        self.pipeline.chunks_of(self.index).len()
    }

    fn costs(&self) -> (&ChunkCosts, &ChunkCosts) {
        (self.pipeline.costs(self.lower), self.pipeline.costs(self.upper))
    }

    /// From the start of an F of the lower chunk to the start of that of the upper one.
    fn delay_between_chunks(&self) -> f64 {
        self.pipeline.forward_delay(self.lower, self.upper)
    }

    /// How long it waits before its first B.
    fn head(&self) -> f64 {
        let (lower, upper) = self.costs();
        let m = self.microbatch_count();
        let turnaround = self.pipeline.first_turnaround(self.index);
        let of_lower = |rest: f64| f64::from(fit_count(rest, lower.after_forward, m)) * lower.f;
        match self.chunk_count() {
            1 => return (turnaround - of_lower(self.limit)).max(0.0),
            2 => {}
            _ => return self.head_of_many(turnaround, of_lower(self.limit)),
        }
        let delay = self.delay_between_chunks();
        let before_upper = (delay - of_lower(self.limit)).max(0.0);
        let most = fit_count(self.limit, lower.after_forward + upper.after_forward, m);
        let forwards = |count: u32| {
            let of_upper = (f64::from(count) * upper.f).min(turnaround - delay);
            of_lower(self.limit - f64::from(count) * upper.after_forward) + of_upper
        };
        let busy = (0..=most).map(forwards).fold(0.0, f64::max);
        (turnaround - busy).max(before_upper)
    }

    /// The same with more than two chunks, of which the lower one has F of `of_lower` to run: what
    /// memory holds is as long as the densest F.
    fn head_of_many(&self, turnaround: f64, of_lower: f64) -> f64 {
        let chunks = self.pipeline.chunks_of(self.index);
        let delay_to_second = self.pipeline.forward_delay(self.lower, chunks[1]);
        let dense = |chunk: &usize| {
            let ChunkCosts { f, after_forward, .. } = *self.pipeline.costs(*chunk);
            if f > 0.0 { f / after_forward } else { 0.0 }
        };
        let densest = chunks.iter().map(dense).fold(0.0, f64::max);
        let held = if densest > 0.0 { densest * self.limit } else { 0.0 };
        let all = f64::from(self.microbatch_count()) * self.pipeline.sum(self.index, |c| c.f);
        (turnaround - held.min(all)).max(delay_to_second - of_lower).max(0.0)
    }

    /// The time that it waits after its last F: after that it has only so much to do until that
    /// microbatch comes back.
    fn tail(&self) -> f64 {
        if self.chunk_count() > 2 {
            return 0.0;
        }
        let (lower, upper) = self.costs();
        let chain = self.pipeline.turnaround(self.lower) - self.delay_between_chunks() - upper.f
            + lower.b
            + lower.w;
        let m = self.microbatch_count();
        let most = fit_count(self.limit, self.forwards_kept(), m).max(1);
        let mut left = 0.0_f64;
        for count in (1..=most).rev() {
            // Nothing is waited for as soon as there is enough to do.
            if left >= chain {
                return 0.0;
            }
            left = left.max(if self.chunk_count() == 2 {
                self.left_of_two(count, chain)
            } else {
                self.left_of_one(count)
            });
        }
        (chain - left).max(0.0)
    }

    /// The memory that F of one microbatch keeps.
    fn forwards_kept(&self) -> f64 {
        self.pipeline.sum(self.index, |costs| costs.after_forward)
    }

    /// Work that is left where so many F of the only chunk have no B yet.
    fn left_of_one(&self, count: u32) -> f64 {
        let ChunkCosts { b, w, after_forward, after_input_gradient, .. } = *self.costs().0;
        let rest = (self.limit - f64::from(count) * after_forward).max(0.0);
        let others = fit_count(rest, after_input_gradient, self.microbatch_count() - count);
        f64::from(count) * (b + w) + f64::from(others) * w
    }

    /// The most work that is left where so many F of the upper chunk have no B yet, or any amount
    /// of at least `enough`. Those of the lower chunk have none either, and others besides may not.
    fn left_of_two(&self, count: u32, enough: f64) -> f64 {
        let (lower, upper) = self.costs();
        let m = self.microbatch_count();
        let rest = self.limit - f64::from(count) * self.forwards_kept();
        let both = f64::from(count) * (lower.b + lower.w + upper.b + upper.w);
        let more = fit_count(rest, lower.after_forward, m - count);
        let mut left = 0.0_f64;
        for more in (0..=more).rev() {
            if left >= enough {
                break;
            }
            let rest = rest - f64::from(more) * lower.after_forward;
            let weights = most_weights(rest, (lower, m - count - more), (upper, m - count));
            left = left.max(both + f64::from(more) * (lower.b + lower.w) + weights);
        }
        left
    }

    /// Its own work from its first W on. Before that nothing is given back, so that memory holds
    /// only so many microbatches; the W densest in time is counted first and divided at will.
    fn behind_gate(&self) -> f64 {
        let m = f64::from(self.microbatch_count());
        let chunks = self.pipeline.chunks_of(self.index).iter();
        let mut chunks: Vec<&ChunkCosts> =
            chunks.map(|chunk| self.pipeline.costs(*chunk)).collect();
        let kept = |costs: &ChunkCosts| costs.after_input_gradient;
        let time = |costs: &ChunkCosts| costs.f + costs.b;
        let density =
            |costs: &ChunkCosts| if time(costs) > 0.0 { time(costs) / kept(costs) } else { 0.0 };
        chunks.sort_by(|a, b| density(b).total_cmp(&density(a)));
        let mut rest = self.limit;
        let mut before = 0.0;
        for costs in &chunks {
            let all = m * kept(costs);
            let share = if all > rest { rest / all } else { 1.0 };
            before += share * m * time(costs);
            rest = (rest - all).max(0.0);
        }
        self.pipeline.work(self.index) - before
    }

    /// Its own work, with its waiting at both ends.
    fn alone(&self, head: f64) -> f64 {
        let tail = self.tail();
        let is_apart = f64::from(self.microbatch_count()) * self.forwards_kept() > self.limit;
        let waits = if is_apart { head + tail } else { head.max(tail) };
        self.pipeline.work(self.index) + waits
    }

    /// The memory that each microbatch keeps, for as long as it must, against the memory there is.
    fn by_memory(&self) -> f64 {
        let kept = |chunk: &usize| {
            let ChunkCosts { b, after_forward, after_input_gradient, .. } =
                *self.pipeline.costs(*chunk);
            after_forward * self.pipeline.turnaround(*chunk) + after_input_gradient * b
        };
        let kept: f64 = self.pipeline.chunks_of(self.index).iter().map(kept).sum();
        f64::from(self.microbatch_count()) * kept / self.pipeline.limit(self.index)
    }

    /// All of a stage that comes after it in the model, and the round trip to it. Of a stage with
    /// chunks before and chunks after it, those after it count.
    fn through_others(&self, stages: &[Self], heads: &[f64]) -> f64 {
        let m = f64::from(self.microbatch_count());
        let mut bound = 0.0_f64;
        for (other, head) in stages.iter().zip(heads) {
            if other.upper < self.lower {
                continue;
            }
            let behind = || {
                let chunks = self.pipeline.chunks_of(other.index).iter().copied();
                chunks.filter(|chunk| *chunk >= self.lower)
            };
            let first = behind().next().expect("its upper chunk is behind");
            let pair = |chunk| self.pipeline.costs(chunk).f + self.pipeline.costs(chunk).b;
            let pairs: f64 = behind().map(pair).sum();
            let head = if first == other.lower { *head } else { 0.0 };
            let round_trip = self.pipeline.round_trip_delay(self.lower, first);
            bound = bound.max(round_trip + m * pairs + head + self.costs().0.w);
        }
        bound
    }
}

/// The time of the W whose operands fit into `rest`, of two chunks with so many microbatches each,
/// at most: the denser one is counted first and divided at will, or all of them are as small as the
/// smaller and as long as the longer, whichever gives less.
fn most_weights(rest: f64, one: (&ChunkCosts, u32), other: (&ChunkCosts, u32)) -> f64 {
    let size = |of: (&ChunkCosts, u32)| of.0.after_input_gradient;
    let is_denser = one.0.w * size(other) >= other.0.w * size(one);
    let (first, second) = if is_denser { (one, other) } else { (other, one) };
    let all = |of: (&ChunkCosts, u32)| f64::from(of.1) * size(of);
    let part = |of: (&ChunkCosts, u32), rest: f64| {
        let share = if all(of) > rest { rest.max(0.0) / size(of) } else { f64::from(of.1) };
        share * of.0.w
    };
    let divided = part(first, rest) + part(second, rest - all(first).min(rest.max(0.0)));
    let counted = fit_count(rest, size(one).min(size(other)), one.1 + other.1);
    divided.min(f64::from(counted) * one.0.w.max(other.0.w))
}
