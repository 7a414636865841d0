//! A device as a benchmark sees it: a backend, and the time that work takes on the device's own clock.

use std::sync::Arc;

use crate::backend::Backend;
use crate::cuda::device::Device;
use crate::cuda::{CudaBackend, CudaDevice, DeviceFault};

/// A device that can tell time.
pub trait Timed: Device {
    /// The seconds from the beginning of `work` to the end of all that it told the device.
    ///
    /// # Errors
    /// As the driver says, about this or anything before.
    fn seconds(&self, work: &mut dyn FnMut()) -> Result<f64, DeviceFault>;
}

impl Timed for CudaDevice {
    fn seconds(&self, work: &mut dyn FnMut()) -> Result<f64, DeviceFault> {
        let before = self.mark()?;
        work();
        before.seconds_until(&self.mark()?)
    }
}

/// Where operations are timed.
pub struct Stand<D: Timed> {
    device: Arc<D>,
    /// What they run on.
    pub backend: CudaBackend<D>,
    runs: u32,
}

impl<D: Timed> Stand<D> {
    /// Of `runs` runs the fastest counts.
    #[must_use]
    pub fn new(device: Arc<D>, runs: u32) -> Self {
        Self { backend: CudaBackend::new(device.clone()), device, runs }
    }

    /// What the fastest run took, after one that does not count.
    ///
    /// # Errors
    /// The first fault of the device.
    pub fn seconds(&self, mut work: impl FnMut(&CudaBackend<D>)) -> Result<f64, DeviceFault> {
        let mut work = || {
            work(&self.backend);
            self.backend.flush();
        };
        work();
        let mut best = f64::INFINITY;
        for _ in 0..self.runs {
            best = best.min(self.device.seconds(&mut work)?);
        }
        self.backend.fault().map_or(Ok(best), Err)
    }
}
