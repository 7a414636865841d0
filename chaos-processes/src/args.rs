//! The arguments of commands for clusters of real processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::contract::TestedConfiguration;
use crate::faults::ProcessFaultKind;
use crate::measure::MeasureRowKind;

/// More processes are not started on one machine.
const NODES_MAX: i64 = 256;
/// No fault and no demonstration lasts longer, in seconds.
const SECONDS_MAX: f64 = 86_400.0;

/// The text below the help of `run`.
pub const RUN_EXIT_CODES: &str = "\
Exit codes: 0 passed, 2 usage, 10 safety: an invariant was broken or the weights differ, 11
liveness: no progress for a minute, 12 a process ended by itself, 14 the campaign itself, 130
interrupted.";
/// Most checkpoints of a soak: years of them, and a number of steps that a job may have.
const SOAK_CHECKPOINTS_MAX: u64 = 1_000_000;
/// Most steps from one checkpoint of a soak to the next: those of `checkpoint.every`, which refuses more.
const SOAK_EVERY_MAX: u64 = 2_048;
/// The text below the help of `soak`.
pub const SOAK_EXIT_CODES: &str = "\
Exit codes: 0 disks, memory, descriptors and threads are flat, 2 usage, 10 one of them grows, 11 fewer
checkpoints were complete than were to be, 14 the soak itself, 130 interrupted.";
/// The text below the help of `demo`.
pub const DEMO_EXIT_CODES: &str = "\
Exit codes: 0 the weights are the same, 8 they differ, 11 no progress for a minute, 12 a
process ended by itself, 14 the demonstration itself, 130 interrupted.";

/// The cluster that is started.
#[derive(Args, Clone, Debug)]
pub struct GroupArgs {
    /// Number of workers.
    #[arg(long, value_name = "W", default_value_t = 4, value_parser = nodes())]
    pub workers: u32,
    /// Number of controllers.
    #[arg(long, value_name = "C", default_value_t = 3, value_parser = nodes())]
    pub controllers: u32,
    /// Seed of the faults: which nodes they hit, and when.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// The binary that is started [default: this one].
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
}

/// The configuration of the training: a file or a preset, and single keys.
#[derive(Args, Clone, Debug)]
pub struct SubjectArgs {
    /// The configuration file of the training.
    #[arg(long, value_name = "FILE", required_unless_present = "preset")]
    pub config: Option<PathBuf>,
    /// A preset, as in `config schema`; a file's keys win over its.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Set any key of the configuration; the last of several wins.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl SubjectArgs {
    /// The configuration as the binary's command line names it.
    #[must_use]
    pub fn configuration(&self) -> TestedConfiguration {
        let preset = self.preset.iter().map(|name| format!("model.preset={name}"));
        TestedConfiguration {
            file: self.config.clone(),
            set: preset.chain(self.set.clone()).collect(),
        }
    }
}

/// Arguments of `zbelastic chaos run`.
#[derive(Args, Clone, Debug)]
pub struct ProcessRunArgs {
    /// The configuration of the training; its number of steps follows from the number of faults.
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Size, seed and binary of the cluster.
    #[command(flatten)]
    pub group: GroupArgs,
    /// Number of faults.
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub kills: u64,
    /// Kinds of faults [default: all that need no proxy].
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = parse_kind)]
    pub faults: Vec<ProcessFaultKind>,
    /// Power cycles in addition: so many times all processes die at once.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub power_cycles: u64,
    /// Number of faults that are injected at once, each into another node.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    pub together: u64,
    /// Seconds of training between two faults, at least.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub every: Duration,
    /// Longest duration of a fault, in seconds.
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
    /// Write the report as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// A new folder for data, logs and events, which stays [default: one that goes if all is well].
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Print the faults, and inject none.
    #[arg(long)]
    pub list: bool,
}

