//! Factories of the stage executors that workers compute with.

use std::path::{Path, PathBuf};

use zbelastic_kernels::{AllocateError, Backend, BufferView, CpuBackend, Precision};
use zbelastic_machine::DeviceSelector;
use zbelastic_machine::second_store::FileSecondStore;
use zbelastic_trainer::model::LayerState;
use zbelastic_trainer::stage::{BackendExecutor, StageExecutor, StageSetup, StashStore};
use zbelastic_types::{LayerId, StageIndex};

/// Makes the stage executor that a worker computes with, on the worker's own thread.
pub trait ExecutorFactory: Sync {
    /// The stage executor that it makes.
    type Executor: StageExecutor;

    /// The executor of a stage at the beginning of a run.
    ///
    /// # Errors
    /// If memory or threads cannot be had.
    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
    ) -> Result<Self::Executor, AllocateError>;

    /// The weights it ends with, by layer.
    fn weights(executor: &Self::Executor) -> Vec<(LayerId, Vec<f32>)>;

    /// The device that a stage computes on, as it is printed.
    fn name(&self, stage: StageIndex) -> String;
}

/// A factory that also makes bare backends, which stages without steps compute with.
pub trait StageBackendFactory: ExecutorFactory {
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
pub struct CpuFactory {
    /// Threads that compute, in each worker.
    pub threads: usize,
    /// What factors of products are.
    pub precision: Precision,
    /// The folder for offloaded passes; none if they go to other memory.
    pub scratch: Option<PathBuf>,
}

impl ExecutorFactory for CpuFactory {
    type Executor = BackendExecutor<CpuBackend>;

    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
    ) -> Result<Self::Executor, AllocateError> {
        executor_with_store(setup, stage, self.backend(stage)?, self.scratch.as_deref())
    }

    fn weights(executor: &Self::Executor) -> Vec<(LayerId, Vec<f32>)> {
        download_weights(executor)
    }

    fn name(&self, _: StageIndex) -> String {
        DeviceSelector::Cpu.to_string()
    }
}

impl StageBackendFactory for CpuFactory {
    type Backend = CpuBackend;

    fn backend(&self, _: StageIndex) -> Result<CpuBackend, AllocateError> {
        Ok(CpuBackend::new(self.threads)?.with_precision(self.precision))
    }
}

/// The executor of a stage, with passes offloaded to files in a folder of its own, if there is one
/// for them.
pub(super) fn executor_with_store<B: Backend>(
    setup: &StageSetup,
    stage: StageIndex,
    backend: B,
    scratch: Option<&Path>,
) -> Result<BackendExecutor<B>, AllocateError> {
    let Some(scratch) = scratch else { return BackendExecutor::new(setup, stage, backend) };
    let folder = scratch.join(format!("stage-{stage}"));
    let store = |bytes| Box::new(FileSecondStore::new(folder, bytes)) as Box<dyn StashStore>;
    BackendExecutor::storing(setup, stage, backend, store)
}

/// The weights of an executor, by layer.
pub(super) fn download_weights<B: Backend>(
    executor: &BackendExecutor<B>,
) -> Vec<(LayerId, Vec<f32>)> {
    let backend = executor.backend();
    let weights = |layer: &LayerState<B>| {
        let all = BufferView::new(&layer.w, 0..layer.spec.len());
        (layer.spec.layer, backend.download(all))
    };
    executor.layers().map(weights).collect()
}
