//! The commands `zbelastic chaos run`, `measure`, `replay`, `soak` and `demo`.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;
use zbelastic_whole_file::TemporaryFolder;

use super::campaign::{self, ProcessCampaignSetup};
use super::campaign_report::{CampaignVerdict, ProcessCampaignReport};
use super::check::UndisturbedRun;
use super::contract::TestedBinary;
use super::demo::{self, DemoSetup};
use super::faults::{ProcessFaultKind, ProcessFaultMix};
use super::local_cluster::{LocalClusterError, LocalClusterSetup};
use super::machine;
use super::measure::{self, MeasureRowKind, MeasureSetup, heading};
use super::process_network::NetworkKind;
use super::replay::{self, FleetTrace, ReplaySetup};
use super::run_monitor::{RunMonitor, STANDSTILL};
use super::soak::{self, CHURN_WORKERS_MIN, SoakSetup, SoakVerdict};
use super::undisturbed::UndisturbedTraining;
use crate::args::{DemoArgs, GroupArgs, MeasureArgs, ProcessRunArgs, ReplayArgs, SoakArgs};

/// Steps from which the time of a step is measured.
const TRIAL_STEPS: u64 = 40;
/// The variable that makes processes of one machine talk as those of two would, so that faults meet
/// it all.
const NO_SAME_HOST: (&str, &str) = ("ZBELASTIC_SAME_HOST", "off");
/// The arguments do not fit together.
const USAGE: u8 = 2;
/// An invariant is broken.
const UNSAFE: u8 = 10;
/// A soak ended with fewer checkpoints than it was to have.
const INCOMPLETE: u8 = 11;

/// Injects faults into a run, and returns the exit code. `own` is the binary that is started if
/// none is named.
///
/// # Errors
/// If there is nothing to compare with, or the output cannot be written.
pub fn run(
    args: &ProcessRunArgs,
    own: &Path,
    monitor: &mut RunMonitor<'_>,
) -> Result<u8, LocalClusterError> {
    let mix = mix(args);
    if args.list {
        let faults = mix.draw(args.group.seed);
        faults.iter().try_for_each(|fault| monitor.print_line(&fault.to_string()))?;
        return Ok(0);
    }
    let network = network(args, &mix);
    if let Some(kind) = mix.kinds.iter().find(|kind| !network.can(**kind)) {
        monitor.print_line(&format!("error: {kind} cannot be injected over {network}"))?;
        monitor.print_line("hint: leave --namespaces out, or do not name it with --faults")?;
        return Ok(USAGE);
    }
    for line in machine::report() {
        monitor.print_line(&line)?;
    }
    let (training, undisturbed, every_steps) = undisturbed(args, &mix, own, monitor)?;
    let mut folder = folder(args.folder.as_deref(), "run")?;
    let setup = campaign(args, mix, training, every_steps, folder.path());
    let report = campaign::run(&setup, &undisturbed, monitor)?;
    finish(args.report.as_deref(), &mut folder, &report, monitor)?;
    Ok(report.verdict.exit_code())
}

/// The result of a run without faults, in as many steps as the faults of a campaign need, and how
/// many steps lie between two of them.
fn undisturbed(
    args: &ProcessRunArgs,
    mix: &ProcessFaultMix,
    own: &Path,
    monitor: &mut RunMonitor<'_>,
) -> Result<(UndisturbedTraining, UndisturbedRun, u64), LocalClusterError> {
    let cache = cache();
    let config = args.subject.configuration();
    let workers = args.group.workers;
    let program = program(&args.group, own);
    let trial = UndisturbedTraining { program, config, steps: TRIAL_STEPS, workers };
    let step_ms = trial.undisturbed(&cache, STANDSTILL, monitor)?.step_ms;
    let every_steps = ProcessCampaignSetup::distance(args.every, step_ms);
    let steps = ProcessCampaignSetup::steps(
        mix,
        every_steps,
        ProcessCampaignSetup::distance(args.longest, step_ms),
    );
    monitor.print_line(&format!("{step_ms:.1} ms a step; {steps} steps, undisturbed first"))?;
    let training = UndisturbedTraining { steps, ..trial };
    let undisturbed = training.undisturbed(&cache, STANDSTILL, monitor)?;
    Ok((training, undisturbed, every_steps))
}

