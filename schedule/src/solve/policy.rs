//! Orders made in the order of time: whenever a stage is free, a rule decides which pass it runs
//! next of those whose input has arrived.

use std::iter;

use super::bound::tails;
use super::order_builder::OrderBuilder;
use super::pipeline::PipelineIndex;
use super::problem::{ChunkCosts, TOLERANCE};
use super::warm_up_bound;
use crate::op::Compute;
use crate::wakeup_queue::WakeupQueue;

/// The rule by which a stage chooses its next pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StageRule {
    /// How many microbatches it begins before its first B, at most.
    pub(super) first_max: u32,
    /// How many it has begun and not run B of, at most, from then on.
    pub(super) ahead_max: u32,
    /// Which comes first where both an F and a B can run.
    pub(super) preference: PassPreference,
    /// Whether it rather waits for a B than begins an F that would hold that up.
    pub(super) yields_to_backward: bool,
    /// Whether it rather waits for a B than runs a W to have memory for an F.
    pub(super) saves_w: bool,
    /// Whether it runs no W to fill a gap until it is known when something arrives.
    pub(super) awaits_arrivals: bool,
    /// The share of a weight gradient that a gap must have for one to be placed there.
    pub(super) fill_share: f64,
    /// Before this time it runs its first W only if memory requires it: behind its gate the verdict
    /// on the step before is needed. As a multiple of the verdict's own time.
    pub(super) hold_factor: f64,
    /// Whether of two F that can run the upper chunk's comes first; with one chunk it is no matter.
    pub(super) upper_f_first: bool,
    /// The same of two B.
    pub(super) upper_b_first: bool,
}

/// Which comes first of an F and a B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassPreference {
    B,
    /// An F between two B.
    Either,
    F,
}

impl PassPreference {
    pub(super) const ALL: [Self; 3] = [Self::B, Self::Either, Self::F];
}

/// How far stages run ahead, beside what their memory allows.
#[derive(Clone, Copy, Debug)]
enum AheadLimit {
    /// As far as they can.
    Freely,
    /// As many forwards as fit before the first B comes, and so many more.
    UntilFirst(u32),
    /// As many as are in flight when no stage waits, and so many more.
    AsNeeded(u32),
}

/// The share of a weight gradient that no gap has.
pub(super) const NEVER_FILLS: f64 = f64::MAX;

/// The rules that are tried first: all stages go by the same. `bound` is what every order costs.
/// Those that hold nothing back come first.
pub(super) fn rules<'a>(
    pipeline: &'a PipelineIndex<'a>,
    bound: f64,
) -> impl Iterator<Item = Vec<StageRule>> + 'a {
    hold_factors(pipeline).iter().flat_map(move |factor| rules_that_hold(pipeline, bound, *factor))
}

fn rules_that_hold<'a>(
    pipeline: &'a PipelineIndex<'a>,
    bound: f64,
    hold_factor: f64,
) -> impl Iterator<Item = Vec<StageRule>> + 'a {
    // Whether the upper chunk's F, and B, come first.
    const UPPER_FIRST: [(bool, bool); 4] =
        [(true, false), (true, true), (false, false), (false, true)];
    let busiest = (0..pipeline.stage_count()).map(|stage| pipeline.work(stage)).fold(0.0, f64::max);
    let is_busiest = move |stage| pipeline.work(stage) >= busiest * (1.0 - TOLERANCE);
    let has_several = pipeline.chunk_count() > pipeline.stage_count();
    let upper_first = UPPER_FIRST.into_iter().take(if has_several { UPPER_FIRST.len() } else { 1 });
    upper_first.flat_map(move |(upper_f_first, upper_b_first)| {
        ahead(pipeline, bound).flat_map(move |(first, ahead)| {
            choices().map(move |(preferences, yields, share)| {
                let rule = |stage: usize| {
                    let preference = if is_busiest(stage) { preferences.0 } else { preferences.1 };
                    StageRule {
                        first_max: first[stage],
                        ahead_max: ahead[stage],
                        preference,
                        yields_to_backward: yields && preference != PassPreference::F,
                        saves_w: false,
                        awaits_arrivals: false,
                        fill_share: share,
                        hold_factor,
                        upper_f_first,
                        upper_b_first,
                    }
                };
                (0..pipeline.stage_count()).map(rule).collect()
            })
        })
    })
}

