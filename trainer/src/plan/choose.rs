//! Finds the schedule with the shortest step among those that fit.
//!
//! Times are those of a [`Pace`], counted or measured: the comparison is between schedules of the
//! same work on the same machines, so that a common factor does not matter.

use std::fmt;

use zbelastic_kernels::ByteCounts;
use zbelastic_schedule::{Placement, ScheduleKind, Timeline, Window, simulate};
use zbelastic_types::{Bytes, StageIndex};

use super::memory_policy::memory_limited_plans;
use super::solved::solved_plans;
use super::{
    BatchShape, HeldBeside, MemoryPolicy, Pace, Plan, PlanError, PlanRequest, ReplicaCount,
    StageMemory, cut, plan_memory,
};
use crate::model::{LayerRange, ModelConfig};
use crate::optimizer::OptimizerKind;

/// The schedules that are worth trying where none is named: those that are the fastest somewhere,
/// or need least memory. The others come close to one of these, or are made for effects that are
/// not predicted here (traffic of weights, offloading, overlap within a layer), and each one that
/// is tried costs a plan and a simulation. For three models of 8 to 32 blocks, each with a small
/// and a large vocabulary, on 2, 4 and 8 stages with 8 and 32 microbatches, none of the others was
/// faster than the best of these, and trying them all lasted a quarter longer.
pub const AUTO_KINDS: [ScheduleKind; 10] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::Interleaved,
    ScheduleKind::ZbH1,
    ScheduleKind::ZbH2,
    ScheduleKind::ZbAuto,
    ScheduleKind::ZbV,
    ScheduleKind::GisH,
    ScheduleKind::VHalf,
    ScheduleKind::VMin,
];

/// The work to plan, and the limits and times to plan it for.
#[derive(Clone, Copy, Debug)]
pub struct ChooseRequest<'a> {
    /// Shape of the model.
    pub model: &'a ModelConfig,
    /// The optimizer, whose updates may need memory of a device.
    pub optimizer: OptimizerKind,
    /// Shape of the microbatches and how many a step has.
    pub batch: BatchShape,
    /// The schedules to choose from, at least one.
    pub kinds: &'a [ScheduleKind],
    /// Chunks a stage holds; if none are given, as many as each schedule has by itself.
    pub chunks_per_stage: Option<u32>,
    /// Slices of a microbatch under schedules that cut them; if none are given, as many as each has
    /// by itself.
    pub slice_count: Option<u32>,
    /// Stages of each pipeline.
    pub stage_count: u32,
    /// How many times the pipeline is there: column after column, each on stages of its own.
    pub replicas: ReplicaCount,
    /// How far steps run ahead of their verdict.
    pub window: Window,
    /// The means by which passes keep less memory.
    pub memory: MemoryPolicy,
    /// What each stage holds beside its own layers.
    pub beside: HeldBeside,
    /// The most that each stage may use; stages beyond have no limit.
    pub stage_bytes_max: &'a [Bytes],
    /// Times of layers, messages and updates.
    pub pace: &'a Pace,
}

impl<'a> ChooseRequest<'a> {
    pub(super) fn of_kind(&self, kind: ScheduleKind) -> PlanRequest<'a> {
        let Self { model, batch, chunks_per_stage, stage_count, replicas, window, .. } = *self;
        let slice_count = self.slice_count.filter(|_| kind.is_sliced());
        PlanRequest {
            model,
            batch,
            kind,
            chunks_per_stage,
            slice_count,
            stage_count,
            replicas,
            window,
        }
    }
}

/// A schedule that was looked at.
#[derive(Clone, Debug)]
pub struct ConsideredSchedule {
    /// Kind of the schedule.
    pub kind: ScheduleKind,
    /// The prediction for it, or why it is out of the question.
    pub outcome: Result<PlanPrediction, ScheduleRefusal>,
}

/// The predicted time and memory of a schedule that fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanPrediction {
    /// From step to step, in the unit of the pace.
    pub period: f64,
    /// The share of it in which the busiest stage waits.
    pub bubble: f64,
    /// Memory of the stage that needs most.
    pub stage_bytes: Bytes,
}

/// Why a schedule is out of the question.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleRefusal {
    /// It does not exist for this size.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A stage does not fit.
    #[error("stage {stage} needs {needed}, the limit is {limit}")]
    Memory {
        /// The stage that needs most memory.
        stage: StageIndex,
        /// Memory that it needs.
        needed: Bytes,
        /// Memory that it may use.
        limit: Bytes,
    },
}

/// The plan that was chosen, and why.
#[derive(Clone, Debug)]
pub struct PlanChoice {
    /// The plan that was chosen.
    pub plan: Plan,
    /// The memory of its stages.
    pub memory: Vec<StageMemory>,
    /// The step and memory that were predicted for it.
    pub prediction: PlanPrediction,
    /// All schedules that were looked at, the chosen one among them.
    pub considered: Vec<ConsideredSchedule>,
}

