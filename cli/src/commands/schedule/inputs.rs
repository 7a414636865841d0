//! The input of `schedule` commands: a program, and the times of its operations.

use std::fs;
use std::io;
use std::path::Path;

use zbelastic_schedule::pytorch;
use zbelastic_schedule::{
    ChunkCosts, ChunkMemory, ChunkTimes, Costs, LowerOptions, MemoryCosts, MemorySavings,
    MemoryTimes, OffloadChunks, OffloadRequest, OffloadTransfer, PipelineSize, Placement, Program,
    RecomputeCost, ScheduleKind, ScheduleProblem, StageCosts, StepEnding, Window, check,
    check_size, generate_sized, lower, offload, recompute, side_by_side,
};
use zbelastic_types::ChunkIndex;

use super::input_error::InputError;
use super::input_parser::{AllowedNumbers, InputParser};
use crate::args::{
    AS_FORWARD, AsyncArgs, MemoryArgs, MemorySavingsArgs, PassTimesArgs, ProgramArgs, SimulateArgs,
    StepEndingArgs,
};

/// A legal program, its costs, and how it is replayed.
pub struct SimulationInput {
    /// The program that is simulated.
    pub program: Program,
    /// Times of the program's operations.
    pub costs: Costs,
    /// Number of steps to simulate.
    pub step_count: u32,
    /// The step to report.
    pub step: u32,
}

/// The text of the program that `--program` names; `None` if one is to be generated.
pub fn program_text(args: &ProgramArgs) -> Result<Option<String>, Vec<InputError>> {
    let Some(path) = &args.program else { return Ok(None) };
    let is_stdin = path == Path::new("-");
    let text = if is_stdin { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
    let unreadable = |source| vec![InputError::Unreadable { path: path.clone(), source }];
    text.map(Some).map_err(unreadable)
}

/// The replay that the flags describe, of the program in `text` if there is one.
pub fn replay(args: &ProgramArgs, text: Option<&str>) -> Result<SimulationInput, Vec<InputError>> {
    let mut parser = InputParser::default();
    let replay = read_replay(args, text, None, &mut parser);
    parser.finish(replay)
}

/// The replay that the flags describe, and the memory that each chunk keeps.
pub fn replay_with_memory(
    args: &SimulateArgs,
    text: Option<&str>,
) -> Result<(SimulationInput, Vec<ChunkMemory>), Vec<InputError>> {
    let mut parser = InputParser::default();
    let memory_input = MemoryInput { memory: &args.memory, limit: args.mem_limit.as_deref() };
    let replay = read_replay(&args.program, text, Some(memory_input), &mut parser);
    let memory = read_memory(&args.memory, &mut parser);
    if args.weights.is_some() {
        parser.refuse("--weights", "asynchronous schedules");
    }
    let both = replay.zip(memory).map(|(replay, memory)| {
        let chunks = memory.of_chunks(&replay.program.placement);
        (replay, chunks)
    });
    parser.finish(both)
}

/// Memory that passes keep, and its limit.
struct MemoryInput<'a> {
    memory: &'a MemoryArgs,
    limit: Option<&'a str>,
}

