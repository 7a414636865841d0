//! `bench gpu`: whether a device computes what it should, and how fast.
//!
//! The conformance suite comes first, and nothing is timed on a device that does not pass it. Then what a
//! plain copy and a large product reach, each operation beside the floor that follows from these two, and
//! whole steps of models with one worker on the device and with several.

mod models;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use zbelastic_kernels::Backend;
use zbelastic_kernels::conformance::behaviours;
use zbelastic_kernels::cuda::cache::Cache;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::times::{OperationTime, Rates, Sizes, Stand, measure, optimism};
use zbelastic_kernels::cuda::{CudaBackend, CudaDevice, OpenError};

use super::out_of_resource;
use crate::args::BenchGpuArgs;
use crate::failure::{Failure, FailureCode, Stop, cannot_write};

/// Runs of an operation of which the fastest counts.
const RUNS: u32 = 10;
/// Steps of a model that count.
const STEPS: u64 = 5;
const QUICK_STEPS: u64 = 3;

/// All that is measured.
#[derive(Debug, Serialize)]
struct Report {
    device: String,
    architecture: String,
    /// Behaviours of the conformance suite, all of which hold in both types of activations.
    behaviours: usize,
    /// By type of activations.
    types: Vec<OfType>,
}

#[derive(Debug, Serialize)]
struct OfType {
    activations: &'static str,
    /// Of a plain copy.
    bytes_per_s: f64,
    /// Of a large product.
    flop_per_s: f64,
    operations: Vec<Operation>,
    /// What an update before its verdict takes of one in place.
    optimism: Option<f64>,
    models: Vec<models::Row>,
}

/// What an operation took, and takes at least.
#[derive(Debug, Serialize)]
struct Operation {
    name: String,
    us: f64,
    floor_us: f64,
}

/// Runs `bench gpu`.
pub fn run(args: &BenchGpuArgs, out: &mut dyn Write) -> Result<(), Stop> {
    let device = open(args.device, Precision::F32)?;
    let info = device.info().clone();
    drop(device);
    let mut tell = Tell { out, is_json: args.json };
    tell.line(&format!("device {}: {}, {}", info.index, info.name, info.architecture))?;
    let mut count = 0;
    for precision in Precision::ALL {
        let two = [open(args.device, precision)?, open(args.device, precision)?];
        count = conform(&two.map(CudaBackend::new), precision)?;
    }
    tell.line(&format!("{count} behaviours hold, in both types of activations"))?;
    let mut types = Vec::new();
    for precision in Precision::ALL {
        types.push(of_type(args, precision, &mut tell)?);
    }
    let (device, architecture) = (info.name, info.architecture.to_string());
    let report = Report { device, architecture, behaviours: count, types };
    let text = serde_json::to_string_pretty(&report).expect("numbers and names are JSON");
    if let Some(path) = &args.out {
        std::fs::write(path, format!("{text}\n")).map_err(|error| cannot_write(path, &error))?;
        tell.line(&format!("written to {}", Path::new(path).display()))?;
    }
    if args.json {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

/// Lines for a person, who does not want to wait for all of it.
struct Tell<'a> {
    out: &'a mut dyn Write,
    is_json: bool,
}

impl Tell<'_> {
    fn line(&mut self, line: &str) -> Result<(), Stop> {
        if !self.is_json {
            writeln!(self.out, "{line}")?;
            self.out.flush()?;
        }
        Ok(())
    }
}

fn open(index: usize, precision: Precision) -> Result<Arc<CudaDevice>, Failure> {
    let opened = CudaDevice::open(index, precision, &Cache::of_environment());
    opened.map(|opened| opened.device).map_err(|error| no_device(&error))
}

fn no_device(error: &OpenError) -> Failure {
    Failure::new(FailureCode::OutOfResource, error.to_string())
}

const fn name_of(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "f32",
        Precision::Bf16 => "bf16",
    }
}

/// How many behaviours there are, if the devices have them all. What is wrong is told on standard error
/// as it is found.
fn conform<B: Backend>(devices: &[B], precision: Precision) -> Result<usize, Failure> {
    let behaviours = behaviours::<B>();
    let holds = |test: fn(&[B])| catch_unwind(AssertUnwindSafe(|| test(devices))).is_ok();
    let failed: Vec<&str> =
        behaviours.iter().filter(|(_, test)| !holds(*test)).map(|(name, _)| *name).collect();
    if failed.is_empty() {
        return Ok(behaviours.len());
    }
    let (name, count) = (name_of(precision), behaviours.len());
    let what = format!(
        "{} of {count} behaviours do not hold in {name}: {}",
        failed.len(),
        failed.join(", ")
    );
    Err(Failure::new(FailureCode::VerificationFailed, what))
}