fn campaign(
    args: &ProcessRunArgs,
    mix: ProcessFaultMix,
    mut training: UndisturbedTraining,
    every_steps: u64,
    folder: &Path,
) -> ProcessCampaignSetup {
    let network = network(args, &mix);
    if network != NetworkKind::Loopback {
        let (key, value) = NO_SAME_HOST;
        training.program.environment.push((key.to_owned(), value.to_owned()));
    }
    let cluster = LocalClusterSetup {
        network,
        small_disk_mib: args.small_disk,
        ..cluster_of(&args.group, training.program.clone(), folder)
    };
    let standstill = STANDSTILL;
    let print_every = None;
    let page = None;
    ProcessCampaignSetup { training, cluster, mix, every_steps, standstill, print_every, page }
}

/// A cluster of this size below `folder`, on the loopback interface, with disks as large as this machine's.
fn cluster_of(group: &GroupArgs, program: TestedBinary, folder: &Path) -> LocalClusterSetup {
    LocalClusterSetup {
        program,
        folder: folder.join("cluster"),
        controllers: group.controllers,
        workers: group.workers,
        seed: group.seed,
        network: NetworkKind::Loopback,
        small_disk_mib: None,
    }
}

/// Shows that kills change nothing, at `page` in a browser as well, and returns the exit code.
///
/// # Errors
/// If a cluster does not come up, or the output cannot be written.
pub fn demo(
    (args, page): (&DemoArgs, Option<SocketAddr>),
    own: &Path,
    monitor: &mut RunMonitor<'_>,
) -> Result<u8, LocalClusterError> {
    let GroupArgs { workers, controllers, seed, .. } = args.group;
    let program = program(&args.group, own);
    let seconds = args.seconds.as_secs();
    demo::run(&DemoSetup { program, seconds, controllers, workers, seed, page }, monitor)
}

/// Measures how fast a cluster recovers, and returns the exit code.
///
/// # Errors
/// If a cluster does not go on after a fault, or the output cannot be written.
pub fn measure(
    args: &MeasureArgs,
    own: &Path,
    monitor: &mut RunMonitor<'_>,
) -> Result<u8, LocalClusterError> {
    let mut folder = folder(None, "measure")?;
    let cluster = cluster_of(&args.group, program(&args.group, own), folder.path());
    monitor.print_line(&heading())?;
    let setup = MeasureSetup {
        cluster,
        config: args.subject.configuration(),
        rows: rows(args),
        times: args.times,
        power_cycles: args.power_cycles,
        undisturbed: args.undisturbed.unwrap_or(1),
        steps: args.steps,
        rounds: args.rounds,
        cache: cache(),
    };
    let measures = measure::run(&setup, monitor).inspect_err(|_| folder.keep())?;
    for violation in &measures.findings.violations {
        monitor.print_line(&violation.to_string())?;
    }
    monitor.print_line(&measures.moved.to_string())?;
    monitor.print_line(&format!("{} sealed steps lost", measures.findings.steps_lost))?;
    monitor.print_line(&format!("{} goals missed", measures.missed()))?;
    args.report.as_deref().map_or(Ok(()), |path| write_json(path, &measures))?;
    Ok(if measures.findings.violations.is_empty() { 0 } else { UNSAFE })
}

