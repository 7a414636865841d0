//! Performance goals on one device, and their measurements.

use serde::Serialize;
use zbelastic_kernels::cuda::timing::RooflineBound;

use super::OperationTiming;
use super::models::{GpuBenchFigures, GpuBenchRow};

/// A performance goal, with its measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerformanceGoal {
    /// Name of the measured figure, as it is printed.
    pub what: &'static str,
    /// The threshold to reach.
    pub aim: GoalThreshold,
    /// The measured value; none if no operation or model that shows it was run.
    pub measured: Option<f64>,
}

/// A limit, and the side of it that is good.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalThreshold {
    /// As much, or more.
    AtLeast(f64),
    /// As much, or less.
    AtMost(f64),
}

impl PerformanceGoal {
    /// Whether it is reached, if it was measured.
    #[must_use]
    pub fn is_reached(&self) -> Option<bool> {
        self.measured.map(|measured| match self.aim {
            GoalThreshold::AtLeast(limit) => measured >= limit,
            GoalThreshold::AtMost(limit) => measured <= limit,
        })
    }

    /// The goal as a line of text.
    #[must_use]
    pub fn line(&self) -> String {
        let (word, limit) = match self.aim {
            GoalThreshold::AtLeast(limit) => (">=", limit),
            GoalThreshold::AtMost(limit) => ("<=", limit),
        };
        let measured = self.measured.map_or_else(|| "-".to_owned(), |x| format!("{x:.3}"));
        let verdict = match self.is_reached() {
            Some(true) => "reached",
            Some(false) => "missed",
            None => "not measured",
        };
        format!("{:<64} {measured:>8} {word} {limit:<5} {verdict}", self.what)
    }
}

/// Every goal, of one type of activations. Tokens a second beside PyTorch's are compared by the
/// script that runs it.
#[must_use]
pub fn goals(
    operations: &[OperationTiming],
    optimism: Option<f64>,
    rows: &[GpuBenchRow],
) -> Vec<PerformanceGoal> {
    let goal = |what, aim, measured| PerformanceGoal { what, aim, measured };
    let mfu = best(rows, |row| row.model == "llama-1b" && row.sequence_len == 4096, |run| run.mfu);
    vec![
        goal(
            "products: share of cublasLt's fastest, the worst",
            GoalThreshold::AtLeast(0.95),
            products(operations),
        ),
        goal(
            "norms, rotation, activations, AdamW: share of a copy, the worst",
            GoalThreshold::AtLeast(0.8),
            memory_bound(operations),
        ),
        goal(
            "llama-1b, 4096 tokens: share of the product's rate",
            GoalThreshold::AtLeast(0.5),
            mfu,
        ),
        goal("four workers over one, the worst", GoalThreshold::AtLeast(0.9), four_over_one(rows)),
        goal("candidate and commit over AdamW in place", GoalThreshold::AtMost(1.6), optimism),
        goal(
            "what optimism adds, of a step of gpt2-124m",
            GoalThreshold::AtMost(0.01),
            optimism.and_then(|ratio| optimism_of_step(ratio, operations, rows)),
        ),
    ]
}

fn least(shares: impl Iterator<Item = f64>) -> Option<f64> {
    shares.reduce(f64::min)
}

fn products(operations: &[OperationTiming]) -> Option<f64> {
    least(operations.iter().filter_map(|row| Some(row.fastest_us? / row.us)))
}

/// Rows that are no passes over memory: embeddings are gathered by token, and attention and the
/// head are none even where memory bounds them. Norms, the rotation, activations and the optimizer
/// remain.
const OTHERWISE: [&str; 3] = ["embed", "attention", "head"];

fn memory_bound(operations: &[OperationTiming]) -> Option<f64> {
    let is_pass = |row: &&OperationTiming| !OTHERWISE.iter().any(|name| row.name.starts_with(name));
    let bound = operations.iter().filter(|row| row.bound == RooflineBound::Memory && is_pass(row));
    least(bound.map(|row| row.floor_us / row.us))
}

fn best(
    rows: &[GpuBenchRow],
    is_it: impl Fn(&GpuBenchRow) -> bool,
    of: fn(&GpuBenchFigures) -> f64,
) -> Option<f64> {
    let runs = rows.iter().filter(|row| row.workers == 1 && is_it(row));
    runs.filter_map(|row| row.outcome.as_ref().ok().map(of)).reduce(f64::max)
}

