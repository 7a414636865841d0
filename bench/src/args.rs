//! The command line of `bench`, as typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use zbelastic_consensus::job::STAGES_MAX;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_schedule::ScheduleKind;
use zbelastic_wording::parse_duration_above_zero;

/// Workers of one machine.
const WORKERS_MAX: i64 = STAGES_MAX as i64;

/// Tokens of a microbatch of `bench gpu`.
pub const MICROBATCH_TOKENS: u32 = 8192;
/// Tokens of its shortest sequences.
const SEQUENCE_LEN_MIN: u32 = 64;

/// Pipelines of `bench bubble`: as many as all workers there may be make up with the most stages it has.
const REPLICAS_MAX: i64 = WORKERS_MAX / 32;

/// `bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Training steps of the benchmark models.
    #[command(after_help = "Example:\n  zbelastic bench train --config A,B --quick")]
    Train(BenchArgs),
    /// The memory that a pipelined run takes, beside what its plan claims.
    #[command(after_help = "Example:\n  zbelastic bench memory --config B --schedule zb-v")]
    Memory(BenchMemoryArgs),
    /// The matrix products of the benchmark models.
    #[command(after_help = "Example:\n  zbelastic bench gemm --json")]
    Gemm(BenchArgs),
    /// Each operation of a step of the benchmark models, beside the least time it could take.
    #[command(after_help = "Example:\n  zbelastic bench ops --config B")]
    Ops(BenchArgs),
    /// The fastest of a few training steps of one model.
    #[command(after_help = "Examples:\n  zbelastic bench step --config B --threads 2\n  \
                      zbelastic bench step --config B --schedule zb-v")]
    Step(BenchStepArgs),
    /// What a gradient that is a tree of lanes costs one worker, beside one lane.
    #[command(after_help = "Example:\n  zbelastic bench lanes --config B --lanes 8")]
    Lanes(BenchLanesArgs),
    /// What pipelines lose beside what their plans say, on devices that take as long as planned.
    #[command(after_help = "Examples:\n  zbelastic bench bubble --stages 8 --microbatches 32\n  \
                      zbelastic bench bubble --stages 16 --replicas 4 --schedule zb-v --scaled-from 4")]
    Bubble(BenchBubbleArgs),
    /// Workers as processes beside workers as threads, and steps with a checkpoint under way.
    #[command(after_help = "Example:\n  zbelastic bench cluster --rounds 5 run.toml")]
    Cluster(BenchClusterArgs),
    /// An NVIDIA device: whether it computes what it should, what operations and whole steps take.
    #[command(after_help = "Examples:\n  zbelastic bench gpu --out gpu.json\n  \
                      zbelastic bench gpu --activations bf16 --model llama-1b --seq-len 4096")]
    Gpu(BenchGpuArgs),
}

/// `bench train`, `bench gemm` and `bench ops`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Which models, with commas [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',', ignore_case = true)]
    pub config: Vec<BenchConfig>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Measure for a few seconds only.
    #[arg(long)]
    pub quick: bool,
}

