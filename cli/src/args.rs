//! The command line as typed. Its values are converted once: configuration flags by
//! [`ConfigArgs::sources`], everything else where it is used.

mod address;
#[cfg(feature = "chaos")]
mod chaos;
mod client;
mod corpus;
mod doctor;
mod membership;
mod models;
mod operate;
mod plan;
mod quantity;
mod schedule;
#[cfg(test)]
mod tests;
mod ui;
mod whole_number;

pub use address::{AddressError, AddressList, HostPort, PORT_DEFAULT};
#[cfg(feature = "chaos")]
pub use chaos::{ChaosCommand, WatchedDemoArgs};
pub use client::{ClientArgs, FolderArgs, ReadArgs};
pub use corpus::{
    DataCommand, DataPrepareArgs, DataShowArgs, TokenizerCommand, TokenizerTrainArgs,
};
pub use doctor::{DOCTOR_EXAMPLES, DoctorArgs};
pub use membership::{
    ClusterCommand, InitArgs, JoinArgs, LeaveArgs, LoginArgs, MirrorArgs, NodeCommand,
    NodeRemoveArgs, RecoverArgs, RecoverFromArgs, RoleArg, RotateCaArgs, TokenCommand,
    TokenCreateArgs, TokenRevokeArgs, TokenSourceArgs, default_bind,
};
pub use models::{EvalArgs, ExportArgs, ExportType, GenerateArgs};
pub use operate::{
    CheckpointCommand, EventsArgs, LogsArgs, RunArgs, RunsCommand, StatusArgs, StopArgs,
};
pub use plan::{PLAN_EXAMPLES, PlanArgs};
pub use quantity::QuantityError;
pub use schedule::{
    AS_FORWARD, AsyncArgs, MemoryArgs, MemorySavingsArgs, PassTimesArgs, ProgramArgs, RenderArgs,
    ScheduleCommand, SimulateArgs, SolveArgs, StepEndingArgs,
};

pub use ui::{ManArgs, PageArgs, TopArgs, UiArgs};

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
#[cfg(feature = "bench")]
use zbelastic_bench::args::BenchCommand;
use zbelastic_config::{ConfigFlag, ConfigSources, ConfigValue, Key, flag_value};
use zbelastic_machine::DeviceList;
use zbelastic_preemption::NoticeSource;

/// Trains transformers in a pipeline of workers, and takes bad steps back exactly.
#[derive(Debug, Parser)]
#[command(name = "zbelastic", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: CliCommand,
}

impl Cli {
    /// The command line of these words, the first of which is the program's name.
    ///
    /// # Errors
    /// If it is none, in words that say what was expected.
    pub fn of_words<W>(words: impl IntoIterator<Item = W>) -> Result<Self, clap::Error>
    where
        W: Into<OsString> + Clone,
    {
        Self::try_parse_from(words).map_err(whole_number::explained)
    }
}

const EXAMPLES: &str = "\
Examples:
  zbelastic train                                     train a small model on this machine
  zbelastic train run.toml --workers 4 --text book.txt
  zbelastic init                                      a cluster; prints the line to join it with
  zbelastic run run.toml                              train on the cluster
  zbelastic config show > run.toml                    a configuration to begin with
  zbelastic export runs/quickstart-1 --to model       the trained model, for transformers and others
  zbelastic generate runs/quickstart-1 --prompt 'The '
  zbelastic schedule render --kind zb-h2 --stages 4 --microbatches 8