/// Arguments of `zbelastic chaos measure`.
#[derive(Args, Clone, Debug)]
pub struct MeasureArgs {
    /// The configuration of the training.
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Size, seed and binary of the cluster.
    #[command(flatten)]
    pub group: GroupArgs,
    /// Rows, with commas [default: the faults that hit one node, and power cycles].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_row)]
    pub rows: Vec<MeasureRowKind>,
    /// How often each fault is injected; long ones and joins a quarter as often.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub times: u32,
    /// How often all processes die at once.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub power_cycles: u32,
    /// Runs of the row `undisturbed`, which is the only one without --rows [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub undisturbed: Option<u32>,
    /// Steps of each run of the rows `undisturbed` and `speed`.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Rounds of the row `speed`, of three runs each.
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Write what was measured as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Arguments of `zbelastic chaos replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// A CSV file with the columns time_s,event,node,nodes_alive (events are join and leave), or
    /// time_s,nodes_alive.
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// A part of it: two times, in seconds, or in hours as in 5.5h..6.5h.
    #[arg(long, value_name = "FROM..TO", value_parser = parse_window)]
    pub window: TraceWindow,
    /// Seconds of the trace that are replayed in a second.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = parse_speed)]
    pub speed: f64,
    /// Workers when the trace has most nodes; if it never has so many, as many as it has.
    #[arg(long, value_name = "M", default_value_t = 8, value_parser = nodes())]
    pub workers_max: u32,
    /// Controllers, which do not come and go.
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = nodes())]
    pub controllers: u32,
    /// Workers get SIGTERM so many seconds before they are killed [default: no notice].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub notice: Option<Duration>,
    /// The configuration of the training.
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Steps of each run that measures how fast so many workers are.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u64).range(2..))]
    pub trial_steps: u64,
    /// Seed that draws which workers leave.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// The binary that is started [default: this one].
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Write the report as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// A part of a trace, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceWindow {
    from_s: f64,
    to_s: f64,
}

impl TraceWindow {
    /// Its beginning and its end.
    #[must_use]
    pub const fn seconds(self) -> (f64, f64) {
        (self.from_s, self.to_s)
    }
}

/// Arguments of `zbelastic chaos demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// How long the training with faults takes, about.
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// Size, seed and binary of the cluster.
    #[command(flatten)]
    pub group: GroupArgs,
}

/// Arguments of `zbelastic chaos soak`.
#[derive(Args, Clone, Debug)]
pub struct SoakArgs {
    /// The configuration of the training; its number of steps follows from that of checkpoints.
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Size, seed and binary of the cluster.
    #[command(flatten)]
    pub group: GroupArgs,
    /// Number of checkpoints.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(10..=SOAK_CHECKPOINTS_MAX))]
    pub checkpoints: u64,
    /// Steps from one checkpoint to the next.
    #[arg(long, value_name = "STEPS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=SOAK_EVERY_MAX))]
    pub every: u64,
    /// Workers are lost and join: so many seconds after a join one is killed and its disk is gone, and so many
    /// seconds after that another one joins. Needs two workers.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub churn: Option<Duration>,
    /// Write a picture of the bytes on each node's disk, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Write the samples as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

fn nodes() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=NODES_MAX)
}

fn parse_kind(name: &str) -> Result<ProcessFaultKind, String> {
    ProcessFaultKind::named(name).ok_or_else(|| {
        let names = ProcessFaultKind::ALL.map(ProcessFaultKind::name).join(", ");
        format!("there are {names}")
    })
}

fn parse_row(name: &str) -> Result<MeasureRowKind, String> {
    MeasureRowKind::named(name).ok_or_else(|| {
        let names = MeasureRowKind::ALL.map(MeasureRowKind::name).join(", ");
        format!("there are {names}")
    })
}

