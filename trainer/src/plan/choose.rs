//! Finds the schedule that takes least time among those that fit.
//!
//! Times are predicted from arithmetic alone ([`layer_work`]): what is compared are schedules of
//! the same work on the same machines, so that a common factor does not matter.

use std::fmt;

use zbelastic_kernels::Backend;
use zbelastic_schedule::{ChunkTimes, Costs, ScheduleKind, Timeline, Window, simulate};
use zbelastic_types::{Bytes, StageIndex};

use super::{
    BatchShape, LayerWork, Plan, PlanError, PlanRequest, StageMemory, layer_work, plan_memory,
};
use crate::model::{LayerRange, MicrobatchShape, ModelConfig};

/// What is to be planned.
#[derive(Clone, Copy, Debug)]
pub struct ChooseRequest<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// The batch.
    pub batch: BatchShape,
    /// The schedules to choose from, at least one.
    pub kinds: &'a [ScheduleKind],
    /// Stages.
    pub stage_count: u32,
    /// How far steps run ahead of their verdict.
    pub window: Window,
    /// Other stages that each stage keeps a copy of; 0 if there are no copies.
    pub copies: u32,
    /// The most that a stage may take.
    pub stage_bytes_max: Option<Bytes>,
}

/// A schedule that was looked at.
#[derive(Clone, Debug)]
pub struct Considered {
    /// Which one.
    pub kind: ScheduleKind,
    /// What came of it.
    pub outcome: Result<Prediction, Refusal>,
}

/// What a schedule that fits is expected to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// From step to step, in floating-point operations of one stage.
    pub period: f64,
    /// The share of it in which the busiest stage waits.
    pub bubble: f64,
    /// The fullest stage.
    pub stage_bytes: Bytes,
}

/// Why a schedule is out of the question.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// It does not exist for this size.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A stage does not fit.
    #[error("stage {stage} needs {needed}, the limit is {limit}")]
    Memory {
        /// The fullest stage.
        stage: StageIndex,
        /// What it takes.
        needed: Bytes,
        /// What it may take.
        limit: Bytes,
    },
}

/// The plan that was chosen, and why.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// What its stages take.
    pub memory: Vec<StageMemory>,
    /// What was expected of it.
    pub prediction: Prediction,
    /// All schedules that were looked at, the chosen one among them.
    pub considered: Vec<Considered>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prediction { bubble, stage_bytes, .. } = self.prediction;
        let kind = self.plan.program.kind;
        write!(f, "{kind}: planned bubble {:.1} %, {stage_bytes} a stage", 100.0 * bubble)?;
        let fitting = self.considered.iter().filter(|other| other.outcome.is_ok()).count();
        match (fitting, self.considered.len()) {
            (_, 1) => Ok(()),
            (1, all) => write!(f, "; the only one of {all} schedules that fits"),
            (fitting, all) => {
                write!(f, "; the shortest step of {fitting} schedules that fit, of {all}")
            }
        }
    }
}

/// Chooses the shortest step, and of equal ones the one that takes least memory, and of those the
/// one that was named first.
///
/// # Errors
/// With the reason for each schedule, if none fits.
///
/// # Panics
/// If no schedule is named.
pub fn choose<B: Backend>(
    backend: &B,
    request: ChooseRequest<'_>,
) -> Result<Choice, Vec<(ScheduleKind, Refusal)>> {
    assert!(!request.kinds.is_empty(), "there is something to choose from");
    let mut best: Option<(Plan, Vec<StageMemory>, Prediction)> = None;
    let mut considered = Vec::new();
    for &kind in request.kinds {
        let found = consider(backend, request, kind);
        let outcome = found.as_ref().map(|found| found.2).map_err(Clone::clone);
        considered.push(Considered { kind, outcome });
        if let Ok(found) = found
            && best.as_ref().is_none_or(|best| is_better(&found.2, &best.2))
        {
            best = Some(found);
        }
    }
    match best {
        Some((plan, memory, prediction)) => Ok(Choice { plan, memory, prediction, considered }),
        None => Err(considered
            .into_iter()
            .filter_map(|considered| Some((considered.kind, considered.outcome.err()?)))
            .collect()),
    }
}

/// Periods closer than this share are taken for equal: the estimate is not better than that.
const PERIOD_TOLERANCE: f64 = 1e-3;

fn is_better(a: &Prediction, b: &Prediction) -> bool {
    if (a.period - b.period).abs() <= PERIOD_TOLERANCE * b.period {
        a.stage_bytes < b.stage_bytes
    } else {
        a.period < b.period
    }
}

fn consider<B: Backend>(
    backend: &B,
    request: ChooseRequest<'_>,
    kind: ScheduleKind,
) -> Result<(Plan, Vec<StageMemory>, Prediction), Refusal> {
    let ChooseRequest { model, batch, stage_count, window, .. } = request;
    let plan = Plan::new(PlanRequest { model, batch, kind, stage_count, window })?;
    let memory = plan_memory(backend, model, &plan, request.copies);
    let sizes = (0..stage_count).map(StageIndex).zip(memory.iter().map(StageMemory::total));
    let (stage, needed) = sizes.max_by_key(|(_, size)| *size).expect("there is a stage");
    if let Some(limit) = request.stage_bytes_max.filter(|limit| needed > *limit) {
        return Err(Refusal::Memory { stage, needed, limit });
    }
    let timeline = simulate(&plan.program, &predicted_costs(model, &plan), RHYTHM_STEPS)
        .expect("a plan's program runs to its end");
    let step = RHYTHM_STEPS - 1;
    let bubble = match window {
        Window::Zero => timeline.bubble_sync(step),
        Window::One => timeline.bubble_span(step),
    };
    let prediction = Prediction { period: period(&timeline), bubble, stage_bytes: needed };
    Ok((plan, memory, prediction))
}

/// Steps until a pipeline repeats itself, and one more to measure it by.
const RHYTHM_STEPS: u32 = 4;

/// From the end of the last step but one to the end of the last.
fn period(timeline: &Timeline) -> f64 {
    let end = |step: u32| {
        let slices = timeline.all_slices().filter(move |slice| slice.step == step);
        slices.map(|slice| slice.end).fold(0.0, f64::max)
    };
    let last = timeline.step_count() - 1;
    end(last) - end(last - 1)
}

/// How long passes take, in floating-point operations: the estimate before anything is measured.
#[must_use]
pub fn predicted_costs(model: &ModelConfig, plan: &Plan) -> Costs {
    chunk_costs(model, plan.batch.microbatch, &plan.chunks)
}

/// The same for chunks of these layers.
#[must_use]
pub fn chunk_costs(model: &ModelConfig, shape: MicrobatchShape, chunks: &[LayerRange]) -> Costs {
    let work = layer_work(model, shape);
    let times = |layers: &LayerRange| {
        let mut sum = LayerWork::default();
        for layer in layers.ids() {
            let LayerWork { f, b, w, w_early } = work[layer as usize];
            sum.f += f;
            sum.b += b;
            sum.w += w;
            sum.w_early += w_early;
        }
        ChunkTimes { f: sum.f, b: sum.b, w: sum.w, w_early: sum.w_early }
    };
    let chunks = chunks.iter().map(times).collect();
    Costs { chunks, link: 0.0, verdict: 0.0, step: 0.0 }
}
