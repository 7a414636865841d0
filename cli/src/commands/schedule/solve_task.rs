//! The task of `schedule solve`: the best order over one placement or several, or a replay of
//! a schedule with the bound beside it.

use std::time::{Duration, Instant};

use zbelastic_schedule::{
    ChunkCosts, MemorySavings, PipelineSize, Placement, RecomputeCost, ScheduleKind,
    ScheduleProblem, ScheduleSolution, SolveError, Window, check_size, fit_memory_limits,
    generate_sized, lower_bound, simulate, solve_any,
};

use super::input_error::InputError;
use super::inputs::{self, ProblemInput};

/// Requests the best of the solutions over several placements.
const ANY: &str = "auto";
/// Requests an order of chunks that are dealt round.
const LOOP: &str = "loop";
/// The schedules that name any order over their placement. Of those that cost the same the first is
/// better: it sends least.
const SOLVED: [ScheduleKind; 3] = [ScheduleKind::ZbAuto, ScheduleKind::ZbV, ScheduleKind::Gis];

/// The result that is requested for a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SolveMode {
    /// The best order over its placement, if it names any order there, and the time of its own
    /// order if not.
    Order,
    /// The time of the schedule's own order.
    Replay,
}

/// Checked problems to solve, or one to replay a schedule on.
pub struct SolveTask {
    /// The same stages over each placement that is allowed.
    problems: Vec<ScheduleProblem>,
    /// A schedule to replay, and its size; none if one is to be found.
    replayed: Option<(ScheduleKind, PipelineSize)>,
    /// Which steps may be open, if a window was given.
    window: Option<Window>,
}

/// The result of a task.
pub struct SolveResult<'a> {
    /// Over the placement of the order.
    pub problem: &'a ScheduleProblem,
    /// The order, and how good it is.
    pub solution: ScheduleSolution,
    /// Whether the stages' memory holds it. An order that needs more may cost less than any that
    /// does not, so the bound says nothing about it.
    pub fits: bool,
    /// The duration of the search.
    pub took: Duration,
}

impl SolveTask {
    /// The task for `kind`, or for ZB auto if that is `None`, with so many chunks a stage where
    /// that is free.
    pub fn new(
        input: &ProblemInput<'_>,
        (mode, kind): (SolveMode, Option<&str>),
        chunks: Option<u32>,
    ) -> Result<Self, Vec<InputError>> {
        let is_order = mode == SolveMode::Order;
        let stages = inputs::stages(input)?;
        let wrong = |error: InputError| vec![error];
        let placement = ScheduleKind::ZbAuto.placement(input.stages);
        // Over a line an error names whole stages, as the flags do. Where stages may do something
        // about it, smaller chunks may need less.
        match stages.over(placement).check() {
            Ok(()) => {}
            Err(SolveError::Limit { .. }) if stages.has_memory_savings() => {}
            Err(error) => return Err(wrong(error.into())),
        }
        let [on_line, over_vee, dealt_round] = SOLVED;
        let (kinds, replayed) = match kind {
            None => (vec![on_line], None),
            Some(ANY) if is_order && chunks.is_some() => (SOLVED.to_vec(), None),
            Some(ANY) if is_order => (vec![on_line, over_vee], None),
            Some(LOOP) if is_order => (vec![dealt_round], None),
            Some(name) => {
                let kind = name.parse().map_err(|error| wrong(InputError::Kind(error)))?;
                let is_solved = is_order && (kind == on_line || kind == over_vee);
                (vec![kind], (!is_solved).then_some(kind))
            }
        };
        let mut problems = Vec::with_capacity(kinds.len());
        let mut replayed_size = None;
        for kind in kinds {
            let own = PipelineSize::of(kind, input.stages, stages.microbatch_count());
            let is_free = replayed.is_some() || kind.chunk_counts().allow(own.chunks_per_stage + 1);
            let size = PipelineSize {
                chunks_per_stage: chunks.filter(|_| is_free).unwrap_or(own.chunks_per_stage),
                slice_count: input.slices.unwrap_or(own.slice_count),
                ..own
            };
            check_size(kind, size).map_err(|error| wrong(error.into()))?;
            replayed_size = replayed.map(|kind| (kind, size));
            let chunk_count = size.stage_count * size.chunks_per_stage;
            let placement = Placement::of_shape(kind.shape(), size.stage_count, chunk_count);
            problems.push(stages.over(placement.expect("its size was checked")));
        }
        let refused = problems.iter().map(ScheduleProblem::check).find_map(Result::err);
        problems.retain(|problem| problem.check().is_ok());
        match refused {
            Some(error) if problems.is_empty() => Err(wrong(error.into())),
            Some(_) | None => {
                Ok(Self { problems, replayed: replayed_size, window: stages.window() })
            }
        }
    }

    /// Which steps may be open, if a window was given.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Finds the order, or replays the schedule.
    ///
    /// # Errors
    /// If no measure of the stages brings any order within their limits.
    pub fn answer(&self) -> Result<SolveResult<'_>, SolveError> {
        const CHECKED: &str = "it was checked with its question";
        let began = Instant::now();
        let solution = match self.replayed {
            None => solve_any(&self.problems)?,
            Some((kind, size)) => {
                let problem = &self.problems[0];
                let program = generate_sized(kind, size).expect(CHECKED);
                let program = fit_memory_limits(problem, &program).unwrap_or(program);
                let timeline = simulate(&program, &problem.costs(), 1).expect("it runs to its end");
                let lower_bound = lower_bound(&of_slices(problem, size)).expect(CHECKED);
                ScheduleSolution { program, cost: problem.cost(&timeline), lower_bound }
            }
        };
        let took = began.elapsed();
        let is_its = |problem: &&ScheduleProblem| problem.placement == solution.program.placement;
        let problem = self.problems.iter().find(is_its).expect("it is over one of the placements");
        let fits = problem.fits_memory(&solution.program);
        Ok(SolveResult { problem, solution, fits, took })
    }
}

/// The same with slices in the place of microbatches, and without the dependencies between slices
/// of one microbatch: no order of slices is below its bound.
fn of_slices(problem: &ScheduleProblem, size: PipelineSize) -> ScheduleProblem {
    if size.slice_count == 1 {
        return problem.clone();
    }
    let share = 1.0 / f64::from(size.slice_count);
    let again = |remake: &RecomputeCost| RecomputeCost {
        time: remake.time * share,
        after_drop: remake.after_drop * share,
    };
    let remakes = problem.memory_savings.recomputes.iter().map(again).collect();
    let cut = |chunk: &ChunkCosts| ChunkCosts {
        f: chunk.f * share,
        b: chunk.b * share,
        w: chunk.w * share,
        after_forward: chunk.after_forward * share,
        after_input_gradient: chunk.after_input_gradient * share,
    };
    ScheduleProblem {
        chunks: problem.chunks.iter().map(cut).collect(),
        occupancy: problem.occupancy * share,
        microbatch_count: size.microbatch_count * size.slice_count,
        memory_savings: MemorySavings { recomputes: remakes, ..MemorySavings::default() },
        ..problem.clone()
    }
}
