//! A run into which faults are injected, and which must end as if nothing had happened.
//!
//! Faults are injected one after the other, or several at once. The next ones wait until the run
//! has recovered from the last ones, until their effects are reverted, and until their step: those
//! are spread evenly over the run. So each fault meets a run that makes progress, and the run has
//! steps left in which to recover. A run goes on while a node is away, so it must be long enough
//! for all its faults; the number of steps that they need follows from the duration of a step
//! without faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::campaign_report::{
    CampaignVerdict, FaultInjectionRecord, ProcessCampaignReport, Recovery, recovery_times,
};
use super::check::{LogFindings, UndisturbedRun, check};
use super::durations::words;
use super::events::SealFacts;
use super::fault_injector::{FaultInjection, ProcessFaultInjector};
use super::faults::{ProcessFault, ProcessFaultMix};
use super::footprint::ResourceFootprint;
use super::local_cluster::{
    LOOK_EVERY, LocalCluster, LocalClusterError, LocalClusterSetup, ProcessStatus,
};
use super::proxy::Proxy;
use super::run_monitor::{RunMonitor, STANDSTILL, StallDetector};
use super::undisturbed::{UndisturbedTraining, log_of};

/// Steps before the first fault and after the last one, in distances between two faults, and as
/// many times those that pass during the longest fault.
const MARGINS: u64 = 2;
/// No step is assumed to be shorter, in milliseconds.
const STEP_MS_MIN: f64 = 0.1;
/// Steps between two faults at least: one under way, one that shows that the run recovered, and two
/// under the plan that follows.
pub const STEPS_APART_MIN: u64 = 4;
/// Within this time after its end a run has mended what was damaged on disks: members read a chunk
/// of 4 MiB a second, and those of a campaign keep a few hundred at most.
const MENDED_WITHIN: Duration = Duration::from_secs(600);
/// Between two looks whether it has.
const MENDED_LOOK: Duration = Duration::from_secs(2);
/// More victims than this are printed as "everybody".
const NAMES_MAX: usize = 4;

/// The training that a campaign runs, and the faults that it injects.
#[derive(Clone, Debug)]
pub struct ProcessCampaignSetup {
    /// The training; its steps are those of [`ProcessCampaignSetup::steps`].
    pub training: UndisturbedTraining,
    /// The cluster into which faults are injected.
    pub cluster: LocalClusterSetup,
    /// The faults that are injected.
    pub mix: ProcessFaultMix,
    /// Steps between two faults, if the run recovers that fast.
    pub every_steps: u64,
    /// A run is given up that makes no progress for so long, once nothing is down, stopped or cut
    /// off.
    pub standstill: Duration,
    /// How often the step and its loss are printed.
    pub print_every: Option<Duration>,
    /// Where the cluster has a live page, if it has one.
    pub page: Option<SocketAddr>,
}

impl ProcessCampaignSetup {
    /// Steps between two faults that are to be so far apart, if a step lasts so long.
    #[must_use]
    pub fn distance(apart: Duration, step_ms: f64) -> u64 {
        let steps = apart.as_secs_f64() * 1e3 / step_ms.max(STEP_MS_MIN);
        (steps.ceil() as u64).max(STEPS_APART_MIN)
    }

    /// Steps that a campaign of so many faults needs, if so many pass during the longest of them.
    #[must_use]
    pub const fn steps(mix: &ProcessFaultMix, every_steps: u64, longest_steps: u64) -> u64 {
        (mix.rounds() + MARGINS) * every_steps + MARGINS * longest_steps
    }
}

/// A campaign under way.
struct ProcessCampaign<'a, 'b> {
    setup: &'a ProcessCampaignSetup,
    monitor: &'a mut RunMonitor<'b>,
    cluster: LocalCluster,
    injector: ProcessFaultInjector,
    /// Faults that are still to be injected, the next one last.
    faults: Vec<ProcessFault>,
    /// The last injections, until the run recovers, each with its index in `injections`.
    open: Vec<(usize, FaultInjection)>,
    /// How often faults were injected.
    rounds: u64,
    injections: Vec<FaultInjectionRecord>,
    missed: u64,
    /// The resources that its processes hold once half of the faults have been injected; nothing
    /// before that.
    halfway: Option<ResourceFootprint>,
    began: Instant,
    printed_at: Instant,
    printed_step: u64,
}

