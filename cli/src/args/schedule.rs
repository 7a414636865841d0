//! Command line of `schedule`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `schedule`.
#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// Draw a schedule: as text, as an SVG picture, as a trace for Perfetto.
    #[command(after_help = RENDER_EXAMPLES)]
    Render(RenderArgs),
    /// Time a schedule: how long a step takes, how much of it is idle, what memory it needs.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(Box<SimulateArgs>),
    /// Find the best order for a pipeline: stages with times of their own, limits of memory.
    #[command(after_help = SOLVE_EXAMPLES)]
    Solve(SolveArgs),
    /// List the schedules there are.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

const RENDER_EXAMPLES: &str = "\
Without --window only arithmetic is drawn, one step of it. With --window the program is lowered as
for a run, and three steps are drawn. A schedule without steps, and a program of one, is drawn as a
whole, in blocks of rows: below a row + keeps a version of the weights, P predicts one, - gives one up,
S is an update, A an average; ~ is idle time in a region whose order is found while it runs.

Examples:
  zbelastic schedule render --kind zb-h2 --stages 4 --microbatches 8
  zbelastic schedule render --kind zb-v --stages 4 --microbatches 8 --svg zb-v.svg --ascii
  zbelastic schedule render --kind zb-h1 --stages 2 --replicas 2 --microbatches 8 --window 1 --comm 0.5
  zbelastic schedule render --program my.txt --f 1,1,2,1 --trace trace.json
  zbelastic schedule render --kind zb-v --stages 4 --microbatches 8 --pytorch zb-v.csv
  zbelastic schedule render --kind pipedream --stages 4 --microbatches 8 --steps 3 --b 1 --w 1";

const SIMULATE_EXAMPLES: &str = "\
Without --window only arithmetic is simulated, one step of it. With --window the program is lowered
as for a run, three steps are simulated, and the middle one is reported. Of a schedule without steps
--steps of them are simulated; what is reported is the whole run, from its first pass to its last, and
the time from step to step while the pipeline is full.

Examples:
  zbelastic schedule simulate --kind zb-h1 --stages 4 --microbatches 8 --f 10 --b 11 --w 8
  zbelastic schedule simulate --kind 1f1b --stages 4 --microbatches 8 --f 1,1,2,1 --json
  zbelastic schedule simulate --kind po-half --stages 4 --microbatches 8 --chunks 4 --offload 1.5
  zbelastic schedule simulate --program my.txt --window 1 --verdict 3
  zbelastic schedule simulate --csv table.csv
  zbelastic schedule simulate --kind pipedream-2bw --stages 4 --microbatches 8 --step 0.5 --weights 2";

const SOLVE_EXAMPLES: &str = "\
The answer says how far from optimal it is at most. The kind says where chunks are: zb-auto has one a
stage, zb-v two in a vee, loop --chunks dealt round, which share what the stage takes; auto takes the
best of the first two, and of the third if --chunks is said. Any other kind is replayed, with the bound
beside it. With --window the program is lowered and its period is told as well. With --recompute or
--offload stages that are above --mem-limit make activations again or let them leave, whichever costs
less; the bound is that of an order for which that takes no time.
A table has a line of names, some of case, p, m, f, b, w, comm, occupancy, mf, mb, mw, md, mem_limit,
recompute, offload, kind, chunks, window, verdict, after, data_parallel and gradient in any order, p and m
among them; lists have semicolons.

Examples:
  zbelastic schedule solve --stages 4 --microbatches 16 --f 10 --b 11 --w 8 --mem-limit 4
  zbelastic schedule solve --stages 4 --microbatches 8 --f 15,10,10,10 --b 16,11,11,11 --w 12,8,8,8
  zbelastic schedule solve --stages 8 --microbatches 32 --comm 0.5 --mw 0.5 --mem-limit 12 --json
  zbelastic schedule solve --stages 8 --microbatches 24 --mem-limit 8 --kind auto
  zbelastic schedule solve --stages 8 --microbatches 24 --mem-limit 3 --recompute --offload 2
  zbelastic schedule solve --stages 4 --microbatches 16 --window 0 --verdict 2 --after 1
  zbelastic schedule solve --stages 4 --microbatches 64 --data-parallel 2 --gradient 3,2,2,3";