/// By stage, how many microbatches it begins before its first B and from then on, at most. Orders
/// of a small problem are made from the first three.
fn ahead<'a>(
    pipeline: &'a PipelineIndex<'a>,
    bound: f64,
) -> impl Iterator<Item = (Vec<u32>, Vec<u32>)> + 'a {
    const AHEAD: [(AheadLimit, AheadLimit); 7] = [
        (AheadLimit::UntilFirst(0), AheadLimit::UntilFirst(0)),
        (AheadLimit::UntilFirst(0), AheadLimit::AsNeeded(1)),
        (AheadLimit::UntilFirst(1), AheadLimit::UntilFirst(1)),
        (AheadLimit::Freely, AheadLimit::AsNeeded(1)),
        (AheadLimit::Freely, AheadLimit::AsNeeded(2)),
        (AheadLimit::AsNeeded(1), AheadLimit::AsNeeded(1)),
        (AheadLimit::AsNeeded(0), AheadLimit::AsNeeded(0)),
    ];
    let freely = || ahead_caps(pipeline, AheadLimit::Freely);
    let warm_up = warm_up_bound::forwards_first(pipeline, bound).into_iter();
    let warm_up = warm_up.map(move |first| (first, ahead_caps(pipeline, AheadLimit::Freely)));
    let others = AHEAD
        .into_iter()
        .map(|(first, ahead)| (ahead_caps(pipeline, first), ahead_caps(pipeline, ahead)));
    iter::once((freely(), freely())).chain(warm_up).chain(others)
}

/// Multiples of the verdict's time for which stages hold their first W back, if that can be of use;
/// infinite until nothing else is left to run.
pub(super) fn hold_factors(pipeline: &PipelineIndex<'_>) -> &'static [f64] {
    if pipeline.problem.ending.is_gated() { &[0.0, 1.0, f64::INFINITY] } else { &[0.0] }
}

/// Preferences of the busiest stages and of the others, whether F yield, and the share of a W that
/// a gap must have.
fn choices() -> impl Iterator<Item = ((PassPreference, PassPreference), bool, f64)> {
    const SHARES: [f64; 3] = [1.0, 0.5, 0.0];
    const PREFERENCES: [(PassPreference, PassPreference); 5] = [
        (PassPreference::B, PassPreference::B),
        (PassPreference::Either, PassPreference::Either),
        (PassPreference::F, PassPreference::B),
        (PassPreference::F, PassPreference::Either),
        (PassPreference::F, PassPreference::F),
    ];
    PREFERENCES.into_iter().flat_map(|preferences| {
        [false, true]
            .into_iter()
            .flat_map(move |yields| SHARES.map(move |share| (preferences, yields, share)))
    })
}

/// How long stages may be idle in an order that costs no more than another one.
pub(super) struct IdleAllowance<'a> {
    pipeline: &'a PipelineIndex<'a>,
    /// By stage: how long it is idle after its last F in any order.
    tails: Vec<f64>,
    /// By stage: how long it may be idle.
    idle_max: Vec<f64>,
}

impl<'a> IdleAllowance<'a> {
    /// No stage is idle for too long.
    pub(super) fn new(pipeline: &'a PipelineIndex<'a>) -> Self {
        let idle_max = vec![f64::INFINITY; pipeline.stage_count()];
        Self { pipeline, tails: tails(pipeline), idle_max }
    }

    /// Orders that cost more than this are abandoned.
    pub(super) fn lower_to(&mut self, cost: f64) {
        for (stage, idle_max) in self.idle_max.iter_mut().enumerate() {
            *idle_max = cost * (1.0 + TOLERANCE) - self.pipeline.cost_min(stage);
        }
    }

    fn is_exceeded(&self, builder: &OrderBuilder<'_>, stage: usize) -> bool {
        let (_, upper) = self.pipeline.ends_of(stage);
        let has_f = builder.passes[upper].f < builder.microbatch_count();
        let later = if has_f { self.tails[stage] } else { 0.0 };
        builder.stages[stage].idle + later > self.idle_max[stage]
    }
}

/// The order that rules make, one a stage; `None` if they leave one without memory for its next F,
/// or if a stage is idle for longer than is allowed.
pub(super) fn by_rules<'a>(
    pipeline: &'a PipelineIndex<'a>,
    rules: &[StageRule],
    allowance: &IdleAllowance<'_>,
) -> Option<OrderBuilder<'a>> {
    let mut run = RuleRun::new(pipeline, rules, allowance);
    loop {
        while let Some((at, stage)) = run.wakeups.pop() {
            run.advance(stage, at)?;
        }
        // Nothing arrives any more unless a stage stops waiting for it.
        let pending = (0..rules.len()).filter_map(|stage| {
            let chunk = run.builder.longest_pending(stage)?;
            Some((run.builder.stages[stage].clock, stage, chunk))
        });
        let latest = pending.max_by(|one, other| one.0.total_cmp(&other.0));
        let Some((at, stage, chunk)) = latest else { break };
        run.place(stage, chunk, Compute::W, at)?;
    }
    let m = pipeline.microbatch_count();
    run.builder.passes.iter().all(|passes| passes.w == m).then_some(run.builder)
}

