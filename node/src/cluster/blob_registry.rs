//! Blobs that this process offers to others over the bulk lane: layers for a plan, pieces of
//! checkpoints, text.

use std::sync::Arc;

use zbelastic_machine::layer_snapshot::LayerSnapshot;
use zbelastic_transport::bulk::OfferedBodies;
use zbelastic_transport::{BulkBody, Transport};
use zbelastic_types::{Generation, LayerId, Step};
use zbelastic_wire::{self as wire, BulkKey, PieceRef};

/// Layers offered at once: as many as a model may have, for the plan under way and the one before,
/// or of the last checkpoint.
const LAYERS_MAX: usize = 2048;

/// Finds blobs that are not in the registry itself, by name: pieces of checkpoints in the store.
pub type FindStoredBlob = Box<dyn Fn(&BulkKey) -> Option<Arc<dyn BulkBody>> + Send + Sync>;

/// The offered blobs. Cheap to clone.
#[derive(Clone)]
pub struct BlobRegistry {
    layers: OfferedBodies<BulkKey>,
    stored: Arc<FindStoredBlob>,
}

impl BlobRegistry {
    /// A registry that offers nothing yet, in front of a store.
    #[must_use]
    pub fn new(stored: FindStoredBlob) -> Self {
        Self { layers: OfferedBodies::new(LAYERS_MAX), stored: Arc::new(stored) }
    }

    /// Answers requests of other nodes on the bulk lane.
    pub fn serve(self, transport: &Transport) {
        transport.set_bulk_source(Box::new(move |_, key| {
            let key: BulkKey = wire::decode(key).ok()?;
            self.find(&key)
        }));
    }

    /// Offers a blob under a key. Beyond the limit the oldest plan's layers go first.
    pub fn offer(&self, key: BulkKey, body: Arc<dyn BulkBody>) {
        self.layers.offer(key, body);
    }

    /// Offers a layer in training to one more reader, and lets it go once all have read it: no
    /// snapshot of it is held until the next plan.
    pub fn offer_ahead(&self, key: BulkKey, body: Arc<dyn BulkBody>) {
        self.layers.offer_once(key, body);
    }

    /// Withdraws the layers that were offered ahead and that nobody copies ahead any more.
    pub fn withdraw_ahead(&self, is_copied: impl Fn(LayerId) -> bool) {
        self.layers.retain_once(|key| match key {
            BulkKey::Layer { layer, .. } => is_copied(*layer),
            BulkKey::Piece(_) | BulkKey::Data(_) | BulkKey::DataHashes(_) => true,
        });
    }

    /// Offers a piece of the checkpoint after the last step, version `last`, until it is withdrawn;
    /// others are read from the store. No COMMIT changes these weights, so none is copied for it.
    /// Returns whether it is offered.
    pub fn offer_last(&self, last: Step, piece: PieceRef, body: &Arc<LayerSnapshot>) -> bool {
        let is_last = piece.version >= last;
        if is_last {
            self.offer(BulkKey::Piece(piece), body.clone());
        }
        is_last
    }

    /// Withdraws the layers that were offered for plans before this one.
    pub fn clear_before(&self, now: Generation) {
        self.layers.retain(|key| match key {
            BulkKey::Layer { generation, .. } => *generation >= now,
            BulkKey::Piece(_) | BulkKey::Data(_) | BulkKey::DataHashes(_) => true,
        });
    }

    /// Withdraws the blob that was offered under this name.
    pub fn withdraw(&self, key: &BulkKey) {
        self.layers.withdraw(key);
    }

    /// The blob that is offered under this name.
    #[must_use]
    pub fn find(&self, key: &BulkKey) -> Option<Arc<dyn BulkBody>> {
        self.layers.find(key).or_else(|| (self.stored)(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_trainer::elastic::LayerImage;
    use zbelastic_types::{Digest, RunId};

    #[test]
    fn pieces_of_the_last_checkpoint_are_read_from_memory_until_they_are_withdrawn() {
        let registry = BlobRegistry::new(Box::new(|_| None));
        let layer = LayerId(3);
        let floats = || vec![0.5; 5].into();
        let piece = |version| {
            let digest = Digest([7; 32]);
            let image = LayerImage { layer, version, w: floats(), m: floats(), v: floats() };
            let body = Arc::new(LayerSnapshot::new(Arc::new(image)));
            let piece = PieceRef { run: RunId(1), version, layer, digest, length: body.bytes() };
            assert_eq!(registry.offer_last(Step(10), piece, &body), version >= Step(10));
            BulkKey::Piece(piece)
        };
        let before = piece(Step(9));
        let last = piece(Step(10));
        let found = |key| registry.find(key).map(|body| body.len());
        assert_eq!(found(&before), None, "it is read from the store");
        assert!(found(&last).is_some());
        registry.clear_before(Generation(9));
        assert!(found(&last).is_some(), "plans do not withdraw it");
        registry.withdraw(&last);
        assert_eq!(found(&last), None);
    }

    #[test]
    fn a_layer_that_was_copied_ahead_is_let_go_by_its_last_reader_and_not_at_the_next_plan() {
        let registry = BlobRegistry::new(Box::new(|_| None));
        let key = |layer| BulkKey::Layer {
            generation: Generation(3),
            layer: LayerId(layer),
            version: Step(9),
        };
        let offer = |layer| {
            let body: Arc<dyn BulkBody> = Arc::new(vec![layer as u8; 5]);
            let held = Arc::downgrade(&body);
            registry.offer_ahead(key(layer), body);
            held
        };
        let read = |layer| registry.find(&key(layer)).map(|body| body.read(0, &mut [0; 5]));
        let first = offer(0);
        let second = offer(0);
        let other = offer(1);
        assert!(second.upgrade().is_none(), "both read the same one");
        assert!(read(0).expect("offered").is_ok() && first.upgrade().is_some());
        assert!(read(0).expect("for the other").is_ok() && first.upgrade().is_none());
        assert!(read(0).is_none(), "it has to be offered again");
        assert!(other.upgrade().is_some());
        registry.withdraw_ahead(|layer| layer == LayerId(1));
        assert!(other.upgrade().is_some(), "somebody still copies it ahead");
        registry.withdraw_ahead(|_| false);
        assert!(other.upgrade().is_none());
    }
}
