//! `bench gpu`: whether a device computes correct results, and how fast.
//!
//! The conformance suite comes first, and nothing is timed on a device that does not pass it. Then
//! the rates that a plain copy and a large product reach, each operation beside the floor that
//! follows from these two, and whole steps of models with one worker on the device and with
//! several.

mod goals;
mod models;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use zbelastic_kernels::Backend;
use zbelastic_kernels::conformance::behaviours;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::timing::{
    DeviceRates, OperationTime, RooflineBound, TimedSizes, TimingHarness, measure, optimism,
};
use zbelastic_kernels::cuda::{CudaBackend, CudaDevice};
use zbelastic_machine::device::{self, open_failure};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, cannot_write};

use super::out_of_resource;
use crate::args::BenchGpuArgs;

/// Runs of an operation of which the fastest counts.
const RUNS: u32 = 10;
/// Steps of a model that count.
const STEPS: u64 = 5;
const QUICK_STEPS: u64 = 3;

/// All that is measured.
#[derive(Debug, Serialize)]
struct GpuReport {
    device: String,
    architecture: String,
    /// Behaviours of the conformance suite, all of which hold in these types of activations.
    behaviours: usize,
    /// One entry for each type of activations.
    types: Vec<PrecisionReport>,
}

#[derive(Debug, Serialize)]
struct PrecisionReport {
    activations: &'static str,
    /// Bytes a second of a plain copy.
    bytes_per_s: f64,
    /// Floating-point operations a second of a large product.
    flop_per_s: f64,
    operations: Vec<OperationTiming>,
    /// Time of an update before its verdict, over that of one in place.
    optimism: Option<f64>,
    models: Vec<models::GpuBenchRow>,
    goals: Vec<goals::PerformanceGoal>,
}

/// Measured time of an operation, and its floor.
#[derive(Debug, Serialize)]
struct OperationTiming {
    name: String,
    us: f64,
    floor_us: f64,
    /// The limit that the floor follows from.
    #[serde(serialize_with = "bound_name")]
    bound: RooflineBound,
    /// Of a product: the time of the fastest of the library's algorithms, split sums among them.
    fastest_us: Option<f64>,
}

/// Runs `bench gpu`.
pub fn run(args: &BenchGpuArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let device = open(args.device, Precision::F32)?;
    let info = device.info().clone();
    drop(device);
    let mut printer = ProgressPrinter { out, is_json: args.json };
    printer.print_line(&format!("device {}: {}, {}", info.index, info.name, info.architecture))?;
    let mut count = 0;
    for precision in args.precisions() {
        let two = [open(args.device, precision)?, open(args.device, precision)?];
        count = conform(&two.map(CudaBackend::new), precision)?;
    }
    let names: Vec<&str> = args.precisions().into_iter().map(Precision::name).collect();
    printer.print_line(&format!("{count} behaviours hold in {}", names.join(" and ")))?;
    let mut types = Vec::new();
    for precision in args.precisions() {
        types.push(of_type(args, precision, &mut printer)?);
    }
    let device = info.name;
    let architecture = info.architecture.to_string();
    let report = GpuReport { device, architecture, behaviours: count, types };
    let text = serde_json::to_string_pretty(&report).expect("numbers and names are JSON");
    if let Some(path) = &args.out {
        std::fs::write(path, format!("{text}\n")).map_err(|error| cannot_write(path, &error))?;
        printer.print_line(&format!("written to {}", Path::new(path).display()))?;
    }
    if args.json {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

/// Prints lines for a person as results arrive, before all of it is done.
struct ProgressPrinter<'a> {
    out: &'a mut dyn Write,
    is_json: bool,
}

impl ProgressPrinter<'_> {
    fn print_line(&mut self, line: &str) -> Result<(), CommandError> {
        if !self.is_json {
            writeln!(self.out, "{line}")?;
            self.out.flush()?;
        }
        Ok(())
    }
}

fn open(index: usize, precision: Precision) -> Result<Arc<CudaDevice>, CommandFailure> {
    device::open(index, precision).map_err(|error| open_failure(index, &error))
}

