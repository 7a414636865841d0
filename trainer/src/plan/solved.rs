//! Plans whose order is solved for their own times and their own memory.

use zbelastic_kernels::ByteCounts;
use zbelastic_schedule::{
    ChunkCosts, ChunkTimes, MemorySavings, PlacementShape, Program, ScheduleKind, ScheduleProblem,
    StepEnding, generate, lower_bound, solve,
};
use zbelastic_types::StageIndex;

use super::memory::{PassMemory, microbatch_memory};
use super::{ChooseRequest, Pace, Plan, StageMemory, plan_memory};
use crate::model::LayerRange;

/// Plans that may be better than a schedule's own within the memory there is, over the same chunks.
///
/// The solver looks at the span of one step of arithmetic. How steps follow each other, where gates
/// stand and the share of W that WE computes are found by a simulation of the lowered plan: so
/// there are several to choose from, the solver's and those made by hand. Schedules that are not
/// solved for have none.
pub(super) fn solved_plans<B: ByteCounts>(
    backend: &B,
    request: ChooseRequest<'_>,
    own: &Plan,
) -> Vec<Plan> {
    let kind = own.program.kind;
    let Some(by_hand) = also_tried(own) else { return Vec::new() };
    let memory = PlanPassMemory::new(backend, request, own);
    let times = request.pace.chunk_times(own.placement(), &own.chunks);
    let early: Vec<ChunkTimes> = times.iter().map(with_early_first).collect();
    let mut orders = Vec::new();
    for times in [&times, &early] {
        // Where a stage does not hold one microbatch there is no order, and the own plan is judged
        // as it is.
        orders.extend(solve(&memory.problem(request, own, times)).map(|found| found.program));
    }
    for kind in by_hand {
        let order = generate(*kind, request.stage_count, request.batch.microbatch_count);
        orders.extend(order);
    }
    let plan = |order: Program| {
        let order = Program { kind, ..order };
        Plan::with_program(request.of_kind(kind), own.chunks.clone(), &order)
    };
    orders.into_iter().filter_map(|order| plan(order).ok()).collect()
}

/// Passes of a step up to which an order over a vee is solved for. With so many (8 stages, 16
/// microbatches) a search that does not reach the bound lasts 20 ms, with four times as many 250:
/// longer than a cluster that lost a stage should stand still.
const VEE_PASSES_MAX: u64 = 256;

/// Schedules whose orders are tried beside those that are solved for; `None` for a plan whose order
/// is not solved for.
fn also_tried(plan: &Plan) -> Option<&'static [ScheduleKind]> {
    match plan.program.kind {
        ScheduleKind::ZbAuto => Some(&[ScheduleKind::ZbH1, ScheduleKind::ZbH2]),
        ScheduleKind::ZbV if plan.program.pass_count() <= VEE_PASSES_MAX => Some(&[]),
        ScheduleKind::GPipe
        | ScheduleKind::OneFOneB
        | ScheduleKind::Interleaved
        | ScheduleKind::ZbH1
        | ScheduleKind::ZbH2
        | ScheduleKind::ZbV
        | ScheduleKind::LoopedBfs
        | ScheduleKind::Gis
        | ScheduleKind::GisH
        | ScheduleKind::Po
        | ScheduleKind::VHalf
        | ScheduleKind::VMin
        | ScheduleKind::OneFOneBV
        | ScheduleKind::DualPipeV
        | ScheduleKind::Gems
        | ScheduleKind::Chimera
        | ScheduleKind::Seq1F1B
        | ScheduleKind::PoHalf
        | ScheduleKind::PoFull
        | ScheduleKind::PoSelective => None,
    }
}

/// Whether orders of a plan's passes are solved for.
pub(super) fn is_solved(plan: &Plan) -> bool {
    also_tried(plan).is_some()
}

/// WE runs right behind a B, which mostly is right before an F.
fn with_early_first(times: &ChunkTimes) -> ChunkTimes {
    let ChunkTimes { f, w, w_early, .. } = *times;
    ChunkTimes { f: f + w_early, w: w - w_early, ..*times }
}

/// Microbatches that a stage may keep if nothing limits its memory, as a multiple of the stages:
/// as many as are needed to have no bubble at equal times, on a line and over a vee (Qi et al.,
/// ICLR 2024, section 2.2; arXiv 2401.10241 v1, section 6).
const fn depth(shape: PlacementShape) -> u32 {
    match shape {
        PlacementShape::Line => 2,
        PlacementShape::Loop | PlacementShape::Vee | PlacementShape::Cross => 1,
    }
}

