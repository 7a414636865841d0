//! Layers on the move: as they travel, as copies, and the factory that makes stages from them.
//!
//! A layer is named by its id and its version, the number of steps sealed before it. The state that
//! travels is always sealed state: weights and both moments.

mod frame_split;
mod gradient;
mod stage_factory;

use std::sync::Arc;

use zbelastic_consensus::validation::{Seal, TensorSum, Turn};
use zbelastic_kernels::{AllocateError, DeviceFault};
use zbelastic_types::{Digest, Fingerprint, LayerId, StageIndex, Step};

use crate::outer::OuterWeights;
use crate::stage::{StageExecutor, StageSetup};

pub use crate::layer_image::{
    ChainingValue, FLOATS_MAX, IMAGE_HEADER_LEN, ImageDigester, ImageError, LayerAssembler,
    LayerImage, LoadedLayer, LoadedWeights, PendingImage, ScatteredLayer, StateLen, image_bytes,
    layer_digest, layer_fingerprint, moment_subtrees, moment_value, nth_moment_value, weights_end,
};
pub use crate::stage::LayerGradient;
pub use frame_split::{FrameLimits, GRADIENT_FRAME_LIMITS, TensorFragment, split_into_frames};
pub use gradient::{GradientFloats, GradientPart, GradientProgress};
pub use stage_factory::{
    BackendCopy, BackendFactory, BackendStageFactory, DeviceUse, StashStoreFactory,
};

/// Why a copy does not accept a gradient or a seal. It stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyRefusal {
    /// A gradient or a seal of another step than the copy's version (rule R8).
    #[error("about step {found}, the copy has version {expected}")]
    OtherStep {
        /// Version of the copy: the steps sealed before it.
        expected: Step,
        /// Step of the gradient or the seal.
        found: Step,
    },
    /// A gradient of another layer or length.
    #[error("not a gradient of this layer")]
    OtherLayer,
    /// Floats of a gradient that do not follow on those before them.
    #[error("floats from {found} on, {expected} are held")]
    Gap {
        /// Number of floats of the gradient that are held.
        expected: usize,
        /// The first float of the part.
        found: usize,
    },
    /// Floats of a device that failed before they were read.
    #[error("the device that has the gradient failed before it was read")]
    DeviceFailed,
    /// There is no gradient of the turn that was sealed.
    #[error("no gradient of {turn} is held")]
    NoGradient {
        /// Turn that was sealed.
        turn: Turn,
    },
}

/// A copy of a layer: its owner's optimizer, replayed from gradients and sealed coefficients.
pub trait LayerCopy {
    /// Id of the layer that this is a copy of.
    fn layer(&self) -> LayerId;

    /// Steps sealed before the state of the copy.
    fn version(&self) -> Step;

    /// Keeps some floats of a gradient, which come in order; the first replace a gradient
    /// that was held before.
    ///
    /// # Errors
    /// If they do not follow on those before, are of another step, or are lost with their device.
    fn hold(&mut self, part: &GradientPart) -> Result<(), CopyRefusal>;

    /// The turn whose whole gradient is held.
    fn held(&self) -> Option<Turn>;

    /// The sums of the gradient that is held, as computed here.
    fn sums(&self) -> Vec<TensorSum>;

    /// Applies a seal, as its verdict orders.
    ///
    /// # Errors
    /// If it is not about the next step, or about a gradient that is not here.
    fn apply(&mut self, seal: &Seal) -> Result<(), CopyRefusal>;

    /// Mixes outer weights into its own, as the layer's owner does.
    fn mix_outer(&mut self, outer: &OuterWeights);

    /// The layer as it travels.
    fn image(&self) -> LayerImage;

    /// The digest of its state.
    fn digest(&self) -> Digest;

    /// The fingerprint of its state.
    ///
    /// # Errors
    /// If the device of the copy failed before it was read.
    fn fingerprint(&self) -> Result<Fingerprint, DeviceFault> {
        Ok(layer_fingerprint(&self.image()))
    }
}

/// The factory of a worker: makes stages and copies from layers.
pub trait StageFactory {
    /// The executor that a stage computes with.
    type Executor: StageExecutor;
    /// A copy of a layer.
    type Copy: LayerCopy;

    /// The fault that ended the device, if any: neither stages nor copies have results any more.
    fn fault(&self) -> Option<DeviceFault> {
        None
    }

    /// A layer before the first step.
    fn initial(&self, layer: LayerId) -> LayerImage;

    /// The digest of a layer, on as many threads as there are for it.
    fn digest(&self, image: &LayerImage) -> Digest {
        layer_digest(image)
    }

    /// Whether a layer has the size that the model gives it.
    fn fits(&self, image: &LayerImage) -> bool;

    /// The executor of a stage with these layers, in the order of its chunks.
    ///
    /// # Errors
    /// If memory does not hold it.
    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
        layers: &[Arc<LayerImage>],
    ) -> Result<Self::Executor, AllocateError>;

    /// A copy of a layer.
    ///
    /// # Errors
    /// If memory does not hold it.
    fn copy(&self, image: &LayerImage) -> Result<Self::Copy, AllocateError>;
}