fn parse_window(text: &str) -> Result<TraceWindow, String> {
    let time = |text: &str| {
        let (number, unit_s) = match text.strip_suffix('h') {
            Some(hours) => (hours, 3600.0),
            None => (text, 1.0),
        };
        let found = number.parse::<f64>().ok().filter(|time| time.is_finite() && *time >= 0.0);
        found.map(|time| time * unit_s).ok_or_else(|| format!("{text} is no time"))
    };
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO")?;
    let from_s = time(from)?;
    let to_s = time(to)?;
    if from_s < to_s {
        Ok(TraceWindow { from_s, to_s })
    } else {
        Err("it ends before it begins".into())
    }
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if speed.is_finite() && speed > 0.0 { Ok(speed) } else { Err("must be above 0".to_owned()) }
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

    use super::{DemoArgs, MeasureArgs, ProcessRunArgs, ReplayArgs};
    use crate::faults::ProcessFaultKind;
    use crate::measure::MeasureRowKind;

    #[derive(Debug, Parser)]
    enum ProcessesCommandLine {
        Run(ProcessRunArgs),
        Measure(MeasureArgs),
        Replay(ReplayArgs),
        Demo(DemoArgs),
    }

    fn parse(line: &str) -> Option<ProcessesCommandLine> {
        let words = ["chaos"].into_iter().chain(line.split_whitespace());
        ProcessesCommandLine::try_parse_from(words).ok()
    }

    #[test]
    fn a_campaign_is_typed() {
        ProcessesCommandLine::command().debug_assert();
        let line = "run --config a.toml --kills 7 --faults storm,kill-leader --every 0.5";
        let Some(ProcessesCommandLine::Run(args)) = parse(line) else { panic!("legal") };
        assert_eq!(args.faults, [ProcessFaultKind::Storm, ProcessFaultKind::KillLeader]);
        assert_eq!((args.kills, args.every), (7, Duration::from_millis(500)));
        assert_eq!((args.group.workers, args.group.controllers), (4, 3));
        assert!(matches!(
            parse("demo --seconds 9 --workers 2"),
            Some(ProcessesCommandLine::Demo(DemoArgs { .. }))
        ));
        assert!(matches!(parse("measure --config a.toml"), Some(ProcessesCommandLine::Measure(_))));
    }

    #[test]
    fn training_is_a_file_a_preset_and_keys() {
        let line = "measure --preset gpt2-124m --set a.b=1 --set c.d=2 --rows joins,worker-killed";
        let Some(ProcessesCommandLine::Measure(args)) = parse(line) else { panic!("legal") };
        let configuration = args.subject.configuration();
        assert_eq!(configuration.file, None);
        assert_eq!(configuration.set, ["model.preset=gpt2-124m", "a.b=1", "c.d=2"]);
        assert_eq!(args.rows, [MeasureRowKind::Joins, MeasureRowKind::WorkerKilled]);
    }

    #[test]
    fn a_replay_is_typed() {
        let line = "replay --trace t.csv --preset tiny --window 5.5h..6.5h --speed 60 --notice 2";
        let Some(ProcessesCommandLine::Replay(args)) = parse(line) else { panic!("legal") };
        assert_eq!(args.window.seconds(), (19_800.0, 23_400.0));
        assert_eq!((args.speed, args.notice), (60.0, Some(Duration::from_secs(2))));
        for window in ["5", "5..5", "6..5", "-1..5", "a..5", "0..nan"] {
            let line = format!("replay --trace t.csv --preset tiny --window={window}");
            assert!(parse(&line).is_none(), "{window}");
        }
    }

    #[test]
    fn impossible_arguments_are_refused() {
        let lines = [
            "run",
            "run --config a --workers 0",
            "run --config a --workers 257",
            "run --config a --faults earthquake",
            "run --config a --every -1",
            "run --set a.b=1",
            "measure --preset tiny --rows earthquake",
            "measure --rows joins",
            "replay --trace t --preset tiny",
            "replay --trace t --preset tiny --window 0..9 --speed 0",
            "demo --seconds nan",
            "demo --seconds 86401",
            "demo --ui localhost",
        ];
        for line in lines {
            assert!(parse(line).is_none(), "{line}");
        }
    }
}
