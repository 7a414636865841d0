//! Plans whose order is solved for their own times and their own memory.

use zbelastic_kernels::Backend;
use zbelastic_schedule::{
    ChunkTimes, PlacementShape, Problem, Program, ScheduleKind, StageCosts, generate, live_passes,
    lower_bound, solve,
};
use zbelastic_types::{Bytes, StageIndex};

use super::{ChooseRequest, Pace, Plan, PlanError, plan_memory};
use crate::model::LayerRange;

/// Microbatches that a stage may keep if nothing limits its memory, as a multiple of the stages:
/// what it takes to have no bubble at equal times (Qi et al., ICLR 2024, section 2.2).
const DEPTH: u32 = 2;

/// Plans that may be the best there is within the memory there is, the first of which is the
/// schedule's own for equal times.
///
/// The solver looks at the span of one step of arithmetic. How steps follow each other, where gates
/// stand and what WE takes out of W are for a simulation of the lowered plan to say: so there are
/// several to choose from, the solver's and those made by hand.
///
/// # Errors
/// If the schedule does not exist for this size.
pub(super) fn solved_plans<B: Backend>(
    backend: &B,
    request: ChooseRequest<'_>,
    chunks: &[LayerRange],
) -> Result<Vec<Plan>, PlanError> {
    let of_kind = request.of_kind(ScheduleKind::ZbAuto);
    let even = Plan::with_chunks(of_kind, chunks.to_vec())?;
    let limits = passes_max(backend, request, &even);
    let times = request.pace.chunk_times(even.placement(), chunks);
    let early: Vec<ChunkTimes> = times.iter().map(with_early_first).collect();
    let mut orders = Vec::new();
    for times in [&times, &early] {
        orders.extend(solve(&problem(request, times, &limits)).map(|solution| solution.program));
    }
    for kind in [ScheduleKind::ZbH1, ScheduleKind::ZbH2] {
        let order = generate(kind, request.stage_count, request.batch.microbatch_count)?;
        orders.push(Program { kind: ScheduleKind::ZbAuto, ..order });
    }
    let plan = |order: &Program| Plan::with_program(of_kind, chunks.to_vec(), order);
    let others: Vec<Plan> = orders.iter().map(plan).collect::<Result<_, _>>()?;
    Ok(std::iter::once(even).chain(others).collect())
}

/// WE runs right behind a B, which mostly is right before an F.
fn with_early_first(times: &ChunkTimes) -> ChunkTimes {
    let ChunkTimes { f, w, w_early, .. } = *times;
    ChunkTimes { f: f + w_early, w: w - w_early, ..*times }
}

fn problem(request: ChooseRequest<'_>, times: &[ChunkTimes], limits: &[u32]) -> Problem {
    let stage = |(times, limit): (&ChunkTimes, &u32)| StageCosts {
        f: times.f,
        b: times.b,
        w: times.w,
        // Slots are kept whole from F to W.
        after_forward: 1.0,
        after_input_gradient: 1.0,
        limit: f64::from(*limit),
    };
    Problem {
        stages: times.iter().zip(limits).map(stage).collect(),
        link: request.pace.link,
        microbatch_count: request.batch.microbatch_count,
    }
}

/// What a step of this plan takes at least in any order of its passes, whatever memory there is: a
/// stage's next step begins when its list for this one is done. `None` for plans with several chunks
/// a stage.
///
/// # Panics
/// If the pace has times that are none.
#[must_use]
pub fn span_lower_bound(pace: &Pace, plan: &Plan) -> Option<f64> {
    let placement = plan.placement();
    if placement.shape() != PlacementShape::Line {
        return None;
    }
    let of_chunk = |times: ChunkTimes| StageCosts {
        f: times.f,
        b: times.b,
        w: times.w,
        after_forward: 0.0,
        after_input_gradient: 0.0,
        limit: 0.0,
    };
    let stages = pace.chunk_times(placement, &plan.chunks).into_iter().map(of_chunk).collect();
    let microbatch_count = plan.batch.microbatch_count;
    let problem = Problem { stages, link: pace.link, microbatch_count };
    Some(lower_bound(&problem).expect("a pace has times"))
}

/// How many microbatches each stage can keep.
fn passes_max<B: Backend>(backend: &B, request: ChooseRequest<'_>, plan: &Plan) -> Vec<u32> {
    let most = DEPTH * request.stage_count;
    let memory = plan_memory(backend, request.model, plan, request.copies);
    let live = live_passes(&plan.program);
    let of_stage = |stage: StageIndex| {
        let Some(limit) = request.stage_bytes_max.get(stage.index()) else { return most };
        let slots: u32 = plan.chunks_of(stage).map(|(chunk, _)| live[chunk.index()].slots).sum();
        let claim = memory[stage.index()];
        let passes = claim.stash + claim.messages;
        let one = Bytes(passes.0.div_ceil(u64::from(slots.max(1))));
        let rest = limit.0.saturating_sub(claim.total().0 - passes.0);
        u32::try_from(rest / one.0.max(1)).unwrap_or(most).min(most)
    };
    (0..request.stage_count).map(StageIndex).map(of_stage).collect()
}
