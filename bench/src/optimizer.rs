//! The cost of a step before the verdict: a candidate beside the state and a commit, against
//! AdamW in place.

use std::time::{Duration, Instant};

use zbelastic_kernels::{BufferViewMut, CpuBackend, DeviceMemory};
use zbelastic_trainer::model::{AfterCommit, LayerState, model_layers};
use zbelastic_trainer::optimizer::{OptimizerUpdate, commit, compute_candidate, update_in_place};
use zbelastic_types::Step;
use zbelastic_wording::CommandFailure;

use super::case::BenchCase;
use super::out_of_resource;

/// All layers of a model with a gradient.
pub struct OptimizerBench<'a> {
    case: &'a BenchCase,
    backend: CpuBackend,
    layers: Vec<LayerState<CpuBackend>>,
    step: Step,
}

impl<'a> OptimizerBench<'a> {
    /// The layers of `case`, on one thread.
    pub fn new(case: &'a BenchCase) -> Result<Self, CommandFailure> {
        let backend = CpuBackend::new(1).map_err(|error| out_of_resource(&error))?;
        let layer = |spec| {
            let weights = case.weights().of_layer(&spec);
            let mut layer = LayerState::new(&backend, &case.model, spec, &weights)?;
            let gradient: Vec<f32> = weights.iter().map(|w| 1e-3 * w + 1e-5).collect();
            let len = gradient.len();
            backend.upload(&gradient, BufferViewMut::new(&mut layer.g, 0..len));
            Ok(layer)
        };
        let layers = model_layers(&case.model).into_iter().map(layer);
        let layers: Result<_, zbelastic_kernels::AllocateError> = layers.collect();
        let layers = layers.map_err(|error| out_of_resource(&error))?;
        Ok(Self { case, backend, layers, step: Step(0) })
    }

    fn next_update(&mut self) -> OptimizerUpdate<'a> {
        self.step = self.step.next();
        OptimizerUpdate { config: self.case.optimizer(), lr: 1e-4, number: self.step.0, clip: 1.0 }
    }

    /// One step as a trainer without validation performs it.
    pub fn in_place(&mut self) -> Duration {
        let update = self.next_update();
        let began = Instant::now();
        for layer in &mut self.layers {
            update_in_place(&self.backend, layer, &update);
        }
        began.elapsed()
    }

    /// One step that could have been dropped.
    pub fn optimistic(&mut self) -> Duration {
        let update = self.next_update();
        let began = Instant::now();
        for layer in &mut self.layers {
            compute_candidate(&self.backend, layer, &update);
        }
        for layer in &mut self.layers {
            let version = layer.version();
            commit(&self.backend, layer, &update, version, AfterCommit::Nothing);
        }
        began.elapsed()
    }
}
