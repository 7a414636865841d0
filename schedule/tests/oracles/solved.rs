//! What the solver finds, against an independent implementation of the published search.

use super::table::{Row, Table, oracle_table};
use zbelastic_schedule::{Problem, Solution, StageCosts, check, simulate, solve};

/// The problem of a row: `limit` says how much memory a stage has, by what F keeps there.
fn problem(row: &Row<'_>, limit: impl Fn(usize, f64) -> f64) -> Problem {
    let stage_count = row.count("p") as usize;
    let numbers =
        ["t_f", "t_b", "t_w", "m_f", "m_w_abs"].map(|name| row.numbers(name, stage_count));
    let [f, b, w, after_forward, after_input_gradient] = numbers;
    let stage = |i: usize| StageCosts {
        f: f[i],
        b: b[i],
        w: w[i],
        after_forward: after_forward[i],
        after_input_gradient: after_input_gradient[i],
        limit: limit(i, after_forward[i]),
    };
    let stages = (0..stage_count).map(stage).collect();
    Problem { stages, link: row.number("t_comm"), microbatch_count: row.count("m") }
}

/// Solves, and holds the answer against a replay of it.
fn solved(problem: &Problem) -> Solution {
    let solution = solve(problem).unwrap_or_else(|error| panic!("{problem:?}: {error}"));
    check(&solution.program).unwrap_or_else(|violations| panic!("{problem:?}: {violations:?}"));
    let timeline = simulate(&solution.program, &problem.costs(), 1).expect("an order that runs");
    let replayed = timeline.cost(0);
    let told = solution.cost;
    assert!((replayed - told).abs() <= 1e-9 * told, "{replayed}, told as {told}: {problem:?}");
    assert!(told >= solution.lower_bound * (1.0 - 1e-9), "{solution:?}");
    assert!(problem.holds(&solution.program), "{problem:?}");
    solution
}

/// Of a schedule named ZB-1.5p, 1.5: its limit is so many times what p microbatches keep.
fn limit_of(name: &str) -> Option<f64> {
    name.strip_prefix("ZB-")?.strip_suffix('p')?.parse().ok()
}

#[derive(Debug, Default)]
struct Tally {
    rows: usize,
    below: usize,
    above: usize,
    optimal: usize,
    gap_max: f64,
}

impl Tally {
    fn note(&mut self, solution: &Solution, theirs: f64) {
        self.rows += 1;
        self.below += usize::from(solution.cost < theirs * (1.0 - 1e-9));
        self.above += usize::from(solution.cost > theirs * (1.0 + 1e-9));
        self.optimal += usize::from(solution.is_proven_optimal());
        self.gap_max = self.gap_max.max(solution.gap());
    }
}

#[test]
fn even_stages_are_solved_as_well_as_the_published_search_does_or_better() {
    let Some(text) = oracle_table("schedules.csv") else { return };
    let (mut at_one, mut at_others) = (Tally::default(), Tally::default());
    for row in Table::parse(&text).rows() {
        let Some(times) = limit_of(row.text("schedule")) else { continue };
        let limit = row.number("limit");
        let problem = problem(&row, |_, _| limit);
        let solution = solved(&problem);
        let theirs = row.number("lb_cost");
        let bound = solution.lower_bound;
        assert!((bound - theirs).abs() <= 1e-6 * theirs, "bound {bound}, not {theirs}: {row:?}");
        let tally = if times == 1.0 { &mut at_one } else { &mut at_others };
        tally.note(&solution, row.number("cost"));
    }
    eprintln!("at 1p {at_one:?}; at other limits {at_others:?}");
    assert!(at_one.rows > 0 && at_others.rows > 0);
    assert_eq!((at_one.above, at_others.above), (0, 0));
    assert_eq!(at_one.optimal, at_one.rows);
}

#[test]
fn uneven_stages_are_solved_better_than_by_the_published_search() {
    let Some(text) = oracle_table("hetero.csv") else { return };
    let mut tally = Tally::default();
    let mut open = 0;
    for row in Table::parse(&text).rows() {
        let Some(times) = limit_of(row.text("schedule")) else { continue };
        let per_stage = times * f64::from(row.count("p"));
        let solution = solved(&problem(&row, |_, after_forward| per_stage * after_forward));
        let Some(theirs) = row.number_if_any("cost") else { continue };
        open += usize::from(theirs > solution.lower_bound * (1.0 + 1e-9));
        tally.note(&solution, theirs);
    }
    eprintln!("{tally:?}, {open} of theirs above the bound");
    assert!(tally.rows > 0);
    assert_eq!(tally.above, 0);
}