/// A program and what its operations take. Lists have one value for all stages, or one a stage,
/// with commas; a stage's chunks share its values evenly.
#[derive(Args, Debug)]
pub struct ProgramArgs {
    /// Schedule by name; see `schedule list`.
    #[arg(long, required_unless_present = "program", conflicts_with = "program")]
    pub kind: Option<String>,
    /// Stages of the pipeline.
    #[arg(long, value_name = "P", required_unless_present = "program", conflicts_with = "program")]
    pub stages: Option<u32>,
    /// Pipelines side by side, a power of two: each runs its share of the microbatches, and lists of
    /// stages go through all of them [default: 1].
    #[arg(long, value_name = "D", conflicts_with = "program")]
    pub replicas: Option<u32>,
    /// Microbatches of a step.
    #[arg(long, value_name = "M", required_unless_present = "program", conflicts_with = "program")]
    pub microbatches: Option<u32>,
    /// Chunks a stage holds, where the schedule leaves that free [default: the least it has].
    #[arg(long, value_name = "V", conflicts_with = "program")]
    pub chunks: Option<u32>,
    /// Slices that a microbatch's sequences are cut into, where the schedule cuts them [default:
    /// 2].
    #[arg(long, value_name = "N", conflicts_with = "program")]
    pub slices: Option<u32>,
    /// What the slices of a microbatch take beside each other, one number a slice; later slices
    /// attend to more [default: all the same].
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub slice_times: Option<String>,
    /// Program to read instead, as text or as a file of PyTorch's pipelining; - is standard input.
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// What its passes take.
    #[command(flatten)]
    pub times: PassTimesArgs,
    /// Chunks of a stage whose passes leave its memory between F and B, from the first one on
    /// [default: as the schedule has it].
    #[arg(long, value_name = "N")]
    pub offload_chunks: Option<u32>,
    /// Time for what a microbatch keeps on a stage to leave and come back [default: as long as its
    /// F, B and W].
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub offload: Option<String>,
    /// Make activations again before B instead of keeping them; R takes as long as F.
    #[arg(long)]
    pub recompute: bool,
    /// Lower the program with this window, 0 or 1: steps that may run ahead of their verdict.
    #[arg(long, value_name = "WINDOW")]
    pub window: Option<String>,
    /// Time from the last report to the verdict; counts in a lowered program.
    #[arg(long, value_name = "TIME", default_value = "0", allow_hyphen_values = true)]
    pub verdict: String,
    /// Time of the optimizer step; counts in a lowered program, and for each update of an
    /// asynchronous one.
    #[arg(long, value_name = "TIME", default_value = "0", allow_hyphen_values = true)]
    pub step: String,
    /// How long an asynchronous program is, and what it keeps to.
    #[command(flatten)]
    pub asynchronous: AsyncArgs,
}

/// What programs of asynchronous schedules are made for.
#[derive(Args, Debug)]
pub struct AsyncArgs {
    /// Steps of a run of an asynchronous schedule, which has no flush between them [default: some
    /// more than it takes to fill the pipeline and to empty it; to draw, no more].
    #[arg(long, value_name = "T", conflicts_with = "program")]
    pub steps: Option<u32>,
    /// Pipelines side by side, of avgpipe [default: 2].
    #[arg(long, value_name = "N", conflicts_with = "program")]
    pub pipelines: Option<u32>,
    /// Microbatches that may be under way, of ampnet [default: 4].
    #[arg(long, value_name = "N", conflicts_with = "program")]
    pub cap: Option<u32>,
    /// Gradients in an update, of ampnet [default: 4].
    #[arg(long, value_name = "N", conflicts_with = "program")]
    pub update_every: Option<u32>,
    /// Steps of pipemare that come first, each with a flush [default: none].
    #[arg(long, value_name = "N", conflicts_with = "program")]
    pub warm_up: Option<u32>,
    /// Every stage of pipedream reads the version that the first one had.
    #[arg(long, conflicts_with = "program")]
    pub vertical_sync: bool,
}

/// What passes take.
#[derive(Args, Debug)]
pub struct PassTimesArgs {
    /// Time of the forward pass of a microbatch.
    #[arg(long, value_name = "LIST", default_value = "1", allow_hyphen_values = true)]
    pub f: String,
    /// Time of the input gradient.
    #[arg(long, value_name = "LIST", default_value = "1", allow_hyphen_values = true)]
    pub b: String,
    /// Time of the weight gradient.
    #[arg(long, value_name = "LIST", default_value = "1", allow_hyphen_values = true)]
    pub w: String,
    /// Time from one stage to another.
    #[arg(long, value_name = "TIME", default_value = "0", allow_hyphen_values = true)]
    pub comm: String,
    /// Time for which a result keeps the way to another stage from those after it.
    #[arg(long, value_name = "TIME", default_value = "0", allow_hyphen_values = true)]
    pub occupancy: String,
}

