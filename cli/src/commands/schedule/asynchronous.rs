//! Schedules without steps: `schedule render` and `schedule simulate` of a whole run.
//!
//! A flag means the same as for synchronous schedules where it means something; the rest are
//! refused by name. There is no flush, so a run of several steps is simulated as one piece.

mod report;

use std::io::Write;

use zbelastic_config::AsyncConfig;
use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncProgram, AsyncRequest, AsyncSimulation, AsyncVariant, DynamicOptions,
    DynamicRule, check_async, generate_async, simulate_async,
};
use zbelastic_schedule::render::{ascii, chrome_trace, svg};
use zbelastic_schedule::{ChunkMemory, Costs, MemoryCosts};
use zbelastic_wording::CommandError;

use super::input_error::{self, InputError};
use super::input_parser::{AllowedNumbers, InputParser};
use super::inputs::{StageTimesInput, read_memory, read_times};
use super::{TRACE_UNIT_US, write_to};
use crate::args::{AsyncArgs, ProgramArgs, RenderArgs, SimulateArgs};
use report::AsyncScheduleReport;

/// Whether an asynchronous schedule was requested by name, or is the one that was read.
pub fn is_requested(args: &ProgramArgs, text: Option<&str>) -> bool {
    let is_kind = |kind: &String| kind.parse::<AsyncKind>().is_ok();
    args.kind.as_ref().is_some_and(is_kind)
        || text.is_some_and(|text| text.trim_start().starts_with("asynchronous"))
}

/// Draws the timeline of an asynchronous program.
pub fn render(
    args: &RenderArgs,
    text: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut parser = InputParser::default();
    let replay = read_replay(&args.program, (text, DefaultRunLength::Drawing), &mut parser);
    let forms = [("--pytorch", &args.pytorch), ("--pytorch-comms", &args.pytorch_comms)];
    for (flag, _) in forms.into_iter().filter(|(_, path)| path.is_some()) {
        parser.refuse(flag, SYNCHRONOUS);
    }
    let replay = parser.finish(replay).map_err(input_error::failure)?;
    let AsyncSimulation { timeline, .. } = replay.simulate();
    if args.ascii || (args.svg.is_none() && args.trace.is_none()) {
        write!(out, "{}", ascii::draw_wrapped(&timeline, args.columns.into()))?;
    }
    if let Some(path) = &args.svg {
        write_to(path, &svg::draw(&timeline), out)?;
    }
    if let Some(path) = &args.trace {
        let tracks = chrome_trace::timeline_tracks(&timeline, TRACE_UNIT_US);
        write_to(path, &chrome_trace::write_trace(&tracks), out)?;
    }
    Ok(())
}

/// Simulates an asynchronous program, and prints its times and memory.
pub fn time(
    args: &SimulateArgs,
    text: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let (replay, memory) = replay_with_memory(args, text).map_err(input_error::failure)?;
    let report = AsyncScheduleReport::new(&replay.simulate(), &memory, args.program_text);
    if args.json { report.write_json(out) } else { report.write_table(out) }
}

/// A legal program and its costs.
struct AsyncSimulationInput {
    program: AsyncProgram,
    costs: Costs,
}

impl AsyncSimulationInput {
    fn simulate(&self) -> AsyncSimulation {
        simulate_async(&self.program, &self.costs)
            .expect("a checked program with checked costs runs to its end")
    }
}

/// Memory of passes and of versions of weights.
struct AsyncMemoryCosts {
    chunks: Vec<ChunkMemory>,
    /// One version of the weights of each stage.
    weights: Vec<f64>,
}

/// The purpose of a run, from which its steps follow if no number is given.
#[derive(Clone, Copy)]
enum DefaultRunLength {
    /// The pipeline is filled and emptied.
    Drawing,
    /// It is full for some steps as well.
    Timing,
}

/// The schedules that flags are for which are refused here.
const SYNCHRONOUS: &str = "synchronous schedules";

fn replay_with_memory(
    args: &SimulateArgs,
    text: Option<&str>,
) -> Result<(AsyncSimulationInput, AsyncMemoryCosts), Vec<InputError>> {
    let mut parser = InputParser::default();
    let replay = read_replay(&args.program, (text, DefaultRunLength::Timing), &mut parser);
    let memory = read_memory(&args.memory, &mut parser);
    let weights = args.weights.as_deref().unwrap_or("0");
    let weights = parser.list("--weights", weights, AllowedNumbers::FromZero);
    if args.mem_limit.is_some() {
        parser.refuse("--mem-limit", SYNCHRONOUS);
    }
    let all = replay.zip(memory).zip(weights).map(|((replay, memory), weights)| {
        let chunks = memory.of_chunks(&replay.program.placement);
        (replay, AsyncMemoryCosts { chunks, weights })
    });
    parser.finish(all)
}

fn read_replay(
    args: &ProgramArgs,
    (text, length): (Option<&str>, DefaultRunLength),
    parser: &mut InputParser,
) -> Option<AsyncSimulationInput> {
    let program = read_program(args, (text, length), parser);
    parser.stage_count = program.as_ref().map(|program| program.placement.stage_count());
    refuse_synchronous(args, parser);
    let times = read_times(&args.times, parser);
    let step = parser.number("--step", &args.step, AllowedNumbers::FromZero);
    let program = program?;
    let times = times?;
    let step = step?;
    let chunks = times.of_chunks(&program.placement);
    let StageTimesInput { link, occupancy, .. } = times;
    let slice_shares = Vec::new();
    let memory = MemoryCosts::default();
    let costs = Costs {
        chunks,
        slice_shares,
        link,
        occupancy,
        verdict: 0.0,
        step,
        memory,
        gradients: Vec::new(),
        tied: 0.0,
    };
    Some(AsyncSimulationInput { program, costs })
}

