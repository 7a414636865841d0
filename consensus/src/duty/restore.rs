//! Where a run goes on: the newest version that every layer can reach.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{Digest, LayerId, NodeId, Step};

use crate::checkpoint::CheckpointRecord;
use crate::message::HeldLayer;
use crate::plan::{LayerSource, SOURCES_MAX};

/// The known places of layers.
#[derive(Clone, Copy, Debug)]
pub struct LayerInventory<'a> {
    /// The version that is open: steps sealed so far.
    pub open: Step,
    /// Layers of the model.
    pub layer_count: u32,
    /// The layers that nodes hold in memory, if memory may be trusted.
    pub held: Option<&'a BTreeMap<NodeId, Vec<HeldLayer>>>,
    /// Checkpoints, oldest first.
    pub checkpoints: &'a [CheckpointRecord],
    /// Versions of checkpoints that could not be read.
    pub bad: &'a BTreeSet<Step>,
    /// The first step that is remembered; a run cannot go back behind it.
    pub base: Step,
}

/// Where a run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestorePoint {
    /// At the open version: nothing sealed is lost. Where each layer comes from.
    Here(Vec<LayerSource>),
    /// At an older one, because this layer is nowhere else.
    Back {
        /// The version to go back to: a checkpoint's, or 0 for the beginning.
        to: Step,
        /// The first layer that is lost.
        layer: LayerId,
    },
    /// Not from memory: this layer is held with different bits, and it cannot be known which are
    /// right.
    Differs {
        /// The first such layer.
        layer: LayerId,
    },
    /// From nowhere: a layer is held by no node, and there is no checkpoint to go back to.
    Nowhere,
}

/// Chooses where to go on.
#[must_use]
pub fn restore_point(inventory: &LayerInventory<'_>) -> RestorePoint {
    let layers = || (0..inventory.layer_count).map(LayerId);
    if let Some(layer) = layers().find(|layer| differs(inventory, *layer)) {
        return RestorePoint::Differs { layer };
    }
    let sources: Vec<_> = layers().map(|layer| source_of(inventory, layer)).collect();
    let Some(lost) = sources.iter().position(Option::is_none) else {
        return RestorePoint::Here(sources.into_iter().flatten().collect());
    };
    let layer = LayerId(lost as u32);
    let LayerInventory { open, checkpoints, bad, base, .. } = *inventory;
    let is_usable = |found: &&CheckpointRecord| {
        (base..open).contains(&found.version) && !bad.contains(&found.version)
    };
    match checkpoints.iter().rev().find(is_usable) {
        Some(checkpoint) => RestorePoint::Back { to: checkpoint.version, layer },
        None if base == Step(0) && open > Step(0) => RestorePoint::Back { to: Step(0), layer },
        None => RestorePoint::Nowhere,
    }
}

/// The layers that can be had from nowhere at the open version.
pub fn missing_layers<'a>(inventory: &'a LayerInventory<'_>) -> impl Iterator<Item = LayerId> + 'a {
    let layers = (0..inventory.layer_count).map(LayerId);
    layers.filter(|layer| source_of(inventory, *layer).is_none())
}

/// The digest that each layer must be loaded with, as far as a holder has reported one: its memory
/// may change after the report.
#[must_use]
pub fn expected_digests(inventory: &LayerInventory<'_>) -> Vec<Option<Digest>> {
    let LayerInventory { open, held, .. } = *inventory;
    let reported = |layer| holders(held, layer, open).map(|(_, digest)| digest).next();
    (0..inventory.layer_count).map(LayerId).map(reported).collect()
}

/// The nodes that hold a layer at a version, each with the digest of its bits.
fn holders(
    held: Option<&BTreeMap<NodeId, Vec<HeldLayer>>>,
    layer: LayerId,
    version: Step,
) -> impl Iterator<Item = (NodeId, Digest)> {
    let is_it = move |held: &&HeldLayer| held.layer == layer && held.version == version;
    held.into_iter().flatten().filter_map(move |(node, layers)| {
        layers.iter().find(is_it).map(|found| (*node, found.digest))
    })
}

/// Whether a layer is held with other bits than another holder has, or than its checkpoint.
fn differs(inventory: &LayerInventory<'_>, layer: LayerId) -> bool {
    let LayerInventory { open: version, held, checkpoints, .. } = *inventory;
    let mut digests = holders(held, layer, version).map(|(_, digest)| digest);
    let checkpoint = checkpoints.iter().find(|found| found.version == version);
    let known = checkpoint.map(|checkpoint| checkpoint.layers[layer.index()]);
    let Some(expected) = known.or_else(|| digests.next()) else { return false };
    digests.any(|digest| digest != expected)
}

fn source_of(inventory: &LayerInventory<'_>, layer: LayerId) -> Option<LayerSource> {
    let LayerInventory { open: version, held, checkpoints, bad, .. } = *inventory;
    let nodes: Vec<NodeId> =
        holders(held, layer, version).map(|(node, _)| node).take(SOURCES_MAX).collect();
    if !nodes.is_empty() {
        return Some(LayerSource::Nodes(nodes));
    }
    let checkpoint = checkpoints.iter().find(|found| found.version == version);
    if let Some(checkpoint) = checkpoint.filter(|_| !bad.contains(&version)) {
        let digest = checkpoint.layers[layer.index()];
        return Some(LayerSource::Checkpoint { version, digest });
    }
    (version == Step(0)).then_some(LayerSource::Initial)
}