fn read_replay(
    args: &ProgramArgs,
    text: Option<&str>,
    memory_input: Option<MemoryInput<'_>>,
    parser: &mut InputParser,
) -> Option<SimulationInput> {
    let program = read_program(args, text, parser);
    refuse_asynchronous(&args.asynchronous, parser);
    parser.stage_count = program.as_ref().map(|program| program.placement.stage_count());
    let times = read_times(&args.times, parser);
    let verdict = parser.number("--verdict", &args.verdict, AllowedNumbers::FromZero);
    let step = parser.number("--step", &args.step, AllowedNumbers::FromZero);
    let window = args.window.as_ref().and_then(|text| parser.keep(parse_window(text)));
    let round_trip = args.offload.as_ref();
    let round_trip =
        round_trip.map(|text| parser.list("--offload", text, AllowedNumbers::FromZero));
    let program = program?;
    let times = times?;
    let slice_shares = read_slice_shares(args, program.slice_count, parser)?;
    let round_trip = match round_trip {
        Some(given) => given?,
        None => times.sums(),
    };
    let chunks = times.of_chunks(&program.placement);
    let memory = MemoryCosts {
        chunks: memory_times(&program.placement, &chunks, &round_trip),
        ..Default::default()
    };
    let StageTimesInput { link, occupancy, .. } = times;
    let verdict = verdict?;
    let step = step?;
    let costs = Costs {
        chunks,
        slice_shares,
        link,
        occupancy,
        verdict,
        step,
        memory,
        gradients: Vec::new(),
        tied: 0.0,
    };
    let own_window = program.window;
    let program = if args.recompute { recompute(&program) } else { program };
    let program = offloaded(args, program, &costs, memory_input, parser)?;
    // A program that lost its transfers gets them again.
    let own_window = own_window.filter(|_| program.window.is_none());
    let program = lowered(program, window.or(own_window));
    // In the first of several steps no stage waits for a verdict on the one before, and the last is
    // followed by none; the middle one is the step that a run repeats.
    let (step_count, step) = if program.window.is_some() { (3, 1) } else { (1, 0) };
    Some(SimulationInput { program, costs, step_count, step })
}

/// Refuses flags that only schedules without steps accept.
fn refuse_asynchronous(args: &AsyncArgs, parser: &mut InputParser) {
    let AsyncArgs { steps, pipelines, cap, update_every, warm_up, vertical_sync } = args;
    let flags = [
        ("--steps", steps.is_some()),
        ("--pipelines", pipelines.is_some()),
        ("--cap", cap.is_some()),
        ("--update-every", update_every.is_some()),
        ("--warm-up", warm_up.is_some()),
        ("--vertical-sync", *vertical_sync),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, is_given)| *is_given) {
        parser.refuse(flag, "asynchronous schedules");
    }
}

/// The share of a microbatch's times that each slice needs; nothing if all need the same.
fn read_slice_shares(
    args: &ProgramArgs,
    slice_count: u32,
    parser: &mut InputParser,
) -> Option<Vec<f64>> {
    let Some(text) = &args.slice_times else { return Some(Vec::new()) };
    let times = parser.numbers("--slice-times", text, AllowedNumbers::FromZero)?;
    let sum: f64 = times.iter().sum();
    if times.len() != slice_count as usize || sum == 0.0 {
        let found = text.clone();
        return parser.keep(Err(InputError::SliceTimes { expected: slice_count, found }));
    }
    Some(times.into_iter().map(|time| time / sum).collect())
}

/// The times of R and of copies: R as long as F, a copy half of an offload and reload.
fn memory_times(
    placement: &Placement,
    chunks: &[ChunkTimes],
    round_trip: &[f64],
) -> Vec<MemoryTimes> {
    let times = |(chunk, way): (&ChunkTimes, f64)| MemoryTimes {
        recompute: chunk.f,
        offload: way,
        reload: way,
    };
    chunks.iter().zip(one_ways(placement, round_trip)).map(times).collect()
}

/// By chunk, half of its share of a stage's offload and reload.
fn one_ways(placement: &Placement, round_trip: &[f64]) -> Vec<f64> {
    of_chunks(placement, |stage, share| round_trip[stage] * share / 2.0)
}

