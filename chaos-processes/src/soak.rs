//! A run of many checkpoints that nothing disturbs: the bytes on every node's disk have to stay as
//! many as they are, within one checkpoint. They are drawn as a picture, too.

mod plot;

use std::fmt;

use serde::Serialize;

use super::contract::TestedConfiguration;
use super::events::NodeEventKind;
use super::footprint::{bytes_below, kept_bytes};
use super::local_cluster::{LocalCluster, LocalClusterError, LocalClusterSetup};
use super::run_monitor::{RunMonitor, STANDSTILL, StallDetector};

/// Samples of a soak, about: as many as a picture shows apart.
const SAMPLES: u64 = 400;
/// Checkpoints at its beginning that do not count: stores fill up to what retention keeps.
const WARM_UP_SHARE: u64 = 10;
/// Bytes of files that grow up to limits of their own, far beyond those of a soak (logs, events), are
/// measured beside the others and not judged.
const KEPT: &str = "checkpoints and texts";

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
}

/// What lies on the disks behind a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SoakSample {
    /// Number of the checkpoint, from 1.
    pub checkpoint: u64,
    /// Bytes of checkpoints and texts, of each node.
    pub kept: Vec<u64>,
    /// Bytes of all other files, of each node.
    pub other: Vec<u64>,
}

/// What a soak shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoakVerdict {
    /// No node's disk holds more than one checkpoint beyond what it held before.
    Flat,
    /// A node's disk does.
    Grows,
    /// Fewer checkpoints were complete than the soak was to have: it shows nothing of them.
    TooFew,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SoakReport {
    /// The names of the nodes.
    pub nodes: Vec<String>,
    /// Bytes of one copy of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Number of checkpoints that were complete.
    pub checkpoints: u64,
    /// Number of checkpoints that the soak was to have.
    pub expected: u64,
    /// The samples, in order.
    pub samples: Vec<SoakSample>,
}

/// By how much a node's disk holds more in the second half of a soak than in the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGrowth {
    /// The name of the node.
    pub node: String,
    /// The most bytes in the first half, without its beginning.
    pub before: u64,
    /// The most bytes in the second half.
    pub after: u64,
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
    let mut cluster = LocalCluster::start(&setup.cluster, STANDSTILL)?;
    let config = setup.config.with("checkpoint.every", every);
    cluster.run(&config, checkpoints * every)?;
    let nodes = cluster.members().iter().map(|member| member.spec().name.clone()).collect();
    let mut report = SoakReport { nodes, expected: checkpoints, ..SoakReport::default() };
    let mut progress = StallDetector::new(&cluster);
    let mut newest = 0;
    while cluster.observation().done().is_none() {
        monitor.check()?;
        for (_, event) in cluster.poll()? {
            let NodeEventKind::Checkpoint { step, bytes } = event.kind else { continue };
            if step > newest {
                newest = step;
                report.checkpoint_bytes = bytes;
                report.note_checkpoint(&cluster, monitor)?;
            }
        }
        progress.check(&cluster, STANDSTILL)?;
        std::thread::sleep(super::local_cluster::LOOK_EVERY);
    }
    Ok(report)
}

impl SoakReport {
    fn note_checkpoint(
        &mut self,
        cluster: &LocalCluster,
        monitor: &mut RunMonitor<'_>,
    ) -> Result<(), LocalClusterError> {
        self.checkpoints += 1;
        let expected = self.expected;
        if !self.checkpoints.is_multiple_of((expected / SAMPLES).max(1)) {
            return Ok(());
        }
        let folders = cluster.members().iter().map(|member| &member.spec().data_dir);
        let (kept, other) = folders
            .map(|folder| {
                let kept = kept_bytes(folder);
                (kept, bytes_below(folder).unwrap_or(0).saturating_sub(kept))
            })
            .unzip();
        self.samples.push(SoakSample { checkpoint: self.checkpoints, kept, other });
        if self.samples.len().is_multiple_of(SAMPLES as usize / 10) {
            monitor.print_line(&format!("{} of {expected} checkpoints", self.checkpoints))?;
        }
        Ok(())
    }

    /// The growth of each node, in the order of the nodes.
    #[must_use]
    pub fn growth(&self) -> Vec<NodeGrowth> {
        let begun = self.checkpoints / WARM_UP_SHARE;
        let middle = begun + (self.checkpoints - begun) / 2;
        let most = |node: usize, is_counted: &dyn Fn(u64) -> bool| {
            let counted = self.samples.iter().filter(|sample| is_counted(sample.checkpoint));
            counted.map(|sample| sample.kept[node]).max().unwrap_or(0)
        };
        let growth = |(node, name): (usize, &String)| NodeGrowth {
            node: name.clone(),
            before: most(node, &|at| at > begun && at <= middle),
            after: most(node, &|at| at > middle),
        };
        self.nodes.iter().enumerate().map(growth).collect()
    }

    /// What it shows.
    #[must_use]
    pub fn verdict(&self) -> SoakVerdict {
        let grows = |node: &NodeGrowth| node.after > node.before + self.checkpoint_bytes;
        if self.growth().iter().any(grows) {
            SoakVerdict::Grows
        } else if self.checkpoints < self.expected || self.samples.is_empty() {
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
        writeln!(
            f,
            "{} checkpoints of {one:.1} MiB; {KEPT}, the most of each half:",
            self.checkpoints
        )?;
        for NodeGrowth { node, before, after } in self.growth() {
            let (before, after) = (mib(before), mib(after));
            writeln!(f, "  {node:<12} {before:>8.1} MiB {after:>8.1} MiB")?;
        }
        match self.verdict() {
            SoakVerdict::Flat => write!(f, "flat within one checkpoint on every node"),
            SoakVerdict::Grows => {
                write!(f, "NOT FLAT: a node holds more than one checkpoint beyond before")
            }
            SoakVerdict::TooFew => {
                write!(f, "TOO FEW: {} checkpoints were to be complete", self.expected)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A soak of two nodes, of which one keeps so many bytes behind each checkpoint.
    fn soak(kept: impl Fn(u64) -> u64) -> SoakReport {
        let nodes = vec!["c1".to_owned(), "w<1>".to_owned()];
        let sample = |checkpoint| {
            let kept = vec![40, kept(checkpoint)];
            SoakSample { checkpoint, kept, other: vec![5, checkpoint] }
        };
        let samples = (1..=100).map(sample).collect();
        SoakReport { nodes, checkpoint_bytes: 10, checkpoints: 100, expected: 100, samples }
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