/// Refuses flags that only schedules with steps accept.
fn refuse_synchronous(args: &ProgramArgs, parser: &mut InputParser) {
    let flags = [
        ("--chunks", args.chunks.is_some()),
        ("--replicas", args.replicas.is_some()),
        ("--slices", args.slices.is_some()),
        ("--slice-times", args.slice_times.is_some()),
        ("--offload-chunks", args.offload_chunks.is_some()),
        ("--offload", args.offload.is_some()),
        ("--recompute", args.recompute),
        ("--window", args.window.is_some()),
        ("--verdict", args.verdict != "0"),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, is_given)| *is_given) {
        parser.refuse(flag, SYNCHRONOUS);
    }
}

fn read_program(
    args: &ProgramArgs,
    (text, length): (Option<&str>, DefaultRunLength),
    parser: &mut InputParser,
) -> Option<AsyncProgram> {
    if let Some((path, text)) = args.program.as_ref().zip(text) {
        let parsed = text.parse::<AsyncProgram>();
        let unparsed = |source| InputError::ParseAsync { path: path.clone(), source };
        let program = parser.keep(parsed.map_err(unparsed))?;
        let broken = |violations| InputError::ViolationsAsync { path: path.clone(), violations };
        return parser.keep(check_async(&program).map_err(broken)).map(|()| program);
    }
    let request = request(args, length, parser);
    parser.keep(generate_async(request).map_err(InputError::from))
}

/// The program that was requested by name. A value that no flag sets is the one that it is trained
/// with.
fn request(args: &ProgramArgs, length: DefaultRunLength, parser: &mut InputParser) -> AsyncRequest {
    let kind = args.kind.as_ref().expect("required without --program");
    let kind: AsyncKind = kind.parse().expect("looked at before");
    let size = args.stages.zip(args.microbatches);
    let (stage_count, microbatch_count) = size.expect("required without --program");
    let flags = &args.asynchronous;
    refuse_of_others(kind, flags, parser);
    let usual = AsyncConfig::default();
    let request = AsyncRequest {
        kind,
        stage_count,
        minibatch_count: 1,
        microbatch_count,
        replica_count: flags.pipelines.unwrap_or(usual.avgpipe_pipelines),
        dynamic: DynamicOptions {
            rule: DynamicRule::Oldest,
            cap: flags.cap.unwrap_or(usual.ampnet_cap),
            update_every: flags.update_every.unwrap_or(usual.ampnet_update_every),
        },
        variant: variant(kind, flags),
    };
    let minibatch_count = flags.steps.unwrap_or_else(|| usual_steps(request, length));
    AsyncRequest { minibatch_count, ..request }
}

/// Refuses flags that only another schedule accepts.
fn refuse_of_others(kind: AsyncKind, flags: &AsyncArgs, parser: &mut InputParser) {
    let flags = [
        ("--pipelines", AsyncKind::AvgPipe, flags.pipelines.is_some()),
        ("--cap", AsyncKind::AmpNet, flags.cap.is_some()),
        ("--update-every", AsyncKind::AmpNet, flags.update_every.is_some()),
        ("--warm-up", AsyncKind::PipeMare, flags.warm_up.is_some()),
        ("--vertical-sync", AsyncKind::PipeDream, flags.vertical_sync),
    ];
    for (flag, of, is_given) in flags {
        if is_given && of != kind {
            parser.refuse(flag, of.name());
        }
    }
}

fn variant(kind: AsyncKind, flags: &AsyncArgs) -> AsyncVariant {
    match (kind, flags.warm_up) {
        (AsyncKind::PipeMare, Some(steps)) => AsyncVariant::WarmUp(steps),
        (AsyncKind::PipeDream, _) if flags.vertical_sync => AsyncVariant::VerticalSync,
        _ => AsyncVariant::Usual,
    }
}

/// Steps that a pipeline is full, if no number is given.
const FULL_STEPS: u32 = 4;

/// The steps that fill the pipeline and empty it, and those that it is full; of each pipeline if
/// there are several.
fn usual_steps(request: AsyncRequest, length: DefaultRunLength) -> u32 {
    let under_way = match request.kind {
        AsyncKind::AmpNet => request.stage_count.max(request.dynamic.cap),
        AsyncKind::PipeDream
        | AsyncKind::PipeDream2Bw
        | AsyncKind::PipeMare
        | AsyncKind::XPipe
        | AsyncKind::SpecTrain
        | AsyncKind::WPipe
        | AsyncKind::AvgPipe => request.stage_count,
    };
    let filling = under_way.div_ceil(request.microbatch_count.max(1));
    let steps = match length {
        DefaultRunLength::Drawing => filling.saturating_add(1),
        DefaultRunLength::Timing => filling.saturating_mul(2).saturating_add(FULL_STEPS),
    };
    let pipelines = if request.kind == AsyncKind::AvgPipe { request.replica_count } else { 1 };
    steps.saturating_mul(pipelines).saturating_add(request.variant.warm_up())
}

#[cfg(test)]
mod tests;
