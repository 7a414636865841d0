//! Orders over a vee, a B of one wave or the other a round: the search of the zero-bubble paper's
//! first version (Qi et al., arXiv 2401.10241 v1, section 6), with times of each chunk's own.
//!
//! The loss is on the first stage. A microbatch's gradient goes through the upper chunks, from the
//! first stage to the last, and then through the lower ones back: two *waves*. A weight gradient
//! that is longer than the gap it would fill is placed there if the gap is longer than the stage
//! may be idle; it may be idle for as long as the stage that is idle for longest anyway. Once an
//! order is made, it is made again with the time for which stages were idle for less than the worst
//! of them as their allowance, as long as that helps.

use super::order_builder::OrderBuilder;
use super::pipeline::PipelineIndex;
use super::problem::{ScheduleProblem, TOLERANCE};
use crate::op::Compute;

/// How the open questions of the search are answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaveStyle {
    /// Whether gaps before an F are filled.
    pub(super) fills_before_f: bool,
    /// Whether gaps before a B of the upper chunk are filled; those before the others always are.
    pub(super) fills_before_b: bool,
}

impl WaveStyle {
    /// Every one there is.
    pub(super) const ALL: [Self; 4] = [
        Self { fills_before_f: true, fills_before_b: true },
        Self { fills_before_f: true, fills_before_b: false },
        Self { fills_before_f: false, fills_before_b: true },
        Self { fills_before_f: false, fills_before_b: false },
    ];
}

/// The factors by which times are multiplied.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeFactors {
    f: f64,
    w: f64,
    link: f64,
}

const fn factors(f: f64, w: f64, link: f64) -> TimeFactors {
    TimeFactors { f, w, link }
}

/// Times for which orders are made as well.
pub(super) const OTHER_TIMES: [TimeFactors; 40] = [
    factors(1.0, 0.5, 1.0),
    factors(1.0, 0.75, 1.0),
    factors(1.0, 1.25, 1.0),
    factors(1.0, 1.5, 1.0),
    factors(1.0, 2.0, 1.0),
    factors(0.9, 0.5, 1.0),
    factors(0.9, 0.75, 1.0),
    factors(0.9, 1.25, 1.0),
    factors(0.9, 1.5, 1.0),
    factors(0.9, 2.0, 1.0),
    factors(0.9, 1.0, 1.0),
    factors(1.1, 0.5, 1.0),
    factors(1.1, 0.75, 1.0),
    factors(1.1, 1.25, 1.0),
    factors(1.1, 1.5, 1.0),
    factors(1.1, 2.0, 1.0),
    factors(1.1, 1.0, 1.0),
    factors(0.8, 0.5, 1.0),
    factors(0.8, 0.75, 1.0),
    factors(0.8, 1.25, 1.0),
    factors(0.8, 1.5, 1.0),
    factors(0.8, 2.0, 1.0),
    factors(0.8, 1.0, 1.0),
    factors(1.25, 0.5, 1.0),
    factors(1.25, 0.75, 1.0),
    factors(1.25, 1.25, 1.0),
    factors(1.25, 1.5, 1.0),
    factors(1.25, 2.0, 1.0),
    factors(1.25, 1.0, 1.0),
    factors(1.0, 1.0, 3.0),
    factors(1.0, 0.75, 3.0),
    factors(1.0, 1.25, 3.0),
    factors(1.0, 0.5, 3.0),
    factors(1.0, 1.5, 3.0),
    factors(1.0, 1.0, 0.0),
    factors(1.0, 0.75, 0.0),
    factors(1.0, 1.25, 0.0),
    factors(1.0, 0.5, 0.0),
    factors(1.0, 1.5, 0.0),
    factors(1.0, 2.0, 0.0),
];

impl TimeFactors {
    /// A problem with other times.
    pub(super) fn of(self, problem: &ScheduleProblem) -> ScheduleProblem {
        let mut other = problem.clone();
        other.link *= self.link;
        for chunk in &mut other.chunks {
            chunk.f *= self.f;
            chunk.w *= self.w;
        }
        other
    }
}

/// How often an order is made again, with the idle times of the one before.
const REPEATS_MAX: usize = 16;

