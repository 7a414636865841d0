//! The executor factory of NVIDIA devices.

use std::path::PathBuf;
use std::sync::Arc;

use zbelastic_kernels::AllocateError;
use zbelastic_kernels::Precision;
use zbelastic_kernels::cuda::device::Device;
use zbelastic_kernels::cuda::{CudaBackend, CudaDevice, GraphMode};
use zbelastic_machine::device;
use zbelastic_timing::RunClock;
use zbelastic_trainer::model::LayerTimer;
use zbelastic_trainer::stage::{BackendExecutor, StageSetup};
use zbelastic_types::{LayerId, StageIndex};
use zbelastic_wording::CommandFailure;

use super::executor_factory::{
    ExecutorFactory, StageBackendFactory, download_weights, executor_with_store,
};

/// Devices that were opened, dealt out to stages in turn. A device that was opened twice has two
/// streams, which run side by side.
pub struct DeviceFactory<D: Device> {
    /// Each with its name.
    pub opened: Vec<(String, Arc<D>)>,
    /// The folder for offloaded passes; none if they go to the host's memory.
    pub scratch: Option<PathBuf>,
    /// Whether they capture graphs of operations that are launched again and again.
    pub graphs: GraphMode,
}

impl DeviceFactory<CudaDevice> {
    /// Opens a stream for each of `stage_count` stages, on these devices in turn.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn open(
        indices: &[usize],
        stage_count: u32,
        precision: Precision,
    ) -> Result<Vec<(String, Arc<CudaDevice>)>, CommandFailure> {
        let open = |index: &usize| {
            let opened = device::open(*index, precision);
            let opened = opened.map_err(|error| device::open_failure(*index, &error))?;
            Ok((zbelastic_machine::DeviceSelector::Cuda(*index).to_string(), opened))
        };
        indices.iter().cycle().take(stage_count as usize).map(open).collect()
    }
}

impl<D: Device> DeviceFactory<D> {
    fn of(&self, stage: StageIndex) -> &(String, Arc<D>) {
        &self.opened[stage.index() % self.opened.len()]
    }
}

impl<D: Device + Send + Sync> ExecutorFactory for DeviceFactory<D> {
    type Executor = BackendExecutor<CudaBackend<D>>;

    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
    ) -> Result<Self::Executor, AllocateError> {
        let executor =
            executor_with_store(setup, stage, self.backend(stage)?, self.scratch.as_deref())?;
        // Of a device the clock is not read: it has its own.
        let clock = RunClock::start();
        Ok(executor.with_timer(LayerTimer::new(Box::new(move || clock.now_us()))))
    }

    fn weights(executor: &Self::Executor) -> Vec<(LayerId, Vec<f32>)> {
        download_weights(executor)
    }

    fn name(&self, stage: StageIndex) -> String {
        self.of(stage).0.clone()
    }
}

impl<D: Device + Send + Sync> StageBackendFactory for DeviceFactory<D> {
    type Backend = CudaBackend<D>;

    fn backend(&self, stage: StageIndex) -> Result<CudaBackend<D>, AllocateError> {
        let (_, device) = self.of(stage);
        Ok(CudaBackend::with_graphs(device.clone(), self.graphs))
    }
}
