//! C1: what is referred to can be restored, and is what it was.

use zbelastic_trainer::elastic::{LayerImage, layer_digest};
use zbelastic_types::{LayerId, Step};

use super::Checker;
use crate::failure::Invariant;
use crate::store::Store;

impl Checker {
    /// A checkpoint is referred to.
    pub fn checkpoint(&mut self, store: &Store, version: Step) {
        if !store.is_damaged(version) && !self.is_restorable(store, version) {
            self.fail(Invariant::C1, || format!("checkpoint {version} cannot be restored"));
        }
    }

    /// Whether every layer of a version is in the store, with the undisturbed run's bits.
    #[must_use]
    pub fn is_restorable(&self, store: &Store, version: Step) -> bool {
        let Some(expected) = self.reference.version(version) else { return false };
        (0..).map(LayerId).zip(expected).all(|(layer, digest)| {
            let image = store.get((version, layer));
            let image = image.and_then(|bytes| LayerImage::decode(&bytes).ok());
            image.is_some_and(|image| layer_digest(&image) == *digest)
        })
    }
}