/// What ends a step.
#[derive(Args, Debug)]
pub struct StepEndingArgs {
    /// Steps that may be open while a stage goes on, 0 or 1: with 1 the longest span of a stage
    /// counts, or the time from the first W to the verdict if that is longer, with 0 the time until
    /// all have the verdict [default: 1].
    #[arg(long, value_name = "WINDOW")]
    pub window: Option<String>,
    /// Time from the last report to the verdict.
    #[arg(long, value_name = "TIME", default_value = "0", allow_hyphen_values = true)]
    pub verdict: String,
    /// Time of what a stage does behind its last W, such as the update.
    #[arg(long, value_name = "LIST", default_value = "0", allow_hyphen_values = true)]
    pub after: String,
    /// Copies of the pipeline, which share a step's microbatches and add up their gradients.
    #[arg(long, value_name = "D", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub data_parallel: u32,
    /// Time in which a stage's whole gradient goes over its link once; copies add up in a ring.
    #[arg(long, value_name = "LIST", default_value = "0", allow_hyphen_values = true)]
    pub gradient: String,
}

/// What microbatches keep.
#[derive(Args, Debug)]
pub struct MemoryArgs {
    /// Memory that a microbatch keeps after F.
    #[arg(long, value_name = "LIST", default_value = "1", allow_hyphen_values = true)]
    pub mf: String,
    /// Change of it by B, usually negative; instead of --mw.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub mb: Option<String>,
    /// Memory that is kept after B, until W [default: as after F].
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub mw: Option<String>,
    /// Memory that is kept from DROP to R, where a program has them [default: none].
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub md: Option<String>,
}

/// What stages may do where their memory is short.
#[derive(Args, Debug)]
pub struct MemorySavingsArgs {
    /// Let stages give up activations after F and make them again before B, as few as their memory
    /// asks for; R takes so long, or as long as F if nothing is said. What stays meanwhile says
    /// --md.
    #[arg(long, value_name = "LIST", num_args = 0..=1, default_missing_value = AS_FORWARD)]
    pub recompute: Option<String>,
    /// Let activations leave between F and B, as few as stages' memory asks for; all that a
    /// microbatch keeps on a stage takes so long to leave and come back.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub offload: Option<String>,
}

/// Says that R lasts as long as F.
pub const AS_FORWARD: &str = "f";

/// `schedule solve`. Lists have one value for all stages, or one a stage, with commas.
#[derive(Args, Debug)]
pub struct SolveArgs {
    /// Stages of the pipeline.
    #[arg(long, value_name = "P", required_unless_present = "csv")]
    pub stages: Option<u32>,
    /// Microbatches of a step.
    #[arg(long, value_name = "M", required_unless_present = "csv")]
    pub microbatches: Option<u32>,
    /// Slices of a microbatch, for a schedule that cuts them and is replayed [default: 2].
    #[arg(long, value_name = "N", conflicts_with = "csv")]
    pub slices: Option<u32>,
    /// A table of problems to solve instead, a row each; - is standard input. Its answer is the
    /// same table with results.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stages", "microbatches", "json"])]
    pub csv: Option<PathBuf>,
    /// What passes take.
    #[command(flatten)]
    pub times: PassTimesArgs,
    /// What microbatches keep.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Memory that a stage has, in the unit of --mf [default: enough for everything].
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub mem_limit: Option<String>,
    /// What stages may do where that is short.
    #[command(flatten)]
    pub memory_savings: MemorySavingsArgs,
    /// What to solve for: zb-auto, zb-v, loop, or auto for the best of them; any other schedule is
    /// replayed [default: zb-auto].
    #[arg(long, conflicts_with = "csv")]
    pub kind: Option<String>,
    /// Chunks a stage holds where they are dealt round; auto tries that if this is said [default:
    /// 2].
    #[arg(long, value_name = "V", conflicts_with = "csv")]
    pub chunks: Option<u32>,
    /// What ends a step.
    #[command(flatten)]
    pub ending: StepEndingArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Add the program's text.
    #[arg(long, visible_alias = "program")]
    pub program_text: bool,
}

/// `schedule render`.
#[derive(Args, Debug)]
pub struct RenderArgs {
    /// What to draw.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Draw as text on standard output; the default if nothing else is asked for.
    #[arg(long)]
    pub ascii: bool,
    /// Write a picture; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a trace for Perfetto, a unit of time as a millisecond; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write a file for PyTorch's pipelining, arithmetic only; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub pytorch: Option<PathBuf>,
    /// The same with sends and receives; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub pytorch_comms: Option<PathBuf>,
    /// Widest row of the text.
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u16).range(1..))]
    pub columns: u16,
}

/// `schedule simulate`.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// What to time.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// A table of schedules to time instead, a row each, as for `schedule solve`, with a column
    /// kind;
    /// - is standard input. Its answer is the same table with results.
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub csv: Option<PathBuf>,
    /// What microbatches keep.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Memory that a stage has for activations, in the unit of --mf: of what may leave, no more
    /// leaves than it takes [default: what makes memory smallest without a pass being later].
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub mem_limit: Option<String>,
    /// Memory of one version of a stage's weights, in the unit of --mf; counts for asynchronous
    /// schedules, which keep several [default: 0].
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub weights: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Add the program's text.
    #[arg(long)]
    pub program_text: bool,
}
