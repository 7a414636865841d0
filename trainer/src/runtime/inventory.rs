//! The inventory that was reported last, so that nothing is hashed twice.

use zbelastic_consensus::message::HeldLayer;
use zbelastic_types::{Digest, LayerId, Step};

use crate::elastic::LayerImage;

/// An inventory that was reported, and the versions of all layers and copies then.
struct ReportedInventory {
    versions: Vec<(LayerId, Step)>,
    layers: Vec<HeldLayer>,
}

/// What is known of the digests of the layers that are held.
#[derive(Default)]
pub(super) struct InventoryCache {
    /// The inventory that was reported last, while no update is computed: a plan that is begun anew
    /// requests it again, and the plan that follows is loaded with the same layers
    /// (docs/decisions/0061).
    last: Option<ReportedInventory>,
    /// The step whose gradient was reported last.
    reported: Option<Step>,
}

impl InventoryCache {
    /// The gradient of a step was reported: an update of it may be computed from now on.
    pub(super) fn count_report(&mut self, step: Step) {
        *self = Self { last: None, reported: Some(step) };
    }

    /// The inventory of layers at these versions. It is hashed unless it was reported before, no
    /// version was sealed since, and no update computed.
    pub(super) fn layers(
        &mut self,
        versions: Vec<(LayerId, Step)>,
        has_active: bool,
        hash: impl FnOnce() -> Vec<HeldLayer>,
    ) -> Vec<HeldLayer> {
        let last = self.last.take().filter(|last| has_active && last.versions == versions);
        let layers = last.map_or_else(hash, |last| last.layers);
        // The candidate of a gradient that was reported may yet be taken back.
        let is_updating = versions.iter().any(|(_, version)| Some(*version) <= self.reported);
        self.last = (!is_updating).then(|| ReportedInventory { versions, layers: layers.clone() });
        layers
    }

    /// The digest of a layer, unless it is not in the inventory, or is there twice with different
    /// bits.
    pub(super) fn digest(&self, image: &LayerImage) -> Option<Digest> {
        let is_it = |held: &&HeldLayer| (held.layer, held.version) == (image.layer, image.version);
        let mut found = self.last.as_ref()?.layers.iter().filter(is_it).map(|held| held.digest);
        let digest = found.next()?;
        found.next().is_none().then_some(digest)
    }
}