impl fmt::Display for PlanChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanPrediction { bubble, stage_bytes, .. } = self.prediction;
        let kind = self.plan.program.kind;
        let placement = self.plan.placement();
        if placement.column_count() > 1 {
            let stages = placement.stages_per_column();
            write!(f, "{stages} stages × {} replicas, ", placement.column_count())?;
        }
        if placement.shards().count() > 1 {
            write!(f, "optimizer in {} shards, ", placement.shards().count())?;
        }
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

/// Chooses the shortest step, and of equal ones the one that needs least memory, and of those the
/// one that was named first.
///
/// # Errors
/// With the reason for each schedule, if none fits.
///
/// # Panics
/// If no schedule is named.
pub fn choose<B: ByteCounts>(
    backend: &B,
    request: ChooseRequest<'_>,
) -> Result<PlanChoice, Vec<(ScheduleKind, ScheduleRefusal)>> {
    assert!(!request.kinds.is_empty(), "there is something to choose from");
    let mut best: Option<PlanWithMemory> = None;
    let mut considered = Vec::new();
    let pace = request.pace.of_column(request.stage_count, request.replicas);
    let mut partitions = PartitionCache { pace, found: Vec::new() };
    for &kind in request.kinds {
        let found = consider(backend, request, kind, &mut partitions);
        let outcome = found.as_ref().map(|found| found.2).map_err(Clone::clone);
        considered.push(ConsideredSchedule { kind, outcome });
        if let Ok(found) = found
            && best.as_ref().is_none_or(|best| is_better(&found.2, &best.2))
        {
            best = Some(found);
        }
    }
    match best {
        Some((plan, memory, prediction)) => Ok(PlanChoice { plan, memory, prediction, considered }),
        None => Err(considered
            .into_iter()
            .filter_map(|considered| Some((considered.kind, considered.outcome.err()?)))
            .collect()),
    }
}

/// Periods closer than this share count as equal: the estimate is not better than that.
const PERIOD_TOLERANCE: f64 = 1e-3;

fn is_better(a: &PlanPrediction, b: &PlanPrediction) -> bool {
    if (a.period - b.period).abs() <= PERIOD_TOLERANCE * b.period {
        a.stage_bytes < b.stage_bytes
    } else {
        a.period < b.period
    }
}

type PlanWithMemory = (Plan, Vec<StageMemory>, PlanPrediction);

