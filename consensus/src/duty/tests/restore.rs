//! Where a run goes on: the newest version that every layer can reach.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_schedule::Placement;
use zbelastic_types::{Generation, LayerId, NodeId, Step};

use crate::checkpoint::CheckpointRecord;
use crate::contact::FailureDomain;
use crate::duty::keepers::copies;
use crate::duty::restore::{LayerInventory, RestorePoint, restore_point};
use crate::fixture::digest;
use crate::message::HeldLayer;
use crate::plan::{LayerSource, SOURCES_MAX};
use crate::validation::Ledger;

/// A model of two layers, open at version 8.
#[derive(Default)]
struct RestoreCase {
    held: BTreeMap<NodeId, Vec<HeldLayer>>,
    checkpoints: Vec<CheckpointRecord>,
    bad: BTreeSet<Step>,
    open: u64,
    base: u64,
}

impl RestoreCase {
    fn at(open: u64) -> Self {
        Self { open, ..Self::default() }
    }

    fn holds(mut self, node: u64, layer: u32, version: u64) -> Self {
        let digest = digest(layer, version);
        let held = HeldLayer { layer: LayerId(layer), version: Step(version), digest };
        self.held.entry(NodeId(node)).or_default().push(held);
        self
    }

    fn checkpoint(mut self, version: u64) -> Self {
        let layers = (0..2).map(|layer| digest(layer, version)).collect();
        let version = Step(version);
        let ledger = Ledger::new(Generation(1), version, version.0);
        self.checkpoints.push(CheckpointRecord { version, layers, ledger });
        self
    }

    fn bad(mut self, version: u64) -> Self {
        self.bad.insert(Step(version));
        self
    }

    fn base(self, base: u64) -> Self {
        Self { base, ..self }
    }

    fn check(&self, expected: RestorePoint) {
        assert_eq!(self.found(Some(&self.held)), expected);
    }

    fn found(&self, held: Option<&BTreeMap<NodeId, Vec<HeldLayer>>>) -> RestorePoint {
        restore_point(&LayerInventory {
            open: Step(self.open),
            layer_count: 2,
            held,
            checkpoints: &self.checkpoints,
            bad: &self.bad,
            base: Step(self.base),
        })
    }
}

fn nodes(nodes: &[u64]) -> LayerSource {
    LayerSource::Nodes(nodes.iter().map(|node| NodeId(*node)).collect())
}

fn saved(layer: u32, version: u64) -> LayerSource {
    LayerSource::Checkpoint { version: Step(version), digest: digest(layer, version) }
}

fn back(to: u64, layer: u32) -> RestorePoint {
    RestorePoint::Back { to: Step(to), layer: LayerId(layer) }
}

#[test]
fn if_owners_or_copies_survive_nothing_sealed_is_lost() {
    let case = RestoreCase::at(8).holds(1, 0, 8).holds(2, 0, 8).holds(2, 1, 8);
    case.check(RestorePoint::Here(vec![nodes(&[1, 2]), nodes(&[2])]));
}

#[test]
fn a_layer_at_another_version_is_as_good_as_lost() {
    let older = RestoreCase::at(8).holds(1, 0, 8).holds(2, 1, 7);
    older.check(back(0, 1));
    let ahead = RestoreCase::at(8).holds(1, 0, 8).holds(2, 1, 9);
    ahead.check(back(0, 1));
}

#[test]
fn a_checkpoint_of_the_open_version_fills_what_memory_lacks() {
    let case = RestoreCase::at(8).holds(1, 0, 8).checkpoint(4).checkpoint(8);
    case.check(RestorePoint::Here(vec![nodes(&[1]), saved(1, 8)]));
}

#[test]
fn a_layer_that_is_lost_takes_the_run_back_to_the_newest_checkpoint() {
    let case = || RestoreCase::at(8).holds(1, 0, 8).checkpoint(2).checkpoint(4);
    case().check(back(4, 1));
    case().bad(4).check(back(2, 1));
    case().bad(4).bad(2).check(back(0, 1));
    case().bad(4).base(2).check(back(2, 1));
    case().bad(4).base(3).check(RestorePoint::Nowhere);
}

