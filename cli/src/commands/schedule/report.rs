//! The report of `schedule simulate` about a replay.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use zbelastic_schedule::{ChunkMemory, MemoryOp, Program, ScheduleSolution, Timeline, peak_memory};
use zbelastic_wording::CommandError;

use super::inputs::SimulationInput;

/// The figures of one step.
#[derive(Debug, Serialize)]
pub struct ScheduleReport {
    kind: &'static str,
    p: u32,
    /// Pipelines of `p` stages side by side.
    #[serde(skip_serializing_if = "is_one")]
    replicas: u32,
    m: u32,
    window: Option<String>,
    makespan: f64,
    cost: f64,
    bubble_span: f64,
    bubble_sync: f64,
    /// From one step's beginning to the next's, waiting and stepping included; `None` if only one
    /// step was simulated.
    period: Option<f64>,
    /// By stage, the most memory that it holds at once.
    peak_mem: Vec<f64>,
    /// By stage: passes that are made again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remade: Vec<usize>,
    /// By stage: passes that are offloaded and reloaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<usize>,
    #[serde(flatten)]
    found: Option<SolutionQuality>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(skip)]
    step: u32,
    #[serde(skip)]
    step_count: u32,
}

/// How good a solution is.
#[derive(Debug, Serialize)]
pub struct SolutionQuality {
    /// The time of the step, by its end: the longest span of a stage and the work behind it, or the
    /// time until all have the verdict.
    step_time: f64,
    lower_bound: f64,
    gap: f64,
    proven_optimal: bool,
    solve_ms: f64,
}

impl SolutionQuality {
    /// Of a solution that was searched for so long.
    pub fn new(solution: &ScheduleSolution, took: Duration) -> Self {
        Self {
            step_time: solution.cost,
            lower_bound: solution.lower_bound,
            gap: solution.gap(),
            proven_optimal: solution.is_proven_optimal(),
            solve_ms: took.as_secs_f64() * 1e3,
        }
    }
}

impl fmt::Display for SolutionQuality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step_time, lower_bound, gap, proven_optimal, solve_ms } = self;
        write!(f, "step time {}, ", short(*step_time))?;
        if *proven_optimal {
            write!(f, "proven optimal")?;
        } else {
            write!(f, "at most {:.2} % from optimal", 100.0 * gap)?;
        }
        write!(f, ": no order takes less than {}; {solve_ms:.1} ms", short(*lower_bound))
    }
}

impl ScheduleReport {
    /// The figures of `replay`.
    pub fn new(
        replay: &SimulationInput,
        timeline: &Timeline,
        memory: &[ChunkMemory],
        with_program: bool,
    ) -> Self {
        let SimulationInput { program, step, step_count, .. } = replay;
        Self {
            kind: program.kind.name(),
            p: program.placement.stages_per_column(),
            replicas: program.placement.column_count(),
            m: program.microbatch_count,
            window: program.window.map(|window| window.to_string()),
            makespan: timeline.makespan(*step),
            cost: timeline.cost(*step),
            bubble_span: timeline.bubble_span(*step),
            bubble_sync: timeline.bubble_sync(*step),
            period: period(timeline, *step),
            peak_mem: peak_memory(program, memory),
            remade: count(program, MemoryOp::Drop),
            left: count(program, MemoryOp::Offload),
            found: None,
            program: with_program.then(|| program.to_string()),
            step: *step,
            step_count: *step_count,
        }
    }

    /// The same, with how good a solution it is, if that is known.
    pub fn with(self, found: Option<SolutionQuality>) -> Self {
        Self { found, ..self }
    }

    /// The same, with how steps follow each other in a run.
    pub fn in_run(self, replay: &SimulationInput, timeline: &Timeline) -> Self {
        let window = replay.program.window.map(|window| window.to_string());
        Self { window, period: period(timeline, replay.step), ..self }
    }

    /// Writes the report as one JSON object.
    pub fn write_json(&self, out: &mut dyn Write) -> Result<(), CommandError> {
        let text = serde_json::to_string_pretty(self).expect("finite numbers are JSON");
        writeln!(out, "{text}")?;
        Ok(())
    }

    /// A headline and a row a stage.
    pub fn write_table(
        &self,
        timeline: &Timeline,
        out: &mut dyn Write,
    ) -> Result<(), CommandError> {
        let window = match &self.window {
            Some(window) if self.step_count > 1 => {
                format!(", window {window}, step {} of {}", self.step + 1, self.step_count)
            }
            Some(window) => format!(", window {window}"),
            None => String::new(),
        };
        let period =
            self.period.map_or(String::new(), |period| format!(", a step every {}", short(period)));
        let replicas = match self.replicas {
            1 => String::new(),
            replicas => format!(" × {replicas} replicas"),
        };
        let Self { kind, p, m, .. } = self;
        writeln!(out, "{kind}, {p} stages{replicas}, {m} microbatches{window}")?;
        writeln!(
            out,
            "longest stage {}, makespan {}, bubble rate {:.2} %, synchronized {:.2} %{period}",
            short(self.cost),
            short(self.makespan),
            100.0 * self.bubble_span,
            100.0 * self.bubble_sync
        )?;
        if let Some(found) = &self.found {
            writeln!(out, "{found}")?;
        }
        writeln!(out)?;
        write!(out, "{:<6} {:>12} {:>12} {:>12} {:>12}", "stage", "work", "idle", "span", "peak")?;
        let counts = [("again", &self.remade), ("away", &self.left)];
        let counts: Vec<_> = counts.into_iter().filter(|(_, counts)| !counts.is_empty()).collect();
        counts.iter().try_for_each(|(name, _)| write!(out, " {name:>6}"))?;
        writeln!(out)?;
        for (stage, peak) in timeline.stages().zip(&self.peak_mem) {
            let work = timeline.work(stage, self.step);
            let span = timeline.span(stage, self.step);
            let figures = [work, span - work, span, *peak];
            write!(out, "{:<6}", stage.0)?;
            figures.into_iter().try_for_each(|figure| write!(out, " {:>12}", short(figure)))?;
            counts.iter().try_for_each(|(_, of)| write!(out, " {:>6}", of[stage.index()]))?;
            writeln!(out)?;
        }
        if let Some(program) = &self.program {
            write!(out, "\n{program}")?;
        }
        Ok(())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

/// By stage, how many passes have this done to them; nothing at all if none has.
fn count(program: &Program, memory: MemoryOp) -> Vec<usize> {
    let mut counts = Vec::new();
    for (stage, _) in program.passes_with(memory) {
        counts.resize(program.stages.len(), 0);
        counts[stage.index()] += 1;
    }
    counts
}

/// How long after `step` the first stage begins the next one, if there is a next one.
fn period(timeline: &Timeline, step: u32) -> Option<f64> {
    let first = timeline.stages().next().expect("a pipeline has stages");
    let start = |step| {
        let slice = timeline.slices(first).iter().find(|slice| slice.step == step)?;
        Some(slice.start)
    };
    Some(start(step + 1)? - start(step)?)
}

/// A number with at most three digits after the point.
pub fn short(number: f64) -> String {
    format!("{}", (number * 1000.0).round() / 1000.0)
}
