//! What workers compute with.

use std::path::{Path, PathBuf};

use zbelastic_kernels::{AllocateError, Backend, CpuBackend, View};
use zbelastic_trainer::model::LayerState;
use zbelastic_trainer::stage::{Bench, SecondStore, StageSetup, Workbench};
use zbelastic_types::{LayerId, StageIndex};

use crate::args::Device;
use crate::second_store::FileStore;

/// Makes what a worker computes with, on the worker's own thread.
pub trait Outfit: Sync {
    /// The workbench that it makes.
    type Bench: Workbench;

    /// The workbench of a stage at the beginning of a run.
    ///
    /// # Errors
    /// If memory or threads cannot be had.
    fn bench(&self, setup: &StageSetup, stage: StageIndex) -> Result<Self::Bench, AllocateError>;

    /// The weights it ends with, by layer.
    fn weights(bench: &Self::Bench) -> Vec<(LayerId, Vec<f32>)>;

    /// What a stage computes on, as a person would name it.
    fn name(&self, stage: StageIndex) -> String;
}

/// An outfit whose workbenches are backends: what stages without steps compute with.
pub trait BackendOutfit: Outfit {
    /// The backend that it makes.
    type Backend: Backend;

    /// The backend of a stage, and of the evaluation at the end of such a run.
    ///
    /// # Errors
    /// If threads cannot be had.
    fn backend(&self, stage: StageIndex) -> Result<Self::Backend, AllocateError>;
}

/// Processors, with so many threads a worker.
#[derive(Clone, Debug)]
pub struct Processors {
    /// Threads that compute, in each worker.
    pub threads: usize,
    /// The folder for what leaves memory; none if it goes to other memory.
    pub scratch: Option<PathBuf>,
}

impl Outfit for Processors {
    type Bench = Bench<CpuBackend>;

    fn bench(&self, setup: &StageSetup, stage: StageIndex) -> Result<Self::Bench, AllocateError> {
        stored_bench(setup, stage, self.backend(stage)?, self.scratch.as_deref())
    }

    fn weights(bench: &Self::Bench) -> Vec<(LayerId, Vec<f32>)> {
        downloaded(bench)
    }

    fn name(&self, _: StageIndex) -> String {
        Device::Cpu.to_string()
    }
}

impl BackendOutfit for Processors {
    type Backend = CpuBackend;

    fn backend(&self, _: StageIndex) -> Result<CpuBackend, AllocateError> {
        CpuBackend::new(self.threads)
    }
}

/// The bench of a stage whose passes leave to files in a folder of its own, if there is one for them.
pub(super) fn stored_bench<B: Backend>(
    setup: &StageSetup,
    stage: StageIndex,
    backend: B,
    scratch: Option<&Path>,
) -> Result<Bench<B>, AllocateError> {
    let Some(scratch) = scratch else { return Bench::new(setup, stage, backend) };
    let folder = scratch.join(format!("stage-{stage}"));
    let store = |bytes| Box::new(FileStore::new(folder, bytes)) as Box<dyn SecondStore>;
    Bench::storing(setup, stage, backend, store)
}

/// The weights of a bench, by layer.
pub(super) fn downloaded<B: Backend>(bench: &Bench<B>) -> Vec<(LayerId, Vec<f32>)> {
    let backend = bench.backend();
    let weights = |layer: &LayerState<B>| {
        let all = View::new(&layer.w, 0..layer.spec.len());
        (layer.spec.layer, backend.download(all))
    };
    bench.layers().map(weights).collect()
}
