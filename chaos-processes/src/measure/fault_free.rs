//! Runs that nothing disturbs: whether they end as the training in one process does, whether any
//! node is suspected in them, and the memory that their processes need.

use std::collections::BTreeSet;

use zbelastic_whole_file::TemporaryFolder;

use super::{MeasureRow, MeasureSetup};
use crate::check::{UndisturbedRun, check};
use crate::contract::ReportedPlan;
use crate::durations::SortedDurations;
use crate::events::{NodeEvent, NodeEventKind};
use crate::goal::{GoalBound, GoalResult, GoalUnit};
use crate::local_cluster::{LocalCluster, LocalClusterError, LocalClusterSetup};
use crate::resident::peak_bytes;
use crate::run_monitor::{RunMonitor, STANDSTILL};
use crate::undisturbed::log_of;

/// The most memory that a process may hold, as a multiple of its plan's promise.
const MEMORY_MAX: f64 = 1.15;
/// Why a plan follows another one though nothing happened to any node.
const DRIFTED: &str = "drifted";

/// The results of runs without faults.
#[derive(Debug, Default)]
struct FaultFreeSummary {
    runs: u64,
    equal: u64,
    suspected: u64,
    plans: u64,
    drifts: u64,
    /// The greatest share of promised memory, with its stage.
    memory: Option<(f64, String)>,
    step_ms: SortedDurations,
}

/// Runs so many times, and holds the results against those of one process.
///
/// # Errors
/// If a run does not come to its end.
pub fn measure(
    setup: &MeasureSetup,
    expected: &UndisturbedRun,
    monitor: &mut RunMonitor<'_>,
) -> Result<MeasureRow, LocalClusterError> {
    let promised = setup.cluster.program.plan(&setup.config, setup.cluster.workers)?;
    let mut summary = FaultFreeSummary::default();
    for _ in 0..setup.undisturbed {
        run_once(setup, expected, &promised, &mut summary, monitor)?;
    }
    Ok(summary.row())
}

fn run_once(
    setup: &MeasureSetup,
    expected: &UndisturbedRun,
    promised: &ReportedPlan,
    summary: &mut FaultFreeSummary,
    monitor: &mut RunMonitor<'_>,
) -> Result<(), LocalClusterError> {
    let folder = TemporaryFolder::temporary("calm").map_err(|source| {
        let doing = "cannot make a folder".to_owned();
        LocalClusterError::System { doing, source }
    })?;
    let run_setup = LocalClusterSetup { folder: folder.path().to_owned(), ..setup.cluster.clone() };
    let mut cluster = LocalCluster::start(&run_setup, STANDSTILL)?;
    cluster.run(&setup.config, setup.steps)?;
    monitor.until_done(&mut cluster, STANDSTILL)?;
    let logs: Vec<_> = cluster.members().iter().map(log_of).collect();
    let findings = check(&logs, setup.steps, None);
    let digest = findings.digests.first().cloned().or_else(|| cluster.final_digest());
    summary.runs += 1;
    summary.equal += u64::from(digest.is_some() && digest == expected.digest);
    summary.step_ms.extend(cluster.observation().step_ms());
    let events = || cluster.members().iter().flat_map(|member| member.events());
    for line in disturbances(events()) {
        monitor.print_line(&format!("    run {}: {line}", summary.runs))?;
    }
    summary.suspected += lost(events());
    let (plans, drifts) = plans(events());
    summary.plans += plans;
    summary.drifts += drifts;
    let schedule = events().find_map(|event| {
        if let NodeEventKind::Plan { schedule, .. } = &event.kind {
            Some(schedule.as_str())
        } else {
            None
        }
    });
    let stage_bytes = schedule.and_then(|schedule| promised.stage_bytes(schedule));
    for (stage, promised) in stage_bytes.into_iter().flatten().enumerate() {
        let worker = cluster.observation().stages().get(stage).copied();
        let pid = worker.and_then(|worker| cluster.members()[worker].pid());
        if let Some(peak) = pid.and_then(peak_bytes) {
            summary.note_memory(stage, peak, *promised);
        }
    }
    Ok(())
}

/// Members that were held for lost.
fn lost<'a>(events: impl Iterator<Item = &'a NodeEvent>) -> u64 {
    let lost = events.filter_map(|event| {
        if let NodeEventKind::Lost { node, .. } = &event.kind { Some(*node) } else { None }
    });
    lost.collect::<BTreeSet<_>>().len() as u64
}

