//! The cost of a step before the verdict: a candidate beside the state and a commit, against
//! AdamW in place.

use std::hint::black_box;
use std::time::{Duration, Instant};

use zbelastic_kernels::{BufferViewMut, CpuBackend, DeviceMemory};
use zbelastic_trainer::model::{AfterCommit, LayerState, model_layers};
use zbelastic_trainer::optimizer::{
    OptimizerUpdate, commit, compute_candidate, square_sums, update_in_place,
};
use zbelastic_types::Step;
use zbelastic_wording::CommandFailure;

use super::case::BenchCase;
use super::out_of_resource;

/// All layers of a model with a gradient.
pub struct OptimizerBench<'a> {
    case: &'a BenchCase,
    layers: Vec<LayerState<CpuBackend>>,
    step: Step,
}

impl<'a> OptimizerBench<'a> {
    /// The layers of `case`.
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
        Ok(Self { case, layers, step: Step(0) })
    }

    fn next_update(&mut self) -> OptimizerUpdate<'a> {
        self.step = self.step.next();
        OptimizerUpdate { config: self.case.optimizer(), lr: 1e-4, number: self.step.0, clip: 1.0 }
    }

    /// The sum of squares of each tensor.
    pub fn square_sums(&mut self, backend: &CpuBackend) -> Duration {
        let began = Instant::now();
        black_box(square_sums(backend, &self.layers));
        began.elapsed()
    }

    /// One step as a trainer without validation performs it.
    pub fn in_place(&mut self, backend: &CpuBackend) -> Duration {
        let update = self.next_update();
        let began = Instant::now();
        for layer in &mut self.layers {
            update_in_place(backend, layer, &update);
        }
        began.elapsed()
    }

    /// One step that could have been dropped: its candidate, and its commit.
    pub fn optimistic(&mut self, backend: &CpuBackend) -> [Duration; 2] {
        let update = self.next_update();
        let began = Instant::now();
        for layer in &mut self.layers {
            compute_candidate(backend, layer, &update);
        }
        let candidate = began.elapsed();
        for layer in &mut self.layers {
            let version = layer.version();
            commit(backend, layer, &update, version, AfterCommit::Nothing);
        }
        [candidate, began.elapsed() - candidate]
    }
}