/// How many behaviours there are, if the devices have them all. Failures are printed on standard
/// error as it is found.
fn conform<B: Backend>(devices: &[B], precision: Precision) -> Result<usize, CommandFailure> {
    let behaviours = behaviours::<B>();
    let holds = |test: fn(&[B])| catch_unwind(AssertUnwindSafe(|| test(devices))).is_ok();
    let failed: Vec<&str> =
        behaviours.iter().filter(|(_, test)| !holds(*test)).map(|(name, _)| *name).collect();
    if failed.is_empty() {
        return Ok(behaviours.len());
    }
    let name = precision.name();
    let count = behaviours.len();
    let what = format!(
        "{} of {count} behaviours do not hold in {name}: {}",
        failed.len(),
        failed.join(", ")
    );
    Err(CommandFailure::new(FailureCode::VerificationFailed, what))
}

fn of_type(
    args: &BenchGpuArgs,
    precision: Precision,
    printer: &mut ProgressPrinter<'_>,
) -> Result<PrecisionReport, CommandError> {
    let stand = TimingHarness::new(open(args.device, precision)?, RUNS);
    let measured =
        measure(&stand, TimedSizes::SMALL_GPT2).map_err(|error| out_of_resource(&error))?;
    drop(stand);
    let (DeviceRates { bytes_per_s, flop_per_s }, operations) = measured;
    let optimism = optimism(&operations);
    let operation = |OperationTime { name, us, floor_us, bound, fastest_us }| OperationTiming {
        name,
        us,
        floor_us,
        bound,
        fastest_us,
    };
    let operations: Vec<OperationTiming> = operations.into_iter().map(operation).collect();
    let activations = precision.name();
    printer.print_line(&format!(
        "\n{activations}: a copy {:.0} GB/s, a product {:.0} TFLOP/s",
        bytes_per_s / 1e9,
        flop_per_s / 1e12
    ))?;
    printer.print_line(&operation_line([
        "operation",
        "us",
        "floor us",
        "share",
        "of the library's",
    ]))?;
    for operation in &operations {
        printer.print_line(&line_of_operation(operation))?;
    }
    if let Some(ratio) = optimism {
        printer.print_line(&format!(
            "an update before its verdict takes {ratio:.2} of one in place"
        ))?;
    }
    printer.print_line(&format!(
        "\n{:<10} {:>5} {:>7} {:<9} {:<6} {:>9} {:>10} {:>6} {:>7}",
        "model", "len", "workers", "schedule", "graphs", "step ms", "tokens/s", "mfu", "bubble"
    ))?;
    let step_count = if args.quick { QUICK_STEPS } else { STEPS };
    let mut rows = Vec::new();
    for pipelines in models::runs(args.models(), args.sequence_lens()) {
        let case = pipelines[0].case()?;
        for run in pipelines {
            let devices = (0..run.workers).map(|_| open(args.device, precision));
            let devices = devices.collect::<Result<Vec<_>, _>>()?;
            let row = run.measure(&case, devices, (step_count, flop_per_s));
            printer.print_line(&line_of(&row))?;
            rows.push(row);
        }
    }
    agree(&rows, precision)?;
    let goals = goals::goals(&operations, optimism, &rows);
    printer.print_line(&format!("\n{:<64} {:>8}    aim", "goal", "measured"))?;
    goals.iter().try_for_each(|goal| printer.print_line(&goal.line()))?;
    Ok(PrecisionReport {
        activations,
        bytes_per_s,
        flop_per_s,
        operations,
        optimism,
        models: rows,
        goals,
    })
}

/// With any number of workers that train a model and any schedule, the bits are the same.
fn agree(rows: &[models::GpuBenchRow], precision: Precision) -> Result<(), CommandFailure> {
    let Some([one, other]) = models::disagreeing(rows) else { return Ok(()) };
    let rows_and_losses = [one, other].map(|row| {
        let loss = row.outcome.as_ref().map_or(f64::NAN, |figures| figures.loss);
        format!("{} with {} workers: {loss}", row.schedule, row.workers)
    });
    let models::GpuBenchRow { model, sequence_len, .. } = one;
    let what = format!(
        "{model}, {sequence_len} tokens, in {}: the losses differ, {} and {}",
        precision.name(),
        rows_and_losses[0],
        rows_and_losses[1]
    );
    Err(CommandFailure::new(FailureCode::VerificationFailed, what))
}

fn operation_line([name, us, floor_us, share, of_fastest]: [&str; 5]) -> String {
    format!("{name:<18} {us:>10} {floor_us:>10} {share:>7} {of_fastest:>17}")
}