#[test]
fn a_checkpoint_of_the_open_version_that_cannot_be_read_does_not_count() {
    RestoreCase::at(8).holds(1, 0, 8).checkpoint(4).checkpoint(8).bad(8).check(back(4, 1));
}

#[test]
fn a_run_that_has_sealed_nothing_begins_from_its_seed() {
    RestoreCase::at(0).check(RestorePoint::Here(vec![LayerSource::Initial, LayerSource::Initial]));
    RestoreCase::at(0)
        .holds(1, 1, 0)
        .check(RestorePoint::Here(vec![LayerSource::Initial, nodes(&[1])]));
}

#[test]
fn without_memory_and_checkpoints_the_beginning_is_all_there_is_while_it_is_remembered() {
    RestoreCase::at(8).check(back(0, 0));
    RestoreCase::at(8).base(1).check(RestorePoint::Nowhere);
}

#[test]
fn memory_that_is_not_believed_does_not_count() {
    let case = RestoreCase::at(8).holds(1, 0, 8).holds(1, 1, 8).checkpoint(8);
    assert_eq!(case.found(None), RestorePoint::Here(vec![saved(0, 8), saved(1, 8)]));
}

#[test]
fn so_many_nodes_are_named_as_a_source_and_no_more() {
    let mut case = RestoreCase::at(8).holds(1, 1, 8);
    for node in 0..=SOURCES_MAX as u64 {
        case = case.holds(10 + node, 0, 8);
    }
    let first: Vec<u64> = (10..).take(SOURCES_MAX).collect();
    case.check(RestorePoint::Here(vec![nodes(&first), nodes(&[1])]));
}

#[test]
fn two_who_hold_a_layer_with_other_bits_are_believed_neither() {
    let mut case = RestoreCase::at(8).holds(1, 0, 8).holds(2, 0, 8).holds(1, 1, 8).holds(2, 1, 8);
    case.held.get_mut(&NodeId(2)).expect("it holds")[1].digest = digest(9, 9);
    case.check(RestorePoint::Differs { layer: LayerId(1) });
}

#[test]
fn memory_that_differs_from_its_checkpoint_is_not_believed() {
    let mut case = RestoreCase::at(8).holds(1, 0, 8).holds(1, 1, 8).checkpoint(8);
    case.held.get_mut(&NodeId(1)).expect("it holds")[0].digest = digest(9, 9);
    case.check(RestorePoint::Differs { layer: LayerId(0) });
}

/// What the node at a stage holds, with one layer for each stage: its own, and those it keeps
/// copies of.
fn held_by(stage: u32, copies: &[Vec<zbelastic_types::StageIndex>]) -> Vec<HeldLayer> {
    let keeps = |of: &u32| copies[*of as usize].iter().any(|by| by.0 == stage);
    let kept = (0..copies.len() as u32).filter(keeps);
    let held =
        |layer| HeldLayer { layer: LayerId(layer), version: Step(8), digest: digest(layer, 8) };
    std::iter::once(stage).chain(kept).map(held).collect()
}

/// Whichever two are lost, and wherever machines stand: with two copies nothing sealed is lost.
#[test]
fn with_two_copies_any_two_may_be_lost_at_once() {
    let zones = ["", "abc", "aab", "ab", "a"];
    for (stages, zones) in (3..=12_u32).flat_map(|stages| zones.map(|zones| (stages, zones))) {
        let zone = |at: u32| zones.chars().cycle().nth(at as usize).map(String::from);
        let place =
            |at: u32| FailureDomain { zone: zone(at).unwrap_or_default(), host: 1 + at as u64 / 2 };
        let domains: Vec<FailureDomain> = (0..stages).map(place).collect();
        let copies = copies(&domains, &Placement::line(stages), (2, stages % 5));
        for (one, other) in (0..stages).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let left = (0..stages).filter(|stage| ![one, other].contains(stage));
            let held = left.map(|stage| (NodeId(stage.into()), held_by(stage, &copies)));
            let (held, bad) = (held.collect(), BTreeSet::new());
            let found = restore_point(&LayerInventory {
                open: Step(8),
                layer_count: stages,
                held: Some(&held),
                checkpoints: &[],
                bad: &bad,
                base: Step(0),
            });
            let RestorePoint::Here(_) = found else {
                panic!("{one} and {other} of {stages}: {found:?}")
            };
        }
    }
}
