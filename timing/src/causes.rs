//! The causes of the time that steps need, beside the prediction of their plan.
//!
//! The plan is the program simulated with the times of passes in the first steps. The same program
//! is simulated again with the time of every single pass of a step, and once more with the times of
//! messages: the time that each simulation adds is the cost of its cause. Waits for verdicts are
//! reported by the stages. The remainder is the rest: threads that were not woken, and everything
//! between two operations. What lies between the last pass of a step and the first of the next is a
//! part of its own: updates, and steps that may not begin before updates lie on other nodes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::validation::Turn;
use zbelastic_schedule::{
    Compute, Costs, Flow, Op, Pass, Placement, Program, Timeline, Window, simulate_with,
};
use zbelastic_trainer::stage::EngineActivity;
use zbelastic_types::StageIndex;

use super::{
    MeasuredSlice, MeasuredSpan, PLANNED_STEPS, SliceActivity, earliest_us, longest, total_us,
};

/// Where the time of a step goes, in milliseconds: the sum is its duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimeBreakdown {
    /// The time that the plan predicts.
    pub planned_ms: f64,
    /// Time by which passes were longer or shorter than in the first steps.
    pub computation_ms: f64,
    /// Time that results needed on the way to other stages.
    pub messages_ms: f64,
    /// Time that was waited for verdicts, and for the sums before them.
    pub verdicts_ms: f64,
    /// Time of the step's passes that the other parts leave.
    pub rest_ms: f64,
    /// Time between the passes of the step before and its own, without waits for verdicts and held-out
    /// text.
    #[serde(default)]
    pub between_ms: f64,
}

impl StepTimeBreakdown {
    /// The step's time: the sum of all parts.
    #[must_use]
    pub fn total_ms(&self) -> f64 {
        let Self { planned_ms, computation_ms, messages_ms, verdicts_ms, rest_ms, between_ms } =
            self;
        planned_ms + computation_ms + messages_ms + verdicts_ms + rest_ms + between_ms
    }

    /// The mean with `count` others, of which this is the mean so far.
    #[must_use]
    pub fn mean_with(self, other: Self, count: u32) -> Self {
        let mean = |a: f64, b: f64| a + (b - a) / f64::from(count + 1);
        Self {
            planned_ms: mean(self.planned_ms, other.planned_ms),
            computation_ms: mean(self.computation_ms, other.computation_ms),
            messages_ms: mean(self.messages_ms, other.messages_ms),
            verdicts_ms: mean(self.verdicts_ms, other.verdicts_ms),
            rest_ms: mean(self.rest_ms, other.rest_ms),
            between_ms: mean(self.between_ms, other.between_ms),
        }
    }
}

/// The profile that later steps are compared with.
pub(super) struct BaselineProfile {
    costs: Costs,
    /// Time of a step by them.
    planned_us: f64,
}

impl BaselineProfile {
    /// The profile of a program that runs to its end.
    pub(super) fn new(program: &Program, costs: Costs) -> Option<Self> {
        let planned_us = span_us(program, &costs, &|_, _| None)?;
        Some(Self { costs, planned_us })
    }

    /// The causes of a step that `turn` brought to its end, if every stage has an extent. `before` are
    /// the extents of the step before.
    pub(super) fn causes(
        &self,
        program: &Program,
        (stages, extents): (&[VecDeque<MeasuredSlice>], &[MeasuredSpan]),
        before: Option<&[MeasuredSpan]>,
        turn: Turn,
    ) -> Option<StepTimeBreakdown> {
        if extents.len() != stages.len() {
            return None;
        }
        let passes = passes_of(stages, turn);
        let window = program.window?;
        let span = |extent: &MeasuredSpan| extent.end_us - extent.start_us;
        let critical = extents.iter().position(|extent| span(extent) >= longest(extents, span))?;
        let lag_us = lag_us(&program.placement, &passes);
        let took = |stage: StageIndex, op: Op| match op {
            Op::Compute(compute, pass) => {
                let (start, end) = passes.get(&(stage, compute, pass))?;
                Some(end - start)
            }
            Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) | Op::Memory(..) => None,
        };
        let Self { costs, planned_us } = self;
        let computed_us = span_us(program, costs, &took)?;
        let slow = Costs { link: costs.link + lag_us, ..costs.clone() };
        let carried_us = span_us(program, &slow, &took)?;
        let MeasuredSpan { start_us, end_us, .. } = extents[critical];
        let verdicts_us = waited_us(&stages[critical], start_us..end_us);
        let rest_us = total_us(extents, window) - carried_us - verdicts_us;
        let between = before.map(|before| gap_us(window, critical, before, extents));
        let between = between.unwrap_or(start_us..start_us);
        let waited_us = waited_us(&stages[critical], between.clone());
        let apart_us = between.end - between.start;
        let between_us = apart_us - waited_us - evaluated_us(&stages[critical], between);
        Some(StepTimeBreakdown {
            planned_ms: planned_us / 1e3,
            computation_ms: (computed_us - planned_us) / 1e3,
            messages_ms: (carried_us - computed_us) / 1e3,
            verdicts_ms: (verdicts_us + waited_us) / 1e3,
            rest_ms: rest_us / 1e3,
            between_ms: between_us.max(0.0) / 1e3,
        })
    }
}