/// The program with copies for these times, if its schedule has any or `--offload-chunks` requests
/// them. A program that was read otherwise keeps those that it has.
fn offloaded(
    args: &ProgramArgs,
    program: Program,
    costs: &Costs,
    memory_input: Option<MemoryInput<'_>>,
    parser: &mut InputParser,
) -> Option<Program> {
    let of_kind = || program.kind.offload_chunks(program.placement.chunks_per_stage());
    let chunks = match args.offload_chunks {
        Some(first) => OffloadChunks::First(first),
        None if args.program.is_some() => return Some(program),
        None => match of_kind() {
            Some(chunks) => chunks,
            None => return Some(program),
        },
    };
    let stage_count = program.placement.stage_count() as usize;
    let (memory, limits) = match memory_input {
        None => (StageMemoryInput::even(stage_count), None),
        Some(MemoryInput { memory, limit }) => {
            let limits = parser.optional_list("--mem-limit", limit, AllowedNumbers::FromZero);
            let memory = read_memory(memory, &mut InputParser::of(parser.stage_count));
            (memory?, limits?)
        }
    };
    let memory = memory.of_chunks(&program.placement);
    let limits = limits.as_deref();
    let request = OffloadRequest { costs, memory: &memory, chunks, limits };
    Some(offload(&program, request).expect("a checked program reaches its end at checked times"))
}

/// Times of passes on each stage, and of the links between stages.
pub(super) fn read_times(
    args: &PassTimesArgs,
    parser: &mut InputParser,
) -> Option<StageTimesInput> {
    let f = parser.list("--f", &args.f, AllowedNumbers::FromZero);
    let b = parser.list("--b", &args.b, AllowedNumbers::FromZero);
    let w = parser.list("--w", &args.w, AllowedNumbers::FromZero);
    let link = parser.number("--comm", &args.comm, AllowedNumbers::FromZero);
    let occupancy = parser.number("--occupancy", &args.occupancy, AllowedNumbers::FromZero);
    Some(StageTimesInput { f: f?, b: b?, w: w?, link: link?, occupancy: occupancy? })
}

/// A problem as flags or the row of a table describe it.
pub struct ProblemInput<'a> {
    /// Stages of the pipeline.
    pub stages: u32,
    /// Microbatches of a step, of all copies of the pipeline together.
    pub microbatches: u32,
    /// Slices of each microbatch; `None` for as many as the schedule has by default.
    pub slices: Option<u32>,
    /// Times of passes and of messages between stages.
    pub times: &'a PassTimesArgs,
    /// Memory that a microbatch keeps on a stage after F, DROP and B.
    pub memory: &'a MemoryArgs,
    /// Memory of each stage; `None` is unlimited.
    pub mem_limit: Option<&'a str>,
    /// How stages may save memory where that is short.
    pub memory_savings: &'a MemorySavingsArgs,
    /// The end of a step.
    pub ending: &'a StepEndingArgs,
}

/// Stages with their times and memory, for any chunks they hold.
pub struct PipelineCosts {
    costs: Vec<StageCosts>,
    link: f64,
    occupancy: f64,
    /// Of one copy of the pipeline.
    microbatch_count: u32,
    ending: StepEnding,
    /// By stage: time to recompute everything, and memory that is kept meanwhile.
    remakes: Option<Vec<RecomputeCost>>,
    /// By stage: time to offload and reload everything.
    round_trips: Option<Vec<f64>>,
    /// Whether a window was given.
    has_window: bool,
}

impl PipelineCosts {
    /// The problem over a placement of these stages.
    pub fn over(&self, placement: Placement) -> ScheduleProblem {
        let Self { link, occupancy, microbatch_count, ending, .. } = self;
        let problem = ScheduleProblem::of_stages(placement, &self.costs, *link, *microbatch_count);
        let savings = self.memory_savings_over(&problem.placement);
        ScheduleProblem {
            occupancy: *occupancy,
            ending: ending.clone(),
            memory_savings: savings,
            ..problem
        }
    }

    fn memory_savings_over(&self, placement: &Placement) -> MemorySavings {
        let remakes = self.remakes.as_ref().map(|remakes| {
            of_chunks(placement, |stage, share| RecomputeCost {
                time: remakes[stage].time * share,
                after_drop: remakes[stage].after_drop * share,
            })
        });
        let transfer = |one_way| OffloadTransfer { offload: one_way, reload: one_way };
        let transfers = self
            .round_trips
            .as_ref()
            .map(|times| one_ways(placement, times).into_iter().map(transfer).collect::<Vec<_>>());
        let remakes = remakes.unwrap_or_default();
        let transfers = transfers.unwrap_or_default();
        MemorySavings { recomputes: remakes, offloads: transfers, ..MemorySavings::default() }
    }