fn bound_name<S: serde::Serializer>(bound: &RooflineBound, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match bound {
        RooflineBound::Memory => "memory",
        RooflineBound::Arithmetic => "arithmetic",
    })
}

/// Its time, its floor, and of its time the shares of its floor and of the library's fastest
/// algorithm.
fn line_of_operation(operation: &OperationTiming) -> String {
    let OperationTiming { name, us, floor_us, fastest_us, .. } = operation;
    let share = |of: &f64| format!("{:.0}%", 100.0 * of / us);
    let fastest = fastest_us.as_ref().map(share).unwrap_or_default();
    let columns = [format!("{us:.1}"), format!("{floor_us:.1}"), share(floor_us), fastest];
    let [us, floor_us, share, fastest] = columns.each_ref().map(String::as_str);
    operation_line([name, us, floor_us, share, fastest])
}

fn line_of(row: &models::GpuBenchRow) -> String {
    let models::GpuBenchRow { model, sequence_len, workers, schedule, has_graphs, outcome } = row;
    let graphs = if *has_graphs { "on" } else { "off" };
    let beginning = format!("{model:<10} {sequence_len:>5} {workers:>7} {schedule:<9} {graphs:<6}");
    match outcome {
        Ok(models::GpuBenchFigures { step_ms, tokens_per_s, mfu, bubble, .. }) => {
            let mfu = 100.0 * mfu;
            let bubble = 100.0 * bubble;
            format!("{beginning} {step_ms:>9.1} {tokens_per_s:>10.0} {mfu:>5.1}% {bubble:>6.1}%")
        }
        Err(reason) => format!("{beginning} {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_kernels::CpuBackend;

    #[test]
    fn a_device_with_all_behaviours_reports_their_number() {
        let two = [1, 2].map(|threads| CpuBackend::new(threads).expect("threads"));
        let count = conform(&two, Precision::F32).expect("a processor computes what it should");
        assert!(count >= 18, "{count}");
    }

    #[test]
    fn products_are_compared_with_the_fastest_there_is() {
        let operation = |fastest_us| OperationTiming {
            name: "up F".to_owned(),
            us: 80.0,
            floor_us: 60.0,
            bound: RooflineBound::Arithmetic,
            fastest_us,
        };
        let line = line_of_operation(&operation(Some(76.0)));
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["up", "F", "80.0", "60.0", "75%", "95%"]
        );
        assert!(line_of_operation(&operation(None)).trim_end().ends_with("75%"));
    }

    fn row(workers: u32, outcome: Result<models::GpuBenchFigures, String>) -> models::GpuBenchRow {
        let model = "gpt2-124m";
        let schedule = "zb-h1";
        models::GpuBenchRow {
            model,
            sequence_len: 1024,
            workers,
            schedule,
            has_graphs: false,
            outcome,
        }
    }

    const FIGURES: models::GpuBenchFigures = models::GpuBenchFigures {
        step_ms: 12.34,
        tokens_per_s: 56789.0,
        mfu: 0.4,
        bubble: 0.05,
        loss: 3.5,
    };

    #[test]
    fn tables_have_a_line_for_what_did_not_fit() {
        let line = line_of(&row(4, Ok(FIGURES)));
        assert_eq!(
            line,
            "gpt2-124m   1024       4 zb-h1     off         12.3      56789  40.0%    5.0%"
        );
        assert!(line_of(&row(4, Err("no room".to_owned()))).ends_with("zb-h1     off    no room"));
    }

    #[test]
    fn losses_are_the_same_bits_however_many_workers_there_are() {
        let next = models::GpuBenchFigures { loss: 3.5f64.next_up(), ..FIGURES };
        let alike = [row(1, Ok(FIGURES)), row(2, Err("no room".to_owned())), row(4, Ok(FIGURES))];
        assert!(agree(&alike, Precision::Bf16).is_ok());
        let failure = agree(&[row(1, Ok(FIGURES)), row(4, Ok(next))], Precision::Bf16);
        let failure = failure.expect_err("they differ");
        assert_eq!(failure.code, FailureCode::VerificationFailed);
        assert!(
            failure.what.contains("zb-h1 with 4 workers: 3.5000000000000004"),
            "{}",
            failure.what
        );
    }
}
