//! A run that is struck again and again, and must end as if nothing had happened.
//!
//! Faults strike one after the other, or several at once. The next ones wait until the run has recovered from the last
//! ones, until what they did is taken back, and until their step: those are spread evenly over the run.
//! So each fault has a run to strike and something to recover to. A run goes on while a node is
//! away, so it must be long enough for all its faults; how many steps that takes follows from how
//! long a step takes without faults.

use std::collections::BTreeMap;
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
/// No step is taken to be shorter, in milliseconds.
const STEP_MS_MIN: f64 = 0.1;
/// Steps between two faults at least: one under way, one that shows that the run recovered, and two
/// under the plan that follows.
pub const STEPS_APART_MIN: u64 = 4;
/// More victims than this are everybody.
const NAMES_MAX: usize = 4;

/// What a campaign runs, and what strikes it.
#[derive(Clone, Debug)]
pub struct ProcessCampaignSetup {
    /// What is trained; its steps are those of [`ProcessCampaignSetup::steps`].
    pub training: UndisturbedTraining,
    /// The cluster that is struck.
    pub group: LocalClusterSetup,
    /// The faults that strike it.
    pub mix: ProcessFaultMix,
    /// Steps between two faults, if the run recovers that fast.
    pub every_steps: u64,
    /// A run is given up that makes no progress for so long, once nothing is down, stopped or cut off.
    pub standstill: Duration,
    /// How often the step and its loss are printed.
    pub print_every: Option<Duration>,
}

impl ProcessCampaignSetup {
    /// Steps between two faults that are to be so far apart, if a step takes so long.
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
    watch: &'a mut RunMonitor<'b>,
    group: LocalCluster,
    striker: ProcessFaultInjector,
    /// What is still to strike, the next one last.
    faults: Vec<ProcessFault>,
    /// What struck last, until the run recovers, each with its place among the strikes.
    open: Vec<(usize, FaultInjection)>,
    /// How often something struck.
    rounds: u64,
    strikes: Vec<FaultInjectionRecord>,
    missed: u64,
    /// What its processes hold once half of the faults have struck, from when that is so.
    halfway: Option<ResourceFootprint>,
    began: Instant,
    printed_at: Instant,
    printed_step: u64,
}

/// Strikes a run with all faults of a setup, and compares it with the undisturbed one.
///
/// # Errors
/// If the output cannot be written. All else is in the account.
pub fn run(
    setup: &ProcessCampaignSetup,
    undisturbed: &UndisturbedRun,
    watch: &mut RunMonitor<'_>,
) -> Result<ProcessCampaignReport, LocalClusterError> {
    let began = Instant::now();
    let account = blank(setup, undisturbed);
    let group = match LocalCluster::start(&setup.group, STANDSTILL) {
        Ok(group) => group,
        Err(error) => return Ok(ProcessCampaignReport { verdict: verdict_of(error)?, ..account }),
    };
    let mut campaign = ProcessCampaign::new(setup, group, watch, began);
    let ended = campaign.live();
    let ProcessCampaign { group, faults, strikes, missed, halfway, .. } = campaign;
    let mut findings = judge(&group, setup.training.steps, undisturbed, ended.is_ok());
    if let Some(growth) =
        halfway.and_then(|before| ResourceFootprint::of(&group).growth_since(before))
    {
        findings.violate("R1", growth.to_string());
    }
    let proxy = group.network().proxy().map(Proxy::counts);
    let is_bypassed = proxy.as_ref().is_some_and(|counts| counts.sent() < findings.step);
    let verdict = match ended {
        Err(error) => verdict_of(error)?,
        Ok(()) => match findings.violations.first() {
            Some(violation) => CampaignVerdict::Unsafe(violation.to_string()),
            // Each sealed step takes more than one, so nodes found another road to each other, and
            // faults of the network met nobody.
            None if is_bypassed => {
                CampaignVerdict::Harness("datagrams went past the proxy".to_owned())
            }
            None if faults.is_empty() => CampaignVerdict::Passed,
            None => CampaignVerdict::Harness(format!(
                "{} faults found no time to strike: raise --every",
                faults.len()
            )),
        },
    };
    let recovery = recovery_times(&strikes);
    let seconds = began.elapsed().as_secs_f64();
    Ok(ProcessCampaignReport {
        seconds,
        strikes,
        missed,
        recovery,
        findings,
        proxy,
        verdict,
        ..account
    })
}

