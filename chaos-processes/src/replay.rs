//! A run with workers that come and go as those of a recorded fleet did, made smaller and faster.
//!
//! The ideal that it is held against is the number of steps that as many workers seal undisturbed
//! on this machine, measured in the same command at each number that the fleet has: processes of
//! one thread on few cores do not become faster than the cores, and neither does their ideal.

mod trace;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use self::trace::{Fleet, FleetMove, FleetTrace, FleetTraceError};
use super::check::{LogFindings, check};
use super::cluster_observation::MemberIndex;
use super::contract::{ProcessRole, TestedConfiguration};
use super::goal::{GoalBound, GoalResult, GoalUnit};
use super::local_cluster::{
    LOOK_EVERY, LocalCluster, LocalClusterError, LocalClusterSetup, ProcessStatus, wall_us,
};
use super::run_monitor::{RunMonitor, STANDSTILL, StallDetector};
use super::system::ProcessSignal;
use super::undisturbed::{UndisturbedTraining, log_of};
use chaos_tests::random::{DrawPurpose, Draws};

/// Of the ideal number of steps, at least this share is sealed.
const GOODPUT_MIN: f64 = 0.90;
/// Steps before the window, so that it begins with a run that goes on.
const STEPS_BEFORE: u64 = 4;
/// A run has so many times the steps that are ideal, so that it does not end within the window.
const STEPS_SPARE: f64 = 1.25;

/// The setup of a replay.
#[derive(Clone, Debug)]
pub struct ReplaySetup {
    /// The cluster; its workers are those that the fleet begins with.
    pub cluster: LocalClusterSetup,
    /// The configuration of the run.
    pub config: TestedConfiguration,
    /// How many workers come and go when.
    pub fleet: Fleet,
    /// Time from a worker's SIGTERM to its SIGKILL; without it, it gets SIGKILL at once.
    pub notice: Option<Duration>,
    /// Steps of each run that measures how fast so many workers are.
    pub trial_steps: u64,
    /// Where runs that nothing disturbed are kept.
    pub cache: PathBuf,
}

/// The outcome of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Workers for each node of the trace.
    pub scale: f64,
    /// How long the window was, in seconds.
    pub seconds: f64,
    /// Steps a second that so many workers seal undisturbed.
    pub rates: BTreeMap<u32, f64>,
    /// Steps that are ideal for the window.
    pub ideal_steps: f64,
    /// Steps that were sealed in it.
    pub sealed: u64,
    /// The second over the first.
    pub goodput: f64,
    /// Number of workers that died.
    pub killed: u32,
    /// Number of workers that came.
    pub started: u32,
    /// The findings of the check of the event files.
    pub findings: LogFindings,
    /// The digest that the same training has in one process.
    pub digest_undisturbed: Option<String>,
    /// The goals that it is held against.
    pub marks: Vec<GoalResult>,
}

struct TraceReplay<'a, 'b> {
    setup: &'a ReplaySetup,
    monitor: &'a mut RunMonitor<'b>,
    cluster: LocalCluster,
    draws: Draws,
    /// Workers that got SIGTERM, with the moment at which they are killed.
    terminating: Vec<(Instant, MemberIndex)>,
    /// Workers that are gone and have disks that are to be cleared.
    gone: Vec<MemberIndex>,
    killed: u32,
    started: u32,
}

/// Replays.
///
/// # Errors
/// If the run does not come to its end, or the output cannot be written.
pub fn run(
    setup: &ReplaySetup,
    monitor: &mut RunMonitor<'_>,
) -> Result<ReplayReport, LocalClusterError> {
    let rates = rates(setup, monitor)?;
    let ideal_steps = setup.fleet.ideal_steps(&rates);
    let steps = (ideal_steps * STEPS_SPARE).ceil() as u64 + 2 * STEPS_BEFORE;
    monitor
        .print_line(&format!("{ideal_steps:.1} steps are ideal; {steps} in one process first"))?;
    let expected = setup.training(setup.cluster.workers, steps).alone(&setup.cache)?;
    let cluster = LocalCluster::start(&setup.cluster, STANDSTILL)?;
    cluster.run(&setup.config, steps)?;
    let draws = Draws::new(setup.cluster.seed, DrawPurpose::Faults);
    let terminating = Vec::new();
    let gone = Vec::new();
    let mut replay =
        TraceReplay { setup, monitor, cluster, draws, terminating, gone, killed: 0, started: 0 };
    let window_us = replay.live()?;
    let TraceReplay { cluster, killed, started, .. } = replay;
    let logs: Vec<_> = cluster.members().iter().map(log_of).collect();
    let mut findings = check(&logs, steps, None);
    if findings.digests.is_empty() {
        findings.digests.extend(cluster.final_digest());
    }
    let seals = cluster.observation().seals().values();
    let sealed = seals.filter(|seal| (window_us.0..window_us.1).contains(&seal.at_us)).count();
    let goodput = sealed as f64 / ideal_steps;
    let is_equal =
        expected.digest.is_some() && findings.digests.first() == expected.digest.as_ref();
    let marks = vec![
        GoalResult::new("goodput", GoalBound::AtLeast(GOODPUT_MIN), GoalUnit::Ratio, goodput),
        GoalResult::all_of("ends with the digest of one process", u64::from(is_equal), 1),
        GoalResult::none_of("sealed steps lost", findings.steps_lost),
        GoalResult::none_of("invariants broken", findings.violations.len() as u64),
    ];
    let Fleet { scale, seconds, .. } = setup.fleet;
    Ok(ReplayReport {
        scale,
        seconds,
        rates,
        ideal_steps,
        sealed: sealed as u64,
        goodput,
        killed,
        started,
        findings,
        digest_undisturbed: expected.digest,
        marks,
    })
}

