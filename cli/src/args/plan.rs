//! Command line of `plan`.

use std::path::PathBuf;

use clap::Args;

use super::{ClientArgs, ConfigArgs};

/// Examples below the help text of `plan`.
pub const PLAN_EXAMPLES: &str = "\
F, B, W and updates of one layer of each kind are measured here, with as many threads as --threads
says; a node of speed 2 is taken to need half of that. Memory is what a stage is given on its node.

A file of nodes:
  latency = \"0.2ms\"        of a message between nodes; 0 if left out
  gbit_per_s = 9.4         of a link; without it, size does not matter
  [[node]]                 in the order of stages
  name = \"a\"
  speed = 2.0              times this machine; 1 if left out
  memory = \"10GiB\"         no limit if left out
  zone = \"us-east-1a\"      what it fails with; unknown if left out
  count = 3                so many of them; 1 if left out

Examples:
  zbelastic plan run.toml --nodes 4
  zbelastic plan run.toml --nodes spot.toml --compare 1f1b,zb-h1,zb-v --svg plan.svg
  zbelastic plan run.toml --nodes live --json";

/// `plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Nodes: so many like this machine, a file of them, or live for the workers of the cluster.
    #[arg(long, value_name = "N|FILE|live", default_value = "4")]
    pub nodes: String,
    /// Schedules to show beside the chosen one, with commas [default: all that a
    /// cluster can run].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub compare: Vec<String>,
    /// Threads that compute on a node like this machine [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Write a picture of a step of the chosen schedule; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The cluster, for --nodes live.
    #[command(flatten)]
    pub client: ClientArgs,
}
