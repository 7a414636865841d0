//! NVIDIA devices as what workers compute with.

use std::sync::Arc;

use zbelastic_kernels::AllocateError;
use zbelastic_kernels::cuda::device::Device;
use zbelastic_kernels::cuda::{CudaBackend, Graphs};
use zbelastic_trainer::stage::{Bench, StageSetup};
use zbelastic_types::{LayerId, StageIndex};

use super::outfit::{Outfit, downloaded};

/// Devices that were opened, dealt out to stages in turn. A device that was opened twice has two streams,
/// which run side by side.
pub struct Devices<D: Device> {
    /// At least one.
    pub devices: Vec<Arc<D>>,
    /// Whether they make graphs of what they are told again and again.
    pub graphs: Graphs,
}

impl<D: Device + Send + Sync> Outfit for Devices<D> {
    type Bench = Bench<CudaBackend<D>>;

    fn bench(&self, setup: &StageSetup, stage: StageIndex) -> Result<Self::Bench, AllocateError> {
        let device = &self.devices[stage.index() % self.devices.len()];
        Bench::new(setup, stage, CudaBackend::with_graphs(device.clone(), self.graphs))
    }

    fn weights(bench: &Self::Bench) -> Vec<(LayerId, Vec<f32>)> {
        downloaded(bench)
    }
}