/// Injects all faults of a setup into a run, and compares it with the undisturbed one.
///
/// # Errors
/// If the output cannot be written. All else is in the report.
pub fn run(
    setup: &ProcessCampaignSetup,
    undisturbed: &UndisturbedRun,
    monitor: &mut RunMonitor<'_>,
) -> Result<ProcessCampaignReport, LocalClusterError> {
    let began = Instant::now();
    let report = blank(setup, undisturbed);
    let cluster = match LocalCluster::start(&setup.cluster, STANDSTILL) {
        Ok(cluster) => cluster,
        Err(error) => return Ok(ProcessCampaignReport { verdict: verdict_of(error)?, ..report }),
    };
    let page = setup.page.map(|listen| cluster.page(listen)).transpose()?;
    if let Some(page) = &page {
        monitor.print_line(&format!("page: {}", page.address()))?;
    }
    let mut campaign = ProcessCampaign::new(setup, cluster, monitor, began);
    let ended = campaign.live();
    let ProcessCampaign { cluster, faults, injections, missed, halfway, .. } = campaign;
    let is_damaged =
        injections.iter().any(|record| matches!(record.fault, ProcessFault::DamageDisk { .. }));
    if ended.is_ok() && is_damaged {
        wait_until_mended(&cluster);
    }
    let mut findings = judge(&cluster, setup.training.steps, undisturbed, ended.is_ok());
    if let Some(growth) =
        halfway.and_then(|before| ResourceFootprint::of(&cluster).growth_since(before))
    {
        findings.violate("R1", growth.to_string());
    }
    let proxy = cluster.network().proxy().map(Proxy::counts);
    let is_bypassed = proxy.as_ref().is_some_and(|counts| counts.sent() < findings.step);
    let verdict = match ended {
        Err(error) => verdict_of(error)?,
        Ok(()) => match findings.violations.first() {
            Some(violation) => CampaignVerdict::Unsafe(violation.to_string()),
            // Each sealed step needs more than one, so nodes found a path around the proxy, and
            // faults of the network hit no node.
            None if is_bypassed => {
                CampaignVerdict::Harness("datagrams went past the proxy".to_owned())
            }
            None if faults.is_empty() => CampaignVerdict::Passed,
            None => CampaignVerdict::Harness(format!(
                "{} faults were not injected before the end of the run: raise --every",
                faults.len()
            )),
        },
    };
    let recovery = recovery_times(&injections);
    let seconds = began.elapsed().as_secs_f64();
    Ok(ProcessCampaignReport {
        seconds,
        strikes: injections,
        missed,
        recovery,
        findings,
        proxy,
        verdict,
        ..report
    })
}

/// The report of a campaign that has not begun.
fn blank(setup: &ProcessCampaignSetup, undisturbed: &UndisturbedRun) -> ProcessCampaignReport {
    ProcessCampaignReport {
        seed: setup.cluster.seed,
        wires: setup.cluster.network,
        controllers: setup.cluster.controllers,
        workers: setup.cluster.workers,
        steps: setup.training.steps,
        seconds: 0.0,
        machine: super::machine::report(),
        strikes: Vec::new(),
        missed: 0,
        recovery: BTreeMap::new(),
        findings: LogFindings::default(),
        digest_undisturbed: undisturbed.digest.clone(),
        proxy: None,
        verdict: CampaignVerdict::Passed,
    }
}

/// Waits until every copy is sound, as long as members take to read all that they keep again; what
/// is damaged after that is a violation.
fn wait_until_mended(cluster: &LocalCluster) {
    let began = Instant::now();
    while began.elapsed() < MENDED_WITHIN && cluster.verify().is_err() {
        std::thread::sleep(MENDED_LOOK);
    }
}