Exit codes: 0 ok, 1 internal, 2 usage or configuration, 3 cannot reach the cluster, 4 not
authorised, 5 not found, 6 wrong state, 7 out of disk, memory or device, 8 verification failed,
9 no quorum, 10 to 14 what a simulated cluster failed with, 75 drained, start me again,
130 interrupted.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Train on this machine: every worker is a stage of the pipeline.
    #[command(after_help = TRAIN_EXAMPLES)]
    Train(TrainArgs),
    /// Make a cluster: this process is its first controller.
    #[command(after_help = membership::INIT_EXAMPLES)]
    Init(InitArgs),
    /// Join a cluster: this process is a worker of it, or another controller.
    #[command(after_help = membership::JOIN_EXAMPLES)]
    Join(JoinArgs),
    /// Get a person's certificate for commands, with a token: as an operator or a viewer.
    #[command(after_help = membership::LOGIN_EXAMPLES)]
    Login(LoginArgs),
    /// Take this node out of its cluster: it hands over its layers, then its process ends.
    #[command(after_help = membership::LEAVE_EXAMPLES)]
    Leave(LeaveArgs),
    /// Tokens with which nodes join, and people log in.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Members of the cluster.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Train a configuration on the cluster, and follow it.
    #[command(after_help = operate::RUN_EXAMPLES)]
    Run(RunArgs),
    /// Pause the run after the step under way.
    #[command(after_help = "Example:\n  zbelastic pause")]
    Pause(ClientArgs),
    /// Go on with a paused run.
    #[command(after_help = "Example:\n  zbelastic resume")]
    Resume(ClientArgs),
    /// End the run; what it has trained is kept as its last checkpoint.
    #[command(after_help = operate::STOP_EXAMPLES)]
    Stop(StopArgs),
    /// Show members, run, plan and checkpoints as they are now.
    #[command(after_help = operate::STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show the cluster as a live page in a browser, and as metrics for Prometheus.
    #[command(after_help = ui::UI_EXAMPLES)]
    Ui(UiArgs),
    /// Show the cluster in this terminal, drawn again as it changes.
    #[command(after_help = ui::TOP_EXAMPLES)]
    Top(TopArgs),
    /// Show what happened: joins, losses, plans, checkpoints.
    #[command(after_help = operate::EVENTS_EXAMPLES)]
    Events(EventsArgs),
    /// Show the log lines of a node.
    #[command(after_help = operate::LOGS_EXAMPLES)]
    Logs(LogsArgs),
    /// Runs of the cluster: the one under way, and those that ended.
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Write a run's model as a folder that transformers loads, with tokenizer and model card.
    #[command(after_help = models::EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Continue a text with the model of a run or of a folder.
    #[command(after_help = models::GENERATE_EXAMPLES)]
    Generate(GenerateArgs),
    /// Loss, perplexity and bits per byte of a model on texts.
    #[command(after_help = models::EVAL_EXAMPLES)]
    Eval(EvalArgs),
    /// Checkpoints of a run.
    #[command(subcommand)]
    Ckpt(CheckpointCommand),
    /// The cluster itself.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Copy checkpoints to a folder or bucket outside of the cluster, as they come.
    #[command(after_help = membership::MIRROR_EXAMPLES)]
    Mirror(MirrorArgs),
    /// Found a cluster from a mirror's checkpoint, when every disk of the old one is gone.
    #[command(after_help = membership::RECOVER_EXAMPLES)]
    Recover(RecoverFromArgs),
    /// Predict step time, bubble and memory of a run on given machines.
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanArgs),
    /// Draw, time and list pipeline schedules.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Tokenizers: text to token ids.
    #[command(subcommand)]
    Tokenizer(TokenizerCommand),
    /// Token stores: what training reads of a corpus that is larger than memory.
    #[command(subcommand)]
    Data(DataCommand),
    /// Check, show and explain configurations.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Measure this machine.
    #[command(subcommand)]
    #[cfg(feature = "bench")]
    Bench(BenchCommand),
    /// Check whether this machine can be a node, and say what to do where it cannot.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Print completions of commands and flags for a shell.
    #[command(after_help = ui::COMPLETIONS_EXAMPLES)]
    Completions {
        /// Which shell.
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Print the manual page, or write one for each command into a folder.
    #[command(after_help = ui::MAN_EXAMPLES)]
    Man(ManArgs),
    /// Inject faults into clusters, simulated or of real processes.
    #[command(subcommand)]
    #[cfg(feature = "chaos")]
    Chaos(ChaosCommand),
}

const TRAIN_EXAMPLES: &str = "\
Examples:
  zbelastic train --steps 100
  zbelastic train --ui                                with a live page in a browser
  zbelastic train run.toml --workers 4 --schedule zb-h1 --window 1
  zbelastic train run.toml --device cuda:0,cuda:1 --set train.precision=bf16
  zbelastic train --set model.preset=tiny --set optimizer.lr=3e-4 --text docs 'notes/*.md'
  zbelastic train --inject step=7,tensor=layers.2.mlp.up,value=nan";

/// Most letters of a name or id that is looked up: nothing longer exists.
const SELECTOR_MAX: usize = 128;

/// The name of a thing: not empty, and not longer than any name is.
fn short(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("expected a name or a number".to_owned()),
        1..=SELECTOR_MAX => Ok(text.to_owned()),
        length => Err(format!("{length} bytes, and no name has more than {SELECTOR_MAX}")),
    }
}

/// Workers of one machine: more than it has cores, and few enough to be planned for in a second.
pub const WORKERS_MAX: i64 = zbelastic_consensus::job::STAGES_MAX as i64;
/// Threads of a worker: far more than a machine has cores, and few enough to be started.
const THREADS_MAX: i64 = 64;
/// Longest window of a token store that is shown or evaluated, in tokens.
const WINDOW_MAX: i64 = 1 << 20;

