//! What is typed for clusters of real processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::processes::faults::FaultKind;

/// More processes are not started on one machine.
const NODES_MAX: i64 = 256;
/// No fault and no demonstration lasts longer, in seconds.
const SECONDS_MAX: f64 = 86_400.0;

/// What stands below the help of `run`.
pub const RUN_EXIT_CODES: &str = "\
Exit codes: 0 passed, 2 usage, 10 safety: an invariant was broken or the weights differ, 11
liveness: nothing was sealed for a minute, 12 a process ended by itself, 14 the campaign itself, 130
interrupted.";
/// What stands below the help of `demo`.
pub const DEMO_EXIT_CODES: &str = "\
Exit codes: 0 the weights are the same, 8 they differ, 11 nothing was sealed for a minute, 12 a
process ended by itself, 14 the demonstration itself, 130 interrupted.";

/// The cluster that is started.
#[derive(Args, Clone, Debug)]
pub struct GroupArgs {
    /// Workers.
    #[arg(long, value_name = "W", default_value_t = 4, value_parser = nodes())]
    pub workers: u32,
    /// Controllers.
    #[arg(long, value_name = "C", default_value_t = 3, value_parser = nodes())]
    pub controllers: u32,
    /// Who is struck when follows from it.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// The binary that is started [default: this one].
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
}

/// `zbelastic chaos run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// What is trained; the number of steps is chosen so that all faults find their time.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The cluster.
    #[command(flatten)]
    pub group: GroupArgs,
    /// Faults.
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub kills: u64,
    /// Of these kinds [default: all that need no proxy].
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = parse_kind)]
    pub faults: Vec<FaultKind>,
    /// Besides, so many times everything dies at once.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub power_cycles: u64,
    /// Seconds of training between two faults, at least.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub every: Duration,
    /// No fault lasts longer.
    #[arg(long, value_name = "SECONDS", default_value = "6", value_parser = parse_seconds)]
    pub longest: Duration,
    /// All datagrams go through the proxy, even if no fault needs it.
    #[arg(long)]
    pub proxy: bool,
    /// Each process has a network of its own, made of what the kernel has, so that a cable can be
    /// pulled. Needs the rights of an administrator, and the program `ip`.
    #[arg(long, conflicts_with = "proxy")]
    pub namespaces: bool,
    /// Each worker's folder is a disk of so many MiB in memory, which a full disk fills in earnest;
    /// without it, files cannot grow while a disk is full. Needs the right to mount.
    #[arg(long, value_name = "MIB")]
    pub small_disk: Option<u32>,
    /// Write the account as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// A new folder for data, logs and events, which stays [default: one that goes if all is well].
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Print the faults, and strike nobody.
    #[arg(long)]
    pub list: bool,
}

/// `zbelastic chaos measure`.
#[derive(Args, Clone, Debug)]
pub struct MeasureArgs {
    /// What is trained.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The cluster.
    #[command(flatten)]
    pub group: GroupArgs,
    /// How often each fault strikes.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub times: u32,
    /// How often everything dies at once.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub power_cycles: u32,
    /// Write what was measured as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// `zbelastic chaos demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// How long the training with faults takes, about.
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// The cluster.
    #[command(flatten)]
    pub group: GroupArgs,
}

fn nodes() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=NODES_MAX)
}

fn parse_kind(name: &str) -> Result<FaultKind, String> {
    FaultKind::named(name).ok_or_else(|| {
        let names = FaultKind::ALL.map(FaultKind::name).join(", ");
        format!("there are {names}")
    })
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if !(0.0..=SECONDS_MAX).contains(&seconds) {
        return Err(format!("must be from 0 to {SECONDS_MAX}"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{CommandFactory, Parser};

    use super::{DemoArgs, MeasureArgs, RunArgs};
    use crate::processes::faults::FaultKind;

    #[derive(Debug, Parser)]
    enum Line {
        Run(RunArgs),
        Measure(MeasureArgs),
        Demo(DemoArgs),
    }

    fn parse(line: &str) -> Option<Line> {
        let words = ["chaos"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).ok()
    }

    #[test]
    fn a_campaign_is_typed() {
        Line::command().debug_assert();
        let line = "run --config a.toml --kills 7 --faults storm,kill-leader --every 0.5";
        let Some(Line::Run(args)) = parse(line) else { panic!("legal") };
        assert_eq!(args.faults, [FaultKind::Storm, FaultKind::KillLeader]);
        assert_eq!((args.kills, args.every), (7, Duration::from_millis(500)));
        assert_eq!((args.group.workers, args.group.controllers), (4, 3));
        assert!(matches!(parse("demo --seconds 9 --workers 2"), Some(Line::Demo(_))));
        assert!(matches!(parse("measure --config a.toml"), Some(Line::Measure(_))));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let lines = [
            "run",
            "run --config a --workers 0",
            "run --config a --workers 65",
            "run --config a --faults earthquake",
            "run --config a --every -1",
            "demo --seconds nan",
            "demo --seconds 86401",
        ];
        for line in lines {
            assert!(parse(line).is_none(), "{line}");
        }
    }
}