/// The same model, text and schedule by four workers and by one.
fn four_over_one(rows: &[GpuBenchRow]) -> Option<f64> {
    let alone = |four: &GpuBenchRow| {
        let of = |row: &&GpuBenchRow| {
            (row.workers, row.model, row.sequence_len, row.schedule, row.has_graphs)
                == (1, four.model, four.sequence_len, four.schedule, four.has_graphs)
        };
        rows.iter().find(of)?.outcome.as_ref().ok()
    };
    let ratio = |four: &GpuBenchRow| {
        Some(four.outcome.as_ref().ok()?.tokens_per_s / alone(four)?.tokens_per_s)
    };
    least(rows.iter().filter(|row| row.workers == 4).filter_map(ratio))
}

/// `optimism` is the time of an update before its verdict as a share of one in place.
fn optimism_of_step(
    optimism: f64,
    operations: &[OperationTiming],
    rows: &[GpuBenchRow],
) -> Option<f64> {
    let in_place = operations.iter().find(|row| row.name == "adamw in place")?;
    let fastest = best(rows, |row| row.model == "gpt2-124m", |run| -run.step_ms)?;
    Some(1e-3 * (optimism - 1.0) * in_place.us / -fastest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(
        name: &str,
        bound: RooflineBound,
        us: [f64; 2],
        fastest_us: Option<f64>,
    ) -> OperationTiming {
        let [us, floor_us] = us;
        OperationTiming { name: name.to_owned(), us, floor_us, bound, fastest_us }
    }

    fn row(model: &'static str, workers: u32, tokens_per_s: f64, mfu: f64) -> GpuBenchRow {
        let figures = GpuBenchFigures { step_ms: 100.0, tokens_per_s, mfu, bubble: 0.0, loss: 3.0 };
        GpuBenchRow {
            model,
            sequence_len: 4096,
            workers,
            schedule: "zb-h1",
            has_graphs: true,
            outcome: Ok(figures),
        }
    }

    #[test]
    fn the_worst_of_each_kind_counts() {
        let operations = [
            operation("up F", RooflineBound::Arithmetic, [100.0, 50.0], Some(97.0)),
            operation("up W", RooflineBound::Arithmetic, [100.0, 50.0], Some(90.0)),
            operation("norm F", RooflineBound::Memory, [10.0, 9.0], None),
            operation("embed W", RooflineBound::Memory, [10.0, 1.0], None),
            operation("adamw candidate", RooflineBound::Memory, [2000.0, 1800.0], None),
            operation("adamw commit", RooflineBound::Memory, [1000.0, 850.0], None),
            operation("adamw in place", RooflineBound::Memory, [2000.0, 1700.0], None),
        ];
        let rows = [
            row("llama-1b", 1, 1000.0, 0.55),
            row("llama-1b", 4, 850.0, 0.45),
            row("gpt2-124m", 1, 2000.0, 0.4),
            row("gpt2-124m", 4, 1950.0, 0.4),
        ];
        let goals = goals(&operations, Some(1.5), &rows);
        let measured: Vec<f64> = goals.iter().map(|goal| goal.measured.expect("it was")).collect();
        assert_eq!(measured, [0.9, 0.85, 0.55, 0.85, 1.5, 0.01]);
        let reached: Vec<_> = goals.iter().filter_map(PerformanceGoal::is_reached).collect();
        assert_eq!(reached, [false, true, true, false, true, true]);
        assert!(goals[0].line().ends_with("0.900 >= 0.95  missed"), "{}", goals[0].line());
    }

    #[test]
    fn what_was_not_run_is_not_measured() {
        let did_not_fit =
            GpuBenchRow { outcome: Err("no room".to_owned()), ..row("llama-1b", 4, 0.0, 0.0) };
        let goals = goals(&[], None, &[row("tiny", 1, 1.0, 0.1), did_not_fit]);
        assert!(goals.iter().all(|goal| goal.is_reached().is_none()), "{goals:?}");
        assert!(goals[0].line().ends_with("not measured"));
    }
}