/// Steps a second at each number of workers that the fleet has.
fn rates(
    setup: &ReplaySetup,
    monitor: &mut RunMonitor<'_>,
) -> Result<BTreeMap<u32, f64>, LocalClusterError> {
    let mut rates = BTreeMap::new();
    for workers in setup.fleet.sizes() {
        let training = setup.training(workers, setup.trial_steps);
        // Not from the cache: how fast a machine is changes with its other work.
        let step_ms = training.undisturbed(&setup.cluster.folder, STANDSTILL, monitor)?.step_ms;
        monitor.print_line(&format!("{workers} workers undisturbed: {step_ms:.1} ms a step"))?;
        rates.insert(workers, 1e3 / step_ms);
    }
    Ok(rates)
}

impl ReplaySetup {
    fn training(&self, workers: u32, steps: u64) -> UndisturbedTraining {
        let program = self.cluster.program.clone();
        let config = self.config.clone();
        UndisturbedTraining { program, config, steps, workers }
    }
}

impl TraceReplay<'_, '_> {
    /// Lives through the window, and to the end of the run. Yields when the window was, in
    /// microseconds since 1970.
    fn live(&mut self) -> Result<(u64, u64), LocalClusterError> {
        let mut progress = StallDetector::new(&self.cluster);
        // Where the window begins with no worker, nothing goes on before it.
        while self.setup.fleet.begin > 0 && self.cluster.observation().step() < STEPS_BEFORE {
            self.turn(&mut progress)?;
        }
        let began = Instant::now();
        let from_us = wall_us();
        let moves = self.setup.fleet.moves.clone();
        for found in moves {
            while began.elapsed().as_secs_f64() < found.after_s {
                self.turn(&mut progress)?;
            }
            self.apply_move(found)?;
        }
        while began.elapsed().as_secs_f64() < self.setup.fleet.seconds {
            self.turn(&mut progress)?;
        }
        let to_us = wall_us();
        // Behind the window, a worker has to bring the run to its end.
        if self.cluster.running(ProcessRole::Worker).is_empty() {
            self.cluster.add(ProcessRole::Worker)?;
        }
        while !self.terminating.is_empty() {
            self.turn(&mut progress)?;
        }
        self.monitor.until_done(&mut self.cluster, STANDSTILL)?;
        Ok((from_us, to_us))
    }

    fn turn(&mut self, progress: &mut StallDetector) -> Result<(), LocalClusterError> {
        self.monitor.check()?;
        self.cluster.poll()?;
        let now = Instant::now();
        let (due, terminating) =
            self.terminating.drain(..).partition::<Vec<_>, _>(|(at, _)| *at <= now);
        self.terminating = terminating;
        for (_, member) in due {
            if self.cluster.members()[member].status() == ProcessStatus::Leaving {
                self.cluster.signal(member, ProcessSignal::Kill)?;
            }
        }
        let members = self.cluster.members();
        let is_gone = |member: &MemberIndex| members[*member].status() == ProcessStatus::Gone;
        let (clear, later) = self.gone.drain(..).partition::<Vec<_>, _>(is_gone);
        self.gone = later;
        clear.into_iter().try_for_each(|member| self.cluster.clear(member))?;
        // No step is sealed where no worker is.
        if self.cluster.running(ProcessRole::Worker).is_empty() {
            progress.excuse();
        }
        progress.check(&self.cluster, STANDSTILL)?;
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    fn apply_move(&mut self, found: FleetMove) -> Result<(), LocalClusterError> {
        for _ in 0..found.kills {
            let workers = self.cluster.running(ProcessRole::Worker);
            if workers.is_empty() {
                break;
            }
            let victim = *self.draws.pick(&workers);
            self.cluster.retire(victim);
            self.gone.push(victim);
            let signal = if self.setup.notice.is_some() {
                ProcessSignal::Terminate
            } else {
                ProcessSignal::Kill
            };
            self.cluster.signal(victim, signal)?;
            let dies = self.setup.notice.map(|notice| (Instant::now() + notice, victim));
            self.terminating.extend(dies);
            self.killed += 1;
        }
        for _ in 0..found.starts {
            self.cluster.add(ProcessRole::Worker)?;
            self.started += 1;
        }
        let FleetMove { after_s, kills, starts } = found;
        let step = self.cluster.observation().step();
        let workers = self.cluster.running(ProcessRole::Worker).len();
        let line =
            format!("{after_s:>8.1} s  step {step}: {kills} die, {starts} come; {workers} workers");
        self.monitor.print_line(&line)
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scale, seconds, ideal_steps, sealed, killed, started, .. } = self;
        write!(
            f,
            "{seconds:.0} s at {scale:.3} workers a node: {killed} killed, {started} came; "
        )?;
        write!(f, "{sealed} steps sealed of {ideal_steps:.1} that are ideal")?;
        self.marks.iter().try_for_each(|mark| write!(f, "\n{mark}"))
    }
}