/// The best plan of a kind: there is one, but where orders are solved.
fn consider<B: ByteCounts>(
    backend: &B,
    request: ChooseRequest<'_>,
    kind: ScheduleKind,
    partitions: &mut PartitionCache,
) -> Result<PlanWithMemory, ScheduleRefusal> {
    let of_kind = request.of_kind(kind);
    let chunks = partitions.of(&of_kind)?;
    let own = request.memory.applied(Plan::with_chunks(of_kind, chunks)?);
    let others = if request.replicas.is_one() {
        other_orders(backend, request, &own)
    } else {
        other_orders_of_columns(backend, request, &own)?
    };
    let plans = std::iter::once(own).chain(others);
    let judged = plans.map(|plan| judge(backend, request, plan));
    let better = |a: Result<PlanWithMemory, ScheduleRefusal>,
                  b: Result<PlanWithMemory, ScheduleRefusal>| match (a, b) {
        (Ok(a), Ok(b)) => Ok(if is_better(&b.2, &a.2) { b } else { a }),
        (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
        (Err(refusal), Err(_)) => Err(refusal),
    };
    judged.reduce(better).expect("a kind has a plan")
}

/// The same layers of one pipeline in orders that are solved for, and those that need less memory.
fn other_orders<B: ByteCounts>(backend: &B, request: ChooseRequest<'_>, own: &Plan) -> Vec<Plan> {
    let solved = solved_plans(backend, request, own).into_iter();
    let solved: Vec<Plan> = solved.map(|plan| request.memory.applied(plan)).collect();
    let memory_limited = memory_limited_plans(backend, request, own, &solved);
    solved.into_iter().chain(memory_limited).collect()
}

/// The same where there are several pipelines: orders of one of them, made for the slowest and the
/// smallest of the workers that stand at each of its stages, which all of them run.
fn other_orders_of_columns<B: ByteCounts>(
    backend: &B,
    request: ChooseRequest<'_>,
    own: &Plan,
) -> Result<Vec<Plan>, PlanError> {
    let placement = own.placement();
    let kind = own.program.kind;
    let pace = request.pace.of_column(request.stage_count, request.replicas);
    let batch = request.batch.of_replica(kind, request.replicas)?;
    let alone = ChooseRequest { batch, replicas: ReplicaCount::ONE, pace: &pace, ..request };
    let chunks = own.chunks[..placement.chunks_per_replica() as usize].to_vec();
    let column = Plan::with_chunks(alone.of_kind(kind), chunks.clone())?;
    let column = request.memory.applied(column);
    // What the exchange of gradients takes is no limit's to give to passes.
    let claims = plan_memory(backend, request.model, request.optimizer, own, request.beside);
    let claims_alone =
        plan_memory(backend, request.model, request.optimizer, &column, request.beside);
    let limits_of = |place: usize| {
        let places = placement.stages_per_column() as usize;
        let holders = (place..claims.len()).step_by(places);
        let left = |stage: usize| {
            let limit = request.stage_bytes_max.get(stage)?;
            let exchanged = claims[stage].total().0.saturating_sub(claims_alone[place].total().0);
            Some(Bytes(limit.0.saturating_sub(exchanged)))
        };
        holders.map(|stage| left(stage).unwrap_or(Bytes(u64::MAX))).min()
    };
    let has_limits = !request.stage_bytes_max.is_empty();
    let limits: Vec<Bytes> = (0..claims_alone.len()).filter_map(limits_of).collect();
    let stage_bytes_max = if has_limits { &limits[..] } else { &[] };
    let orders = other_orders(backend, ChooseRequest { stage_bytes_max, ..alone }, &column);
    let widened = |order: Plan| {
        let plan = Plan::with_program(request.of_kind(kind), chunks.clone(), &order.program)?;
        Ok(Plan { recompute: order.recompute, ..plan })
    };
    orders.into_iter().map(widened).collect()
}

/// The prediction for a plan, if it fits.
fn judge<B: ByteCounts>(
    backend: &B,
    request: ChooseRequest<'_>,
    plan: Plan,
) -> Result<PlanWithMemory, ScheduleRefusal> {
    let plan = request.memory.with_shards(request.model, plan);
    let memory = plan_memory(backend, request.model, request.optimizer, &plan, request.beside);
    let sizes = memory.iter().map(StageMemory::total);
    let limited = (0..).map(StageIndex).zip(sizes.clone()).zip(request.stage_bytes_max);
    let above = limited.filter(|((_, needed), limit)| needed > limit);
    if let Some(((stage, needed), limit)) =
        above.max_by_key(|((_, needed), limit)| needed.0 - limit.0)
    {
        return Err(ScheduleRefusal::Memory { stage, needed, limit: *limit });
    }
    let timeline = rhythm(&plan, request.pace);
    let step = RHYTHM_STEPS - 1;
    let bubble = match request.window {
        Window::Zero => timeline.bubble_sync(step),
        Window::One => timeline.bubble_span(step),
    };
    let stage_bytes = sizes.max().expect("there is a stage");
    let prediction = PlanPrediction { period: period(&timeline), bubble, stage_bytes };
    Ok((plan, memory, prediction))
}

/// The layers of chunks by where these stand: schedules of one placement share them, and finding
/// them lasts longer than anything else here.
struct PartitionCache {
    /// That of one pipeline.
    pace: Pace,
    found: Vec<(Placement, Vec<LayerRange>)>,
}

impl PartitionCache {
    fn of(&mut self, request: &PlanRequest<'_>) -> Result<Vec<LayerRange>, PlanError> {
        let placement = request.column()?;
        if let Some((_, chunks)) = self.found.iter().find(|(known, _)| *known == placement) {
            return Ok(chunks.clone());
        }
        let chunks = cut(&placement, &self.pace);
        self.found.push((placement, chunks.clone()));
        Ok(chunks)
    }
}

/// Steps until a pipeline repeats itself, and one more to measure it by.
const RHYTHM_STEPS: u32 = 4;

/// A plan's first steps, until it repeats itself.
fn rhythm(plan: &Plan, pace: &Pace) -> Timeline {
    simulate(&plan.program, &pace.costs(plan), RHYTHM_STEPS)
        .expect("a plan's program runs to its end")
}

/// The time from step to step of a plan at a pace, in the pace's unit.
///
/// # Panics
/// If the pace has times that are none.
#[must_use]
pub fn plan_period(plan: &Plan, pace: &Pace) -> f64 {
    period(&rhythm(plan, pace))
}

/// From the end of the last step but one to the end of the last.
fn period(timeline: &Timeline) -> f64 {
    let end = |step: u32| {
        let slices = timeline.all_slices().filter(move |slice| slice.step == step);
        slices.map(|slice| slice.end).fold(0.0, f64::max)
    };
    let last = timeline.step_count() - 1;
    end(last) - end(last - 1)
}
