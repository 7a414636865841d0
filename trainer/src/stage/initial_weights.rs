//! The weights that a run begins with.

use std::sync::Arc;

use zbelastic_kernels::{HostFloats, HostThreads};
use zbelastic_types::Step;

use crate::hf::StoredWeights;
use crate::layer_image::LayerImage;
use crate::model::{LayerSpec, draw_weights};

/// The weights of a run before its first step.
#[derive(Clone, Debug)]
pub enum InitialWeights {
    /// Drawn from a seed.
    Drawn {
        /// Seed of the random numbers that weights are drawn from.
        seed: u64,
    },
    /// Given, layer by layer, in the order in which a layer's tensors lie.
    Given(Arc<Vec<Vec<f32>>>),
    /// In a file, of which a layer is read when it is needed.
    Stored(Arc<StoredWeights>),
}

impl InitialWeights {
    /// The initial weights of a layer, tensor after tensor.
    ///
    /// # Panics
    /// If there is no memory for them, or the file of stored ones, which was read whole before, cannot be read any more.
    #[must_use]
    pub fn of_layer(&self, spec: &LayerSpec) -> HostFloats {
        self.of_layer_on(&HostThreads::one(), spec)
    }

    fn of_layer_on(&self, host: &HostThreads, spec: &LayerSpec) -> HostFloats {
        let mut weights =
            HostFloats::zeroed(spec.len()).expect("memory for the weights of a layer");
        match self {
            Self::Drawn { seed } => draw_weights(host, spec, *seed, weights.as_mut_slice()),
            Self::Given(layers) => {
                weights.as_mut_slice().copy_from_slice(&layers[spec.layer.index()]);
            }
            Self::Stored(stored) => stored
                .read_layer(host, spec, weights.as_mut_slice())
                .expect("the weights that the run begins with were read before"),
        }
        weights
    }

    /// A layer before the first step, drawn on the host's threads. Its moments are zeros that take
    /// no memory until they are written.
    ///
    /// # Panics
    /// If there is no memory for it.
    #[must_use]
    pub fn image_of(&self, host: &HostThreads, spec: &LayerSpec) -> LayerImage {
        let moments = spec.state_len().moments;
        let zeros =
            || HostFloats::zeroed(moments).expect("memory for pages that were not written yet");
        let layer = spec.layer;
        let version = Step(0);
        let w = self.of_layer_on(host, spec);
        LayerImage { layer, version, w, m: zeros(), v: zeros() }
    }
}
