//! `bench step`: the fastest of a few training steps of one model, or those of a pipeline, for
//! comparisons that measure another program in turns with this one (`docs/compare_pytorch_cpu.py`,
//! `docs/compare_pytorch_pipelines.py`), and what reading a token store and keeping its documents apart
//! costs.

use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use zbelastic_data::window::Packing;
use zbelastic_kernels::CpuBackend;
use zbelastic_machine::peak_flop_per_s;
use zbelastic_schedule::ScheduleKind;
use zbelastic_wording::CommandError;

use super::case::{BatchSplit, BenchCase};
use super::serial::SerialEngine;
use super::{out_of_resource, pipelined};
use crate::args::BenchStepArgs;

/// A peak run lasts as long as a step, but for the largest models.
const PEAK_RUN_MAX: Duration = Duration::from_millis(100);

/// The fastest step.
#[derive(Debug, Serialize)]
struct StepResult {
    config: &'static str,
    instructions: &'static str,
    threads: u32,
    step_ms: f64,
    tokens_per_s: f64,
    /// Of the same threads, measured between the steps.
    peak_gflop_per_s: f64,
    peak_share: f64,
    stores: Vec<StoreStep>,
}

/// The fastest step over a token store, in turns with the others.
#[derive(Debug, Serialize)]
struct StoreStep {
    packing: &'static str,
    step_ms: f64,
    /// Beside the step over the text in memory.
    ratio: f64,
}

/// Steps of a pipeline.
#[derive(Debug, Serialize)]
struct PipelineSteps {
    config: &'static str,
    instructions: &'static str,
    schedule: &'static str,
    workers: u32,
    /// From seal to seal, the mean.
    step_ms: f64,
    tokens_per_s: f64,
    bubble: f64,
    bubble_planned: f64,
}

/// Workers of a pipeline, each with one thread.
const WORKERS: u32 = 2;

/// How a store is read, by the names of `data.packing`.
const PACKINGS: [(&str, Packing); 2] =
    [("concat", Packing::Concat), ("documents", Packing::Documents)];

/// Runs `bench step`.
pub fn run(args: &BenchStepArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let case = BenchCase::new(args.config)?;
    if let Some(kind) = args.schedule {
        return pipeline(args, &case, kind, out);
    }
    let cpu = CpuBackend::new(args.threads as usize).map_err(|error| out_of_resource(&error))?;
    let mut engine = SerialEngine::new(&case, args.threads as usize, BatchSplit::Whole)?;
    let mut stored = Vec::new();
    for (name, packing) in PACKINGS {
        if let Some(folder) = &args.tokens {
            let split = BatchSplit::Whole;
            let data = case.stored(split, folder, packing)?;
            let engine = SerialEngine::reading(&case, args.threads as usize, split, data)?;
            stored.push((name, engine, Duration::MAX));
        }
    }
    let first = engine.steps(1);
    for (_, engine, _) in &mut stored {
        engine.steps(1);
    }
    let mut best = Duration::MAX;
    let mut peak: f64 = 0.0;
    for _ in 0..args.steps {
        peak = peak.max(peak_flop_per_s(&cpu, first.min(PEAK_RUN_MAX)));
        best = best.min(engine.steps(1));
        for (_, engine, best) in &mut stored {
            *best = engine.steps(1).min(*best);
        }
    }
    let row = |(packing, _, step): &(&'static str, SerialEngine, Duration)| StoreStep {
        packing,
        step_ms: step.as_secs_f64() * 1e3,
        ratio: step.as_secs_f64() / best.as_secs_f64(),
    };
    let result = StepResult {
        config: args.config.name(),
        instructions: cpu.instruction_set().name(),
        threads: args.threads,
        step_ms: best.as_secs_f64() * 1e3,
        tokens_per_s: case.batch.tokens() as f64 / best.as_secs_f64(),
        peak_gflop_per_s: peak / 1e9,
        peak_share: case.step_flop() / best.as_secs_f64() / peak,
        stores: stored.iter().map(row).collect(),
    };
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&result).expect("numbers are JSON"))?;
        return Ok(());
    }
    let StepResult { config, instructions, threads, step_ms, tokens_per_s, .. } = result;
    let share = 100.0 * result.peak_share;
    writeln!(
        out,
        "{config} {instructions}, {threads} threads: {step_ms:.1} ms, {tokens_per_s:.0} tok/s, \
         {share:.1} % of peak"
    )?;
    for StoreStep { packing, step_ms, ratio } in &result.stores {
        writeln!(out, "  over the store, {packing}: {step_ms:.1} ms, {ratio:.3} times that")?;
    }
    Ok(())
}

/// Steps of a pipeline in this schedule.
fn pipeline(
    args: &BenchStepArgs,
    case: &BenchCase,
    kind: ScheduleKind,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let cpu = CpuBackend::new(1).map_err(|error| out_of_resource(&error))?;
    let round = pipelined::round(case, kind, WORKERS, args.steps.into())?;
    let result = PipelineSteps {
        config: args.config.name(),
        instructions: cpu.instruction_set().name(),
        schedule: kind.name(),
        workers: WORKERS,
        step_ms: round.step.as_secs_f64() * 1e3,
        tokens_per_s: case.batch.tokens() as f64 / round.step.as_secs_f64(),
        bubble: round.bubbles.measured,
        bubble_planned: round.bubbles.planned,
    };
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&result).expect("numbers are JSON"))?;
        return Ok(());
    }
    let PipelineSteps { config, instructions, schedule, step_ms, tokens_per_s, .. } = result;
    writeln!(
        out,
        "{config} {instructions}, {schedule}, {WORKERS} workers with one thread each: {step_ms:.1} ms, \
         {tokens_per_s:.0} tok/s, bubble {:.1} % (planned {:.1} %)",
        100.0 * result.bubble,
        100.0 * result.bubble_planned,
    )?;
    Ok(())
}
