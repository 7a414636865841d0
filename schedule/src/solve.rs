//! Finds the order in which a pipeline runs best: stages with times of their own, a limit of memory
//! for each, one chunk a stage.
//!
//! Orders come from two families, [`rounds`] and [`policy`]; what they cost is the longest span of
//! a stage, the zero-bubble paper's measure. The search ends as soon as an order costs what
//! [`bound`] says that every order costs: then it is optimal, and the answer says so. Otherwise it
//! says how far from optimal it is at most.

mod board;
mod bound;
mod climb;
mod policy;
mod problem;
mod rounds;

pub use problem::{Problem, StageCosts};

use crate::generate::compute;
use crate::kind::ScheduleKind;
use crate::op::Compute;
use crate::placement::Placement;
use crate::program::Program;
use board::Board;
use policy::Rule;
use problem::TOLERANCE;
use rounds::Style;

/// The best order that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The order, without transfers and updates ([`crate::lower`] adds them).
    pub program: Program,
    /// The longest span of a stage.
    pub cost: f64,
    /// What every order costs at least.
    pub lower_bound: f64,
}

impl Solution {
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
    /// A pipeline of nothing.
    #[error("expected a stage at least, found none")]
    NoStage,
    /// A step of nothing.
    #[error("expected a microbatch at least, found none")]
    NoMicrobatch,
    /// A number that is none, or not one that a cost can be.
    #[error("{}expected a finite {name} of at least 0, found {found}", of_stage(*stage))]
    Number {
        /// What it is called.
        name: &'static str,
        /// Whose it is; `None` if it is all stages'.
        stage: Option<usize>,
        /// What was found.
        found: f64,
    },
    /// B leaves more than F did: then a B may not fit where an F did, which no order here minds.
    #[error(
        "stage {stage}: expected at most {after_forward} to be kept after B, as after F, found \
         {after_input_gradient}"
    )]
    Memory {
        /// The stage.
        stage: usize,
        /// What F leaves.
        after_forward: f64,
        /// What B leaves.
        after_input_gradient: f64,
    },
    /// Memory that does not hold one microbatch.
    #[error("stage {stage}: one microbatch takes {needed}, the limit is {limit}")]
    Limit {
        /// The stage.
        stage: usize,
        /// What it takes.
        needed: f64,
        /// What there is.
        limit: f64,
    },
}

fn of_stage(stage: Option<usize>) -> String {
    stage.map_or_else(String::new, |stage| format!("stage {stage}: "))
}

/// What every order of a problem costs at least: the longest span of a stage.
///
/// # Errors
/// As [`solve`].
pub fn lower_bound(problem: &Problem) -> Result<f64, SolveError> {
    problem.check()?;
    Ok(bound::lower_bound(problem))
}

/// The best order that the searches find within the limits.
///
/// # Errors
/// If a number is no cost, or a limit is below what one microbatch takes: one at a time is always
/// an order.
///
/// # Panics
/// Never, as long as one microbatch fits.
pub fn solve(problem: &Problem) -> Result<Solution, SolveError> {
    problem.check()?;
    let lower_bound = bound::lower_bound(problem);
    let mut best = Best::new(lower_bound);
    for style in Style::all() {
        if best.take(rounds::in_rounds(problem, style), None) {
            break;
        }
    }
    for rules in policy::rules(problem).take(tries(problem).max(RULES_MIN)) {
        if best.is_optimal() {
            break;
        }
        let board = policy::by_rules(problem, &rules);
        best.take(board, Some(rules));
    }
    climb::climb(problem, &mut best);
    let (cost, board) = best.found.expect("one microbatch at a time is an order of every rule");
    Ok(Solution { program: program_of(problem, board), cost, lower_bound })
}

/// Passes that are put on boards at most, over all tries of one kind.
const PASSES_MAX: usize = 2_000_000;
/// Rules that are tried however large a problem is.
const RULES_MIN: usize = 8;

/// How many orders of a problem are made.
fn tries(problem: &Problem) -> usize {
    PASSES_MAX / (3 * problem.stages.len() * problem.microbatch_count as usize)
}

/// The best order so far, and the rules that made the best of those that rules made.
struct Best<'a> {
    lower_bound: f64,
    found: Option<(f64, Board<'a>)>,
    rules: Option<(f64, Vec<Rule>)>,
}

