//! Stages and copies on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zbelastic_consensus::validation::{Seal, TensorSum, Turn};
use zbelastic_kernels::{AllocateError, Backend, BufferViewMut, DeviceFault, HostThreads};
use zbelastic_types::{Bytes, Digest, Fingerprint, LayerId, StageIndex, Step};

use super::{
    CopyRefusal, GradientPart, GradientProgress, LayerCopy, LayerImage, StageFactory, image_bytes,
    layer_digest,
};
use crate::layer_image::layer_digest_on;
use crate::model::{LayerClock, LayerSpec, LayerState, LayerTimer, ModelConfig, model_layers};
use crate::optimizer::{OptimizerConfig, OptimizerUpdate, replay, skip, square_sums};
use crate::outer::OuterWeights;
use crate::plan::claim_copy;
use crate::stage::{BackendExecutor, InitialWeights, StageSetup, StashStore};

/// The stage factory that trains a transformer on a device.
pub struct BackendStageFactory<F> {
    /// Shape of the model.
    pub model: ModelConfig,
    /// Settings of the optimizer.
    pub optimizer: OptimizerConfig,
    /// Steps of the run, of which the learning rate is a function.
    pub step_count: u64,
    /// Weights of the layers before the first step.
    pub weights: InitialWeights,
    /// Counts the bytes of layers that were made of these weights.
    pub drawn: Arc<AtomicU64>,
    /// Makes a handle on the device.
    pub device: F,
    /// The threads that draw and hash layers before the device has them.
    pub host: HostThreads,
    /// Makes the second store of a stage, if offloaded passes go to another place than the
    /// host's memory.
    pub store: Option<StashStoreFactory>,
    /// The clock that times layers of a stage, if one does.
    pub clock: Option<fn() -> LayerClock>,
}

/// Makes a second store for so many bytes.
pub type StashStoreFactory = Box<dyn Fn(Bytes) -> Box<dyn StashStore> + Send>;

/// The use of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// To run a stage.
    Stage,
    /// To replay the optimizer on the copy of a layer: a thread is enough.
    Copy,
}

/// Makes handles on a device.
pub trait BackendFactory {
    /// Type of the handle on the device.
    type Backend: Backend;

    /// A handle for this use.
    fn make(&self, device_use: DeviceUse) -> Self::Backend;

    /// The fault that ended the device, whichever handle found it.
    fn fault(&self) -> Option<DeviceFault>;
}

/// Of a device that does not give up, as processors are.
impl<B: Backend, F: Fn(DeviceUse) -> B> BackendFactory for F {
    type Backend = B;

    fn make(&self, device_use: DeviceUse) -> B {
        self(device_use)
    }

    fn fault(&self) -> Option<DeviceFault> {
        None
    }
}

impl<F: BackendFactory> StageFactory for BackendStageFactory<F> {
    type Executor = BackendExecutor<F::Backend>;
    type Copy = BackendCopy<F::Backend>;

    fn fault(&self) -> Option<DeviceFault> {
        self.device.fault()
    }

    fn initial(&self, layer: LayerId) -> LayerImage {
        let spec = &model_layers(&self.model)[layer.index()];
        let image = self.weights.image_of(&self.host, spec);
        self.drawn.fetch_add(image_bytes(spec.state_len()), Ordering::Relaxed);
        image
    }

    fn digest(&self, image: &LayerImage) -> Digest {
        layer_digest_on(&self.host, image)
    }

    fn fits(&self, image: &LayerImage) -> bool {
        let layers = model_layers(&self.model);
        let len = layers.get(image.layer.index()).map(LayerSpec::state_len);
        let LayerImage { w, m, v, .. } = image;
        len.is_some_and(|len| {
            [w.len(), m.len(), v.len()] == [len.weights, len.moments, len.moments]
        })
    }

    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
        layers: &[Arc<LayerImage>],
    ) -> Result<Self::Executor, AllocateError> {
        let backend = self.device.make(DeviceUse::Stage);
        let executor =
            BackendExecutor::resumed(setup, stage, backend, layers, self.store.as_ref())?;
        let timer = self.clock.map(|clock| LayerTimer::new(clock())).unwrap_or_default();
        Ok(executor.with_timer(timer))
    }

    fn copy(&self, image: &LayerImage) -> Result<Self::Copy, AllocateError> {
        let backend = self.device.make(DeviceUse::Copy);
        let spec = model_layers(&self.model)[image.layer.index()].clone();
        claim_copy(&backend, &spec, self.optimizer.kind)?;
        let layer = LayerState::replayed(&backend, &self.model, spec, image)?;
        let optimizer = self.optimizer.clone();
        let step_count = self.step_count;
        let held = GradientProgress::default();
        Ok(BackendCopy { backend, layer, optimizer, step_count, held })
    }
}

/// A copy of a layer on a device.
pub struct BackendCopy<B: Backend> {
    backend: B,
    layer: LayerState<B>,
    optimizer: OptimizerConfig,
    step_count: u64,
    held: GradientProgress,
}

impl<B: Backend> BackendCopy<B> {
    fn apply_update(&mut self, seal: &Seal, clip: f32) {
        let step = seal.turn.step;
        let lr = self.optimizer.lr_at(step, self.step_count);
        let number = seal.updates_after;
        let update = OptimizerUpdate { config: &self.optimizer, lr, number, clip };
        replay(&self.backend, &mut self.layer, &update, step);
    }
}

impl<B: Backend> LayerCopy for BackendCopy<B> {
    fn layer(&self) -> LayerId {
        self.layer.spec.layer
    }

    fn version(&self) -> Step {
        self.layer.version()
    }

    fn hold(&mut self, part: &GradientPart) -> Result<(), CopyRefusal> {
        let expected = self.version();
        let found = part.turn().step;
        if expected != found {
            return Err(CopyRefusal::OtherStep { expected, found });
        }
        if part.layer() != self.layer() {
            return Err(CopyRefusal::OtherLayer);
        }
        let floats = part.wait().map_err(|_| CopyRefusal::DeviceFailed)?;
        self.held.count(part, self.layer.spec.gradient_len())?;
        let range = part.first()..part.first() + part.len();
        self.backend.upload(&floats, BufferViewMut::new(&mut self.layer.g, range));
        Ok(())
    }

    fn held(&self) -> Option<Turn> {
        self.held.whole(self.layer.spec.gradient_len())
    }

    fn sums(&self) -> Vec<TensorSum> {
        square_sums(&self.backend, [&self.layer])
    }

    fn apply(&mut self, seal: &Seal) -> Result<(), CopyRefusal> {
        let expected = self.version();
        let found = seal.turn.step;
        if expected != found {
            return Err(CopyRefusal::OtherStep { expected, found });
        }
        match seal.verdict.coefficient() {
            Some(_) if self.held() != Some(seal.turn) => {
                return Err(CopyRefusal::NoGradient { turn: seal.turn });
            }
            Some(clip) => self.apply_update(seal, clip),
            None if seal.verdict.is_final() => skip(&mut self.layer, seal.turn.step),
            None => {}
        }
        self.held.clear();
        Ok(())
    }

    fn mix_outer(&mut self, outer: &OuterWeights) {
        self.layer.mix_weights(&self.backend, &outer.weights, outer.local_share);
    }

    fn image(&self) -> LayerImage {
        self.layer.image(&self.backend)
    }

    fn digest(&self) -> Digest {
        layer_digest(&self.image())
    }

    fn fingerprint(&self) -> Result<Fingerprint, DeviceFault> {
        self.layer.fingerprint_of(&self.layer.state_sums(&self.backend))
    }
}