/// Why members were held for lost and plans were changed, each once.
fn disturbances<'a>(events: impl Iterator<Item = &'a NodeEvent>) -> BTreeSet<String> {
    let line = |event: &NodeEvent| {
        if let NodeEventKind::Lost { node, reason } = &event.kind {
            Some(format!("node {node} suspected: {reason}"))
        } else if let NodeEventKind::Plan { generation, reason, .. } = &event.kind {
            (*generation > 1).then(|| format!("plan {generation}: {reason}"))
        } else {
            None
        }
    };
    events.filter_map(line).collect()
}

/// Plans behind the first one, and those that were made because passes drifted.
fn plans<'a>(events: impl Iterator<Item = &'a NodeEvent>) -> (u64, u64) {
    let mut all = BTreeSet::new();
    let mut drifted = BTreeSet::new();
    for event in events {
        if let NodeEventKind::Plan { generation, reason, .. } = &event.kind {
            if reason.contains(DRIFTED) { &mut drifted } else { &mut all }.insert(*generation);
        }
    }
    ((all.len() as u64).saturating_sub(1), drifted.len() as u64)
}

impl FaultFreeSummary {
    fn note_memory(&mut self, stage: usize, peak: u64, promised: u64) {
        let share = peak as f64 / promised.max(1) as f64;
        if self.memory.as_ref().is_none_or(|(greatest, _)| share > *greatest) {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let took = mib(peak);
            let plan = mib(promised);
            self.memory = Some((share, format!("stage {stage}: {took:.0} of {plan:.0} MiB")));
        }
    }

    fn row(self) -> MeasureRow {
        let runs = self.runs;
        let (memory, fullest) = self.memory.unzip();
        let fullest = fullest.unwrap_or_default();
        let marks = vec![
            GoalResult::all_of("runs that end with the digest of one process", self.equal, runs),
            GoalResult::none_of("members suspected", self.suspected),
            GoalResult::none_of("plans behind the first, drift aside", self.plans),
            GoalResult::new(
                "peak memory over the plan's",
                GoalBound::AtMost(MEMORY_MAX),
                GoalUnit::Ratio,
                memory,
            ),
        ];
        let drifts = self.drifts;
        let note = format!("a step of {runs} runs; {drifts} plans for drift; {fullest}");
        let plans = u32::try_from(self.plans + drifts).unwrap_or(u32::MAX);
        let what = "undisturbed (a step)";
        MeasureRow { what, next_seal: self.step_ms.quantiles(), plans, note, marks }
    }
}

#[cfg(test)]
mod tests {
    use super::{FaultFreeSummary, disturbances, lost, plans};
    use crate::events::NodeEvent;

    #[test]
    fn plans_and_losses_are_counted_once_whoever_reports_them() {
        let plan = |generation: u64, reason: &str| {
            NodeEvent::parse(&format!(
                "{{\"event\":\"plan\",\"generation\":{generation},\"stages\":[4],\
                 \"reason\":\"{reason}\"}}"
            ))
        };
        let drifted = plan(2, "stage 2 (node 4) drifted: takes 27 ms");
        let events = [plan(1, "first"), plan(1, "first"), drifted, plan(3, "node 5 was lost")];
        assert_eq!(plans(events.iter()), (1, 1));
        assert_eq!(plans(events[..1].iter()), (0, 0));
        let gone = NodeEvent::parse("{\"event\":\"lost\",\"node\":5,\"reason\":\"silent\"}");
        assert_eq!(lost([gone.clone(), gone.clone()].iter()), 1);
        let found = disturbances(events.iter().chain([&gone, &gone]));
        let found: Vec<_> = found.iter().map(String::as_str).collect();
        let drift = "plan 2: stage 2 (node 4) drifted: takes 27 ms";
        assert_eq!(found, ["node 5 suspected: silent", drift, "plan 3: node 5 was lost"]);
    }

    #[test]
    fn the_fullest_stage_is_held_against_its_plan() {
        let mut summary = FaultFreeSummary { runs: 2, equal: 1, ..FaultFreeSummary::default() };
        summary.note_memory(0, 110 << 20, 100 << 20);
        summary.note_memory(1, 240 << 20, 200 << 20);
        summary.note_memory(2, 10 << 20, 100 << 20);
        let row = summary.row();
        let met: Vec<bool> = row.marks.iter().map(|mark| mark.is_met).collect();
        assert_eq!(met, [false, true, true, false]);
        assert!(row.note.contains("stage 1: 240 of 200 MiB"), "{}", row.note);
        assert!(!FaultFreeSummary::default().row().marks[3].is_met, "nobody was measured");
    }
}