impl<'a> Best<'a> {
    fn new(lower_bound: f64) -> Self {
        Self { lower_bound, found: None, rules: None }
    }

    fn is_optimal(&self) -> bool {
        self.found.as_ref().is_some_and(|(cost, _)| reaches(*cost, self.lower_bound))
    }

    /// Keeps an order if it is better. Yields whether there is none better than what is kept.
    fn take(&mut self, board: Option<Board<'a>>, rules: Option<Vec<Rule>>) -> bool {
        let Some(board) = board else { return false };
        let cost = board.cost();
        if !cost.is_finite() {
            return false;
        }
        if let Some(rules) = rules
            && self.rules.as_ref().is_none_or(|(least, _)| cost < *least)
        {
            self.rules = Some((cost, rules));
        }
        if self.found.as_ref().is_none_or(|(least, _)| cost < *least) {
            self.found = Some((cost, board));
        }
        self.is_optimal()
    }
}

fn program_of(problem: &Problem, board: Board<'_>) -> Program {
    let stage_ops = |(stage, order): (u32, board::Order)| {
        let mut counts = [0_u32; 3];
        let op = |kind: Compute| {
            let count = match kind {
                Compute::F => &mut counts[0],
                Compute::B => &mut counts[1],
                Compute::W | Compute::BW | Compute::WE => &mut counts[2],
            };
            let microbatch = *count;
            *count += 1;
            compute(kind, stage, microbatch)
        };
        order.into_iter().map(op).collect()
    };
    let stages = (0..).zip(board.into_orders()).map(stage_ops).collect();
    Program {
        kind: ScheduleKind::ZbAuto,
        placement: Placement::line(problem.stages.len() as u32),
        microbatch_count: problem.microbatch_count,
        window: None,
        stages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGE: StageCosts = StageCosts {
        f: 1.0,
        b: 1.0,
        w: 1.0,
        after_forward: 2.0,
        after_input_gradient: 1.0,
        limit: 4.0,
    };

    fn problem(stage: StageCosts) -> Problem {
        Problem { stages: vec![STAGE, stage], link: 0.0, microbatch_count: 3 }
    }

    #[track_caller]
    fn refused(problem: &Problem, expected: SolveError) {
        assert_eq!(solve(problem), Err(expected.clone()));
        assert_eq!(lower_bound(problem), Err(expected));
    }

    #[test]
    fn what_is_no_problem_is_named() {
        refused(&Problem { stages: Vec::new(), ..problem(STAGE) }, SolveError::NoStage);
        let none = Problem { microbatch_count: 0, ..problem(STAGE) };
        refused(&none, SolveError::NoMicrobatch);
        let link = SolveError::Number { name: "link", stage: None, found: -1.0 };
        refused(&Problem { link: -1.0, ..problem(STAGE) }, link);
        let number = |name, found| SolveError::Number { name, stage: Some(1), found };
        let infinite = f64::INFINITY;
        refused(&problem(StageCosts { b: infinite, ..STAGE }), number("b", infinite));
        refused(&problem(StageCosts { limit: -1.0, ..STAGE }), number("limit", -1.0));
        let small = SolveError::Limit { stage: 1, needed: 2.0, limit: 1.0 };
        refused(&problem(StageCosts { limit: 1.0, ..STAGE }), small);
        let more = SolveError::Memory { stage: 1, after_forward: 2.0, after_input_gradient: 3.0 };
        refused(&problem(StageCosts { after_input_gradient: 3.0, ..STAGE }), more);
    }

    #[test]
    fn what_takes_no_time_or_no_memory_is_solved() {
        let nothing = StageCosts { f: 0.0, b: 0.0, w: 0.0, ..STAGE };
        let stages = vec![nothing; 3];
        let found = solve(&Problem { stages, link: 0.0, microbatch_count: 4 }).expect("legal");
        assert_eq!((found.cost, found.gap()), (0.0, 0.0));
        let free =
            StageCosts { after_forward: 0.0, after_input_gradient: 0.0, limit: 0.0, ..STAGE };
        let stages = vec![free; 3];
        let found = solve(&Problem { stages, link: 0.5, microbatch_count: 8 }).expect("legal");
        assert!(found.cost >= found.lower_bound && found.lower_bound >= 24.0, "{found:?}");
    }
}