struct RuleRun<'a, 'r> {
    builder: OrderBuilder<'a>,
    rules: &'r [StageRule],
    allowance: &'r IdleAllowance<'r>,
    /// The stages that may have a pass to run, with the times at which they choose.
    wakeups: WakeupQueue,
}

/// What a stage does next: runs a pass, or waits.
enum StageDecision {
    /// It runs this pass of this chunk.
    Run(usize, Compute),
    /// It chooses again at this time, when something has arrived.
    Wait(f64),
    /// It chooses again when it is woken because something will arrive.
    Nothing,
}

impl<'a, 'r> RuleRun<'a, 'r> {
    fn new(
        pipeline: &'a PipelineIndex<'a>,
        rules: &'r [StageRule],
        allowance: &'r IdleAllowance<'r>,
    ) -> Self {
        let builder = OrderBuilder::new(pipeline);
        let wakeups = WakeupQueue::new(pipeline.stage_count());
        let mut run = Self { builder, rules, allowance, wakeups };
        run.wake(0, 0.0);
        run
    }

    /// Has a stage choose again at `at`, or once it is free.
    fn wake(&mut self, stage: usize, at: f64) {
        self.wakeups.schedule(stage, at.max(self.builder.stages[stage].clock));
    }

    /// Places the next pass of a stage, if it is known which; `None` if that was not allowed.
    fn advance(&mut self, stage: usize, at: f64) -> Option<()> {
        match self.choose(stage, at) {
            StageDecision::Run(chunk, compute) => self.place(stage, chunk, compute, at)?,
            StageDecision::Wait(until) => self.wake(stage, until),
            StageDecision::Nothing => {}
        }
        Some(())
    }

    fn place(&mut self, stage: usize, chunk: usize, compute: Compute, at: f64) -> Option<()> {
        self.builder.place(chunk, compute);
        if self.allowance.is_exceeded(&self.builder, stage) {
            return None;
        }
        self.wake(stage, at);
        let pipeline = self.builder.pipeline;
        match compute {
            Compute::F if chunk + 1 < pipeline.chunk_count() => {
                self.wake(pipeline.stage_of(chunk + 1), at);
            }
            Compute::B if chunk > 0 => self.wake(pipeline.stage_of(chunk - 1), at),
            Compute::F | Compute::B | Compute::W | Compute::BW | Compute::WE | Compute::R => {}
        }
        Some(())
    }

    fn choose(&self, stage: usize, now: f64) -> StageDecision {
        let rule = &self.rules[stage];
        let progress = &self.builder.stages[stage];
        let forward = self.forward(stage, now);
        let backward = self.backward(stage, now);
        let is_turn_of_f = match rule.preference {
            PassPreference::B => false,
            PassPreference::Either => {
                progress.order.last().is_some_and(|placed| placed.compute == Compute::B)
            }
            PassPreference::F => true,
        };
        if let Some(chunk) = backward.ready_chunk
            && !(is_turn_of_f && forward.ready_chunk.is_some())
        {
            return StageDecision::Run(chunk, Compute::B);
        }
        let b_at = backward.at;
        let yields = rule.yields_to_backward && b_at > now && now + forward.time > b_at;
        if let Some(chunk) = forward.ready_chunk
            && !yields
        {
            return StageDecision::Run(chunk, Compute::F);
        }
        let f_at = if yields { f64::INFINITY } else { forward.at };
        let next = f_at.min(b_at);
        let mut wakes_at = next;
        if let Some(chunk) = self.builder.longest_pending(stage) {
            let costs = self.builder.costs(chunk);
            let enough = rule.fill_share * costs.w;
            let comes_soon = b_at - now < enough || (rule.awaits_arrivals && b_at == f64::INFINITY);
            let waits_for_b = rule.saves_w && backward.is_outstanding && comes_soon;
            let frees = forward.is_blocked && costs.after_input_gradient > 0.0 && !waits_for_b;
            // A gap is as long as it turns out to be: it began when the stage was done.
            let gap = next - progress.clock;
            let is_filled =
                if next == f64::INFINITY { !rule.awaits_arrivals } else { gap >= enough };
            let opens_at = self.opens_at(stage);
            if frees || (is_filled && now >= opens_at) {
                return StageDecision::Run(chunk, Compute::W);
            }
            if is_filled {
                wakes_at = next.min(opens_at);
            }
        }
        if wakes_at == f64::INFINITY {
            StageDecision::Nothing
        } else {
            StageDecision::Wait(wakes_at)
        }
    }

    /// The memory that the weight gradients keep that a stage holds back.
    fn held_memory(&self, stage: usize, now: f64) -> f64 {
        if now >= self.opens_at(stage) {
            return 0.0;
        }
        let of_chunk = |chunk: &usize| {
            let costs = self.builder.costs(*chunk);
            f64::from(self.builder.pending(*chunk)) * costs.after_input_gradient
        };
        self.builder.pipeline.chunks_of(stage).iter().map(of_chunk).sum()
    }