fn of_type(args: &BenchGpuArgs, precision: Precision, tell: &mut Tell<'_>) -> Result<OfType, Stop> {
    let stand = Stand::new(open(args.device, precision)?, RUNS);
    let measured = measure(&stand, Sizes::SMALL_GPT2).map_err(|error| out_of_resource(&error))?;
    drop(stand);
    let (Rates { bytes_per_s, flop_per_s }, operations) = measured;
    let optimism = optimism(&operations);
    let operation = |OperationTime { name, us, floor_us }| Operation { name, us, floor_us };
    let operations: Vec<Operation> = operations.into_iter().map(operation).collect();
    let activations = name_of(precision);
    tell.line(&format!(
        "\n{activations}: a copy {:.0} GB/s, a product {:.0} TFLOP/s",
        bytes_per_s / 1e9,
        flop_per_s / 1e12
    ))?;
    tell.line(&format!("{:<18} {:>10} {:>10} {:>7}", "operation", "us", "floor us", "share"))?;
    for Operation { name, us, floor_us } in &operations {
        let share = 100.0 * floor_us / us;
        tell.line(&format!("{name:<18} {us:>10.1} {floor_us:>10.1} {share:>6.0}%"))?;
    }
    if let Some(ratio) = optimism {
        tell.line(&format!("an update before its verdict takes {ratio:.2} of one in place"))?;
    }
    tell.line(&format!(
        "\n{:<10} {:>5} {:>7} {:<9} {:<6} {:>9} {:>10} {:>6} {:>7}",
        "model", "len", "workers", "schedule", "graphs", "step ms", "tokens/s", "mfu", "bubble"
    ))?;
    let step_count = if args.quick { QUICK_STEPS } else { STEPS };
    let mut rows = Vec::new();
    for run in models::runs(args.quick) {
        let devices = (0..run.workers).map(|_| open(args.device, precision));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let row = run.measure(&run.case()?, devices, (step_count, flop_per_s));
        tell.line(&line_of(&row))?;
        rows.push(row);
    }
    Ok(OfType { activations, bytes_per_s, flop_per_s, operations, optimism, models: rows })
}

fn line_of(row: &models::Row) -> String {
    let models::Row { model, sequence_len, workers, schedule, has_graphs, outcome } = row;
    let graphs = if *has_graphs { "on" } else { "off" };
    let beginning = format!("{model:<10} {sequence_len:>5} {workers:>7} {schedule:<9} {graphs:<6}");
    match outcome {
        Ok(models::Figures { step_ms, tokens_per_s, mfu, bubble }) => {
            let (mfu, bubble) = (100.0 * mfu, 100.0 * bubble);
            format!("{beginning} {step_ms:>9.1} {tokens_per_s:>10.0} {mfu:>5.1}% {bubble:>6.1}%")
        }
        Err(why) => format!("{beginning} {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_kernels::CpuBackend;

    #[test]
    fn what_has_all_behaviours_is_told_how_many_there_are() {
        let two = [1, 2].map(|threads| CpuBackend::new(threads).expect("threads"));
        let count = conform(&two, Precision::F32).expect("a processor computes what it should");
        assert!(count >= 18, "{count}");
    }

    #[test]
    fn tables_have_a_line_for_what_did_not_fit() {
        let row = |outcome| models::Row {
            model: "gpt2-124m",
            sequence_len: 1024,
            workers: 4,
            schedule: "zb-h1",
            has_graphs: false,
            outcome,
        };
        let figures =
            models::Figures { step_ms: 12.34, tokens_per_s: 56789.0, mfu: 0.4, bubble: 0.05 };
        let line = line_of(&row(Ok(figures)));
        assert_eq!(
            line,
            "gpt2-124m   1024       4 zb-h1     off         12.3      56789  40.0%    5.0%"
        );
        assert!(line_of(&row(Err("no room".to_owned()))).ends_with("zb-h1     off    no room"));
    }
}
