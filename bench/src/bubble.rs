//! `bench bubble`: the time a pipeline loses beyond its plan, on devices with operations that last
//! exactly as long as planned.

use std::io::Write;

use serde::Serialize;
use zbelastic_schedule::{Costs, ScheduleKind, simulate};
use zbelastic_wording::{CommandError, CommandFailure};

use super::case::{BatchSplit, BenchCase};
use super::paced::PassDurations;
use super::pipelined::round_on;
use crate::args::BenchBubbleArgs;

/// Schedules that are measured.
const KINDS: [ScheduleKind; 5] = [
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
    ScheduleKind::ZbH2,
    ScheduleKind::ZbAuto,
    ScheduleKind::ZbV,
];

/// The planned and the measured bubble of a schedule.
#[derive(Serialize)]
struct BubbleRow {
    schedule: &'static str,
    planned: f64,
    measured: f64,
    /// Measured minus planned, in percentage points.
    difference: f64,
    step_ms: f64,
}

/// Steps of a plan that are simulated; the one before the last is the one that a run repeats.
const PLANNED_STEPS: u32 = 4;

/// Runs `bench bubble`.
pub fn run(args: &BenchBubbleArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let case = case(args)?;
    if !args.json {
        let BenchBubbleArgs { stages, microbatches, pass, .. } = args;
        writeln!(out, "{stages} stages, {microbatches} microbatches, F = B = W = {pass:?}")?;
        writeln!(
            out,
            "{:<12} {:>9} {:>9} {:>9} {:>9}",
            "schedule", "planned", "measured", "points", "step ms"
        )?;
    }
    let mut rows = Vec::new();
    for kind in KINDS {
        let row = measure(args, &case, kind)?;
        if !args.json {
            let BubbleRow { schedule, planned, measured, difference, step_ms } = &row;
            let planned = 100.0 * planned;
            let measured = 100.0 * measured;
            writeln!(
                out,
                "{schedule:<12} {planned:>8.2}% {measured:>8.2}% {difference:>9.2} {step_ms:>9.1}"
            )?;
            out.flush()?;
        }
        rows.push(row);
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&rows).expect("numbers are JSON"))?;
    }
    Ok(())
}

/// The smallest model that has a block for every chunk.
fn case(args: &BenchBubbleArgs) -> Result<BenchCase, CommandFailure> {
    let blocks = 2 * args.stages;
    BenchCase::configured(&[
        "model.preset=tiny".to_owned(),
        format!("model.layers={blocks}"),
        format!("train.global_batch={}", args.microbatches),
        "train.microbatch=1".to_owned(),
    ])
}

fn measure(
    args: &BenchBubbleArgs,
    case: &BenchCase,
    kind: ScheduleKind,
) -> Result<BubbleRow, CommandFailure> {
    let paced = PassDurations { f: args.pass, b: args.pass, w: args.pass };
    let setup = case.setup(kind, args.stages, BatchSplit::Microbatches, args.steps)?;
    let program = &setup.plan.program;
    let pass = args.pass.as_secs_f64();
    let costs = Costs::even(&program.placement, pass, pass, pass, 0.0);
    let timeline = simulate(program, &costs, PLANNED_STEPS).expect("a plan runs to its end");
    let planned = timeline.bubble_span(PLANNED_STEPS - 2);
    let round = round_on(&paced, case, kind, args.stages, args.steps)?;
    let measured = round.bubbles.measured;
    Ok(BubbleRow {
        schedule: kind.name(),
        planned,
        measured,
        difference: 100.0 * (measured - planned),
        step_ms: round.step.as_secs_f64() * 1e3,
    })
}
