//! What workers compute with.

use zbelastic_kernels::{AllocateError, Backend, CpuBackend, View};
use zbelastic_trainer::stage::{Bench, StageSetup, Workbench};
use zbelastic_types::{LayerId, StageIndex};

/// Makes what a worker computes with, on the worker's own thread.
pub trait Outfit: Sync {
    /// What it makes.
    type Bench: Workbench;

    /// The workbench of a stage at the beginning of a run.
    ///
    /// # Errors
    /// If memory or threads cannot be had.
    fn bench(&self, setup: &StageSetup, stage: StageIndex) -> Result<Self::Bench, AllocateError>;

    /// The weights it ends with, by layer.
    fn weights(bench: &Self::Bench) -> Vec<(LayerId, Vec<f32>)>;
}

/// Processors, with so many threads a worker.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    /// Threads that compute, in each worker.
    pub threads: usize,
}

impl Outfit for Processors {
    type Bench = Bench<CpuBackend>;

    fn bench(&self, setup: &StageSetup, stage: StageIndex) -> Result<Self::Bench, AllocateError> {
        Bench::new(setup, stage, CpuBackend::new(self.threads)?)
    }

    fn weights(bench: &Self::Bench) -> Vec<(LayerId, Vec<f32>)> {
        let backend = bench.backend();
        let weights = |layer: &zbelastic_trainer::model::LayerState<CpuBackend>| {
            let all = View::new(&layer.w, 0..layer.spec.len());
            (layer.spec.layer, backend.download(all))
        };
        bench.layers().map(weights).collect()
    }
}
