//! One run into which the faults of one row after the other are injected.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use chaos_tests::random::{DrawPurpose, Draws};

use super::plan_traffic::{TotalTraffic, by_plan};
use super::recovery::{RecoveryMeasurement, computed_again, fault, row_of};
use super::rows::{DOWN_MS, JOIN_STEPS, MASS_JOINED, MASS_KILLED, MeasureRowKind};
use super::{MeasureRow, MeasureSetup};
use crate::campaign::STEPS_APART_MIN;
use crate::campaign_report::Recovery;
use crate::check::{LogFindings, UndisturbedRun, check};
use crate::cluster_observation::MemberIndex;
use crate::contract::{ProcessRole, TestedConfiguration};
use crate::durations::{SortedDurations, words};
use crate::events::PlanTraffic;
use crate::fault_injector::{FaultInjection, ProcessFaultInjector};
use crate::faults::ProcessFault;
use crate::goal::{GoalBound, GoalResult, GoalUnit};
use crate::local_cluster::{
    ClusterMember, LOOK_EVERY, LocalCluster, LocalClusterError, ProcessStatus,
};
use crate::run_monitor::{RunMonitor, STANDSTILL, StallDetector};
use crate::system::ProcessSignal;
use crate::undisturbed::log_of;

/// All of a large cluster are members within this, in milliseconds.
const MEMBERS_MS: f64 = 15_000.0;

/// Which sealed steps a row may have computed again. They are compared with the sealed facts, as
/// ever.
enum RecomputationRule {
    Never,
    /// Any: eight at once may hold all copies of a layer.
    Noted,
    /// Steps since the last checkpoint, where no node has anything in memory.
    SinceCheckpoint,
}

/// A run in progress.
pub struct MeasureRun<'a, 'b> {
    monitor: &'a mut RunMonitor<'b>,
    cluster: LocalCluster,
    injector: ProcessFaultInjector,
    draws: Draws,
    times: u32,
    power_cycles: u32,
    /// Of a step that nothing disturbed.
    step_ms: f64,
    steps: u64,
    /// The time until all were members, in milliseconds.
    started_ms: f64,
}

impl<'a, 'b> MeasureRun<'a, 'b> {
    /// A run of so many steps of so many milliseconds, which goes on as ever.
    ///
    /// # Errors
    /// If it does not.
    pub fn start(
        setup: &MeasureSetup,
        config: &TestedConfiguration,
        (steps, step_ms): (u64, f64),
        monitor: &'a mut RunMonitor<'b>,
    ) -> Result<Self, LocalClusterError> {
        let began = Instant::now();
        let cluster = LocalCluster::start(&setup.cluster, STANDSTILL)?;
        let started_ms = began.elapsed().as_secs_f64() * 1e3;
        cluster.run(config, steps)?;
        let injector = ProcessFaultInjector::new(setup.cluster.workers as usize, false);
        let draws = Draws::new(setup.cluster.seed, DrawPurpose::Faults);
        let times = setup.times;
        let power_cycles = setup.power_cycles;
        let mut run = Self {
            monitor,
            cluster,
            injector,
            draws,
            times,
            power_cycles,
            step_ms,
            steps,
            started_ms,
        };
        run.settle()?;
        Ok(run)
    }

