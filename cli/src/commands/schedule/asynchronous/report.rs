//! The report of `schedule simulate` about a run of an asynchronous schedule.

use std::io::Write;

use serde::Serialize;
use zbelastic_schedule::asynchronous::{
    AsyncPeakMemory, AsyncProgram, AsyncSimulation, SteadyPipeline, peak_memory_async,
};
use zbelastic_wording::CommandError;

use super::AsyncMemoryCosts;
use crate::commands::schedule::report::short;

/// The spans that the figures of the whole run and those of the rhythm are measured over.
const MEASURED: &str = "the whole run, from its first pass to its last; period and steady while the \
                        pipeline is full";

/// The figures of a run.
#[derive(Debug, Serialize)]
pub struct AsyncScheduleReport {
    kind: &'static str,
    p: u32,
    /// Microbatches of a step.
    m: u32,
    steps: u32,
    pipelines: u32,
    measured: &'static str,
    makespan: f64,
    cost: f64,
    bubble_span: f64,
    bubble_sync: f64,
    /// From the end of a step to the end of the next one.
    period: Option<f64>,
    steady: Option<SteadyState>,
    /// By stage, of activations and versions together.
    peak_mem: Vec<f64>,
    peak_activations: Vec<f64>,
    /// In weights of the stage.
    peak_versions: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(skip)]
    rows: Vec<AsyncStageRow>,
}

/// A pipeline that is full.
#[derive(Debug, Serialize)]
struct SteadyState {
    /// Steps that are over when it is measured from, and until.
    from_step: u32,
    to_step: u32,
    bubble: f64,
    /// By stage, the time that it waits in a period.
    idle: Vec<f64>,
}

/// A stage in the whole run.
#[derive(Debug)]
struct AsyncStageRow {
    work: f64,
    span: f64,
}

impl SteadyState {
    fn new(steady: &SteadyPipeline) -> Self {
        let SteadyPipeline { from, to, period, work } = steady;
        let idle = work.iter().map(|work| period - work).collect();
        Self { from_step: *from, to_step: *to, bubble: steady.bubble(), idle }
    }
}

impl AsyncScheduleReport {
    /// The figures of `simulation`.
    pub fn new(
        simulation: &AsyncSimulation,
        memory: &AsyncMemoryCosts,
        with_program: bool,
    ) -> Self {
        let AsyncSimulation { program, timeline } = simulation;
        let AsyncProgram { replica_count, minibatch_count, microbatch_count, .. } = *program;
        let peaks = peak_memory_async(program, &memory.chunks, &memory.weights);
        let peak = |of: fn(&AsyncPeakMemory) -> f64| peaks.iter().map(of).collect();
        let steady = simulation.steady();
        let row =
            |stage| AsyncStageRow { work: timeline.work(stage, 0), span: timeline.span(stage, 0) };
        Self {
            kind: program.kind.name(),
            p: program.placement.stage_count(),
            m: microbatch_count,
            steps: minibatch_count,
            pipelines: replica_count,
            measured: MEASURED,
            makespan: timeline.makespan(0),
            cost: timeline.cost(0),
            bubble_span: timeline.bubble_span(0),
            bubble_sync: timeline.bubble_sync(0),
            period: steady.as_ref().map(|steady| steady.period),
            steady: steady.as_ref().map(SteadyState::new),
            peak_mem: peak(|peak| peak.both),
            peak_activations: peak(|peak| peak.activations),
            peak_versions: peak(|peak| peak.versions),
            program: with_program.then(|| program.to_string()),
            rows: timeline.stages().map(row).collect(),
        }
    }

    /// Writes the report as one JSON object.
    pub fn write_json(&self, out: &mut dyn Write) -> Result<(), CommandError> {
        let text = serde_json::to_string_pretty(self).expect("finite numbers are JSON");
        writeln!(out, "{text}")?;
        Ok(())
    }

    /// The measurements, and a row a stage.
    pub fn write_table(&self, out: &mut dyn Write) -> Result<(), CommandError> {
        let pipelines = match self.pipelines {
            1 => String::new(),
            pipelines => format!(", in turn through {pipelines} pipelines"),
        };
        let Self { kind, p, m, steps, .. } = self;
        writeln!(out, "{kind}, {p} stages, {m} microbatches in each of {steps} steps{pipelines}")?;
        writeln!(
            out,
            "whole run: longest stage {}, makespan {}, bubble rate {:.2} %, synchronized {:.2} %",
            short(self.cost),
            short(self.makespan),
            100.0 * self.bubble_span,
            100.0 * self.bubble_sync
        )?;
        writeln!(out, "{}", self.rhythm_line())?;
        writeln!(
            out,
            "\n{:<6} {:>10} {:>10} {:>10} {:>12} {:>12} {:>10} {:>10}",
            "stage", "work", "idle", "span", "idle/step", "activations", "versions", "peak"
        )?;
        for (stage, AsyncStageRow { work, span }) in self.rows.iter().enumerate() {
            let idle = self.steady.as_ref().map(|steady| short(steady.idle[stage]));
            writeln!(
                out,
                "{stage:<6} {:>10} {:>10} {:>10} {:>12} {:>12} {:>10} {:>10}",
                short(*work),
                short(span - work),
                short(*span),
                idle.unwrap_or_else(|| "-".to_owned()),
                short(self.peak_activations[stage]),
                short(self.peak_versions[stage]),
                short(self.peak_mem[stage])
            )?;
        }
        if let Some(program) = &self.program {
            write!(out, "\n{program}")?;
        }
        Ok(())
    }

    fn rhythm_line(&self) -> String {
        match self.period.zip(self.steady.as_ref()) {
            Some((period, SteadyState { from_step, to_step, bubble, .. })) => format!(
                "full pipeline, from the end of step {from_step} to that of step {to_step}: a step \
                 every {}, bubble {:.2} %",
                short(period),
                100.0 * bubble
            ),
            None => "full pipeline: never for as long as a step; take more --steps".to_owned(),
        }
    }
}