/// `train`.
#[derive(Args, Debug)]
pub struct TrainArgs {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Workers, each a stage of the pipeline [default: 4, or fewer if the model has fewer layers].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    pub workers: Option<u32>,
    /// What workers compute on: cpu, or NVIDIA devices by number, dealt out to stages in turn, as
    /// in cuda:0 or cuda:0,cuda:1 [default: cpu, or cuda:0 if train.device says so].
    #[arg(long, value_name = "DEVICE,...", value_parser = DeviceList::parse)]
    pub device: Option<DeviceList>,
    /// Threads that compute, in each worker [default: this machine's cores, shared out].
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub threads: Option<u32>,
    /// Train in this process alone, with a thread for each worker: nothing survives its end.
    #[arg(long, conflicts_with = "ui")]
    pub threads_only: bool,
    /// Print one JSON object a line instead of text.
    #[arg(long)]
    pub json: bool,
    /// Folder for what the run leaves behind; one that a run was interrupted in goes on.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on from the last checkpoint of the run in --out with another configuration: with more
    /// steps, another learning rate or batch. Schedule, window, workers and threads may change
    /// without it.
    #[arg(long, requires = "out", conflicts_with = "threads_only")]
    pub branch: bool,
    /// Whose notices of taking this machine away end the run as SIGTERM does: auto, aws, gcp, azure
    /// or none.
    #[arg(long, value_name = "CLOUD", default_value_t = NoticeSource::Auto)]
    pub spot: NoticeSource,
    /// The page of the run, while it trains.
    #[command(flatten)]
    pub page: PageArgs,
    /// Corrupt a gradient on purpose; may be given several times.
    ///
    /// SPEC is step=N,tensor=NAME,value=nan|inf|x1000|bit=B[,attempts=K]: in step N, counted from
    /// 1, on the first K runs of it.
    #[arg(long, value_name = "SPEC", verbatim_doc_comment)]
    pub inject: Vec<String>,
}

/// What says how a run is configured. Flags of their own win over `--set`, and both over the file.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// Configuration file (TOML); without it, the preset quickstart.
    #[arg(value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Schedule: auto, or a name that `schedule list` prints, such as zb-h1 or zb-v [schedule.kind].
    #[arg(long, value_name = "KIND")]
    pub schedule: Option<String>,
    /// Pipelines side by side, each on workers of its own: a power of two up to train.lanes [schedule.replicas].
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub replicas: Option<String>,
    /// Slices that seq1f1b cuts sequences into [schedule.slices].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub slices: Option<String>,
    /// Optimizer steps [train.steps].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub steps: Option<String>,
    /// Steps that may run ahead of their verdict: 0, 1 or auto [schedule.window].
    #[arg(long, value_name = "WINDOW")]
    pub window: Option<String>,
    /// What weights and the order of the text are drawn from [train.seed].
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub seed: Option<String>,
    /// Files, folders and globs to train on [data.text].
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub text: Vec<String>,
    /// Token stores to train on in place of text, as in --tokens a b=3 [data.tokens].
    #[arg(long, value_name = "STORE", num_args = 1..)]
    pub tokens: Vec<String>,
    /// What makes tokens of text: bytes, a tokenizer.json or its folder [data.tokenizer].
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    /// Set any key of the configuration, as in --set train.steps=100; the last of several wins.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// Where the configuration comes from.
    #[must_use]
    pub fn sources(&self) -> ConfigSources {
        let mut flags: Vec<ConfigFlag> = self.set.iter().cloned().map(ConfigFlag::Set).collect();
        let own = [
            ("--schedule", Key::Schedule, &self.schedule),
            ("--replicas", Key::Replicas, &self.replicas),
            ("--slices", Key::Slices, &self.slices),
            ("--steps", Key::Steps, &self.steps),
            ("--window", Key::Window, &self.window),
            ("--seed", Key::Seed, &self.seed),
            ("--tokenizer", Key::Tokenizer, &self.tokenizer),
        ];
        flags.extend(own.into_iter().filter_map(|(flag, key, text)| {
            let value = flag_value(key, text.as_ref()?);
            Some(ConfigFlag::Own { flag, key, value })
        }));
        let lists = [("--text", Key::Text, &self.text), ("--tokens", Key::Tokens, &self.tokens)];
        for (flag, key, entries) in lists.into_iter().filter(|(.., entries)| !entries.is_empty()) {
            let entries = entries.iter().cloned().map(ConfigValue::Text);
            flags.push(ConfigFlag::Own { flag, key, value: ConfigValue::List(entries.collect()) });
        }
        ConfigSources { file: self.config.clone(), flags }
    }
}

/// `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Report everything that is wrong with a configuration and its text.
    #[command(after_help = "Example:\n  zbelastic config check run.toml")]
    Check(ConfigReadArgs),
    /// Print the effective configuration: every key, and what it was set by.
    #[command(
        after_help = "Examples:\n  zbelastic config show > run.toml\n  zbelastic config show run.toml --set train.steps=10"
    )]
    Show(ConfigReadArgs),
    /// Print every key with its kind, default and meaning.
    #[command(after_help = "Example:\n  zbelastic config schema")]
    Schema {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `config check` and `config show`.
#[derive(Args, Debug)]
pub struct ConfigReadArgs {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
