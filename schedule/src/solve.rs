//! Finds the order in which a pipeline runs best: chunks with times of their own, a limit of memory
//! for each stage; one chunk a stage, two in a vee, or several dealt round.
//!
//! Orders come from two families, those of the papers ([`rounds`] on a line, [`waves`] and the
//! hand-made ZB-V over a vee, those made by hand where chunks are dealt round) and [`policy`].
//! Their cost is the longest span of a stage, the zero-bubble paper's measure, or more if the
//! verdict comes later than that, or the time until all have the verdict, if no step is left open
//! ([`StepEnding`]). The search ends as soon as an order costs what every order costs at least by
//! [`bound`]: then it is proven optimal. Otherwise the [`ScheduleSolution`] gives how far from
//! optimal it is at most.

mod bound;
mod hill_climb;
mod memory_savings;
mod order_builder;
mod pipeline;
mod policy;
mod problem;
mod replay;
mod rounds;
mod warm_up_bound;
mod waves;

pub use memory_savings::{MemorySavings, OffloadTransfer, RecomputeCost, fit_memory_limits};
pub use problem::{ChunkCosts, CostOwner, ScheduleProblem, StageCosts, StepEnding};

use zbelastic_types::{ChunkIndex, StageIndex};

use crate::kind::ScheduleKind;
use crate::op::Compute;
use crate::orders::{self, PipelineSize, compute};
use crate::placement::PlacementShape;
use crate::program::Program;
use order_builder::{OrderBuilder, PlacedPass};
use pipeline::PipelineIndex;
use policy::{IdleAllowance, StageRule};
use problem::TOLERANCE;

/// The best order that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleSolution {
    /// The order, without transfers and updates ([`crate::lower`] adds them).
    pub program: Program,
    /// The cost of a step, by its ending ([`StepEnding`]): the longest span of a stage, or the
    /// time to the verdict from the first gate or from the first start.
    pub cost: f64,
    /// A lower bound on the cost of every order.
    pub lower_bound: f64,
}

impl ScheduleSolution {
    /// By how much the order may be above the best one, as a share of the bound.
    #[must_use]
    pub fn gap(&self) -> f64 {
        let above = (self.cost - self.lower_bound).max(0.0);
        if self.is_proven_optimal() { 0.0 } else { above / self.lower_bound }
    }

    /// Whether no order costs less.
    #[must_use]
    pub fn is_proven_optimal(&self) -> bool {
        reaches(self.cost, self.lower_bound)
    }
}

fn reaches(cost: f64, bound: f64) -> bool {
    cost <= bound * (1.0 + TOLERANCE)
}

/// Why a problem has no solution.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SolveError {
    /// A placement that the solver has no search for.
    #[error("expected the chunks of one model, found a {found}")]
    Shape {
        /// Shape of the placement.
        found: PlacementShape,
    },
    /// A list that has not one entry for each chunk or stage.
    #[error("expected {expected} {name}, found {found}")]
    Count {
        /// Name of the list.
        name: &'static str,
        /// As many as the placement has.
        expected: u32,
        /// As many as there are.
        found: usize,
    },
    /// A step without microbatches.
    #[error("expected a microbatch at least, found none")]
    NoMicrobatch,
    /// A number that is no cost: not finite, or below 0.
    #[error("{owner}expected a finite {name} of at least 0, found {found}")]
    Number {
        /// Name of the number.
        name: &'static str,
        /// The chunk or stage that the number belongs to, or the whole problem.
        owner: CostOwner,
        /// The number as found.
        found: f64,
    },
    /// More is kept after B than after F: then a B may not fit where an F did, which no search here
    /// allows for.
    #[error(
        "chunk {chunk}: expected at most {after_forward} to be kept after B, as after F, found \
         {after_input_gradient}"
    )]
    Memory {
        /// Index of the chunk in model order.
        chunk: ChunkIndex,
        /// Memory that is kept after F.
        after_forward: f64,
        /// Memory that is kept after B.
        after_input_gradient: f64,
    },
    /// More is kept after DROP than after F.
    #[error(
        "chunk {chunk}: expected at most {after_forward} to be kept after DROP, as after F, found \
         {after_drop}"
    )]
    Drop {
        /// Index of the chunk in model order.
        chunk: ChunkIndex,
        /// Memory that is kept after F.
        after_forward: f64,
        /// Memory that is kept after DROP.
        after_drop: f64,
    },
    /// No order was brought within the limits by recomputing or offloading.
    #[error(
        "no order was found that stays within the limits, whatever is recomputed or offloaded; \
         what one microbatch takes is within them, so a little more memory may be enough"
    )]
    NoOrder,
    /// A limit below the memory of one microbatch.
    #[error("stage {stage}: one microbatch takes {needed}, the limit is {limit}")]
    Limit {
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// Memory that one microbatch needs at least.
        needed: f64,
        /// Memory limit of the stage.
        limit: f64,
    },
}