    /// Whether stages may do anything where memory is short.
    pub fn has_memory_savings(&self) -> bool {
        self.remakes.is_some() || self.round_trips.is_some()
    }

    /// Microbatches that one copy of the pipeline has.
    pub fn microbatch_count(&self) -> u32 {
        self.microbatch_count
    }

    /// Which steps may be open, if a window was given.
    pub fn window(&self) -> Option<Window> {
        self.has_window.then_some(self.ending.window)
    }
}

/// The stages that `input` describes.
pub fn stages(input: &ProblemInput<'_>) -> Result<PipelineCosts, Vec<InputError>> {
    let mut parser = InputParser::default();
    let kind = ScheduleKind::ZbAuto;
    let size = check_size(kind, PipelineSize::of(kind, input.stages, input.microbatches));
    // Of a pipeline with a refused size nothing else is read.
    let is_size = parser.keep(size.map_err(InputError::from)).is_some();
    parser.stage_count = is_size.then_some(input.stages);
    let stages = parser.stage_count.and_then(|_| read_stages(input, &mut parser));
    parser.finish(stages)
}

fn read_stages(args: &ProblemInput<'_>, parser: &mut InputParser) -> Option<PipelineCosts> {
    let times = read_times(args.times, parser);
    let memory = read_memory(args.memory, parser);
    let limits = match args.mem_limit {
        Some(text) => parser.list("--mem-limit", text, AllowedNumbers::FromZero),
        None => Some(vec![f64::INFINITY; args.stages as usize]),
    };
    let ending = read_ending(args.ending, parser);
    let copies = args.ending.data_parallel;
    let MemorySavingsArgs { recompute, offload } = args.memory_savings;
    let round_trips =
        parser.optional_list("--offload", offload.as_deref(), AllowedNumbers::FromZero);
    let again = recompute.as_deref().filter(|text| *text != AS_FORWARD);
    let again = parser.optional_list("--recompute", again, AllowedNumbers::FromZero);
    if !args.microbatches.is_multiple_of(copies) {
        let found = args.microbatches;
        return parser.keep(Err(InputError::Copies { copies, found }));
    }
    let times = times?;
    let memory = memory?;
    let limits = limits?;
    let ending = ending?;
    let again = again?;
    let round_trips = round_trips?;
    let remakes = recompute.as_ref().map(|_| {
        let times = again.as_ref().unwrap_or(&times.f);
        let remakes = times.iter().zip(&memory.after_d);
        remakes
            .map(|(time, after_drop)| RecomputeCost { time: *time, after_drop: *after_drop })
            .collect()
    });
    let stage = |i: usize| StageCosts {
        chunks: ChunkCosts {
            f: times.f[i],
            b: times.b[i],
            w: times.w[i],
            after_forward: memory.after_f[i],
            after_input_gradient: memory.after_b[i],
        },
        limit: limits[i],
    };
    let costs = (0..args.stages as usize).map(stage).collect();
    let StageTimesInput { link, occupancy, .. } = times;
    let microbatch_count = args.microbatches / copies;
    let has_window = args.ending.window.is_some();
    Some(PipelineCosts {
        costs,
        link,
        occupancy,
        microbatch_count,
        ending,
        remakes,
        round_trips,
        has_window,
    })
}