/// `bench step`.
#[derive(Args, Debug)]
pub struct BenchStepArgs {
    /// Which model.
    #[arg(long, value_name = "NAME", default_value = "B", ignore_case = true)]
    pub config: BenchConfig,
    /// Threads that compute.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Steps that count, behind one that does not.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub steps: u32,
    /// A token store of bytes, read in turns with the text in memory: as one text, and with documents apart.
    #[arg(long, value_name = "STORE")]
    pub tokens: Option<PathBuf>,
    /// A pipeline of two workers with one thread each in this schedule: the mean of the steps.
    #[arg(long, value_name = "KIND", conflicts_with_all = ["threads", "tokens"])]
    pub schedule: Option<ScheduleKind>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench lanes`.
#[derive(Args, Debug)]
pub struct BenchLanesArgs {
    /// Which model.
    #[arg(long, value_name = "NAME", default_value = "B", ignore_case = true)]
    pub config: BenchConfig,
    /// Lanes: a power of two.
    #[arg(long, value_name = "L", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub lanes: u32,
    /// Threads that compute.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Rounds that count, behind one that does not: a step of each.
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench memory`.
#[derive(Args, Debug)]
pub struct BenchMemoryArgs {
    /// Which model: one, because a process remembers the most it ever took.
    #[arg(long, value_name = "NAME", default_value = "B", ignore_case = true)]
    pub config: BenchConfig,
    /// Workers.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    pub workers: u32,
    /// Schedule.
    #[arg(long, value_name = "KIND", default_value = "zb-h1")]
    pub schedule: ScheduleKind,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench cluster`.
#[derive(Args, Debug)]
pub struct BenchClusterArgs {
    /// What is trained; without it, the preset quickstart.
    pub config: Option<PathBuf>,
    /// A preset instead.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Set any key of the configuration; the last of several wins.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Workers.
    #[arg(long, value_name = "W", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    pub workers: u32,
    /// Steps of each run.
    #[arg(long, value_name = "N", default_value_t = 150)]
    pub steps: u64,
    /// Rounds, of three runs each.
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench gpu`.
#[derive(Args, Debug)]
pub struct BenchGpuArgs {
    /// Which device, counted from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// Fewer steps, and where no others are named the smallest model with 1,024 tokens alone.
    #[arg(long)]
    pub quick: bool,
    /// Types of activations, with commas [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub activations: Vec<BenchActivations>,
    /// Which models, with commas [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub model: Vec<GpuBenchModelName>,
    /// Lengths of sequences, with commas: powers of two from 64 to 8192 [default: 1024,4096].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_sequence_len)]
    pub seq_len: Vec<u32>,
    /// Write what was measured as JSON into a file too.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench bubble`.
#[derive(Args, Debug)]
pub struct BenchBubbleArgs {
    /// Stages of a pipeline, each a thread.
    #[arg(long, value_name = "P", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub stages: u32,
    /// Pipelines side by side: a power of two.
    #[arg(long, value_name = "D", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=REPLICAS_MAX))]
    pub replicas: u32,
    /// Which schedules, with commas [default: 1f1b, zb-h1, zb-h2, zb-auto, zb-v].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub schedule: Vec<ScheduleKind>,
    /// Measure one pipeline of so many stages too, each with as much to do: weak scaling.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub scaled_from: Option<u32>,
    /// Microbatches of a step, for each pipeline.
    #[arg(long, value_name = "M", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub microbatches: u32,
    /// What F, B and W of a stage take, each.
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = parse_duration_above_zero)]
    pub pass: Duration,
    /// Steps that count.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub steps: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// The requested models.
    #[must_use]
    pub fn configs(&self) -> &[BenchConfig] {
        if self.config.is_empty() { BenchConfig::value_variants() } else { &self.config }
    }
}

/// A type of activations of `bench gpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchActivations {
    /// Floats.
    F32,
    /// Bfloat16, with weights in floats.
    Bf16,
}

/// A model of `bench gpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GpuBenchModelName {
    /// GPT-2 with 124 million parameters.
    #[value(name = "gpt2-124m")]
    Gpt2Small,
    /// GPT-2 with 1.5 billion.
    #[value(name = "gpt2-1.5b")]
    Gpt2Xl,
    /// A Llama of 1.1 billion.
    #[value(name = "llama-1b")]
    Llama,
}

/// A length of which a microbatch of `bench gpu` has a whole number, and no more than a device has heads for.
fn parse_sequence_len(text: &str) -> Result<u32, String> {
    let len = text.parse().ok().filter(|len: &u32| len.is_power_of_two());
    len.filter(|len| (SEQUENCE_LEN_MIN..=MICROBATCH_TOKENS).contains(len)).ok_or_else(|| {
        format!("expected a power of two from {SEQUENCE_LEN_MIN} to {MICROBATCH_TOKENS}")
    })
}

impl BenchGpuArgs {
    /// The types of activations that are measured.
    #[must_use]
    pub fn precisions(&self) -> Vec<Precision> {
        if self.activations.is_empty() {
            return Precision::ALL.to_vec();
        }
        self.activations.iter().map(|named| named.precision()).collect()
    }

    /// The models whose steps are measured.
    #[must_use]
    pub fn models(&self) -> &[GpuBenchModelName] {
        match self.model.as_slice() {
            [] if self.quick => &[GpuBenchModelName::Gpt2Small],
            [] => &GpuBenchModelName::ALL,
            named => named,
        }
    }

    /// The lengths of their sequences, in tokens.
    #[must_use]
    pub fn sequence_lens(&self) -> &[u32] {
        match self.seq_len.as_slice() {
            [] if self.quick => &[1024],
            [] => &[1024, 4096],
            named => named,
        }
    }
}

impl GpuBenchModelName {
    /// All models, from the smallest on.
    pub const ALL: [Self; 3] = [Self::Gpt2Small, Self::Gpt2Xl, Self::Llama];
}

impl BenchActivations {
    /// The type that it names.
    const fn precision(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
        }
    }
}

/// A benchmark model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchConfig {
    /// 4 layers of width 256.
    #[value(name = "A")]
    A,
    /// 6 layers of width 384.
    #[value(name = "B")]
    B,
    /// 12 layers of width 768.
    #[value(name = "C")]
    C,
}

impl BenchConfig {
    /// Its letter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
        }
    }

    /// The preset that describes it.
    #[must_use]
    pub const fn preset(self) -> &'static str {
        match self {
            Self::A => "bench-a",
            Self::B => "bench-b",
            Self::C => "bench-c",
        }
    }
}
