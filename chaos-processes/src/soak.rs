//! A run of many checkpoints: the bytes on every node's disk, and the memory, the descriptors and the threads of its
//! process have to stay as many as they are. Nothing disturbs it, or workers are lost and join. Bytes on disks are
//! drawn as a picture, too.

mod churn;
mod plot;

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use self::churn::{WorkerChange, WorkerChurn};
use super::cluster_observation::MemberIndex;
use super::contract::{ProcessRole, TestedConfiguration};
use super::events::NodeEventKind;
use super::footprint::{ResourceFootprint, ResourceGrowth, bytes_below};
use super::local_cluster::{
    LOOK_EVERY, LocalCluster, LocalClusterError, LocalClusterSetup, MEMBERS_MAX,
};
use super::run_monitor::{RunMonitor, STANDSTILL, StallDetector};
use super::system::ProcessSignal;

/// Samples of a soak, about: as many as a picture shows apart.
const SAMPLES: u64 = 400;
/// Checkpoints at its beginning that do not count: stores fill up to what retention keeps.
const WARM_UP_SHARE: u64 = 10;
/// Bytes of files that grow up to limits of their own, far beyond those of a soak (logs, events), are
/// measured beside the others and not judged.
const KEPT: &str = "checkpoints and texts";
/// Workers that a soak with losses and joins begins with, at least: a loss leaves one.
pub const CHURN_WORKERS_MIN: u32 = 2;

/// What is run.
#[derive(Clone, Debug)]
pub struct SoakSetup {
    /// The cluster.
    pub cluster: LocalClusterSetup,
    /// The configuration of the run.
    pub config: TestedConfiguration,
    /// Number of checkpoints.
    pub checkpoints: u64,
    /// Steps from one to the next.
    pub every: u64,
    /// The time from a loss to a join and from a join to the next loss; without it, nobody is lost.
    pub churn: Option<Duration>,
}

/// The resources of all nodes behind a checkpoint. A node stands for its place: a worker that joins has that of the one
/// that was lost, and is compared with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SoakSample {
    /// Number of the checkpoint, from 1.
    pub checkpoint: u64,
    /// Bytes of checkpoints and texts, of each node.
    pub kept: Vec<u64>,
    /// Bytes of all other files, of each node.
    pub other: Vec<u64>,
    /// Open files and sockets of each process.
    pub descriptors: Vec<u64>,
    /// Threads of each process.
    pub threads: Vec<u64>,
    /// The peak of each process's memory so far, in bytes.
    pub resident: Vec<u64>,
}

/// What a soak shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoakVerdict {
    /// No node holds more than it did before, within a checkpoint (two where workers are lost) and some slack.
    Flat,
    /// A node does.
    Grows,
    /// Fewer checkpoints were complete than the soak was to have: it shows nothing of them.
    TooFew,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SoakReport {
    /// The names of the nodes; of a place the name of the node that had it first.
    pub nodes: Vec<String>,
    /// Bytes of one copy of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Number of checkpoints that were complete.
    pub checkpoints: u64,
    /// Number of checkpoints that the soak was to have.
    pub expected: u64,
    /// Workers that were lost with their disks.
    pub losses: u64,
    /// Workers that joined in their places.
    pub joins: u64,
    /// The samples, in order.
    pub samples: Vec<SoakSample>,
}

/// How much more a node holds in the second half of a soak than in the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGrowth {
    /// The name of the node.
    pub node: String,
    /// The most of each resource in the first half, without its beginning.
    pub before: ResourceFootprint,
    /// The most in the second half.
    pub after: ResourceFootprint,
}

/// A soak under way.
struct Soak {
    cluster: LocalCluster,
    report: SoakReport,
    /// The member at each place.
    places: Vec<MemberIndex>,
    churn: Option<WorkerChurn>,
    began: Instant,
    /// The newest step that became a checkpoint.
    newest: u64,
}

