//! How fast the cluster's nodes and links were found to be.
//!
//! The estimate changes only when several reviews agree: so everything that is
//! planned between two such moments is planned with the same numbers, and noise never makes a plan
//! differ from the one before. Pure: the caller passes steps and judgements, and reads numbers.

use std::collections::BTreeMap;

use zbelastic_consensus::member::Resources;
use zbelastic_consensus::plan::{DriftedPart, PlanReason};
use zbelastic_trainer::model::{LayerSpec, model_layers};
use zbelastic_trainer::plan::{Calibration, Drift, DriftSource, Pace};
use zbelastic_types::NodeId;

use crate::fallback::PlannerJob;
use crate::node_choices::NodeResources;

/// The known pace of the cluster. Nothing is known at the beginning: work is counted, nodes are as
/// fast as they report, and messages need no time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PaceEstimate {
    /// The time of counted work on a node of speed 1.
    pub calibration: Option<Calibration>,
    /// Nodes that are not as fast as they report, in thousandths of a reference device's.
    pub speeds: BTreeMap<NodeId, u32>,
    /// The times of a boundary tensor from node to node, the lower number first.
    pub links: BTreeMap<(NodeId, NodeId), LinkTimes>,
    /// From the last report to the verdict, in microseconds; nothing before one was waited for.
    pub verdict_us: f64,
}

/// The times of a boundary tensor to another node, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkTimes {
    /// However short it is; all of it, if nothing separated the part that depends on its length.
    pub latency_us: f64,
    /// For its length, in which the way carries no other.
    pub occupancy_us: f64,
}

impl LinkTimes {
    /// Both parts together, in microseconds.
    #[must_use]
    pub fn total_us(&self) -> f64 {
        self.latency_us + self.occupancy_us
    }
}

/// A verdict with a time this far from the known one is another one: it is seldom waited for, and
/// then by the stage that was late.
const VERDICT_APART: f64 = 0.5;

impl PaceEstimate {
    /// Whether this holds an item that was never timed before, or a verdict with quite another
    /// time.
    #[must_use]
    pub fn differs_from(&self, before: &Self) -> bool {
        let timed = |estimate: &Self| {
            let found = estimate.calibration.iter();
            let parts = found.flat_map(|found| {
                let remade = found.classes.iter().flatten().map(|cost| cost.recompute.is_some());
                remade.chain([found.copies_us.is_some(), true])
            });
            parts.map(|is_timed| 1 + usize::from(is_timed)).sum::<usize>()
        };
        let one = self.verdict_us;
        let other = before.verdict_us;
        timed(self) > timed(before) || (one - other).abs() > VERDICT_APART * one.max(other)
    }

    /// The speed of a node with these resources.
    #[must_use]
    pub fn speed_permille(&self, (node, resources): &NodeResources) -> u32 {
        self.speeds.get(node).copied().unwrap_or(resources.speed_permille).max(1)
    }

    /// The same nodes, with their speeds as they are known.
    #[must_use]
    pub fn seated(&self, nodes: &[NodeResources]) -> Vec<NodeResources> {
        let resources = |node: &NodeResources| Resources {
            speed_permille: self.speed_permille(node),
            ..node.1
        };
        nodes.iter().map(|node| (node.0, resources(node))).collect()
    }

    /// The pace of nodes in this order of stages, with the speeds that are passed with them.
    #[must_use]
    pub fn pace(&self, job: &PlannerJob, nodes: &[NodeResources]) -> Pace {
        let model = &job.model;
        let shape = job.batch.microbatch;
        let speeds = nodes.iter().map(|(_, resources)| f64::from(resources.speed_permille.max(1)));
        match &self.calibration {
            Some(calibration) => {
                let speeds = speeds.map(|permille| permille / 1000.0).collect();
                let LinkTimes { latency_us, occupancy_us } = self.link(nodes);
                let pace = Pace::calibrated(model, shape, calibration, (speeds, latency_us));
                let float_us = occupancy_us / (shape.rows() * model.width as usize) as f64;
                let carried = |layer: &LayerSpec| layer.gradient_len() as f64 * float_us;
                let gradients = model_layers(model).iter().map(carried).collect();
                let occupancy = occupancy_us;
                let verdict = self.verdict_us;
                Pace { occupancy, verdict, gradients, ..pace }
            }
            None => {
                let fastest = speeds.clone().fold(1.0, f64::max);
                // Nodes that are alike have speed 1 exactly.
                let speeds = speeds.map(|permille| permille / fastest).collect();
                let counted = Pace::estimated(model, shape).with_updates(model, &job.optimizer);
                Pace { speeds, ..counted }
            }
        }
    }

    /// The times of the slowest link between neighbours in this order. One that was never used is
    /// assumed to be as fast as the others.
    #[must_use]
    pub fn link(&self, nodes: &[NodeResources]) -> LinkTimes {
        let slower = |a: &LinkTimes, b: &LinkTimes| a.total_us().total_cmp(&b.total_us());
        let mut sorted: Vec<LinkTimes> = self.links.values().copied().collect();
        sorted.sort_by(slower);
        let usual = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let link = |pair: &[NodeResources]| {
            let a = pair[0].0;
            let b = pair[1].0;
            self.links.get(&(a.min(b), a.max(b))).copied().unwrap_or(usual)
        };
        nodes.windows(2).map(link).max_by(slower).unwrap_or_default()
    }
}