/// The orders of a style, one after another as long as the worst stage is idle for less.
pub(super) fn repeated<'a>(
    pipeline: &'a PipelineIndex<'a>,
    style: WaveStyle,
) -> impl Iterator<Item = OrderBuilder<'a>> {
    let mut before: Option<Vec<f64>> = None;
    let mut has_ended = false;
    let next = move || {
        if has_ended {
            return None;
        }
        let builder = in_waves(pipeline, style, before.as_deref())?;
        let worst = |idle: &[f64]| idle.iter().copied().fold(0.0, f64::max);
        let idle: Vec<f64> = builder.stages.iter().map(|progress| progress.idle).collect();
        has_ended = before.as_ref().is_some_and(|before| worst(&idle) >= worst(before));
        before = Some(idle);
        Some(builder)
    };
    std::iter::from_fn(next).take(REPEATS_MAX)
}

/// The order of a style, in which `idle` is how long each stage was idle in the order before,
/// if there was one; `None` if it leaves a stage without memory or input for its next pass.
fn in_waves<'a>(
    pipeline: &'a PipelineIndex<'a>,
    style: WaveStyle,
    idle: Option<&[f64]>,
) -> Option<OrderBuilder<'a>> {
    let worst = idle.unwrap_or_default().iter().copied().fold(0.0, f64::max);
    let idle_max = match idle {
        Some(idle) => idle.iter().map(|idle| worst - idle).collect(),
        None => vec![0.0; pipeline.stage_count()],
    };
    let mut waves = Waves { builder: OrderBuilder::new(pipeline), style, idle_max };
    waves.begin()?;
    waves.even_out()?;
    for _ in 0..2 * pipeline.microbatch_count() {
        waves.backwards()?;
        waves.forwards()?;
    }
    for stage in 0..pipeline.stage_count() {
        while waves.place_w(stage).is_some() {}
    }
    Some(waves.builder)
}

struct Waves<'a> {
    builder: OrderBuilder<'a>,
    style: WaveStyle,
    /// By stage: how long it may be idle, whatever the others do.
    idle_max: Vec<f64>,
}