/// The end of a step. Copies of a pipeline add up in a ring: each sends all of its gradient but one
/// part, as many parts as there are copies, to get the sum, and as much again to hand it on.
fn read_ending(args: &StepEndingArgs, parser: &mut InputParser) -> Option<StepEnding> {
    let window = args.window.as_ref().map(|text| parser.keep(parse_window(text)));
    let verdict = parser.number("--verdict", &args.verdict, AllowedNumbers::FromZero);
    let after = parser.list("--after", &args.after, AllowedNumbers::FromZero);
    let gradient = parser.list("--gradient", &args.gradient, AllowedNumbers::FromZero);
    let copies = f64::from(args.data_parallel);
    let ring = 2.0 * (copies - 1.0) / copies;
    let sums = after?.into_iter().zip(gradient?).map(|(after, once)| after + ring * once);
    let after: Vec<f64> = sums.collect();
    let window = window.unwrap_or(Some(Window::One))?;
    Some(StepEnding { window, verdict: verdict?, after })
}

/// A solution as a replay of it, and the memory that each chunk keeps.
pub fn solved(problem: &ScheduleProblem, program: Program) -> (SimulationInput, Vec<ChunkMemory>) {
    (SimulationInput { program, costs: problem.costs(), step_count: 1, step: 0 }, problem.memory())
}

/// The same lowered, in the middle of a run.
pub fn solved_in_run(
    problem: &ScheduleProblem,
    program: Program,
    window: Window,
) -> SimulationInput {
    let StepEnding { verdict, after, .. } = &problem.ending;
    let step = after.iter().copied().fold(0.0, f64::max);
    let costs = Costs { verdict: *verdict, step, ..problem.costs() };
    // A problem's W is one piece: a part of it that runs early would open the gate before its time.
    let program = lower(&program, LowerOptions { window, early_head_weights: false });
    SimulationInput { program, costs, step_count: 3, step: 1 }
}

/// As a plan lowers it.
fn lowered(program: Program, window: Option<Window>) -> Program {
    let Some(window) = window else { return program };
    let early_head_weights = program.kind.splits_backward();
    lower(&program, LowerOptions { window, early_head_weights })
}

fn read_program(
    args: &ProgramArgs,
    text: Option<&str>,
    parser: &mut InputParser,
) -> Option<Program> {
    if let Some((path, text)) = args.program.as_ref().zip(text) {
        let program = parser.keep(parse_program(path, text))?;
        let broken = |violations| InputError::Violations { path: path.clone(), violations };
        return parser.keep(check(&program).map_err(broken)).map(|()| program);
    }
    let size = args.stages.zip(args.microbatches);
    let (stages, microbatches) = size.expect("required without --program");
    let kind = args.kind.as_ref().expect("required without --program");
    let kind: ScheduleKind = parser.keep(kind.parse().map_err(InputError::from))?;
    let replicas = args.replicas.unwrap_or(1);
    if replicas == 0 || !microbatches.is_multiple_of(replicas) {
        return parser.keep(Err(InputError::ReplicaShares { microbatches, replicas }));
    }
    let size = PipelineSize::of(kind, stages, microbatches / replicas);
    let chunks_per_stage = args.chunks.unwrap_or(size.chunks_per_stage);
    let slice_count = args.slices.unwrap_or(size.slice_count);
    let size = PipelineSize { chunks_per_stage, slice_count, ..size };
    let column = parser.keep(generate_sized(kind, size).map_err(InputError::from))?;
    if replicas == 1 {
        return Some(column);
    }
    parser.keep(side_by_side(&vec![column; replicas as usize]).map_err(InputError::from))
}

fn parse_program(path: &Path, text: &str) -> Result<Program, InputError> {
    if text.trim_start().starts_with("program") {
        return text.parse().map_err(|source| InputError::Parse { path: path.to_owned(), source });
    }
    pytorch::read(text).map_err(|source| InputError::ParsePyTorch { path: path.to_owned(), source })
}

fn parse_window(text: &str) -> Result<Window, InputError> {
    match text {
        "0" => Ok(Window::Zero),
        "1" => Ok(Window::One),
        _ => Err(InputError::Window { found: text.to_owned() }),
    }
}

/// By stage, and between stages.
pub(super) struct StageTimesInput {
    f: Vec<f64>,
    b: Vec<f64>,
    w: Vec<f64>,
    pub(super) link: f64,
    pub(super) occupancy: f64,
}