    /// A row is complete.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn print_row(&mut self, row: &MeasureRow) -> Result<(), LocalClusterError> {
        self.monitor.print_line(&row.to_string())
    }

    /// Measures a row.
    ///
    /// # Errors
    /// If the run does not go on.
    pub fn row(&mut self, kind: MeasureRowKind) -> Result<MeasureRow, LocalClusterError> {
        let lost_before = self.findings().steps_lost;
        let (mut row, again) = match kind {
            MeasureRowKind::Joins => (self.joins()?, RecomputationRule::Never),
            MeasureRowKind::Mass => (self.mass()?, RecomputationRule::Noted),
            MeasureRowKind::PowerCycle => {
                (self.fault_row(kind)?, RecomputationRule::SinceCheckpoint)
            }
            MeasureRowKind::Undisturbed
            | MeasureRowKind::Speed
            | MeasureRowKind::WorkerKilled
            | MeasureRowKind::ControllerKilled
            | MeasureRowKind::StoppedBriefly
            | MeasureRowKind::Stopped
            | MeasureRowKind::StoppedLong
            | MeasureRowKind::Drains
            | MeasureRowKind::TwoKilled => (self.fault_row(kind)?, RecomputationRule::Never),
        };
        let lost = self.findings().steps_lost.saturating_sub(lost_before);
        match again {
            RecomputationRule::Never => {
                row.marks.push(GoalResult::none_of("sealed steps lost", lost))
            }
            RecomputationRule::Noted => row.note = format!("{lost} sealed steps computed again"),
            RecomputationRule::SinceCheckpoint => {
                let cycles = f64::from(self.power_cycles.max(1));
                row.marks.push(computed_again(lost as f64 / cycles * self.step_ms));
            }
        }
        Ok(row)
    }

    fn findings(&self) -> LogFindings {
        let logs: Vec<_> = self.cluster.members().iter().map(log_of).collect();
        check(&logs, self.cluster.observation().step(), None)
    }

    fn fault_row(&mut self, kind: MeasureRowKind) -> Result<MeasureRow, LocalClusterError> {
        let mut recoveries = Vec::new();
        let count = kind.count(self.times, self.power_cycles);
        for _ in 0..count {
            let draw = self.draws.number();
            // The last stage and the first one are no neighbours.
            let pairs = self.cluster.observation().stages().len().saturating_sub(1).max(1) as u64;
            let draw = if kind == MeasureRowKind::TwoKilled { draw % pairs } else { draw };
            recoveries.extend(self.inject(kind, fault(kind, draw))?);
        }
        let traffic = self.plan_traffic();
        Ok(row_of(kind, u64::from(count), &recoveries, &traffic))
    }

    fn plan_traffic(&self) -> BTreeMap<u64, PlanTraffic> {
        by_plan(self.cluster.members().iter().flat_map(|member| member.events()))
    }

    /// Injects a fault, and waits until the run goes on as before; nothing if it came to its end
    /// before.
    fn inject(
        &mut self,
        kind: MeasureRowKind,
        fault: ProcessFault,
    ) -> Result<Option<RecoveryMeasurement>, LocalClusterError> {
        let step_ms = self.cluster.observation().step_ms().unwrap_or(self.step_ms);
        let before = self
            .cluster
            .observation()
            .seals()
            .last_key_value()
            .map(|(step, seal)| (*step, seal.at_us));
        let Some(injection) = self.injector.inject(&mut self.cluster, fault)? else {
            return Ok(None);
        };
        let mut read_ms = 0.0;
        if kind == MeasureRowKind::PowerCycle {
            read_ms = self.read_disks()?;
        }
        let down_ms = self.down_ms(kind, &injection)?;
        let Some(recovery) = self.recover(&injection)? else { return Ok(None) };
        let expected_us = before.map_or(injection.at_us as f64, |(step, at_us)| {
            at_us as f64 + (recovery.step.saturating_sub(step)) as f64 * step_ms * 1e3
        });
        let sealed_us = injection.at_us as f64 + recovery.ms * 1e3;
        let up_us = injection.at_us + (down_ms * 1e3) as u64;
        let first_us = self.cluster.observation().first_seal_after(up_us);
        self.settle()?;
        let ms = match (kind, first_us) {
            (MeasureRowKind::PowerCycle, Some(first_us)) => (first_us - up_us) as f64 / 1e3,
            (_, _) => recovery.ms - down_ms,
        };
        Ok(Some(RecoveryMeasurement {
            ms,
            late_ms: ((sealed_us - expected_us) / 1e3).max(0.0),
            step_ms,
            generation: recovery.generation,
            is_planned_anew: self.cluster.observation().generation() > injection.generation,
            read_ms,
        }))
    }

    /// How long everybody was down, where power went.
    fn down_ms(
        &mut self,
        kind: MeasureRowKind,
        injection: &FaultInjection,
    ) -> Result<f64, LocalClusterError> {
        if kind != MeasureRowKind::PowerCycle {
            return Ok(0.0);
        }
        while !self.injector.is_idle() {
            self.injector.revert_due(&mut self.cluster)?;
            std::thread::sleep(LOOK_EVERY);
        }
        let down_us = crate::local_cluster::wall_us().saturating_sub(injection.at_us);
        Ok(down_us as f64 / 1e3)
    }

    /// The time of reading plainly, one file after the other, all that workers keep on
    /// disks.
    fn read_disks(&self) -> Result<f64, LocalClusterError> {
        let began = Instant::now();
        for member in self.cluster.members() {
            let spec = member.spec();
            if spec.role == ProcessRole::Worker {
                read_plainly(&spec.data_dir).map_err(|source| LocalClusterError::System {
                    doing: format!("cannot read the folder of {}", spec.name),
                    source,
                })?;
            }
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }

    fn is_done(&self) -> bool {
        self.cluster.observation().done().is_some()
    }

    /// The event that shows that the run went on; nothing if it came to its end.
    fn recover(
        &mut self,
        injection: &FaultInjection,
    ) -> Result<Option<Recovery>, LocalClusterError> {
        let mut progress = StallDetector::new(&self.cluster);
        loop {
            let recovery = injection.recovery(&self.cluster);
            if recovery.is_some() || self.is_done() {
                return Ok(recovery);
            }
            self.turn(&mut progress)?;
        }
    }

    fn turn(&mut self, progress: &mut StallDetector) -> Result<(), LocalClusterError> {
        self.monitor.check()?;
        self.cluster.poll()?;
        self.injector.revert_due(&mut self.cluster)?;
        if !self.injector.is_idle() {
            progress.excuse();
        }
        progress.check(&self.cluster, STANDSTILL)?;
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    /// Until everything is back and the run goes on as ever.
    fn settle(&mut self) -> Result<(), LocalClusterError> {
        let mut progress = StallDetector::new(&self.cluster);
        let is_there = |member: &ClusterMember| {
            matches!(member.status(), ProcessStatus::Running | ProcessStatus::Gone)
        };
        while !self.injector.is_idle() || !self.cluster.members().iter().all(is_there) {
            self.turn(&mut progress)?;
        }
        let until = self.cluster.observation().step() + STEPS_APART_MIN;
        while self.cluster.observation().step() < until && !self.is_done() {
            self.turn(&mut progress)?;
        }
        Ok(())
    }

    /// Workers that come, one after the other, and go again.
    fn joins(&mut self) -> Result<MeasureRow, LocalClusterError> {
        let mut in_plan = SortedDurations::default();
        let mut longest = SortedDurations::default();
        let mut plans = 0;
        let mut standbys = 0;
        for _ in 0..MeasureRowKind::Joins.count(self.times, self.power_cycles) {
            let generation = self.cluster.observation().generation();
            let began = Instant::now();
            let from = self.cluster.observation().step();
            let worker = self.cluster.add(ProcessRole::Worker)?;
            match self.until_planned(worker)? {
                true => in_plan.add(began.elapsed().as_secs_f64() * 1e3),
                false => standbys += 1,
            }
            self.settle()?;
            plans += u32::from(self.cluster.observation().generation() > generation);
            longest.add(self.longest_gap_ms(from));
            self.cluster.retire(worker);
            self.cluster.signal(worker, ProcessSignal::Terminate)?;
            self.settle()?;
        }
        let gap = longest.quantiles().map_or(0.0, |quantiles| quantiles.max_ms);
        let note = format!("others waited {} at most; {standbys} stood by", words(gap));
        let what = "worker joins (in the plan)";
        let next_seal = in_plan.quantiles();
        Ok(MeasureRow { what, next_seal, plans, note, marks: Vec::new() })
    }

    /// Whether a worker gets a stage. It stands by if steps are sealed and it makes no progress.
    fn until_planned(&mut self, worker: MemberIndex) -> Result<bool, LocalClusterError> {
        let name = self.cluster.members()[worker].spec().name.clone();
        let mut progress = StallDetector::new(&self.cluster);
        let mut done = None;
        let mut since = self.cluster.observation().step();
        let mut polled_step = since;
        while self.cluster.observation().step() < since + JOIN_STEPS && !self.is_done() {
            if self.cluster.observation().stages().contains(&worker) {
                return Ok(true);
            }
            let step = self.cluster.observation().step();
            if step > polled_step {
                polled_step = step;
                let status = self.cluster.status().unwrap_or_default();
                let found = status.members.iter().find(|member| member.name == name);
                let now = found.and_then(|member| member.work).map(|work| work.done);
                if now != done {
                    (done, since) = (now, step);
                }
            }
            self.turn(&mut progress)?;
        }
        Ok(self.cluster.observation().stages().contains(&worker))
    }

    /// The longest time between two seals since a step.
    fn longest_gap_ms(&self, from: u64) -> f64 {
        let seals = self.cluster.observation().seals().range(from..);
        let seal_times_us: Vec<u64> = seals.map(|(_, seal)| seal.at_us).collect();
        let gaps = seal_times_us.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        gaps.max().unwrap_or(0) as f64 / 1e3
    }

    /// Eight that die at once and come back, and sixteen more that come at once.
    fn mass(&mut self) -> Result<MeasureRow, LocalClusterError> {
        let generation = self.cluster.observation().generation();
        let draw = self.draws.number();
        let fault = ProcessFault::KillWorkers { draw, count: MASS_KILLED, down_ms: DOWN_MS };
        let killed = self.inject(MeasureRowKind::Mass, fault)?;
        let began = Instant::now();
        let joined = (0..MASS_JOINED).map(|_| self.cluster.add(ProcessRole::Worker));
        let joined = joined.collect::<Result<Vec<_>, _>>()?;
        let mut progress = StallDetector::new(&self.cluster);
        let are_admitted = |cluster: &LocalCluster| {
            joined.iter().all(|new| cluster.observation().is_admitted(*new))
        };
        while !are_admitted(&self.cluster) && !self.is_done() {
            self.turn(&mut progress)?;
        }
        let joined_ms = are_admitted(&self.cluster).then(|| began.elapsed().as_secs_f64() * 1e3);
        let from = self.cluster.observation().step();
        self.settle()?;
        let went_on = self.cluster.observation().step() > from;
        let within = GoalBound::AtMost(MEMBERS_MS);
        let marks = vec![
            GoalResult::new("all are members", within, GoalUnit::Milliseconds, self.started_ms),
            GoalResult::all_of("went on after eight were killed", u64::from(killed.is_some()), 1),
            GoalResult::new("sixteen more are members", within, GoalUnit::Milliseconds, joined_ms),
            GoalResult::all_of("went on after they came", u64::from(went_on), 1),
        ];
        let next_seal =
            killed.iter().map(|recovery| recovery.ms).collect::<SortedDurations>().quantiles();
        let plans = self.cluster.observation().generation().saturating_sub(generation);
        let plans = u32::try_from(plans).unwrap_or(u32::MAX);
        let what = "eight killed, sixteen join";
        let note = String::new();
        Ok(MeasureRow { what, next_seal, plans, note, marks })
    }

    /// Waits for the end of the run, and compares it with the result of one process.
    ///
    /// # Errors
    /// If it does not come to its end.
    pub fn end(
        mut self,
        expected: &UndisturbedRun,
    ) -> Result<(MeasureRow, LogFindings, TotalTraffic), LocalClusterError> {
        let from = self.cluster.observation().step();
        self.monitor.until_done(&mut self.cluster, STANDSTILL)?;
        let logs: Vec<_> = self.cluster.members().iter().map(log_of).collect();
        let mut findings = check(&logs, self.steps, None);
        if findings.digests.is_empty() {
            findings.digests.extend(self.cluster.final_digest());
        }
        let is_equal =
            expected.digest.is_some() && findings.digests.first() == expected.digest.as_ref();
        let violations = findings.violations.len() as u64;
        let marks = vec![
            GoalResult::all_of("ends with the digest of one process", u64::from(is_equal), 1),
            GoalResult::none_of("invariants broken", violations),
        ];
        let note =
            format!("{} steps, {} of them behind the last fault", self.steps, self.steps - from);
        let what = "the run that was struck";
        let row = MeasureRow { what, next_seal: None, plans: 0, note, marks };
        Ok((row, findings, TotalTraffic::of(&self.plan_traffic())))
    }
}

/// Reads every file below a folder once.
fn read_plainly(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read_plainly(&entry.path())?;
        } else if kind.is_file() {
            io::copy(&mut fs::File::open(entry.path())?, &mut io::sink())?;
        }
    }
    Ok(())
}