/// A drift as the log has it. Times of `drift` are microseconds.
#[must_use]
pub fn plan_reason(drift: &Drift, nodes: &[NodeResources]) -> PlanReason {
    let part = match drift.part {
        DriftSource::Stage(stage) => DriftedPart::Stage { stage, node: nodes[stage.index()].0 },
        DriftSource::Link => DriftedPart::Links,
    };
    let [expected_us, found_us] = [drift.expected, drift.found].map(|us| us.round() as u64);
    let gain_permille = (1e3 * drift.gain).round() as u32;
    PlanReason::Drifted { part, expected_us, found_us, gain_permille }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::job;
    use zbelastic_types::{Bytes, StageIndex};

    fn resources_of(node: u64, speed_permille: u32) -> NodeResources {
        (
            NodeId(node),
            Resources {
                memory: Bytes(0),
                speed_permille,
                class: zbelastic_consensus::class::DeviceClass::Processors,
            },
        )
    }

    const CALIBRATION: Calibration = Calibration {
        f_us: 1e-3,
        b_us: 2e-3,
        w_us: 3e-3,
        update_us: 1e-3,
        copies_us: None,
        classes: [None; 4],
    };

    #[test]
    fn nodes_are_as_fast_as_they_say_until_they_are_measured() {
        let nodes = [resources_of(1, 2000), resources_of(2, 2000), resources_of(3, 1000)];
        let counted = PaceEstimate::default().pace(&job(), &nodes);
        assert_eq!(counted.speeds, [1.0, 1.0, 0.5]);
        let model = &job().model;
        let shape = job().batch.microbatch;
        assert_eq!(Pace { speeds: Vec::new(), ..counted }, Pace::estimated(model, shape));
        let speeds = BTreeMap::from([(NodeId(2), 700)]);
        let estimate =
            PaceEstimate { calibration: Some(CALIBRATION), speeds, ..PaceEstimate::default() };
        let pace = estimate.pace(&job(), &estimate.seated(&nodes));
        assert_eq!(pace.speeds, [2.0, 0.7, 1.0]);
    }

    #[test]
    fn the_slowest_link_in_use_is_the_one_that_counts() {
        let link = |latency_us, occupancy_us| LinkTimes { latency_us, occupancy_us };
        let links = BTreeMap::from([
            ((NodeId(1), NodeId(2)), link(90.0, 10.0)),
            ((NodeId(1), NodeId(3)), link(200.0, 700.0)),
            ((NodeId(2), NodeId(3)), link(250.0, 50.0)),
        ]);
        let calibration = Some(CALIBRATION);
        let estimate =
            PaceEstimate { calibration, links, verdict_us: 40.0, ..PaceEstimate::default() };
        let check = |nodes: &[u64], expected: (f64, f64)| {
            let nodes: Vec<NodeResources> =
                nodes.iter().map(|node| resources_of(*node, 1000)).collect();
            let pace = estimate.pace(&job(), &nodes);
            assert_eq!((pace.link, pace.occupancy), expected, "{nodes:?}");
            assert_eq!(pace.verdict, 40.0);
            let boundary = job().batch.microbatch.rows() * job().model.width as usize;
            let layer = model_layers(&job().model)[1].len();
            let length = layer as f64 / boundary as f64;
            assert!((pace.gradients[1] - length * expected.1).abs() < 1e-9, "as long as it is");
        };
        check(&[1, 2, 3], (250.0, 50.0));
        check(&[2, 1, 3], (200.0, 700.0));
        check(&[3, 1], (200.0, 700.0));
        check(&[2, 9], (250.0, 50.0));
        check(&[2], (0.0, 0.0));
    }

    #[test]
    fn what_was_never_timed_and_another_verdict_are_news() {
        let estimate = PaceEstimate { calibration: Some(CALIBRATION), ..PaceEstimate::default() };
        let with_verdict = |verdict_us| PaceEstimate { verdict_us, ..estimate.clone() };
        assert!(
            estimate.differs_from(&PaceEstimate::default()) && !estimate.differs_from(&estimate)
        );
        assert!(
            with_verdict(40.0).differs_from(&estimate)
                && !with_verdict(40.0).differs_from(&with_verdict(30.0))
        );
        assert!(
            with_verdict(40.0).differs_from(&with_verdict(100.0))
                && !estimate.differs_from(&with_verdict(0.0))
        );
        let copied = Calibration { copies_us: Some(1.0), ..CALIBRATION };
        let copied = PaceEstimate { calibration: Some(copied), ..estimate.clone() };
        assert!(copied.differs_from(&estimate) && !estimate.differs_from(&copied));
    }

    #[test]
    fn a_drift_is_reported_with_the_node_of_its_stage() {
        let drift = Drift {
            part: DriftSource::Stage(StageIndex(1)),
            expected: 1234.4,
            found: 2600.6,
            slack: 0.1,
            gain: 0.3104,
        };
        let text = |drift| {
            plan_reason(&drift, &[resources_of(5, 1000), resources_of(7, 1000)]).to_string()
        };
        let expected = "stage 1 (node 7) drifted: takes 2.60 ms, 1.23 ms planned; another plan \
                        saves 31.0 % of a step";
        assert_eq!(text(drift), expected);
        assert!(text(Drift { part: DriftSource::Link, ..drift }).starts_with("a message between"));
    }
}
