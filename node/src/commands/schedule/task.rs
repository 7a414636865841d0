//! What `schedule solve` is asked for: the best order over one placement or several, or a replay of
//! a schedule with the bound beside it.

use std::time::{Duration, Instant};

use zbelastic_schedule::{
    ChunkCosts, PipelineSize, PlacementShape, Problem, ScheduleKind, Solution, check_size,
    generate_sized, lower_bound, simulate, solve_any,
};

use super::input_error::InputError;
use super::inputs::{self, ProblemText};

/// Asks for the better of what is found for each of [`SOLVED`].
const ANY: &str = "auto";
/// Kinds that are solved for; others are replayed. Of two that cost the same the first is better: it
/// sends half as much.
const SOLVED: [ScheduleKind; 2] = [ScheduleKind::ZbAuto, ScheduleKind::ZbV];

/// A legal question.
pub struct Task {
    /// The same stages over each placement that is allowed.
    problems: Vec<Problem>,
    /// A schedule to replay, and its size; none if one is to be found.
    replayed: Option<(ScheduleKind, PipelineSize)>,
}

/// What came of it.
pub struct Answer<'a> {
    /// Over the placement of the order.
    pub problem: &'a Problem,
    /// The order, and how good it is.
    pub solution: Solution,
    /// Whether the stages' memory holds it. What takes more may cost less than any that does not, so
    /// the bound says nothing about it.
    pub fits: bool,
    /// How long it took to find it.
    pub took: Duration,
}

impl Task {
    /// The question of a person who wants `kind`, or ZB auto if nothing is said.
    pub fn new(text: &ProblemText<'_>, kind: Option<&str>) -> Result<Self, Vec<InputError>> {
        let stages = inputs::stages(text)?;
        let over = |kind: ScheduleKind| stages.over(kind);
        // On a line what is wrong is told in whole stages, as it was said.
        let wrong = |error: InputError| vec![error];
        over(ScheduleKind::ZbAuto).check().map_err(|error| wrong(error.into()))?;
        let kinds = match kind {
            None => vec![ScheduleKind::ZbAuto],
            Some(ANY) => SOLVED.to_vec(),
            Some(name) => vec![name.parse().map_err(|error| wrong(InputError::Kind(error)))?],
        };
        for kind in &kinds {
            if kind.shape() == PlacementShape::Loop {
                return Err(wrong(InputError::Looped { kind: *kind }));
            }
            check_size(*kind, size_of(*kind, text)).map_err(|error| wrong(error.into()))?;
        }
        let replayed = kinds.iter().copied().find(|kind| !SOLVED.contains(kind));
        let replayed = replayed.map(|kind| (kind, size_of(kind, text)));
        Ok(Self { problems: kinds.into_iter().map(over).collect(), replayed })
    }

    /// Finds it.
    pub fn answer(&self) -> Answer<'_> {
        const CHECKED: &str = "it was checked with its question";
        let began = Instant::now();
        let solution = match self.replayed {
            None => solve_any(&self.problems).expect(CHECKED),
            Some((kind, size)) => {
                let problem = &self.problems[0];
                let program = generate_sized(kind, size).expect(CHECKED);
                let timeline = simulate(&program, &problem.costs(), 1).expect("it runs to its end");
                let lower_bound = lower_bound(&of_slices(problem, size)).expect(CHECKED);
                Solution { program, cost: timeline.cost(0), lower_bound }
            }
        };
        let took = began.elapsed();
        let is_its = |problem: &&Problem| problem.placement == solution.program.placement;
        let problem = self.problems.iter().find(is_its).expect("it is over one of the placements");
        let fits = problem.holds(&solution.program);
        Answer { problem, solution, fits, took }
    }
}

fn size_of(kind: ScheduleKind, text: &ProblemText<'_>) -> PipelineSize {
    let size = PipelineSize::of(kind, text.stages, text.microbatches);
    PipelineSize { slice_count: text.slices.unwrap_or(size.slice_count), ..size }
}

/// The same with slices in the place of microbatches, and nothing said of how slices of one
/// microbatch depend on each other: no order of slices is below its bound.
fn of_slices(problem: &Problem, size: PipelineSize) -> Problem {
    let share = 1.0 / f64::from(size.slice_count);
    let cut = |chunk: &ChunkCosts| ChunkCosts {
        f: chunk.f * share,
        b: chunk.b * share,
        w: chunk.w * share,
        after_forward: chunk.after_forward * share,
        after_input_gradient: chunk.after_input_gradient * share,
    };
    Problem {
        chunks: problem.chunks.iter().map(cut).collect(),
        occupancy: problem.occupancy * share,
        microbatch_count: size.microbatch_count * size.slice_count,
        ..problem.clone()
    }
}