/// An account of nothing.
fn blank(setup: &ProcessCampaignSetup, undisturbed: &UndisturbedRun) -> ProcessCampaignReport {
    ProcessCampaignReport {
        seed: setup.group.seed,
        wires: setup.group.wires,
        controllers: setup.group.controllers,
        workers: setup.group.workers,
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

/// What is wrong with the files of a run, and with its checkpoints if it came to its end.
fn judge(
    group: &LocalCluster,
    steps: u64,
    undisturbed: &UndisturbedRun,
    is_done: bool,
) -> LogFindings {
    let logs: Vec<_> = group.members().iter().map(log_of).collect();
    // Of a run that did not come to its end, only what it did can be wrong.
    let (steps, expected) = match is_done {
        true => (steps, undisturbed.clone()),
        false => {
            let step = group.observation().step();
            let done = undisturbed.steps.range(..=step);
            let steps = done.map(|(step, facts)| (*step, facts.clone())).collect();
            (step, UndisturbedRun { steps, digest: None, step_ms: undisturbed.step_ms })
        }
    };
    let mut findings = check(&logs, steps, Some(&expected));
    if is_done && let Err(error) = group.verify() {
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
        // Events that were taken back are a promise broken.
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
        group: LocalCluster,
        watch: &'a mut RunMonitor<'b>,
        began: Instant,
    ) -> Self {
        let has_small_disks = setup.group.small_disk_mib.is_some();
        let mut faults = setup.mix.draw(setup.group.seed);
        faults.reverse();
        Self {
            setup,
            watch,
            group,
            striker: ProcessFaultInjector::new(setup.group.workers as usize, has_small_disks),
            faults,
            open: Vec::new(),
            rounds: 0,
            strikes: Vec::new(),
            missed: 0,
            halfway: None,
            began,
            printed_at: began,
            printed_step: 0,
        }
    }

    fn live(&mut self) -> Result<(), LocalClusterError> {
        self.group.run(&self.setup.training.config, self.setup.training.steps)?;
        let mut progress = StallDetector::new(&self.group);
        while self.group.observation().done().is_none() {
            self.watch.check()?;
            self.group.poll()?;
            self.striker.revert_due(&mut self.group)?;
            self.close()?;
            if !self.striker.is_idle() {
                progress.excuse();
            }
            progress.check(&self.group, self.setup.standstill)?;
            if self.is_time() {
                self.inject_next()?;
            }
            self.print_step()?;
            std::thread::sleep(LOOK_EVERY);
        }
        while !self.striker.is_idle() {
            self.striker.revert_due(&mut self.group)?;
            self.group.poll_for(LOOK_EVERY)?;
        }
        self.close()?;
        self.watch.until_done(&mut self.group, self.setup.standstill)
    }

    fn is_time(&self) -> bool {
        let mut standings =
            self.group.members().iter().map(super::local_cluster::ClusterMember::status);
        let count = self.rounds + 1;
        !self.faults.is_empty()
            && self.open.is_empty()
            && self.striker.is_idle()
            && self.group.observation().step() >= count * self.setup.every_steps
            && standings
                .all(|standing| matches!(standing, ProcessStatus::Running | ProcessStatus::Gone))
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
        let Some(strike) = self.striker.inject(&mut self.group, fault)? else {
            self.missed += 1;
            return self.print(&format!("✖ {fault}: nobody is there"));
        };
        let victims = self.names(&strike);
        let whom =
            if victims.len() > NAMES_MAX { "everybody".to_owned() } else { victims.join(" ") };
        self.print(&format!("✖ {whom}: {fault}"))?;
        self.strikes.push(FaultInjectionRecord {
            fault,
            text: fault.to_string(),
            victims,
            at_us: strike.at_us,
            step: strike.step,
            generation: strike.generation,
            recovery: None,
        });
        self.open.push((self.strikes.len() - 1, strike));
        Ok(())
    }

    fn names(&self, strike: &FaultInjection) -> Vec<String> {
        let name = |index: &usize| self.group.members()[*index].spec().name.clone();
        strike.victims.iter().map(name).collect()
    }

    /// Looks whether the run has recovered from what struck last.
    fn close(&mut self) -> Result<(), LocalClusterError> {
        let (mut open, mut recovered) = (Vec::new(), Vec::new());
        for (place, strike) in std::mem::take(&mut self.open) {
            match strike.recovery(&self.group) {
                Some(recovery) => recovered.push((place, recovery)),
                None => open.push((place, strike)),
            }
        }
        self.open = open;
        for (place, recovery) in recovered {
            self.strikes[place].recovery = Some(recovery);
            let Recovery { ms, step, generation } = recovery;
            let line =
                format!("✔ sealed step {step} of generation {generation} after {}", words(ms));
            self.print(&line)?;
        }
        let is_half = !self.strikes.is_empty() && self.strikes.len() >= self.faults.len();
        if self.halfway.is_none() && self.open.is_empty() && is_half {
            self.halfway = Some(ResourceFootprint::of(&self.group));
        }
        Ok(())
    }

    fn print_step(&mut self) -> Result<(), LocalClusterError> {
        let Some(every) = self.setup.print_every else { return Ok(()) };
        let picture = self.group.observation();
        if self.printed_at.elapsed() < every || picture.step() == self.printed_step {
            return Ok(());
        }
        (self.printed_at, self.printed_step) = (Instant::now(), picture.step());
        let last = picture.seals().last_key_value().map(|(_, seal)| &seal.facts);
        let loss = last
            .and_then(SealFacts::loss)
            .map_or(String::new(), |loss| format!("  loss {loss:.4}"));
        let (step, steps) = (picture.step(), self.setup.training.steps);
        self.print(&format!("  step {step}/{steps}{loss}  generation {}", picture.generation()))
    }

    /// A line, with its time.
    fn print(&mut self, line: &str) -> Result<(), LocalClusterError> {
        self.watch.print_line(&format!("{:>8.1} s  {line}", self.began.elapsed().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ProcessCampaignSetup;
    use crate::processes::faults::ProcessFaultMix;

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