/// A lower bound on the cost of every order of a problem. Over two replicas that is no more than
/// the work of the busiest stage.
///
/// # Errors
/// As [`solve`], but for placements with two replicas.
pub fn lower_bound(problem: &ScheduleProblem) -> Result<f64, SolveError> {
    problem.check()?;
    if problem.placement.replica_count() > 1 {
        return Ok(problem.work_bound());
    }
    if problem.memory_savings.is_any() {
        return Ok(bound::lower_bound(&PipelineIndex::new(&memory_savings::relaxed(problem))));
    }
    Ok(bound::lower_bound(&PipelineIndex::new(problem)))
}

/// The best order that the searches find within the limits.
///
/// The program is of the kind that names its placement: ZB auto on a line, ZB-V over a vee, GIS
/// where chunks are dealt round.
///
/// Where stages may recompute or offload passes ([`MemorySavings`]) they do so where it is needed,
/// and as little as brings them within their limits.
///
/// # Errors
/// If a number is no cost, or a limit is below the memory of one microbatch: one at a time is
/// always an order, unless it needed copies to make it one.
///
/// # Panics
/// Never, as long as one microbatch fits.
pub fn solve(problem: &ScheduleProblem) -> Result<ScheduleSolution, SolveError> {
    problem.check()?;
    let shape = problem.placement.shape();
    if problem.placement.replica_count() > 1 {
        return Err(SolveError::Shape { found: shape });
    }
    if problem.memory_savings.is_any() {
        return memory_savings::solve(problem, lower_bound(problem)?);
    }
    Ok(solve_without_savings(problem, PASSES_MAX))
}

/// The best order of a problem that was checked, and in which stages do nothing to keep less. At
/// most `passes_max` passes are placed, over all tries of one kind.
fn solve_without_savings(problem: &ScheduleProblem, passes_max: usize) -> ScheduleSolution {
    let shape = problem.placement.shape();
    let pipeline = PipelineIndex::new(problem);
    let mut best = BestOrder { passes_max, ..BestOrder::new(bound::lower_bound(&pipeline)) };
    match shape {
        PlacementShape::Line => try_rounds(&pipeline, &mut best),
        PlacementShape::Vee => try_waves(&pipeline, &mut best),
        PlacementShape::Loop => try_known_schedules(&pipeline, &mut best, &LOOP_SCHEDULES),
        PlacementShape::Cross => unreachable!("it was checked"),
    }
    if !best.is_optimal() {
        try_rules(&pipeline, &mut best);
    }
    let lower_bound = best.lower_bound;
    let (cost, builder) = best.found.expect("one microbatch at a time is an order of every rule");
    ScheduleSolution { program: program_of(problem, builder), cost, lower_bound }
}

