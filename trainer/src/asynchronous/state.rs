//! What asynchronous training ends with: the state of every pipeline, and the reference model.

use zbelastic_types::{LayerId, Step};

use crate::digest::{StateDigest, state_digest};
use crate::elastic::{LayerImage, layer_digest};

/// Layers of some or all stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AsyncState {
    /// The newest version of each layer with its pipeline, in the order of pipelines and layers.
    pub layers: Vec<(u32, LayerImage)>,
    /// The layers of the reference model, if there is one.
    pub reference: Vec<(LayerId, Vec<f32>)>,
    /// Updates of all chunks that were not left out.
    pub updates: u64,
}

impl AsyncState {
    /// Adds the layers of another stage.
    pub fn extend(&mut self, other: Self) {
        self.layers.extend(other.layers);
        self.layers.sort_by_key(|(replica, image)| (*replica, image.layer));
        self.reference.extend(other.reference);
        self.reference.sort_by_key(|(layer, _)| *layer);
        self.updates += other.updates;
    }

    /// The digest of all of it: equal digests mean equal bits.
    #[must_use]
    pub fn digest(&self) -> StateDigest {
        let reference = self.reference.iter().map(|(layer, w)| LayerImage {
            layer: *layer,
            version: Step(0),
            w: w.clone().into(),
            m: Vec::new().into(),
            v: Vec::new().into(),
        });
        let reference: Vec<LayerImage> = reference.collect();
        let images = self.layers.iter().map(|(_, image)| image).chain(&reference);
        state_digest(images.map(layer_digest), self.updates)
    }

    /// The weights to go on with, layer by layer: the reference model's where there is one.
    #[must_use]
    pub fn weights(&self) -> Vec<Vec<f32>> {
        if self.reference.is_empty() {
            self.layers.iter().map(|(_, image)| image.w.to_vec()).collect()
        } else {
            self.reference.iter().map(|(_, w)| w.clone()).collect()
        }
    }
}
