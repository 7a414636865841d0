//! The report of `bench train`, as text and as JSON.

use std::io::{self, Write};

use serde::Serialize;
use zbelastic_wording::figures::grouped;

use super::memory::MemoryReport;

/// Measurements of one model.
#[derive(Debug, Serialize)]
pub struct CaseReport {
    /// Name of the benchmark model.
    pub config: &'static str,
    /// Parameters of the model.
    pub parameters: u64,
    /// Floating-point operations of a step.
    pub step_flop: f64,
    /// Multiply-adds of one core, counted twice each.
    pub peak_gflop_per_s: f64,
    /// One stage, by the threads that compute.
    pub serial: Vec<SerialFigures>,
    /// Two stages with a thread each.
    pub pipelined: Vec<PipelinedFigures>,
    /// Time that engine, B beside W and validation add to a plain loop.
    pub engine_overhead: f64,
    /// An optimistic optimizer step over a plain one.
    pub optimistic_ratio: f64,
    /// Memory of two stages under zb-h1.
    pub memory: MemoryReport,
}

/// One stage with its threads.
#[derive(Debug, Serialize)]
pub struct SerialFigures {
    /// Number of threads that compute.
    pub threads: usize,
    /// Tokens trained a second.
    pub tokens_per_s: f64,
    /// Time of a step, in milliseconds.
    pub step_ms: f64,
    /// Share of the peak multiply-adds of as many threads.
    pub peak_share: f64,
}

/// A pipeline of two stages.
#[derive(Debug, Serialize)]
pub struct PipelinedFigures {
    /// Name of the schedule.
    pub schedule: &'static str,
    /// Tokens trained a second.
    pub tokens_per_s: f64,
    /// Time of a step, in milliseconds.
    pub step_ms: f64,
    /// Over one stage with one thread, measured in turns with it.
    pub speedup: f64,
    /// Share of a step in which the busiest stage waited, as measured.
    pub bubble_measured: f64,
    /// Share of a step in which the busiest stage waits, as planned.
    pub bubble_planned: f64,
}

/// Writes a report as text.
pub fn write_case(report: &CaseReport, out: &mut dyn Write) -> io::Result<()> {
    let CaseReport { config, parameters, step_flop, peak_gflop_per_s, .. } = report;
    let parameters = grouped(*parameters);
    let gflop = step_flop / 1e9;
    writeln!(
        out,
        "{config}  {parameters} parameters, {gflop:.1} GFLOP a step; \
         peak of a core {peak_gflop_per_s:.0} GFLOP/s"
    )?;
    for SerialFigures { threads, tokens_per_s, step_ms, peak_share } in &report.serial {
        let rate = grouped(tokens_per_s.round() as u64);
        let name = format!("serial, {threads} thread{}", if *threads == 1 { "" } else { "s" });
        let share = 100.0 * peak_share;
        writeln!(out, "   {name:<18} {rate:>9} tok/s  {step_ms:>8.2} ms  {share:.1} % of peak")?;
    }
    for row in &report.pipelined {
        let PipelinedFigures { schedule, tokens_per_s, step_ms, speedup, .. } = row;
        let rate = grouped(tokens_per_s.round() as u64);
        let name = format!("{schedule}, 2 × 1 thread");
        let measured = 100.0 * row.bubble_measured;
        let planned = 100.0 * row.bubble_planned;
        writeln!(
            out,
            "   {name:<18} {rate:>9} tok/s  {step_ms:>8.2} ms  {speedup:.2}× one thread  \
             bubble {measured:.1} % (plan {planned:.1} %)"
        )?;
    }
    let overhead = 100.0 * report.engine_overhead;
    writeln!(out, "   engine over a plain loop {overhead:+.1} %")?;
    let ratio = report.optimistic_ratio;
    writeln!(out, "   optimistic step over plain AdamW {ratio:.2}×")?;
    let MemoryReport { planned, resident_peak, ratio } = report.memory;
    writeln!(out, "   memory {resident_peak}, planned {planned}: {ratio:.2}×\n")
}
