//! `schedule render`, `schedule simulate`, `schedule solve`, `schedule list`.

mod asynchronous;
mod catalogue;
mod input_error;
mod input_parser;
mod inputs;
mod report;
mod solve_task;
mod table;

use std::fs;
use std::io::Write;
use std::path::Path;

use zbelastic_schedule::pytorch;
use zbelastic_schedule::render::{ascii, chrome_trace, svg};
use zbelastic_schedule::{Timeline, simulate};
use zbelastic_wording::{CommandError, CommandFailure, cannot_write};

use crate::args::{RenderArgs, ScheduleCommand, SimulateArgs, SolveArgs};
use inputs::{ProblemInput, SimulationInput};
use solve_task::{SolveMode, SolveResult, SolveTask};

/// Runs a `schedule` command.
///
/// # Errors
/// If the typed flags are wrong, or a file or `out` cannot be written.
pub fn run(command: &ScheduleCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        ScheduleCommand::Render(args) => render(args, out),
        ScheduleCommand::Simulate(args) => time(args, out),
        ScheduleCommand::Solve(args) => find(args, out),
        ScheduleCommand::List { json } => catalogue::write(*json, out),
    }
}

/// One unit of time in a trace: viewers show milliseconds well.
const TRACE_UNIT_US: f64 = 1000.0;

fn render(args: &RenderArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let text = inputs::program_text(&args.program).map_err(input_error::failure)?;
    if asynchronous::is_requested(&args.program, text.as_deref()) {
        return asynchronous::render(args, text.as_deref(), out);
    }
    let replay = inputs::replay(&args.program, text.as_deref()).map_err(input_error::failure)?;
    let timeline = timeline(&replay);
    let files = [&args.svg, &args.trace, &args.pytorch, &args.pytorch_comms];
    if args.ascii || files.into_iter().all(Option::is_none) {
        write!(out, "{}", ascii::draw(&timeline, args.columns.into()))?;
    }
    if let Some(path) = &args.svg {
        write_to(path, &svg::draw(&timeline), out)?;
    }
    let forms = [
        (&args.pytorch, pytorch::CsvFormat::ComputeOnly),
        (&args.pytorch_comms, pytorch::CsvFormat::WithCommunication),
    ];
    for (path, form) in forms {
        if let Some(path) = path {
            let text = pytorch::write(&replay.program, form)
                .map_err(|error| input_error::failure(vec![error.into()]))?;
            write_to(path, &text, out)?;
        }
    }
    if let Some(path) = &args.trace {
        let tracks = chrome_trace::timeline_tracks(&timeline, TRACE_UNIT_US);
        write_to(path, &chrome_trace::write_trace(&tracks), out)?;
    }
    Ok(())
}

fn time(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    if let Some(path) = &args.csv {
        return table::answer(path, SolveMode::Replay, out);
    }
    let text = inputs::program_text(&args.program).map_err(input_error::failure)?;
    if asynchronous::is_requested(&args.program, text.as_deref()) {
        return asynchronous::time(args, text.as_deref(), out);
    }
    let (replay, memory) =
        inputs::replay_with_memory(args, text.as_deref()).map_err(input_error::failure)?;
    let timeline = timeline(&replay);
    let report = report::ScheduleReport::new(&replay, &timeline, &memory, args.program_text);
    if args.json { report.write_json(out) } else { report.write_table(&timeline, out) }
}

fn find(args: &SolveArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    if let Some(path) = &args.csv {
        return table::answer(path, SolveMode::Order, out);
    }
    let (stages, microbatches) =
        args.stages.zip(args.microbatches).expect("required without --csv");
    let SolveArgs { times, memory, mem_limit, memory_savings, ending, kind, chunks, .. } = args;
    let mem_limit = mem_limit.as_deref();
    let slices = args.slices;
    let input = ProblemInput {
        stages,
        microbatches,
        slices,
        times,
        memory,
        mem_limit,
        memory_savings,
        ending,
    };
    let task = SolveTask::new(&input, (SolveMode::Order, kind.as_deref()), *chunks)
        .map_err(input_error::failure)?;
    let answer = task.answer().map_err(|error| input_error::failure(vec![error.into()]))?;
    let SolveResult { problem, solution, fits, took } = answer;
    let found = fits.then(|| report::SolutionQuality::new(&solution, took));
    let in_run = task
        .window()
        .map(|window| inputs::solved_in_run(problem, solution.program.clone(), window));
    let (replay, memory) = inputs::solved(problem, solution.program);
    let once = timeline(&replay);
    let report =
        report::ScheduleReport::new(&replay, &once, &memory, args.program_text).with(found);
    let report = match &in_run {
        Some(replay) => report.in_run(replay, &timeline(replay)),
        None => report,
    };
    if args.json { report.write_json(out) } else { report.write_table(&once, out) }
}

fn timeline(replay: &SimulationInput) -> Timeline {
    simulate(&replay.program, &replay.costs, replay.step_count)
        .expect("a checked program with checked costs runs to its end")
}

/// Writes to a file, or to `out` if it is called `-`.
pub fn write_to(path: &Path, text: &str, out: &mut dyn Write) -> Result<(), CommandError> {
    if path == Path::new("-") {
        write!(out, "{text}")?;
        return Ok(());
    }
    fs::write(path, text).map_err(|error| CommandFailure::into(cannot_write(path, &error)))
}