/// The violations in the files of a run, and in its checkpoints if it came to its end.
fn judge(
    cluster: &LocalCluster,
    steps: u64,
    undisturbed: &UndisturbedRun,
    is_done: bool,
) -> LogFindings {
    let logs: Vec<_> = cluster.members().iter().map(log_of).collect();
    // Of a run that did not come to its end, only the steps that it sealed can be wrong.
    let (steps, expected) = match is_done {
        true => (steps, undisturbed.clone()),
        false => {
            let step = cluster.observation().step();
            let done = undisturbed.steps.range(..=step);
            let steps = done.map(|(step, facts)| (*step, facts.clone())).collect();
            (step, UndisturbedRun { steps, digest: None, step_ms: undisturbed.step_ms })
        }
    };
    let mut findings = check(&logs, steps, Some(&expected));
    if is_done && let Err(error) = cluster.verify() {
        findings.violate("C1", error.to_string());
    }
    findings
}

fn verdict_of(error: LocalClusterError) -> Result<CampaignVerdict, LocalClusterError> {
    match error {
        LocalClusterError::Output(_) => Err(error),
        LocalClusterError::Interrupted => Ok(CampaignVerdict::Interrupted),
        LocalClusterError::Late { .. } => Ok(CampaignVerdict::Stuck(error.to_string())),
        LocalClusterError::Halted { .. } => Ok(CampaignVerdict::Unsafe(error.to_string())),
        LocalClusterError::Surprise(_) => Ok(CampaignVerdict::Crashed(error.to_string())),
        // Events that disappeared are a promise broken.
        LocalClusterError::Events(super::events::EventFileError::Shrunk { .. }) => {
            Ok(CampaignVerdict::Unsafe(error.to_string()))
        }
        LocalClusterError::System { .. }
        | LocalClusterError::Verb(_)
        | LocalClusterError::Events(_)
        | LocalClusterError::Full
        | LocalClusterError::Undisturbed { .. } => Ok(CampaignVerdict::Harness(error.to_string())),
    }
}

impl<'a, 'b> ProcessCampaign<'a, 'b> {
    fn new(
        setup: &'a ProcessCampaignSetup,
        cluster: LocalCluster,
        monitor: &'a mut RunMonitor<'b>,
        began: Instant,
    ) -> Self {
        let has_small_disks = setup.cluster.small_disk_mib.is_some();
        let mut faults = setup.mix.draw(setup.cluster.seed);
        faults.reverse();
        Self {
            setup,
            monitor,
            cluster,
            injector: ProcessFaultInjector::new(setup.cluster.workers as usize, has_small_disks),
            faults,
            open: Vec::new(),
            rounds: 0,
            injections: Vec::new(),
            missed: 0,
            halfway: None,
            began,
            printed_at: began,
            printed_step: 0,
        }
    }

    fn live(&mut self) -> Result<(), LocalClusterError> {
        self.cluster.run(&self.setup.training.config, self.setup.training.steps)?;
        let mut progress = StallDetector::new(&self.cluster);
        while self.cluster.observation().done().is_none() {
            self.monitor.check()?;
            self.cluster.poll()?;
            self.injector.revert_due(&mut self.cluster)?;
            self.close()?;
            if !self.injector.is_idle() {
                progress.excuse();
            }
            progress.check(&self.cluster, self.setup.standstill)?;
            if self.is_time() {
                self.inject_next()?;
            }
            self.print_step()?;
            std::thread::sleep(LOOK_EVERY);
        }
        while !self.injector.is_idle() {
            self.injector.revert_due(&mut self.cluster)?;
            self.cluster.poll_for(LOOK_EVERY)?;
        }
        self.close()?;
        self.monitor.until_done(&mut self.cluster, self.setup.standstill)
    }

    fn is_time(&self) -> bool {
        let mut statuses =
            self.cluster.members().iter().map(super::local_cluster::ClusterMember::status);
        let count = self.rounds + 1;
        !self.faults.is_empty()
            && self.open.is_empty()
            && self.injector.is_idle()
            && self.cluster.observation().step() >= count * self.setup.every_steps
            && statuses.all(|status| matches!(status, ProcessStatus::Running | ProcessStatus::Gone))
    }