impl Waves<'_> {
    fn stage_count(&self) -> usize {
        self.builder.stages.len()
    }

    fn lower(&self, stage: usize) -> usize {
        self.builder.pipeline.ends_of(stage).0
    }

    fn upper(&self, stage: usize) -> usize {
        self.builder.pipeline.ends_of(stage).1
    }

    fn begun(&self, chunk: usize) -> u32 {
        self.builder.passes[chunk].f
    }

    fn returned(&self, chunk: usize) -> u32 {
        self.builder.passes[chunk].b
    }

    fn m(&self) -> u32 {
        self.builder.microbatch_count()
    }

    fn place_f(&mut self, chunk: usize) -> Option<()> {
        let can_run = self.begun(chunk) < self.m()
            && self.builder.arrival_f(chunk) < f64::INFINITY
            && self.builder.has_memory(chunk, 0.0);
        can_run.then(|| self.builder.place(chunk, Compute::F))
    }

    fn place_b(&mut self, chunk: usize) -> Option<()> {
        let can_run = self.returned(chunk) < self.begun(chunk)
            && self.builder.arrival_b(chunk) < f64::INFINITY;
        can_run.then(|| self.builder.place(chunk, Compute::B))
    }

    fn place_w(&mut self, stage: usize) -> Option<()> {
        let chunk = self.builder.longest_pending(stage)?;
        self.builder.place(chunk, Compute::W);
        Some(())
    }

    /// The first microbatch goes down and up; while a stage waits for it, more go down to there.
    fn begin(&mut self) -> Option<()> {
        let last = self.stage_count() - 1;
        (0..=last).try_for_each(|stage| self.place_f(self.lower(stage)))?;
        for stage in (0..=last).rev() {
            while stage < last && self.may_send_another(stage) {
                (0..=stage).try_for_each(|before| self.place_f(self.lower(before)))?;
            }
            self.place_f(self.upper(stage))?;
        }
        Some(())
    }

    fn may_send_another(&self, stage: usize) -> bool {
        let chunk = self.lower(stage);
        let progress = &self.builder.stages[stage];
        let costs = self.builder.costs(chunk);
        let arrives = self.builder.arrival_f(self.upper(stage));
        // The stages before it have to run two more for each stage on the way.
        let later = (1 + 2 * stage) as f64 * costs.after_forward;
        let have_memory = |before: usize| {
            let upper = self.builder.costs(self.upper(before));
            self.builder.has_memory(self.lower(before), upper.after_forward)
        };
        self.begun(chunk) < self.m()
            && progress.clock + costs.f <= arrives * (1.0 + TOLERANCE)
            && self.builder.has_memory(chunk, later)
            && (0..=stage).all(have_memory)
    }

    /// No stage has begun less than the one before it.
    fn even_out(&mut self) -> Option<()> {
        let mut is_upper = false;
        for stage in 1..self.stage_count() {
            let mut without = 0;
            while self.lags(stage) {
                let mut has_placed = false;
                for behind in (stage..self.stage_count()).rev() {
                    let chunk = if is_upper { self.upper(behind) } else { self.lower(behind) };
                    if self.begun(chunk) < self.m() {
                        self.place_f(chunk)?;
                        has_placed = true;
                    }
                }
                is_upper = !is_upper;
                without = if has_placed { 0 } else { without + 1 };
                if without > 1 {
                    return None;
                }
            }
        }
        Some(())
    }

    fn lags(&self, stage: usize) -> bool {
        let of = |stage: usize| (self.begun(self.lower(stage)), self.begun(self.upper(stage)));
        let before = of(stage - 1);
        let own = of(stage);
        own.0 + own.1 < before.0 + before.1 || (own.1 <= before.1 && before.1 < self.m())
    }

    /// A round's input gradients.
    fn backwards(&mut self) -> Option<()> {
        let is_second: Vec<bool> =
            (0..self.stage_count()).map(|stage| self.is_in_second_wave(stage)).collect();
        for stage in (0..self.stage_count()).rev().filter(|stage| is_second[*stage]) {
            let chunk = self.lower(stage);
            self.fill_until(stage, self.builder.arrival_b(chunk), true);
            self.place_b(chunk)?;
        }
        for stage in (0..self.stage_count()).filter(|stage| !is_second[*stage]) {
            let chunk = self.upper(stage);
            self.fill_until(stage, self.builder.arrival_b(chunk), self.style.fills_before_b);
            self.place_b(chunk)?;
        }
        Some(())
    }

    /// Whether a stage's next B is one of the lower chunk: if its input is made, or no other is
    /// left.
    fn is_in_second_wave(&self, stage: usize) -> bool {
        let lower = self.lower(stage);
        let upper = self.upper(stage);
        self.returned(lower) < self.returned(upper)
            && (self.builder.arrival_b(lower) < f64::INFINITY || self.returned(upper) == self.m())
    }

    /// The forward passes of a round.
    fn forwards(&mut self) -> Option<()> {
        for stage in 0..self.stage_count() {
            let lower = self.lower(stage);
            let upper = self.upper(stage);
            if self.begun(upper) == self.m() {
                continue;
            }
            let has_arrived = self.begun(upper) < self.begun(lower)
                && self.builder.arrival_f(upper) < f64::INFINITY;
            if !has_arrived && self.begun(lower) == self.m() {
                continue;
            }
            let chunk = if has_arrived { upper } else { lower };
            while !self.builder.has_memory(chunk, 0.0) {
                self.place_w(stage)?;
            }
            self.fill_until(stage, self.builder.arrival_f(chunk), self.style.fills_before_f);
            self.place_f(chunk)?;
        }
        Some(())
    }

    /// Weight gradients until something arrives; `fills` is whether one may be longer than that.
    fn fill_until(&mut self, stage: usize, arrives: f64, fills: bool) {
        if arrives == f64::INFINITY {
            return;
        }
        let slack = TOLERANCE * arrives;
        while let Some(chunk) = self.builder.longest_pending(stage) {
            let gap = arrives - self.builder.stages[stage].clock;
            let is_whole = self.builder.costs(chunk).w <= gap + slack;
            if is_whole || (fills && gap > slack && self.is_too_long(stage, gap)) {
                self.builder.place(chunk, Compute::W);
            }
            if !is_whole {
                return;
            }
        }
    }

    fn is_too_long(&self, stage: usize, gap: f64) -> bool {
        let may_wait = self.builder.idle_max().max(self.idle_max[stage]);
        gap > may_wait - self.builder.stages[stage].idle
    }
}
