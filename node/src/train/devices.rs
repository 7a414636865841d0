//! NVIDIA devices as what workers compute with.

use std::path::PathBuf;
use std::sync::Arc;

use zbelastic_kernels::AllocateError;
use zbelastic_kernels::Precision;
use zbelastic_kernels::cuda::device::Device;
use zbelastic_kernels::cuda::{CudaBackend, CudaDevice, Graphs};
use zbelastic_trainer::model::LayerTimer;
use zbelastic_trainer::stage::{Bench, StageSetup};
use zbelastic_types::{LayerId, StageIndex};

use super::outfit::{BackendOutfit, Outfit, downloaded, stored_bench};
use super::timing::Clock;
use crate::device;
use crate::failure::Failure;

/// Devices that were opened, dealt out to stages in turn. A device that was opened twice has two streams,
/// which run side by side.
pub struct Devices<D: Device> {
    /// Each with its name.
    pub opened: Vec<(String, Arc<D>)>,
    /// The folder for what leaves memory; none if it goes to the host's memory.
    pub scratch: Option<PathBuf>,
    /// Whether they capture graphs of operations that are launched again and again.
    pub graphs: Graphs,
}

impl Devices<CudaDevice> {
    /// Opens a stream for each of `stage_count` stages, on these devices in turn.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn open(
        indices: &[usize],
        stage_count: u32,
        precision: Precision,
    ) -> Result<Vec<(String, Arc<CudaDevice>)>, Failure> {
        let open = |index: &usize| {
            let opened = device::open(*index, precision);
            let opened = opened.map_err(|error| device::open_failure(*index, &error))?;
            Ok((crate::args::Device::Cuda(*index).to_string(), opened))
        };
        indices.iter().cycle().take(stage_count as usize).map(open).collect()
    }
}

impl<D: Device> Devices<D> {
    fn of(&self, stage: StageIndex) -> &(String, Arc<D>) {
        &self.opened[stage.index() % self.opened.len()]
    }
}

impl<D: Device + Send + Sync> Outfit for Devices<D> {
    type Bench = Bench<CudaBackend<D>>;

    fn bench(&self, setup: &StageSetup, stage: StageIndex) -> Result<Self::Bench, AllocateError> {
        let bench = stored_bench(setup, stage, self.backend(stage)?, self.scratch.as_deref())?;
        // Of a device the clock is not read: it has its own.
        let clock = Clock::start();
        Ok(bench.with_timer(LayerTimer::new(Box::new(move || clock.now_us()))))
    }

    fn weights(bench: &Self::Bench) -> Vec<(LayerId, Vec<f32>)> {
        downloaded(bench)
    }

    fn name(&self, stage: StageIndex) -> String {
        self.of(stage).0.clone()
    }
}

impl<D: Device + Send + Sync> BackendOutfit for Devices<D> {
    type Backend = CudaBackend<D>;

    fn backend(&self, stage: StageIndex) -> Result<CudaBackend<D>, AllocateError> {
        let (_, device) = self.of(stage);
        Ok(CudaBackend::with_graphs(device.clone(), self.graphs))
    }
}