impl StageTimesInput {
    /// F, B and W of each stage.
    fn sums(&self) -> Vec<f64> {
        let both = self.f.iter().zip(&self.b).map(|(f, b)| f + b);
        both.zip(&self.w).map(|(sum, w)| sum + w).collect()
    }

    pub(super) fn of_chunks(&self, placement: &Placement) -> Vec<ChunkTimes> {
        of_chunks(placement, |stage, share| ChunkTimes {
            f: self.f[stage] * share,
            b: self.b[stage] * share,
            w: self.w[stage] * share,
            w_early: 0.0,
        })
    }
}

/// Memory that a microbatch keeps, by stage.
pub(super) struct StageMemoryInput {
    after_f: Vec<f64>,
    after_d: Vec<f64>,
    after_b: Vec<f64>,
}

impl StageMemoryInput {
    /// One for each microbatch, from F to W.
    fn even(stage_count: usize) -> Self {
        let one = vec![1.0; stage_count];
        let none = vec![0.0; stage_count];
        Self { after_f: one.clone(), after_d: none, after_b: one }
    }

    pub(super) fn of_chunks(&self, placement: &Placement) -> Vec<ChunkMemory> {
        of_chunks(placement, |stage, share| ChunkMemory {
            after_forward: self.after_f[stage] * share,
            after_drop: self.after_d[stage] * share,
            after_input_gradient: self.after_b[stage] * share,
            after_early_weights: self.after_b[stage] * share,
        })
    }
}

/// One entry a chunk, made of its stage and of the chunk's share of that stage.
fn of_chunks<T>(placement: &Placement, make: impl Fn(usize, f64) -> T) -> Vec<T> {
    let share = placement.chunk_share();
    let stage_of = |chunk| placement.stage_of(chunk).expect("the chunk exists").index();
    (0..placement.chunk_count()).map(|chunk| make(stage_of(ChunkIndex(chunk)), share)).collect()
}

pub(super) fn read_memory(args: &MemoryArgs, parser: &mut InputParser) -> Option<StageMemoryInput> {
    let errors = parser.error_count();
    let after_f = parser.list("--mf", &args.mf, AllowedNumbers::FromZero);
    let mut optional = |flag, text: &Option<String>| {
        text.as_ref().and_then(|text| parser.list(flag, text, AllowedNumbers::Any))
    };
    let change = optional("--mb", &args.mb);
    let after_b = optional("--mw", &args.mw);
    let after_d = args.md.as_ref().map(|text| parser.list("--md", text, AllowedNumbers::FromZero));
    if parser.error_count() > errors {
        return None;
    }
    let after_f = after_f?;
    let after_b = parser.keep(kept_after_b(&after_f, change, after_b))?;
    let after_d = after_d.unwrap_or_else(|| Some(vec![0.0; after_f.len()]))?;
    Some(StageMemoryInput { after_f, after_d, after_b })
}

/// The memory that each stage keeps from B to W. The memory that W gives back, written as a
/// negative number, is the same.
fn kept_after_b(
    after_f: &[f64],
    change: Option<Vec<f64>>,
    after_b: Option<Vec<f64>>,
) -> Result<Vec<f64>, InputError> {
    let Some(change) = change else {
        let kept = after_b.unwrap_or_else(|| after_f.to_vec());
        return Ok(kept.into_iter().map(f64::abs).collect());
    };
    let sums: Vec<f64> = after_f.iter().zip(&change).map(|(f, b)| f + b).collect();
    for (stage, sum) in sums.iter().copied().enumerate() {
        if sum < 0.0 {
            return Err(InputError::NegativeMemory { stage, sum });
        }
        let Some(after_b) = after_b.as_ref().map(|kept| kept[stage].abs()) else { continue };
        if (sum - after_b).abs() > 1e-9 * after_f[stage] {
            return Err(InputError::MemorySum { stage, sum, after_b });
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests;
