//! `bench bubble`: the time that pipelines lose beyond their plan, on devices with operations that last
//! exactly as long as planned.

use std::io::{self, Write};

use serde::Serialize;
use zbelastic_schedule::{Costs, ScheduleKind, Timeline, simulate};
use zbelastic_trainer::plan::{Grid, ReplicaCount};
use zbelastic_wording::{CommandError, CommandFailure, FailureDetail};

use super::case::{BatchSplit, BenchCase, pipeline};
use super::paced::PassDurations;
use super::pipelined::{PipelineRound, round_on};
use crate::args::BenchBubbleArgs;

/// Schedules that are measured where none are named.
const KINDS: [ScheduleKind; 5] = [
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
    ScheduleKind::ZbH2,
    ScheduleKind::ZbAuto,
    ScheduleKind::ZbV,
];

/// The planned and the measured step of a schedule.
#[derive(Serialize)]
struct BubbleRow {
    schedule: &'static str,
    /// Share of a step in which the busiest stage waits.
    planned: f64,
    measured: f64,
    /// Measured minus planned, in percentage points.
    difference: f64,
    step_ms: f64,
    planned_step_ms: f64,
    /// The measured step over the planned one.
    step_over_plan: f64,
    /// The measured step of one pipeline of `--scaled-from` stages over this one: each stage has as much to
    /// do in both.
    weak_scaling: Option<f64>,
}

/// Steps of a plan that are simulated; the one before the last is the one that a run repeats.
const PLANNED_STEPS: u32 = 4;

/// Runs `bench bubble`.
pub fn run(args: &BenchBubbleArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let replicas = replicas_of(args)?;
    if !args.json {
        let BenchBubbleArgs { stages, replicas, microbatches, pass, .. } = args;
        let pipelines =
            if *replicas > 1 { format!(" × {replicas} replicas") } else { String::new() };
        writeln!(
            out,
            "{stages} stages{pipelines}, {microbatches} microbatches each, F = B = W = {pass:?}"
        )?;
        writeln!(
            out,
            "{:<12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}",
            "schedule", "planned", "measured", "points", "step ms", "of plan", "scaling"
        )?;
    }
    let kinds: &[ScheduleKind] = if args.schedule.is_empty() { &KINDS[..] } else { &args.schedule };
    let mut rows = Vec::new();
    for &kind in kinds {
        let row = measure(args, kind, replicas)?;
        if !args.json {
            write_row(&row, out)?;
            out.flush()?;
        }
        rows.push(row);
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&rows).expect("numbers are JSON"))?;
    }
    Ok(())
}

fn write_row(row: &BubbleRow, out: &mut dyn Write) -> io::Result<()> {
    let BubbleRow { schedule, difference, step_ms, step_over_plan, .. } = row;
    let [planned, measured] = [row.planned, row.measured].map(|share| 100.0 * share);
    let scaling =
        row.weak_scaling.map_or_else(|| "-".to_owned(), |scaling| format!("{scaling:.3}"));
    writeln!(
        out,
        "{schedule:<12} {planned:>8.2}% {measured:>8.2}% {difference:>9.2} {step_ms:>9.1} \
         {step_over_plan:>9.3} {scaling:>8}"
    )
}

/// The smallest model that has a block for every chunk, with lanes for every direction of every pipeline.
fn case(args: &BenchBubbleArgs, grid: Grid) -> Result<BenchCase, CommandFailure> {
    let blocks = 2 * grid.stage_count;
    let microbatches = args.microbatches * grid.replicas.get();
    let lanes = if args.microbatches.is_multiple_of(2) { 2 } else { 1 } * grid.replicas.get();
    BenchCase::configured(&[
        "model.preset=tiny".to_owned(),
        format!("model.layers={blocks}"),
        format!("train.global_batch={microbatches}"),
        "train.microbatch=1".to_owned(),
        format!("train.lanes={lanes}"),
    ])
}

fn replicas_of(args: &BenchBubbleArgs) -> Result<ReplicaCount, CommandFailure> {
    ReplicaCount::new(args.replicas).map_err(|error| {
        let detail = FailureDetail::new(format!("--replicas {}: {error}", args.replicas));
        CommandFailure::usage("the benchmark", vec![detail])
    })
}

fn measure(
    args: &BenchBubbleArgs,
    kind: ScheduleKind,
    replicas: ReplicaCount,
) -> Result<BubbleRow, CommandFailure> {
    // The one that is compared with comes first, right before the other.
    let from = args.scaled_from.map(|stages| round(args, kind, pipeline(stages))).transpose()?;
    let grid = Grid { stage_count: args.stages, replicas };
    let case = case(args, grid)?;
    let plan = case.setup(kind, grid, BatchSplit::Microbatches, args.steps)?.plan;
    let program = &plan.program;
    let pass = args.pass.as_secs_f64();
    let costs = Costs::even(&program.placement, pass, pass, pass, 0.0);
    let timeline = simulate(program, &costs, PLANNED_STEPS).expect("a plan runs to its end");
    let planned = timeline.bubble_span(PLANNED_STEPS - 2);
    let planned_step = planned_step(&timeline);
    let PipelineRound { step, bubbles, .. } = round(args, kind, grid)?;
    let step = step.as_secs_f64();
    Ok(BubbleRow {
        schedule: kind.name(),
        planned,
        measured: bubbles.measured,
        difference: 100.0 * (bubbles.measured - planned),
        step_ms: step * 1e3,
        planned_step_ms: planned_step * 1e3,
        step_over_plan: step / planned_step,
        weak_scaling: from.map(|from| from.step.as_secs_f64() / step),
    })
}

fn round(
    args: &BenchBubbleArgs,
    kind: ScheduleKind,
    grid: Grid,
) -> Result<PipelineRound, CommandFailure> {
    let paced = PassDurations { f: args.pass, b: args.pass, w: args.pass };
    round_on(&paced, &case(args, grid)?, kind, grid, args.steps)
}

/// From the end of one planned step to the end of the next.
fn planned_step(timeline: &Timeline) -> f64 {
    let end_of = |step: u32| {
        let slices = timeline.all_slices().filter(|slice| slice.step == step);
        slices.map(|slice| slice.end).fold(0.0, f64::max)
    };
    end_of(PLANNED_STEPS - 2) - end_of(PLANNED_STEPS - 3)
}