/// The memory of a plan's passes, and the budgets of stages for them.
pub(super) struct PlanPassMemory {
    /// By chunk, for one microbatch.
    pub(super) chunks: Vec<PassMemory>,
    /// By stage: the bytes that its limit leaves for passes; `None` if it has no limit.
    pub(super) pass_budgets: Vec<Option<f64>>,
}

impl PlanPassMemory {
    pub(super) fn new<B: ByteCounts>(backend: &B, request: ChooseRequest<'_>, own: &Plan) -> Self {
        let of_chunk =
            |layers: &LayerRange| microbatch_memory(backend, request.model, own, *layers);
        let memory = plan_memory(backend, request.model, request.optimizer, own, request.beside);
        let of_stage = |(stage, claim): (usize, &StageMemory)| {
            let limit = request.stage_bytes_max.get(stage)?;
            Some(limit.0.saturating_sub(claim.beside_passes().0) as f64)
        };
        Self {
            chunks: own.chunks.iter().map(of_chunk).collect(),
            pass_budgets: memory.iter().enumerate().map(of_stage).collect(),
        }
    }

    /// The order of the passes as a problem, with the memory that their stages have.
    pub(super) fn problem(
        &self,
        request: ChooseRequest<'_>,
        own: &Plan,
        times: &[ChunkTimes],
    ) -> ScheduleProblem {
        let costs = |(times, memory): (&ChunkTimes, &PassMemory)| {
            // Recomputed activations count as if they were kept: an order for that is good without
            // it.
            let PassMemory { stash, recomputed, logits, message } = *memory;
            let kept = (stash + recomputed + message).0 as f64;
            ChunkCosts {
                f: times.f,
                b: times.b,
                w: times.w,
                after_forward: kept + logits.0 as f64,
                after_input_gradient: kept,
            }
        };
        let chunks: Vec<ChunkCosts> = times.iter().zip(&self.chunks).map(costs).collect();
        let placement = own.placement().clone();
        let depth = f64::from(depth(placement.shape()) * request.stage_count);
        let limit = |(stage, budget): (u32, &Option<f64>)| {
            let held = placement.chunks_of(StageIndex(stage));
            let whole: f64 = held.map(|chunk| chunks[chunk.index()].after_forward).sum();
            budget.unwrap_or(f64::INFINITY).min(depth * whole)
        };
        let limits = (0..).zip(&self.pass_budgets).map(limit).collect();
        ScheduleProblem {
            placement,
            chunks,
            limits,
            link: request.pace.link,
            occupancy: request.pace.occupancy,
            microbatch_count: request.batch.microbatch_count,
            ending: StepEnding {
                window: request.window,
                verdict: request.pace.verdict,
                after: Vec::new(),
            },
            memory_savings: MemorySavings::default(),
        }
    }
}

/// The least time of a step of this plan in any order of its passes, under any memory limit: a
/// stage's next step begins when its list for this one is done. `None` for plans whose chunks go
/// round, or whose passes are over slices.
///
/// # Panics
/// If the pace has times that are none.
#[must_use]
pub fn span_lower_bound(pace: &Pace, plan: &Plan) -> Option<f64> {
    // Each pipeline is no faster than alone.
    let placement = plan.placement().column();
    if placement.shape() == PlacementShape::Loop || plan.program.slice_count > 1 {
        return None;
    }
    let chunks = &plan.chunks[..placement.chunk_count() as usize];
    let costs = |times: ChunkTimes| ChunkCosts {
        f: times.f,
        b: times.b,
        w: times.w,
        after_forward: 0.0,
        after_input_gradient: 0.0,
    };
    let problem = ScheduleProblem {
        chunks: pace.chunk_times(&placement, chunks).into_iter().map(costs).collect(),
        limits: vec![f64::INFINITY; placement.stage_count() as usize],
        link: pace.link,
        occupancy: pace.occupancy,
        microbatch_count: plan.batch.microbatch_count / plan.placement().column_count(),
        placement,
        ending: StepEnding::default(),
        memory_savings: MemorySavings::default(),
    };
    Some(lower_bound(&problem).expect("a pace has times"))
}
