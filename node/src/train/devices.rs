//! NVIDIA devices as what workers compute with.

use std::sync::Arc;

use zbelastic_kernels::AllocateError;
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::device::Device;
use zbelastic_trainer::stage::{Bench, StageSetup};
use zbelastic_types::{LayerId, StageIndex};

use super::outfit::{Outfit, downloaded};

/// Devices that were opened, dealt out to stages in turn. A device that was opened twice has two streams,
/// which run side by side.
pub struct Devices<D: Device>(pub Vec<Arc<D>>);

impl<D: Device + Send + Sync> Outfit for Devices<D> {
    type Bench = Bench<CudaBackend<D>>;

    fn bench(&self, setup: &StageSetup, stage: StageIndex) -> Result<Self::Bench, AllocateError> {
        let device = &self.0[stage.index() % self.0.len()];
        Bench::new(setup, stage, CudaBackend::new(device.clone()))
    }

    fn weights(bench: &Self::Bench) -> Vec<(LayerId, Vec<f32>)> {
        downloaded(bench)
    }
}
