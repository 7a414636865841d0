//! `bench ops`: each operation of a step by itself, beside the least time that its arithmetic and
//! its bytes take, and its share of the step.
//!
//! Operations run on buffers of their own, one after the other in turns, so an operand is as warm
//! as the operations between two turns leave it. What a step takes beyond their sum is the engine,
//! validation, and operands that are colder there.

mod linear_layer;
mod table;

use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use zbelastic_kernels::{CpuBackend, InstructionSet};
use zbelastic_machine::{core_count, peak_flop_per_s};
use zbelastic_wording::{CommandError, CommandFailure};

use self::table::{TimedOperation, operations, optimizer_operations};
use super::case::{BatchSplit, BenchCase};
use super::optimizer::OptimizerBench;
use super::out_of_resource;
use super::serial::SerialEngine;
use crate::args::{BenchArgs, BenchConfig};

/// Floats of the copy that bytes are compared with: more than caches hold, read and written.
const COPIED: usize = 32 << 20;
/// Runs of the peak last as long as most operations.
const PEAK_RUN: Duration = Duration::from_millis(5);

/// What the machine does at best in this run, on one thread.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct MachineRates {
    flop_per_s: f64,
    /// Bytes that a plain copy reads and writes.
    bytes_per_s: f64,
}

/// An operation of a step.
#[derive(Debug, Serialize)]
struct OperationRow {
    config: &'static str,
    instructions: &'static str,
    operation: &'static str,
    /// Times that a step runs it.
    count: usize,
    ms: f64,
    /// The least time of its arithmetic at the peak.
    flop_floor_ms: f64,
    /// The least time of its bytes at the rate of a copy.
    byte_floor_ms: f64,
    /// The greater floor over the time.
    share_of_floor: f64,
    share_of_step: f64,
    /// The time on one thread over that on two.
    two_threads: Option<f64>,
}

/// Runs `bench ops`.
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let rounds = if args.quick { 3 } else { 12 };
    for set in super::gemm::measured_sets() {
        for config in args.configs() {
            let report = measure(*config, set, rounds)?;
            if args.json {
                for row in &report.operations {
                    writeln!(out, "{}", serde_json::to_string(row).expect("numbers are JSON"))?;
                }
            } else {
                report.write(out)?;
            }
            out.flush()?;
        }
    }
    Ok(())
}

/// All of a model with one instruction set.
struct OperationReport {
    config: &'static str,
    instructions: &'static str,
    rates: MachineRates,
    /// A step of the engine on one thread; only with the instructions that it chooses itself.
    step_ms: Option<f64>,
    operations: Vec<OperationRow>,
}

impl OperationReport {
    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { config, instructions, rates, step_ms, operations } = self;
        let gflop = rates.flop_per_s / 1e9;
        let gbyte = rates.bytes_per_s / 1e9;
        writeln!(
            out,
            "{config} {instructions}: peak {gflop:.1} GFLOP/s, copy {gbyte:.1} GB/s, one thread\n\
             {:<12} {:>5} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9}",
            "operation", "count", "ms each", "by FLOP", "by bytes", "floor", "step", "2 threads"
        )?;
        for row in operations {
            let OperationRow { operation, count, ms, flop_floor_ms, byte_floor_ms, .. } = row;
            let floor = 100.0 * row.share_of_floor;
            let step = 100.0 * row.share_of_step;
            let threads =
                row.two_threads.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}×"));
            writeln!(
                out,
                "{operation:<12} {count:>5} {ms:>9.3} {flop_floor_ms:>9.3} {byte_floor_ms:>9.3} \
                 {floor:>5.0} % {step:>5.1} % {threads:>9}"
            )?;
        }
        let sum: f64 = operations.iter().map(|row| row.count as f64 * row.ms).sum();
        match step_ms {
            Some(step) => writeln!(out, "sum {sum:.1} ms of a step of {step:.1} ms\n"),
            None => writeln!(out, "sum {sum:.1} ms\n"),
        }
    }
}

fn measure(
    config: BenchConfig,
    set: InstructionSet,
    rounds: u32,
) -> Result<OperationReport, CommandFailure> {
    let case = BenchCase::new(config)?;
    let backend = |threads: usize| {
        CpuBackend::with_instructions(threads, set).map_err(|error| out_of_resource(&error))
    };
    let cpu = backend(1)?;
    let two = if core_count() > 1 { Some(backend(2)?) } else { None };
    let refused = |error| out_of_resource(&error);
    let shape = case.batch(BatchSplit::Whole).microbatch;
    let mut timed = operations(&cpu, &case.model, shape).map_err(refused)?;
    timed.extend(optimizer_operations(&case, OptimizerBench::new(&case)?));
    let is_own = InstructionSet::of_environment() == Ok(set);
    let mut engine =
        if is_own { Some(SerialEngine::new(&case, 1, BatchSplit::Whole)?) } else { None };
    let mut step = Duration::MAX;
    let mut rates = MachineRates::default();
    let mut copy = CopyBench::new();
    for _ in 0..rounds {
        rates.flop_per_s = rates.flop_per_s.max(peak_flop_per_s(&cpu, PEAK_RUN));
        rates.bytes_per_s = rates.bytes_per_s.max(copy.bytes_per_s());
        for operation in &mut timed {
            operation.run(&cpu, two.as_ref());
        }
        if let Some(engine) = &mut engine {
            step = step.min(engine.steps(1));
        }
    }
    let step = engine.map(|_| step);
    Ok(report(config, set, rates, step, &timed))
}

fn report(
    config: BenchConfig,
    set: InstructionSet,
    rates: MachineRates,
    step: Option<Duration>,
    timed: &[TimedOperation<'_>],
) -> OperationReport {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let sum: Duration =
        timed.iter().map(|operation| operation.best[0] * operation.count as u32).sum();
    let whole = ms(step.unwrap_or(sum));
    let row = |operation: &TimedOperation<'_>| {
        let [one, two] = operation.best.map(ms);
        let flop_floor_ms = operation.flop / rates.flop_per_s * 1e3;
        let byte_floor_ms = operation.bytes as f64 / rates.bytes_per_s * 1e3;
        OperationRow {
            config: config.name(),
            instructions: set.name(),
            operation: operation.name,
            count: operation.count,
            ms: one,
            flop_floor_ms,
            byte_floor_ms,
            share_of_floor: flop_floor_ms.max(byte_floor_ms) / one,
            share_of_step: operation.count as f64 * one / whole,
            two_threads: (operation.best[1] < Duration::MAX).then_some(one / two),
        }
    };
    OperationReport {
        config: config.name(),
        instructions: set.name(),
        rates,
        step_ms: step.map(ms),
        operations: timed.iter().map(row).collect(),
    }
}

/// A plain copy of memory that is in no cache.
struct CopyBench {
    from: Vec<f32>,
    to: Vec<f32>,
}

impl CopyBench {
    fn new() -> Self {
        Self { from: vec![1.0; COPIED], to: vec![0.0; COPIED] }
    }

    fn bytes_per_s(&mut self) -> f64 {
        let began = Instant::now();
        self.to.copy_from_slice(&self.from);
        std::hint::black_box(&mut self.to);
        (2 * size_of::<f32>() * COPIED) as f64 / began.elapsed().as_secs_f64()
    }
}
