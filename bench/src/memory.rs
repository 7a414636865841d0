//! `bench memory`: the peak memory of the process, beside the claim of the plan.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_kernels::CpuBackend;
use zbelastic_local::cluster::train;
use zbelastic_local::interrupt::Interrupt;
use zbelastic_local::job::TrainingJob;
use zbelastic_machine::resident_peak;
use zbelastic_schedule::ScheduleKind;
use zbelastic_trainer::plan::stage_memory;
use zbelastic_types::{Bytes, StageIndex};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use super::case::{BatchSplit, BenchCase, pipeline};
use super::out_of_resource;
use crate::args::{BenchConfig, BenchMemoryArgs};

/// Planned memory of the stages, and the measured peak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes that the plan predicts for all stages.
    pub planned: Bytes,
    /// The most that the process had at once while it trained.
    pub resident_peak: Bytes,
    /// `resident_peak` over `planned`.
    pub ratio: f64,
}

/// Steps after which the memory of a run grows no more.
const STEPS: u64 = 3;

/// Runs `bench memory`.
pub fn run(args: &BenchMemoryArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let report = measure(args)?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report).expect("numbers are JSON"))?;
        return Ok(());
    }
    let BenchMemoryArgs { config, workers, schedule, .. } = args;
    let MemoryReport { planned, resident_peak, ratio } = report;
    writeln!(out, "{}, {workers} workers, {schedule}", config.name())?;
    writeln!(out, "planned {planned}, taken {resident_peak}: {ratio:.2} of the plan")?;
    Ok(())
}

fn measure(args: &BenchMemoryArgs) -> Result<MemoryReport, CommandFailure> {
    let case = BenchCase::new(args.config)?;
    let split = BatchSplit::Microbatches;
    let mut setup = case.setup(args.schedule, pipeline(args.workers), split, STEPS)?;
    // Workers draw the weights they need themselves; no copy of the whole model is held.
    setup.weights = zbelastic_trainer::stage::InitialWeights::Drawn { seed: 1 };
    let policy = case.policy();
    let corpus = case.corpus(split)?;
    drop(case);
    let backend = CpuBackend::new(1).map_err(|error| out_of_resource(&error))?;
    let stages = (0..args.workers).map(StageIndex);
    let optimizer = setup.optimizer.kind;
    let claim = |stage| stage_memory(&backend, &setup.model, optimizer, &setup.plan, stage);
    let claims = stages.map(claim);
    let planned: Bytes = claims.map(|claim| claim.total()).sum();
    let interrupt = Interrupt::default();
    let job = TrainingJob {
        setup: Arc::new(setup),
        policy,
        corpus,
        islands: None,
        threads: 1,
        interrupt,
    };
    let mut peak = None;
    train(&job, &mut |_| {
        // While the last step is reported all workers still have their memory.
        peak = resident_peak();
        ControlFlow::Continue(())
    })?;
    let unknown =
        || CommandFailure::new(FailureCode::Internal, "this system does not report peak memory");
    let resident_peak = peak.ok_or_else(unknown)?;
    let ratio = resident_peak.0 as f64 / planned.0 as f64;
    Ok(MemoryReport { planned, resident_peak, ratio })
}

/// The same in a process of its own, because a process remembers its peak over all it ran.
pub fn measure_apart(
    config: BenchConfig,
    kind: ScheduleKind,
) -> Result<MemoryReport, CommandFailure> {
    let failed =
        |why: String| CommandFailure::new(FailureCode::Internal, format!("bench memory: {why}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let output = Command::new(program)
        .args(["bench", "memory", "--json", "--config", config.name(), "--schedule", kind.name()])
        .output()
        .map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| failed(format!("{error}: {}", String::from_utf8_lossy(&output.stderr))))
}