    fn inject_next(&mut self) -> Result<(), LocalClusterError> {
        self.rounds += 1;
        for _ in 0..self.setup.mix.together.max(1) {
            let Some(fault) = self.faults.pop() else { break };
            self.inject(fault)?;
        }
        Ok(())
    }

    fn inject(&mut self, fault: ProcessFault) -> Result<(), LocalClusterError> {
        let Some(injection) = self.injector.inject(&mut self.cluster, fault)? else {
            self.missed += 1;
            return self.print(&format!("✖ {fault}: no node to inject it into"));
        };
        let victims = self.names(&injection);
        let targets =
            if victims.len() > NAMES_MAX { "everybody".to_owned() } else { victims.join(" ") };
        self.print(&format!("✖ {targets}: {fault}"))?;
        self.injections.push(FaultInjectionRecord {
            fault,
            text: fault.to_string(),
            victims,
            at_us: injection.at_us,
            step: injection.step,
            generation: injection.generation,
            recovery: None,
        });
        self.open.push((self.injections.len() - 1, injection));
        Ok(())
    }

    fn names(&self, injection: &FaultInjection) -> Vec<String> {
        let name = |index: &usize| self.cluster.members()[*index].spec().name.clone();
        injection.victims.iter().map(name).collect()
    }

    /// Checks whether the run has recovered from the last injections.
    fn close(&mut self) -> Result<(), LocalClusterError> {
        let mut open = Vec::new();
        let mut recovered = Vec::new();
        for (place, injection) in std::mem::take(&mut self.open) {
            match injection.recovery(&self.cluster) {
                Some(recovery) => recovered.push((place, recovery)),
                None => open.push((place, injection)),
            }
        }
        self.open = open;
        for (place, recovery) in recovered {
            self.injections[place].recovery = Some(recovery);
            let Recovery { ms, step, generation } = recovery;
            let line =
                format!("✔ sealed step {step} of generation {generation} after {}", words(ms));
            self.print(&line)?;
        }
        let is_half = !self.injections.is_empty() && self.injections.len() >= self.faults.len();
        if self.halfway.is_none() && self.open.is_empty() && is_half {
            self.halfway = Some(ResourceFootprint::of(&self.cluster));
        }
        Ok(())
    }

    fn print_step(&mut self) -> Result<(), LocalClusterError> {
        let Some(every) = self.setup.print_every else { return Ok(()) };
        let observation = self.cluster.observation();
        if self.printed_at.elapsed() < every || observation.step() == self.printed_step {
            return Ok(());
        }
        (self.printed_at, self.printed_step) = (Instant::now(), observation.step());
        let last = observation.seals().last_key_value().map(|(_, seal)| &seal.facts);
        let loss = last
            .and_then(SealFacts::loss)
            .map_or(String::new(), |loss| format!("  loss {loss:.4}"));
        let step = observation.step();
        let steps = self.setup.training.steps;
        self.print(&format!("  step {step}/{steps}{loss}  generation {}", observation.generation()))
    }

    /// A line, with its time.
    fn print(&mut self, line: &str) -> Result<(), LocalClusterError> {
        self.monitor.print_line(&format!("{:>8.1} s  {line}", self.began.elapsed().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ProcessCampaignSetup;
    use crate::faults::ProcessFaultMix;

    #[test]
    fn a_run_is_long_enough_for_its_faults() {
        let distance =
            |ms, step_ms| ProcessCampaignSetup::distance(Duration::from_millis(ms), step_ms);
        assert_eq!(distance(5000, 100.0), 50);
        assert_eq!(distance(5000, 99.0), 51);
        assert_eq!(distance(5000, 5000.0), 4);
        assert_eq!(distance(1, 0.0), 10);
        let mix = ProcessFaultMix {
            count: 3,
            kinds: Vec::new(),
            power_cycles: 1,
            longest_ms: 1,
            together: 1,
        };
        assert_eq!(ProcessCampaignSetup::steps(&mix, 50, 7), 314);
        let mix = ProcessFaultMix { together: 3, ..mix };
        assert_eq!(ProcessCampaignSetup::steps(&mix, 50, 7), 214, "two rounds");
    }
}