/// The best order over several placements of the same stages; the bound is the least of theirs.
/// Of orders that cost the same it is the first placement's.
///
/// # Errors
/// As [`solve`], for any of them.
///
/// # Panics
/// If there is none.
pub fn solve_any(problems: &[ScheduleProblem]) -> Result<ScheduleSolution, SolveError> {
    let bounds: Result<Vec<f64>, SolveError> = problems.iter().map(lower_bound).collect();
    let bound = bounds?.into_iter().fold(f64::INFINITY, f64::min);
    let mut best: Option<ScheduleSolution> = None;
    for problem in problems {
        if best.as_ref().is_some_and(|best| reaches(best.cost, bound)) {
            break;
        }
        let found = match solve(problem) {
            Ok(found) => ScheduleSolution { lower_bound: bound, ..found },
            // Over another placement there may be one.
            Err(SolveError::NoOrder) => continue,
            Err(error) => return Err(error),
        };
        if best.as_ref().is_none_or(|best| found.cost < best.cost) {
            best = Some(found);
        }
    }
    assert!(!problems.is_empty(), "there is a placement");
    best.ok_or(SolveError::NoOrder)
}

/// Passes that are placed at most, over all tries of one kind.
const PASSES_MAX: usize = 2_000_000;
/// Rules that are tried however large a problem is.
const RULES_MIN: usize = 8;
/// Microbatches, counted on every stage, up to which a problem is small: tables have thousands of
/// such, so the tries for one are bounded by less.
const SMALL_SIZE_MAX: usize = 128;
/// Rules that are tried for a small problem, for each time for which the first W may be held back,
/// before the best of them are changed.
const SMALL_RULES_MAX: usize = 90;
/// How many sets of other times orders of a small problem are made for.
const SMALL_OTHER_TIMES_MAX: usize = 6;

fn is_small(pipeline: &PipelineIndex<'_>) -> bool {
    pipeline.stage_count() * pipeline.microbatch_count() as usize <= SMALL_SIZE_MAX
}

fn try_rounds<'a>(pipeline: &'a PipelineIndex<'a>, best: &mut BestOrder<'a>) {
    for style in rounds::RoundStyle::all() {
        if best.offer(rounds::in_rounds(pipeline, style), None) {
            return;
        }
    }
}

/// Tries the orders of the paper's search, and the known schedule.
fn try_waves<'a>(pipeline: &'a PipelineIndex<'a>, best: &mut BestOrder<'a>) {
    for builder in
        waves::WaveStyle::ALL.into_iter().flat_map(|style| waves::repeated(pipeline, style))
    {
        if best.offer(Some(builder), None) {
            return;
        }
    }
    try_known_schedules(pipeline, best, &[ScheduleKind::ZbV]);
    if !best.is_optimal() {
        try_waves_of_other_times(pipeline, best);
    }
}

/// Known schedules over chunks dealt round.
const LOOP_SCHEDULES: [ScheduleKind; 5] = [
    ScheduleKind::Gis,
    ScheduleKind::GisH,
    ScheduleKind::Po,
    ScheduleKind::Interleaved,
    ScheduleKind::LoopedBfs,
];

/// Tries known schedules, where they exist in this size and memory holds them.
fn try_known_schedules<'a>(
    pipeline: &'a PipelineIndex<'a>,
    best: &mut BestOrder<'a>,
    kinds: &[ScheduleKind],
) {
    let placement = &pipeline.problem.placement;
    let size = PipelineSize {
        stage_count: placement.stage_count(),
        chunks_per_stage: placement.chunks_per_stage(),
        microbatch_count: pipeline.microbatch_count(),
        slice_count: 1,
    };
    for kind in kinds {
        let Ok(Some(stages)) = orders::ops(*kind, size) else { continue };
        if best.offer(replay::replay(pipeline, &replay::orders_of(&stages)), None) {
            return;
        }
    }
}

