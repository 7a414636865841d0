//! What the solver finds, against an independent implementation of the published search.

use super::table::{OracleRow, OracleTable};
use zbelastic_schedule::{
    ChunkCosts, Placement, ScheduleProblem, ScheduleSolution, StageCosts, check, simulate, solve,
};

/// The problem of a row over its stages in a line or a vee: `limit` returns how much memory a stage
/// has, by what F keeps there.
fn problem(
    row: &OracleRow<'_>,
    placement: fn(u32) -> Placement,
    limit: impl Fn(f64) -> f64,
) -> ScheduleProblem {
    let stage_count = row.count("p") as usize;
    let numbers =
        ["t_f", "t_b", "t_w", "m_f", "m_w_abs"].map(|name| row.numbers(name, stage_count));
    let [f, b, w, after_forward, after_input_gradient] = numbers;
    let stage = |i: usize| StageCosts {
        chunks: ChunkCosts {
            f: f[i],
            b: b[i],
            w: w[i],
            after_forward: after_forward[i],
            after_input_gradient: after_input_gradient[i],
        },
        limit: limit(after_forward[i]),
    };
    let stages: Vec<_> = (0..stage_count).map(stage).collect();
    let placement = placement(row.count("p"));
    ScheduleProblem::of_stages(placement, &stages, row.number("t_comm"), row.count("m"))
}

/// Solves, and compares the answer with a replay of it.
fn solved(problem: &ScheduleProblem) -> ScheduleSolution {
    let solution = solve(problem).unwrap_or_else(|error| panic!("{problem:?}: {error}"));
    check(&solution.program).unwrap_or_else(|violations| panic!("{problem:?}: {violations:?}"));
    let timeline = simulate(&solution.program, &problem.costs(), 1).expect("an order that runs");
    let replayed = timeline.cost(0);
    let reported = solution.cost;
    assert!(
        (replayed - reported).abs() <= 1e-9 * reported,
        "{replayed}, reported as {reported}: {problem:?}"
    );
    assert!(reported >= solution.lower_bound * (1.0 - 1e-9), "{solution:?}");
    assert!(problem.fits_memory(&solution.program), "{problem:?}");
    solution
}

/// Of a schedule named ZB-1.5p, 1.5: its limit is so many times what p microbatches keep.
fn limit_of(name: &str) -> Option<f64> {
    name.strip_prefix("ZB-")?.strip_suffix('p')?.parse().ok()
}

/// Whether it is ZB-V as it is solved for, with or without a limit of its own in its name.
fn is_vee(name: &str) -> bool {
    name == "ZB-V" || (name.starts_with("ZB-V-") && name.ends_with('p'))
}

#[derive(Debug, Default)]
struct SolveTally {
    rows: usize,
    below: usize,
    above: usize,
    optimal: usize,
    gap_max: f64,
}

impl SolveTally {
    fn note(&mut self, solution: &ScheduleSolution, theirs: f64) {
        self.note_between(solution, theirs, theirs);
    }

    /// Counts a solution whose published cost is only known to be between `least` and `most`.
    fn note_between(&mut self, solution: &ScheduleSolution, least: f64, most: f64) {
        self.rows += 1;
        self.below += usize::from(solution.cost < least * (1.0 - 1e-9));
        self.above += usize::from(solution.cost > most * (1.0 + 1e-9));
        self.optimal += usize::from(solution.is_proven_optimal());
        self.gap_max = self.gap_max.max(solution.gap());
    }
}

pub fn even_stages_are_solved_as_well_as_the_published_search_does_or_better(text: &str) {
    let mut at_one = SolveTally::default();
    let mut at_others = SolveTally::default();
    for row in OracleTable::parse(text).rows() {
        let Some(times) = limit_of(row.text("schedule")) else { continue };
        let limit = row.number("limit");
        let problem = problem(&row, Placement::line, |_| limit);
        let solution = solved(&problem);
        let theirs = row.number("lb_cost");
        let bound = solution.lower_bound;
        assert!(bound >= theirs * (1.0 - 1e-6), "bound {bound}, not {theirs}: {row:?}");
        let tally = if times == 1.0 { &mut at_one } else { &mut at_others };
        tally.note(&solution, row.number("cost"));
    }
    eprintln!("at 1p {at_one:?}; at other limits {at_others:?}");
    assert!(at_one.rows > 0 && at_others.rows > 0);
    assert_eq!((at_one.above, at_others.above), (0, 0));
    assert_eq!(at_one.optimal, at_one.rows);
    assert!(at_others.gap_max <= 0.01, "within a hundredth of the bound, found {at_others:?}");
}

pub fn uneven_stages_are_solved_better_than_by_the_published_search(text: &str) {
    let mut tally = SolveTally::default();
    let mut open = 0;
    for row in OracleTable::parse(text).rows() {
        let Some(times) = limit_of(row.text("schedule")) else { continue };
        let per_stage = times * f64::from(row.count("p"));
        let solution =
            solved(&problem(&row, Placement::line, |after_forward| per_stage * after_forward));
        let Some(theirs) = row.number_if_any("cost") else { continue };
        open += usize::from(theirs > solution.lower_bound * (1.0 + 1e-9));
        tally.note(&solution, theirs);
    }
    eprintln!("{tally:?}, {open} of theirs above the bound");
    assert!(tally.rows > 0);
    assert_eq!(tally.above, 0);
}

pub fn vees_are_solved_as_well_as_by_the_published_search_or_better(text: &str) {
    let mut at_one = SolveTally::default();
    let mut at_others = SolveTally::default();
    for row in OracleTable::parse(text).rows().filter(|row| is_vee(row.text("schedule"))) {
        let limit = row.number("limit");
        let solution = solved(&problem(&row, Placement::vee, |_| limit));
        let theirs = row.number("cost");
        assert!(solution.lower_bound <= theirs * (1.0 + 1e-9), "{row:?}");
        let tally = if row.text("schedule") == "ZB-V" { &mut at_one } else { &mut at_others };
        tally.note(&solution, theirs);
    }
    eprintln!("vees at 1p {at_one:?}; at other limits {at_others:?}");
    assert!(at_one.rows > 0 && at_others.rows > 0);
    assert_eq!((at_one.above, at_others.above), (0, 0));
}

/// The authors' own sweep over limits, of which there are bubble rates with four digits.
pub fn the_published_sweep_over_limits_is_met_or_beaten(text: &str) {
    for (column, placement) in
        [("bub_zb", Placement::line as fn(u32) -> Placement), ("bub_zbv", Placement::vee)]
    {
        let mut tally = SolveTally::default();
        for row in OracleTable::parse(text).rows() {
            let per_stage = row.number("limit_pmf") * f64::from(row.count("p"));
            let problem = problem(&row, placement, |after_forward| per_stage * after_forward);
            let solution = solved(&problem);
            let work: f64 = ["t_f", "t_b", "t_w"].map(|name| row.number(name)).iter().sum();
            let work = f64::from(row.count("m")) * work;
            let theirs = |rounding: f64| work / (1.0 - row.number(column) - rounding);
            tally.note_between(&solution, theirs(-5e-5), theirs(5e-5));
        }
        eprintln!("{column} {tally:?}");
        assert!(tally.rows > 0);
        assert_eq!(tally.above, 0);
    }
}
