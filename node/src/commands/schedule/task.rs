//! What `schedule solve` is asked for: the best order over one placement or several, or a replay of
//! a schedule with the bound beside it.

use std::time::{Duration, Instant};

use zbelastic_schedule::{
    PipelineSize, PlacementShape, Problem, ScheduleKind, Solution, check_size, generate,
    lower_bound, simulate, solve_any,
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
    /// A schedule to replay; none if one is to be found.
    replayed: Option<ScheduleKind>,
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
            check_size(*kind, PipelineSize::of(*kind, text.stages, text.microbatches))
                .map_err(|error| wrong(error.into()))?;
        }
        let replayed = kinds.iter().copied().find(|kind| !SOLVED.contains(kind));
        Ok(Self { problems: kinds.into_iter().map(over).collect(), replayed })
    }

    /// Finds it.
    pub fn answer(&self) -> Answer<'_> {
        const CHECKED: &str = "it was checked with its question";
        let began = Instant::now();
        let solution = match self.replayed {
            None => solve_any(&self.problems).expect(CHECKED),
            Some(kind) => {
                let problem = &self.problems[0];
                let (stages, microbatches) = (problem.limits.len(), problem.microbatch_count);
                let program = generate(kind, stages as u32, microbatches).expect(CHECKED);
                let timeline = simulate(&program, &problem.costs(), 1).expect("it runs to its end");
                let lower_bound = lower_bound(problem).expect(CHECKED);
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