    /// Until when a stage holds its next W back: only the first one waits.
    fn opens_at(&self, stage: usize) -> f64 {
        let is_open = self.builder.stages[stage].gate_at < f64::INFINITY;
        let hold_factor = self.rules[stage].hold_factor;
        let until = hold_factor * self.builder.pipeline.problem.ending.verdict;
        if is_open || hold_factor == 0.0 { 0.0 } else { until }
    }

    /// The F that a stage could run next.
    fn forward(&self, stage: usize, now: f64) -> ForwardOutlook {
        let builder = &self.builder;
        let rule = &self.rules[stage];
        let m = builder.microbatch_count();
        let mut found =
            ForwardOutlook { ready_chunk: None, at: f64::INFINITY, is_blocked: false, time: 0.0 };
        // A microbatch that is begun needs memory for its F of the upper chunk, or all would wait.
        // The weight gradients that are held back can still free some.
        let mut reserved = -self.held_memory(stage, now);
        let consider = |(is_lowest, chunk): (bool, usize), reserved: f64| {
            let passes = &builder.passes[chunk];
            let cap = if passes.b == 0 { rule.first_max } else { rule.ahead_max };
            let is_free = passes.f < m && (!is_lowest || passes.f - passes.b < cap);
            let at = if is_free { builder.arrival_f(chunk) } else { f64::INFINITY };
            (at, at < f64::INFINITY && builder.has_memory(chunk, reserved.max(0.0)))
        };
        for (position, chunk) in builder.pipeline.chunks_of(stage).iter().enumerate().rev() {
            let (at, has_memory) = consider((position == 0, *chunk), reserved);
            let ChunkCosts { f, after_forward, .. } = *builder.costs(*chunk);
            reserved += after_forward;
            if !has_memory {
                found.is_blocked |= at <= now;
            } else if at <= now {
                if found.ready_chunk.is_none() || !rule.upper_f_first {
                    (found.ready_chunk, found.time) = (Some(*chunk), f);
                }
            } else if at < found.at {
                found.at = at;
                if found.ready_chunk.is_none() {
                    found.time = f;
                }
            }
        }
        found.is_blocked &= found.ready_chunk.is_none();
        found
    }

    /// The B that a stage could run next.
    fn backward(&self, stage: usize, now: f64) -> BackwardOutlook {
        let builder = &self.builder;
        let mut found =
            BackwardOutlook { ready_chunk: None, at: f64::INFINITY, is_outstanding: false };
        for chunk in builder.pipeline.chunks_of(stage) {
            let passes = &builder.passes[*chunk];
            if passes.b == passes.f {
                continue;
            }
            found.is_outstanding = true;
            let at = builder.arrival_b(*chunk);
            found.at = found.at.min(at);
            if at <= now && (found.ready_chunk.is_none() || self.rules[stage].upper_b_first) {
                found.ready_chunk = Some(*chunk);
            }
        }
        found
    }
}

/// When a stage can run its next F, as far as it is known.
struct ForwardOutlook {
    /// The chunk of the one that can run now.
    ready_chunk: Option<usize>,
    /// When another can run; infinite as long as that is not known.
    at: f64,
    /// Whether an F could run but for memory, and no other can.
    is_blocked: bool,
    /// How long the F takes that can run now, or first.
    time: f64,
}

/// When a stage can run its next B, as far as it is known.
struct BackwardOutlook {
    /// The chunk of the one that can run now.
    ready_chunk: Option<usize>,
    /// When the first can run; infinite as long as that is not known.
    at: f64,
    /// Whether a microbatch has had its F and not its B.
    is_outstanding: bool,
}

/// By stage: how many microbatches of its lowest chunk are in flight at most.
fn ahead_caps(pipeline: &PipelineIndex<'_>, ahead: AheadLimit) -> Vec<u32> {
    let m = pipeline.microbatch_count();
    let step = |stage| pipeline.sum(stage, |costs| costs.f + costs.b + costs.w);
    let step_time = (0..pipeline.stage_count()).map(step).fold(0.0, f64::max);
    let cap = |stage: usize| {
        let (lowest, _) = pipeline.ends_of(stage);
        let costs = pipeline.costs(lowest);
        let (count, more) = match ahead {
            AheadLimit::Freely => (f64::INFINITY, 0),
            AheadLimit::UntilFirst(more) => (pipeline.first_turnaround(stage) / costs.f, more),
            AheadLimit::AsNeeded(more) => {
                ((pipeline.turnaround(lowest) + costs.b) / step_time, more)
            }
        };
        let count = (count * (1.0 - TOLERANCE)).ceil();
        let count = if count >= f64::from(m) { m } else { count as u32 };
        count.saturating_add(more).clamp(1, m)
    };
    (0..pipeline.stage_count()).map(cap).collect()
}