/// Tries orders made for other times than the problem's: the gain and loss where a gap is
/// filled is not known before the end, and another order may turn out to be better.
fn try_waves_of_other_times<'a>(pipeline: &'a PipelineIndex<'a>, best: &mut BestOrder<'a>) {
    let mut left = best.tries(pipeline);
    let most = if is_small(pipeline) { SMALL_OTHER_TIMES_MAX } else { usize::MAX };
    for factors in waves::OTHER_TIMES.into_iter().take(most) {
        let problem = factors.of(pipeline.problem);
        let other = PipelineIndex::new(&problem);
        for style in waves::WaveStyle::ALL {
            for builder in waves::repeated(&other, style) {
                let is_optimal = best.offer(replay::replay(pipeline, &builder.into_orders()), None);
                left = left.saturating_sub(2);
                if is_optimal || left == 0 {
                    return;
                }
            }
        }
    }
}

fn try_rules<'a>(pipeline: &'a PipelineIndex<'a>, best: &mut BestOrder<'a>) {
    let mut allowance = IdleAllowance::new(pipeline);
    let hold_count = policy::hold_factors(pipeline).len();
    let most = if is_small(pipeline) { SMALL_RULES_MAX * hold_count } else { usize::MAX };
    for rules in
        policy::rules(pipeline, best.lower_bound).take(best.tries(pipeline).clamp(RULES_MIN, most))
    {
        let builder = policy::by_rules(pipeline, &rules, &allowance);
        if best.offer(builder, Some(rules)) {
            return;
        }
        if let Some((cost, _)) = &best.rules {
            allowance.lower_to(*cost);
        }
    }
    hill_climb::hill_climb(pipeline, best, &mut allowance);
}

/// The best order so far, and the rules that made the best of those that rules made.
struct BestOrder<'a> {
    lower_bound: f64,
    /// Passes that may be placed.
    passes_max: usize,
    found: Option<(f64, OrderBuilder<'a>)>,
    rules: Option<(f64, Vec<StageRule>)>,
}

impl<'a> BestOrder<'a> {
    fn new(lower_bound: f64) -> Self {
        Self { lower_bound, passes_max: PASSES_MAX, found: None, rules: None }
    }

    /// How many orders of a problem are made.
    fn tries(&self, pipeline: &PipelineIndex<'_>) -> usize {
        self.passes_max / pipeline.pass_count()
    }

    fn is_optimal(&self) -> bool {
        self.found.as_ref().is_some_and(|(cost, _)| reaches(*cost, self.lower_bound))
    }

    /// Keeps an order if it is better. Yields whether there is none better than the kept one.
    fn offer(&mut self, builder: Option<OrderBuilder<'a>>, rules: Option<Vec<StageRule>>) -> bool {
        let Some(builder) = builder else { return false };
        let cost = builder.cost();
        if !cost.is_finite() {
            return false;
        }
        if let Some(rules) = rules
            && self.rules.as_ref().is_none_or(|(least, _)| cost < *least)
        {
            self.rules = Some((cost, rules));
        }
        if self.found.as_ref().is_none_or(|(least, _)| cost < *least) {
            self.found = Some((cost, builder));
        }
        self.is_optimal()
    }
}

/// The schedule that names any order over chunks that are laid like this.
#[must_use]
pub const fn kind_of_shape(shape: PlacementShape) -> ScheduleKind {
    match shape {
        PlacementShape::Line => ScheduleKind::ZbAuto,
        PlacementShape::Vee => ScheduleKind::ZbV,
        PlacementShape::Loop => ScheduleKind::Gis,
        PlacementShape::Cross => ScheduleKind::Chimera,
    }
}

