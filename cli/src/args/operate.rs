//! `run`, `pause`, `resume`, `stop`, `status`, `events`, `logs` and `ckpt` as typed.

use std::time::Duration;

use clap::{Args, Subcommand};
use zbelastic_consensus::run::{RUN_NAME_BYTES_MAX, is_run_name};
use zbelastic_wording::parse_duration_above_zero;

use super::client::{ClientArgs, ReadArgs};
use super::{ConfigArgs, short};

pub(super) const RUN_EXAMPLES: &str = "\
The same configuration over the same text is the same run: if it is under way, this follows it; if
it was held, it goes on. What a run before it made is kept: `zbelastic runs list`. Ctrl-C ends the
following, not the run.

Examples:
  zbelastic run run.toml
  zbelastic run run.toml --name baseline
  zbelastic run run.toml --set train.steps=1000 --text 'docs/*.md' --detach
  zbelastic run --from baseline --steps 2000";

pub(super) const STOP_EXAMPLES: &str = "\
The run is paused, the version that it is paused at becomes a checkpoint, then it ends. It ends with
the checkpoint before if no layer of that version becomes durable for a minute.

Examples:
  zbelastic stop --yes
  zbelastic stop --now --yes";

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  zbelastic status
  zbelastic status --watch
  zbelastic status --json | jq .job.step";

pub(super) const EVENTS_EXAMPLES: &str = "\
Examples:
  zbelastic events
  zbelastic events -f --steps
  zbelastic events --json | jq 'select(.event == \"lost\")'";

pub(super) const LOGS_EXAMPLES: &str = "\
Examples:
  zbelastic logs
  zbelastic logs gpu-b -f";

/// `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// What the run is called: another name is another run [default: by the model's size].
    #[arg(long, value_name = "NAME", value_parser = run_name)]
    pub name: Option<String>,
    /// Go on from the last checkpoint of a run that is over, with moments and step number. Without
    /// CONFIG its configuration and data, but for what other flags set: more steps, another
    /// learning rate or schedule. With CONFIG, which may name other data, the same model.
    #[arg(long, value_name = "RUN", value_parser = run_name)]
    pub from: Option<String>,
    /// Submit and return, without following.
    #[arg(long)]
    pub detach: bool,
    /// The cluster, and how to answer: with --json one event a line.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// A legal name of a run.
fn run_name(text: &str) -> Result<String, String> {
    if is_run_name(text) {
        return Ok(text.to_owned());
    }
    let what = format!(
        "expected 1 to {RUN_NAME_BYTES_MAX} of a-z, 0-9, '-', '_' and '.', the first a letter or a digit"
    );
    Err(what)
}

/// `runs`.
#[derive(Clone, Debug, Subcommand)]
pub enum RunsCommand {
    /// List runs, oldest first.
    #[command(after_help = "Example:\n  zbelastic runs list --json")]
    List(ReadArgs),
    /// Show a run and its checkpoints.
    #[command(after_help = "Example:\n  zbelastic runs show baseline")]
    Show {
        /// Its name.
        #[arg(value_name = "RUN", value_parser = run_name)]
        name: String,
        /// The cluster, and how to answer.
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Forget a run that ended; its checkpoints are removed from every node.
    #[command(after_help = "Example:\n  zbelastic runs remove baseline --yes")]
    Remove {
        /// Its name.
        #[arg(value_name = "RUN", value_parser = run_name)]
        name: String,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
        /// The cluster.
        #[command(flatten)]
        client: ClientArgs,
    },
}

/// `stop`.
#[derive(Args, Clone, Debug)]
pub struct StopArgs {
    /// End it at once, with the checkpoint that it has: the steps behind it are given up.
    #[arg(long)]
    pub now: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Show it anew every --interval, until Ctrl-C.
    #[arg(long, short)]
    pub watch: bool,
    /// Time between two, with --watch.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration_above_zero)]
    pub interval: Duration,
    /// The cluster, and how to answer.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// `events`.
#[derive(Args, Clone, Debug)]
pub struct EventsArgs {
    /// Go on and print events as they come, until Ctrl-C.
    #[arg(long, short)]
    pub follow: bool,
    /// Print every sealed step as well.
    #[arg(long)]
    pub steps: bool,
    /// The sequence number to begin with, as --json prints it.
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    pub since: u64,
    /// The cluster, and how to answer.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// `logs`.
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// Which node: its number, its name, or how its name begins [default: the one that answers].
    #[arg(value_name = "NODE", value_parser = short)]
    pub node: Option<String>,
    /// Go on and print lines as they come, until Ctrl-C.
    #[arg(long, short)]
    pub follow: bool,
    /// The cluster, and how to answer.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// `ckpt`.
#[derive(Clone, Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List checkpoints.
    #[command(
        after_help = "Examples:\n  zbelastic ckpt list --json\n  zbelastic ckpt list --run baseline"
    )]
    List {
        /// The run that it is of [default: the newest].
        #[arg(long, value_name = "RUN", value_parser = run_name)]
        run: Option<String>,
        /// The cluster, and how to answer.
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show a checkpoint layer by layer.
    #[command(after_help = "Example:\n  zbelastic ckpt show 300")]
    Show {
        /// The step that it was made after.
        #[arg(value_name = "STEP")]
        step: u64,
        /// The run that it is of [default: the newest].
        #[arg(long, value_name = "RUN", value_parser = run_name)]
        run: Option<String>,
        /// The cluster, and how to answer.
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Read every copy of every layer, and compare it with its hash.
    #[command(after_help = "\
Ends with 8 if a copy is damaged, with 0 if all are sound.

Examples:
  zbelastic ckpt verify
  zbelastic ckpt verify 300 --json")]
    Verify {
        /// The step that it was made after [default: all checkpoints].
        #[arg(value_name = "STEP")]
        step: Option<u64>,
        /// The run that it is of [default: the newest].
        #[arg(long, value_name = "RUN", value_parser = run_name)]
        run: Option<String>,
        /// The cluster, and how to answer.
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Set the run back to a checkpoint: steps after it are dropped and computed again.
    #[command(after_help = "Example:\n  zbelastic ckpt restore 200 --yes")]
    Restore {
        /// The step that it was made after.
        #[arg(value_name = "STEP")]
        step: u64,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
        /// The cluster.
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Remove what no checkpoint needs any more, on every node.
    #[command(after_help = "Example:\n  zbelastic ckpt gc --yes")]
    Gc {
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
        /// The cluster, and how to answer.
        #[command(flatten)]
        read: ReadArgs,
    },
}