/// The rows that were requested, in the order in which they are measured.
fn rows(args: &MeasureArgs) -> Vec<MeasureRowKind> {
    let mut rows = match args.rows.as_slice() {
        [] if args.undisturbed.is_some() => vec![MeasureRowKind::Undisturbed],
        [] => MeasureRowKind::USUAL.to_vec(),
        chosen => chosen.to_vec(),
    };
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Writes many checkpoints and measures the disks, and returns the exit code.
///
/// # Errors
/// If the run does not come to its end, or the output cannot be written.
pub fn soak(
    args: &SoakArgs,
    own: &Path,
    monitor: &mut RunMonitor<'_>,
) -> Result<u8, LocalClusterError> {
    if args.churn.is_some() && args.group.workers < CHURN_WORKERS_MIN {
        let line = format!("error: --churn needs --workers {CHURN_WORKERS_MIN} at least");
        monitor.print_line(&line)?;
        return Ok(USAGE);
    }
    let mut folder = folder(None, "soak")?;
    let cluster = cluster_of(&args.group, program(&args.group, own), folder.path());
    let SoakArgs { checkpoints, every, churn, .. } = *args;
    let config = args.subject.configuration();
    let setup = SoakSetup { cluster, config, checkpoints, every, churn };
    let report = soak::run(&setup, monitor).inspect_err(|_| folder.keep())?;
    monitor.print_line(&report.to_string())?;
    if let Some(path) = &args.plot {
        let doing = || format!("cannot write {}", path.display());
        fs::write(path, report.svg()).map_err(|source| system(doing(), source))?;
    }
    args.report.as_deref().map_or(Ok(()), |path| write_json(path, &report))?;
    Ok(match report.verdict() {
        SoakVerdict::Flat => 0,
        SoakVerdict::Grows => UNSAFE,
        SoakVerdict::TooFew => INCOMPLETE,
    })
}

/// Replays a trace, and returns the exit code.
///
/// # Errors
/// If the trace cannot be read, the run does not come to its end, or the output cannot be written.
pub fn replay(
    args: &ReplayArgs,
    own: &Path,
    monitor: &mut RunMonitor<'_>,
) -> Result<u8, LocalClusterError> {
    let doing = || format!("cannot read {}", args.trace.display());
    let text = fs::read_to_string(&args.trace).map_err(|source| system(doing(), source))?;
    let fleet = FleetTrace::parse(&text)
        .and_then(|trace| trace.follow(args.window.seconds(), args.speed, args.workers_max));
    let fleet = match fleet {
        Ok(fleet) => fleet,
        Err(error) => {
            monitor.print_line(&format!("error: {}: {error}", args.trace.display()))?;
            return Ok(USAGE);
        }
    };
    let mut folder = folder(None, "replay")?;
    let setup = ReplaySetup {
        cluster: LocalClusterSetup {
            program: TestedBinary::at(args.program.clone().unwrap_or_else(|| own.to_owned())),
            folder: folder.path().join("cluster"),
            controllers: args.controllers,
            workers: fleet.begin,
            seed: args.seed,
            network: NetworkKind::Loopback,
            small_disk_mib: None,
        },
        config: args.subject.configuration(),
        fleet,
        notice: args.notice,
        trial_steps: args.trial_steps,
        cache: cache(),
    };
    let replayed = replay::run(&setup, monitor).inspect_err(|_| folder.keep())?;
    monitor.print_line(&replayed.to_string())?;
    args.report.as_deref().map_or(Ok(()), |path| write_json(path, &replayed))?;
    Ok(if replayed.findings.violations.is_empty() { 0 } else { UNSAFE })
}

/// Where runs that nothing disturbed are kept.
fn cache() -> PathBuf {
    std::env::temp_dir().join("zbelastic-chaos-undisturbed")
}

fn finish(
    path: Option<&Path>,
    folder: &mut TemporaryFolder,
    report: &ProcessCampaignReport,
    monitor: &mut RunMonitor<'_>,
) -> Result<(), LocalClusterError> {
    monitor.print_line(&report.to_string())?;
    path.map_or(Ok(()), |path| write_json(path, report))?;
    if report.verdict != CampaignVerdict::Passed {
        folder.keep();
        monitor.print_line(&format!("logs and events are in {}", folder.path().display()))?;
    }
    Ok(())
}

fn mix(args: &ProcessRunArgs) -> ProcessFaultMix {
    let kinds = match args.faults.as_slice() {
        [] => ProcessFaultKind::USUAL.to_vec(),
        chosen => chosen.to_vec(),
    };
    let longest_ms = u64::try_from(args.longest.as_millis()).unwrap_or(u64::MAX);
    let count = args.kills;
    let power_cycles = args.power_cycles;
    let together = args.together;
    ProcessFaultMix { count, kinds, power_cycles, longest_ms, together }
}

/// The network that is to connect the processes.
fn network(args: &ProcessRunArgs, mix: &ProcessFaultMix) -> NetworkKind {
    match (args.namespaces, args.proxy || mix.kinds.iter().any(|kind| kind.is_network())) {
        (true, _) => NetworkKind::Namespaces,
        (false, true) => NetworkKind::Proxy,
        (false, false) => NetworkKind::Loopback,
    }
}

fn program(args: &GroupArgs, own: &Path) -> TestedBinary {
    let path = args.program.clone().unwrap_or_else(|| own.to_owned());
    TestedBinary::at(path)
}

fn folder(named: Option<&Path>, name: &str) -> Result<TemporaryFolder, LocalClusterError> {
    let folder = named.map_or_else(|| TemporaryFolder::temporary(name), TemporaryFolder::named);
    let path = named.map_or_else(std::env::temp_dir, PathBuf::from);
    folder.map_err(|source| system(format!("cannot make a folder at {}", path.display()), source))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), LocalClusterError> {
    let json = serde_json::to_vec_pretty(value).expect("numbers, texts and lists are JSON");
    let doing = || format!("cannot write {}", path.display());
    fs::write(path, json).map_err(|source| system(doing(), source))
}

fn system(doing: String, source: io::Error) -> LocalClusterError {
    LocalClusterError::System { doing, source }
}