/// Runs it.
///
/// # Errors
/// If the cluster does not come to the end, or the output cannot be written.
pub fn run(
    setup: &SoakSetup,
    monitor: &mut RunMonitor<'_>,
) -> Result<SoakReport, LocalClusterError> {
    let SoakSetup { checkpoints, every, .. } = *setup;
    let cluster = LocalCluster::start(&setup.cluster, STANDSTILL)?;
    let config = setup.config.with("checkpoint.every", every);
    cluster.run(&config, checkpoints * every)?;
    let mut progress = StallDetector::new(&cluster);
    let mut soak = Soak::new(setup, cluster);
    while soak.cluster.observation().done().is_none() {
        monitor.check()?;
        soak.poll(monitor)?;
        soak.change_workers(monitor)?;
        progress.check(&soak.cluster, STANDSTILL)?;
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(soak.report)
}

impl Soak {
    fn new(setup: &SoakSetup, cluster: LocalCluster) -> Self {
        let nodes = cluster.members().iter().map(|member| member.spec().name.clone()).collect();
        let report = SoakReport { nodes, expected: setup.checkpoints, ..SoakReport::default() };
        let places = (0..cluster.members().len()).collect();
        let churn = setup.churn.map(|every| WorkerChurn::new(every, setup.cluster.seed));
        Self { cluster, report, places, churn, began: Instant::now(), newest: 0 }
    }

    fn poll(&mut self, monitor: &mut RunMonitor<'_>) -> Result<(), LocalClusterError> {
        for (_, event) in self.cluster.poll()? {
            let NodeEventKind::Checkpoint { step, bytes } = event.kind else { continue };
            if step > self.newest {
                self.newest = step;
                self.report.checkpoint_bytes = bytes;
                self.note_checkpoint(monitor)?;
            }
        }
        Ok(())
    }

    fn note_checkpoint(&mut self, monitor: &mut RunMonitor<'_>) -> Result<(), LocalClusterError> {
        let report = &mut self.report;
        report.checkpoints += 1;
        if !report.checkpoints.is_multiple_of((report.expected / SAMPLES).max(1)) {
            return Ok(());
        }
        let members = self.places.iter().map(|member| &self.cluster.members()[*member]);
        let sample = members.fold(SoakSample::new(report.checkpoints), |sample, member| {
            let all = bytes_below(&member.spec().data_dir).unwrap_or(0);
            sample.with(ResourceFootprint::of_member(member), all)
        });
        report.samples.push(sample);
        if report.samples.len().is_multiple_of(SAMPLES as usize / 10) {
            monitor.print_line(&report.progress())?;
        }
        Ok(())
    }

    /// A worker is lost, or joins, if it is time for that. No more join than a cluster may have members.
    fn change_workers(&mut self, monitor: &mut RunMonitor<'_>) -> Result<(), LocalClusterError> {
        let Some(churn) = &mut self.churn else { return Ok(()) };
        let workers = self.cluster.running(ProcessRole::Worker);
        let is_there = |place: &usize| workers.contains(&self.places[*place]);
        let running: Vec<usize> = (0..self.places.len()).filter(is_there).collect();
        match churn.due(self.began.elapsed(), self.report.checkpoints, &running) {
            None => return Ok(()),
            Some(WorkerChange::Loss { place }) => {
                let member = self.places[place];
                self.cluster.retire(member);
                self.cluster.signal(member, ProcessSignal::Kill)?;
                self.cluster.clear(member)?;
                self.report.losses += 1;
            }
            Some(WorkerChange::Join { place }) => {
                self.places[place] = self.cluster.add(ProcessRole::Worker)?;
                self.report.joins += 1;
            }
        }
        if self.cluster.members().len() == MEMBERS_MAX {
            self.churn = None;
            monitor.print_line(&format!(
                "no more workers are lost: there were {MEMBERS_MAX} members"
            ))?;
        }
        Ok(())
    }
}

impl SoakSample {
    fn new(checkpoint: u64) -> Self {
        Self { checkpoint, ..Self::default() }
    }

    /// The sample with another node, whose files have so many bytes.
    fn with(mut self, node: ResourceFootprint, all: u64) -> Self {
        self.kept.push(node.kept);
        self.other.push(all.saturating_sub(node.kept));
        self.descriptors.push(node.descriptors);
        self.threads.push(node.threads);
        self.resident.push(node.resident);
        self
    }

    fn of_node(&self, node: usize) -> ResourceFootprint {
        ResourceFootprint {
            descriptors: self.descriptors[node],
            threads: self.threads[node],
            resident: self.resident[node],
            kept: self.kept[node],
        }
    }
}

impl SoakReport {
    fn progress(&self) -> String {
        let Self { checkpoints, expected, losses, joins, .. } = self;
        match losses {
            0 => format!("{checkpoints} of {expected} checkpoints"),
            _ => format!(
                "{checkpoints} of {expected} checkpoints, {losses} workers lost, {joins} joined"
            ),
        }
    }

    /// The growth of each node, in the order of the nodes.
    #[must_use]
    pub fn growth(&self) -> Vec<NodeGrowth> {
        let begun = self.checkpoints / WARM_UP_SHARE;
        let middle = begun + (self.checkpoints - begun) / 2;
        let most = |node: usize, is_counted: &dyn Fn(u64) -> bool| {
            let counted = self.samples.iter().filter(|sample| is_counted(sample.checkpoint));
            let footprints = counted.map(|sample| sample.of_node(node));
            footprints.fold(ResourceFootprint::default(), ResourceFootprint::most)
        };
        let growth = |(node, name): (usize, &String)| NodeGrowth {
            node: name.clone(),
            before: most(node, &|at| at > begun && at <= middle),
            after: most(node, &|at| at > middle),
        };
        self.nodes.iter().enumerate().map(growth).collect()
    }

    /// The first node that holds more than before, and the resource. A checkpoint that failed with a worker's loss lies
    /// there until the next one is complete.
    fn grown(&self) -> Option<(String, ResourceGrowth)> {
        let spare = self.checkpoint_bytes * if self.losses > 0 { 2 } else { 1 };
        self.growth().into_iter().find_map(|NodeGrowth { node, before, after }| {
            Some((node, after.soak_growth_since(before, spare)?))
        })
    }

    /// Checkpoints that have to be complete. Those that are under way when a worker is lost are given up with it.
    const fn wanted(&self) -> u64 {
        if self.losses > 0 { self.expected / 2 } else { self.expected }
    }

    /// What it shows.
    #[must_use]
    pub fn verdict(&self) -> SoakVerdict {
        if self.grown().is_some() {
            SoakVerdict::Grows
        } else if self.checkpoints < self.wanted() || self.samples.is_empty() {
            SoakVerdict::TooFew
        } else {
            SoakVerdict::Flat
        }
    }

    /// A picture of it, as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        plot::svg(self)
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let one = mib(self.checkpoint_bytes);
        let Self { checkpoints, losses, joins, .. } = self;
        write!(f, "{checkpoints} checkpoints of {one:.1} MiB; ")?;
        if *losses > 0 {
            write!(f, "{losses} workers lost with their disks, {joins} joined; ")?;
        }
        writeln!(f, "the most of each half:")?;
        writeln!(
            f,
            "  {:<12} {KEPT:>25} {:>25} {:>13} {:>11}",
            "", "memory", "descriptors", "threads"
        )?;
        for NodeGrowth { node, before, after } in self.growth() {
            let kept = format!("{:.1} MiB {:>8.1} MiB", mib(before.kept), mib(after.kept));
            let memory =
                format!("{:.1} MiB {:>8.1} MiB", mib(before.resident), mib(after.resident));
            let descriptors = format!("{} {:>4}", before.descriptors, after.descriptors);
            let threads = format!("{} {:>4}", before.threads, after.threads);
            writeln!(f, "  {node:<12} {kept:>25} {memory:>25} {descriptors:>13} {threads:>11}")?;
        }
        if let Some((node, ResourceGrowth { what, before, now })) = self.grown() {
            return write!(f, "NOT FLAT: {what} at {node} grew from {before} to {now}");
        }
        match self.verdict() {
            SoakVerdict::TooFew => {
                write!(f, "TOO FEW: {} checkpoints were to be complete", self.wanted())
            }
            SoakVerdict::Flat | SoakVerdict::Grows => {
                write!(f, "flat on every node")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A soak of two nodes, of which one holds so much behind each checkpoint.
    fn soak_of(held: impl Fn(u64) -> ResourceFootprint) -> SoakReport {
        let nodes = vec!["c1".to_owned(), "w<1>".to_owned()];
        let sample = |checkpoint| {
            let calm = ResourceFootprint { kept: 40, ..ResourceFootprint::default() };
            SoakSample::new(checkpoint).with(calm, 45).with(held(checkpoint), checkpoint)
        };
        let samples = (1..=100).map(sample).collect();
        let report = SoakReport { nodes, samples, ..SoakReport::default() };
        SoakReport { checkpoint_bytes: 10, checkpoints: 100, expected: 100, ..report }
    }

    fn soak(kept: impl Fn(u64) -> u64) -> SoakReport {
        soak_of(|at| ResourceFootprint { kept: kept(at), ..ResourceFootprint::default() })
    }

    #[test]
    fn a_disk_that_fills_is_found_and_one_that_fills_up_to_its_retention_is_not() {
        let check = |kept: &dyn Fn(u64) -> u64, is_flat: bool| {
            let report = soak(kept);
            assert_eq!(report.verdict() == SoakVerdict::Flat, is_flat, "{report}");
        };
        check(&|_| 40, true);
        check(&|at| at.min(10) * 4, true);
        check(&|at| 40 + at % 2 * 10, true);
        check(&|at| 40 + at / 10, true);
        check(&|at| 40 + at, false);
        check(&|at| if at > 90 { 51 } else { 40 }, false);
        check(&|at| if at > 90 { 50 } else { 40 }, true);
        assert_eq!(SoakReport::default().verdict(), SoakVerdict::TooFew, "nothing was measured");
        let fewer = SoakReport { checkpoints: 99, ..soak(|_| 40) };
        assert_eq!(fewer.verdict(), SoakVerdict::TooFew, "{fewer}");
        let given_up =
            |checkpoints| SoakReport { losses: 9, expected: 200, checkpoints, ..fewer.clone() };
        assert_eq!(given_up(100).verdict(), SoakVerdict::Flat);
        assert_eq!(given_up(99).verdict(), SoakVerdict::TooFew);
        let failed = soak(|at| if at > 90 { 60 } else { 40 });
        assert_eq!(failed.verdict(), SoakVerdict::Grows, "{failed}");
        let failed = SoakReport { losses: 1, ..failed };
        assert_eq!(
            failed.verdict(),
            SoakVerdict::Flat,
            "a checkpoint failed with a loss: {failed}"
        );
    }

    #[test]
    fn what_a_process_holds_may_not_grow_with_the_length_of_the_run() {
        let check = |held: &dyn Fn(u64) -> ResourceFootprint, expected: Option<&str>| {
            let report = soak_of(held);
            let grown = report.grown().map(|(node, growth)| (node, growth.what));
            assert_eq!(grown, expected.map(|what| ("w<1>".to_owned(), what)), "{report}");
            assert_eq!(report.to_string().contains("NOT FLAT"), expected.is_some(), "{report}");
        };
        let calm = ResourceFootprint { descriptors: 50, threads: 20, resident: 90 << 20, kept: 40 };
        check(&|_| calm, None);
        let descriptors = |at| ResourceFootprint { descriptors: 50 + at, ..calm };
        check(&descriptors, Some("open descriptors of a process"));
        let threads = |at| ResourceFootprint { threads: 20 + at, ..calm };
        check(&threads, Some("threads of a process"));
        let resident = |at| ResourceFootprint { resident: (90 + 2 * at) << 20, ..calm };
        check(&resident, Some("peak memory of a process, in bytes,"));
        // A worker that joined holds what the one before it held; where nobody is, nothing is held.
        let replaced =
            |at: u64| if at.is_multiple_of(7) { ResourceFootprint::default() } else { calm };
        check(&replaced, None);
    }

    #[test]
    fn the_picture_has_a_line_for_each_node_and_escapes_their_names() {
        let svg = soak(|at| 40 + at).svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("w&lt;1&gt;") && !svg.contains("w<1>"), "{svg}");
        assert!(!SoakReport::default().svg().contains("NaN"));
    }
}