fn program_of(problem: &ScheduleProblem, builder: OrderBuilder<'_>) -> Program {
    let mut counts = vec![[0_u32; 3]; problem.chunks.len()];
    let mut op = |pass: PlacedPass| {
        let kind = match pass.compute {
            Compute::F => 0,
            Compute::B => 1,
            Compute::W | Compute::BW | Compute::WE | Compute::R => 2,
        };
        let count = &mut counts[pass.chunk as usize][kind];
        *count += 1;
        compute(pass.compute, pass.chunk, *count - 1)
    };
    let orders = builder.into_orders().into_iter();
    let stages = orders.map(|order| order.into_iter().map(&mut op).collect()).collect();
    let kind = kind_of_shape(problem.placement.shape());
    let ScheduleProblem { placement, microbatch_count, .. } = problem;
    Program {
        kind,
        placement: placement.clone(),
        microbatch_count: *microbatch_count,
        slice_count: 1,
        window: None,
        stages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Placement;

    const CHUNK: ChunkCosts =
        ChunkCosts { f: 1.0, b: 1.0, w: 1.0, after_forward: 2.0, after_input_gradient: 1.0 };

    fn problem(chunk: ChunkCosts) -> ScheduleProblem {
        ScheduleProblem {
            placement: Placement::line(2),
            chunks: vec![CHUNK, chunk],
            limits: vec![4.0; 2],
            link: 0.0,
            occupancy: 0.0,
            microbatch_count: 3,
            ending: StepEnding::default(),
            memory_savings: MemorySavings::default(),
        }
    }

    #[track_caller]
    fn refused(problem: &ScheduleProblem, expected: SolveError) {
        assert_eq!(solve(problem), Err(expected.clone()));
        assert_eq!(lower_bound(problem), Err(expected));
    }

    fn illegal_memory_savings_are_named(legal: &ScheduleProblem) {
        let with = |recomputes, offloads| {
            let memory_savings = MemorySavings { recomputes, offloads, ..MemorySavings::default() };
            ScheduleProblem { memory_savings, ..legal.clone() }
        };
        let recompute = RecomputeCost { time: 1.0, after_drop: 0.5 };
        let offload = OffloadTransfer { offload: 1.0, reload: 1.0 };
        let short = |name| SolveError::Count { name, expected: 2, found: 1 };
        refused(&with(vec![recompute], Vec::new()), short("recomputes"));
        refused(&with(Vec::new(), vec![offload]), short("offloads"));
        let number = |name, found| SolveError::Number {
            name,
            owner: CostOwner::Chunk(ChunkIndex(1)),
            found,
        };
        let wrong = RecomputeCost { time: -1.0, ..recompute };
        refused(&with(vec![recompute, wrong], Vec::new()), number("recompute", -1.0));
        let wrong = OffloadTransfer { reload: f64::INFINITY, ..offload };
        refused(&with(Vec::new(), vec![offload, wrong]), number("reload", f64::INFINITY));
        let large = RecomputeCost { after_drop: 2.5, ..recompute };
        let drop = SolveError::Drop { chunk: ChunkIndex(0), after_forward: 2.0, after_drop: 2.5 };
        refused(&with(vec![large, recompute], Vec::new()), drop);
    }

    #[test]
    fn illegal_problems_are_named() {
        let legal = problem(CHUNK);
        let cross = ScheduleProblem { placement: Placement::cross(1), ..legal.clone() };
        let cross = ScheduleProblem { limits: vec![f64::INFINITY], ..cross };
        let found = PlacementShape::Cross;
        assert_eq!(solve(&cross), Err(SolveError::Shape { found }));
        let short = SolveError::Count { name: "chunks", expected: 4, found: 2 };
        refused(&ScheduleProblem { placement: Placement::vee(2), ..legal.clone() }, short);
        let short = SolveError::Count { name: "limits", expected: 2, found: 1 };
        refused(&ScheduleProblem { limits: vec![4.0], ..legal.clone() }, short);
        let none = ScheduleProblem { microbatch_count: 0, ..legal.clone() };
        refused(&none, SolveError::NoMicrobatch);
        let number = |name, owner, found| SolveError::Number { name, owner, found };
        let link = number("link", CostOwner::All, -1.0);
        refused(&ScheduleProblem { link: -1.0, ..legal.clone() }, link);
        let infinite = f64::INFINITY;
        let b = number("b", CostOwner::Chunk(ChunkIndex(1)), infinite);
        refused(&problem(ChunkCosts { b: infinite, ..CHUNK }), b);
        let limit = number("limit", CostOwner::Stage(StageIndex(1)), -1.0);
        refused(&ScheduleProblem { limits: vec![4.0, -1.0], ..legal.clone() }, limit);
        let small = SolveError::Limit { stage: StageIndex(1), needed: 2.0, limit: 1.0 };
        refused(&ScheduleProblem { limits: vec![4.0, 1.0], ..legal.clone() }, small);
        illegal_memory_savings_are_named(&legal);
        let chunk = ChunkIndex(1);
        let more = SolveError::Memory { chunk, after_forward: 2.0, after_input_gradient: 3.0 };
        refused(&problem(ChunkCosts { after_input_gradient: 3.0, ..CHUNK }), more);
    }

    #[test]
    fn a_stage_of_a_vee_needs_memory_for_both_its_chunks() {
        let vee = |limit| ScheduleProblem {
            placement: Placement::vee(1),
            limits: vec![limit],
            ..problem(CHUNK)
        };
        let small = SolveError::Limit { stage: StageIndex(0), needed: 4.0, limit: 3.0 };
        refused(&vee(3.0), small);
        let found = solve(&vee(4.0)).expect("one at a time");
        assert_eq!((found.cost, found.gap()), (18.0, 0.0));
        assert_eq!(found.program.kind, ScheduleKind::ZbV);
    }

    #[test]
    fn chunks_without_time_or_memory_are_solved() {
        let of = |chunk: ChunkCosts, limit: f64, link: f64, microbatch_count: u32| {
            let chunks = vec![chunk; 3];
            let limits = vec![limit; 3];
            let placement = Placement::line(3);
            let occupancy = 0.0;
            let ending = StepEnding::default();
            let problem = ScheduleProblem {
                memory_savings: MemorySavings::default(),
                placement,
                chunks,
                limits,
                link,
                occupancy,
                microbatch_count,
                ending,
            };
            solve(&problem).expect("legal")
        };
        let found = of(ChunkCosts { f: 0.0, b: 0.0, w: 0.0, ..CHUNK }, 4.0, 0.0, 4);
        assert_eq!((found.cost, found.gap()), (0.0, 0.0));
        let free = ChunkCosts { after_forward: 0.0, after_input_gradient: 0.0, ..CHUNK };
        let found = of(free, 0.0, 0.5, 8);
        assert!(found.cost >= found.lower_bound && found.lower_bound >= 24.0, "{found:?}");
    }

    /// Eight equal stages whose memory holds 16 of 32 microbatches, and a verdict as long as a
    /// third of a step.
    #[test]
    fn first_weight_gradients_are_held_back_for_a_verdict_that_is_long() {
        let unit = ChunkCosts { after_forward: 1.0, ..CHUNK };
        let heedless = ScheduleProblem {
            placement: Placement::line(8),
            chunks: vec![unit; 8],
            limits: vec![16.0; 8],
            microbatch_count: 32,
            ..problem(CHUNK)
        };
        let waiting = |verdict| {
            let ending = StepEnding { verdict, ..StepEnding::default() };
            let problem = ScheduleProblem { ending, ..heedless.clone() };
            let order = solve(&heedless).expect("it fits").program;
            let timeline = crate::simulate(&order, &problem.costs(), 1).expect("it runs");
            (solve(&problem).expect("it fits"), problem.cost(&timeline))
        };
        let (short, without) = waiting(8.0);
        assert_eq!((short.cost, short.lower_bound, without), (96.0, 96.0, 96.0));
        let (long, without) = waiting(32.0);
        assert_eq!((long.cost, long.lower_bound, without), (103.0, 96.0, 117.0));
    }
}