/// Time of a step of a run with these costs, where nothing was measured.
fn span_us(
    program: &Program,
    costs: &Costs,
    measured: &dyn Fn(StageIndex, Op) -> Option<f64>,
) -> Option<f64> {
    let timeline = simulate_with(program, costs, PLANNED_STEPS, measured).ok()?;
    Some(span_of(&timeline, program.window?))
}

fn span_of(timeline: &Timeline, window: Window) -> f64 {
    let step = PLANNED_STEPS - 2;
    match window {
        Window::Zero => timeline.makespan(step),
        Window::One => timeline.cost(step),
    }
}

/// When each pass of the turn began and ended.
pub(super) type PassIntervals = BTreeMap<(StageIndex, Compute, Pass), (f64, f64)>;

pub(super) fn passes_of(stages: &[VecDeque<MeasuredSlice>], turn: Turn) -> PassIntervals {
    let mut passes = PassIntervals::new();
    for (stage, slices) in (0..).map(StageIndex).zip(stages) {
        for slice in slices {
            if let Some((of, compute, pass)) = slice.pass()
                && of == turn
            {
                passes.insert((stage, compute, pass), (slice.start_us, slice.end_us));
            }
        }
    }
    passes
}

/// The median time from the end of a pass to the begin of the one that waited for its result on
/// another stage. Where no pass waited, nothing is known.
fn lag_us(placement: &Placement, passes: &PassIntervals) -> f64 {
    let mut ends_before: BTreeMap<StageIndex, Vec<f64>> = BTreeMap::new();
    for ((stage, ..), (_, end)) in passes {
        ends_before.entry(*stage).or_default().push(*end);
    }
    ends_before.values_mut().for_each(|ends| ends.sort_by(f64::total_cmp));
    let mut lags = Vec::new();
    for ((stage, compute, pass), (start, _)) in passes {
        let Some((_, made_us)) = made(placement, passes, (*compute, *pass), *stage) else {
            continue;
        };
        let ends = &ends_before[stage];
        let idle_since_us = ends[..ends.partition_point(|end| end <= start)].last();
        if idle_since_us.is_none_or(|since| *since < made_us) {
            lags.push((start - made_us).max(0.0));
        }
    }
    lags.sort_by(f64::total_cmp);
    lags.get(lags.len() / 2).copied().unwrap_or(0.0)
}

/// Where and when the input of a pass was made, if that was on another stage.
pub(super) fn made(
    placement: &Placement,
    passes: &PassIntervals,
    (compute, pass): (Compute, Pass),
    stage: StageIndex,
) -> Option<(StageIndex, f64)> {
    let (flow, makers) = match compute {
        Compute::F => (Flow::Forward, &[Compute::F][..]),
        Compute::B | Compute::BW => (Flow::Backward, &[Compute::B, Compute::BW][..]),
        Compute::W | Compute::WE | Compute::R => return None,
    };
    let chunk = placement.chunk_before(pass.chunk, flow)?;
    let maker = placement.stage_of(chunk).filter(|maker| *maker != stage)?;
    let made = Pass { chunk, ..pass };
    let end = makers.iter().find_map(|compute| Some(passes.get(&(maker, *compute, made))?.1));
    end.map(|end| (maker, end))
}

/// From the last pass of the step before to the first one, in the measure of the window; empty where they
/// overlap.
fn gap_us(
    window: Window,
    critical: usize,
    before: &[MeasuredSpan],
    extents: &[MeasuredSpan],
) -> Range<f64> {
    let (end_us, start_us) = match window {
        Window::One => (before[critical].end_us, extents[critical].start_us),
        Window::Zero => (longest(before, |extent| extent.end_us), earliest_us(extents)),
    };
    end_us.min(start_us)..start_us
}

/// Time that a stage waited for verdicts within a span.
fn waited_us(slices: &VecDeque<MeasuredSlice>, within: Range<f64>) -> f64 {
    time_us(slices, within, |slice| matches!(slice.doing, SliceActivity::Waited(_)))
}

/// Time of a stage's passes over held-out text within a span.
fn evaluated_us(slices: &VecDeque<MeasuredSlice>, within: Range<f64>) -> f64 {
    time_us(slices, within, |slice| {
        matches!(slice.doing, SliceActivity::Ran(EngineActivity::Evaluation { .. }))
    })
}

fn time_us(
    slices: &VecDeque<MeasuredSlice>,
    within: Range<f64>,
    is_it: impl Fn(&MeasuredSlice) -> bool,
) -> f64 {
    let is_within =
        |slice: &&MeasuredSlice| slice.start_us >= within.start && slice.end_us <= within.end;
    let found = slices.iter().filter(is_within).filter(|slice| is_it(slice));
    found.map(MeasuredSlice::duration_us).sum()
}
