//! `bench step`: the fastest of a few training steps of one model, for comparisons that measure
//! another program in turns with this one (`docs/compare_pytorch_cpu.py`).

use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use zbelastic_kernels::CpuBackend;
use zbelastic_machine::peak_flop_per_s;
use zbelastic_wording::CommandError;

use super::case::{BatchSplit, BenchCase};
use super::out_of_resource;
use super::serial::SerialEngine;
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
}

/// Runs `bench step`.
pub fn run(args: &BenchStepArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let case = BenchCase::new(args.config)?;
    let cpu = CpuBackend::new(args.threads as usize).map_err(|error| out_of_resource(&error))?;
    let mut engine = SerialEngine::new(&case, args.threads as usize, BatchSplit::Whole)?;
    let first = engine.steps(1);
    let mut best = Duration::MAX;
    let mut peak: f64 = 0.0;
    for _ in 0..args.steps {
        peak = peak.max(peak_flop_per_s(&cpu, first.min(PEAK_RUN_MAX)));
        best = best.min(engine.steps(1));
    }
    let result = StepResult {
        config: args.config.name(),
        instructions: cpu.instruction_set().name(),
        threads: args.threads,
        step_ms: best.as_secs_f64() * 1e3,
        tokens_per_s: case.batch.tokens() as f64 / best.as_secs_f64(),
        peak_gflop_per_s: peak / 1e9,
        peak_share: case.step_flop() / best.as_secs_f64() / peak,
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
    Ok(())
}
