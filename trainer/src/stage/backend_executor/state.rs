//! The layers of a stage as they are sealed.

use zbelastic_consensus::validation::LayerFingerprint;
use zbelastic_kernels::{Backend, DeviceFault, Pending};
use zbelastic_types::{LayerId, Step};

use super::{BackendExecutor, OWNED, TWINS};
use crate::layer_image::{LayerImage, PendingImage};
use crate::model::LayerState;
use crate::stage::executor::SealedState;

impl<B: Backend> SealedState for BackendExecutor<B> {
    fn version(&self) -> Step {
        let mut versions = self.layers().chain(self.twin_layers()).map(LayerState::version);
        let first = versions.next().expect("a stage has layers");
        assert!(versions.all(|version| version == first), "layers of a stage go together");
        first
    }

    fn images(&self) -> Vec<LayerImage> {
        self.layers().map(|layer| layer.image(&self.backend)).collect()
    }

    fn pending_image(&mut self, layer: LayerId) -> Option<PendingImage> {
        let (backend, mut layers) = self.owned_layers();
        let found = layers.find(|found| found.spec.layer == layer);
        found.map(|layer| layer.pending_image(backend))
    }

    fn twin_images(&self) -> Vec<LayerImage> {
        self.twin_layers().map(|layer| layer.image(&self.backend)).collect()
    }

    fn all_images(&self) -> Vec<LayerImage> {
        let layers = self.chunks.values().flat_map(|workspace| workspace.chunk.layers());
        let with_moments = layers.filter(|layer| layer.has_moments());
        with_moments.map(|layer| layer.image(&self.backend)).collect()
    }

    fn attested(&self) -> Result<Vec<LayerFingerprint>, DeviceFault> {
        let layers = [OWNED, TWINS].map(|part| self.layers_with_sums(part));
        let fingerprint = |(layer, sums): &(&LayerState<B>, Pending<[u64; 2]>)| {
            Ok((layer.spec.layer, layer.fingerprint_of(sums)?))
        };
        layers.iter().flatten().map(fingerprint).collect()
    }
}
