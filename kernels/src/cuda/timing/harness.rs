//! A device as a benchmark sees it: a backend, and the time that work takes on the device's own
//! clock.

use std::sync::Arc;

use crate::backend::Backend;
use crate::cuda::device::{Device, MatrixProduct};
use crate::cuda::{CudaBackend, CudaDevice, DeviceFault};

/// Seconds that a run aims at: a hundred times what the host takes to enqueue a launch.
const RUN_S_MIN: f64 = 1e-3;
/// Times that work is enqueued in a run at most, before anything waits.
const TIMES_MAX: f64 = 32.0;

/// A device whose clock can time work.
pub trait TimedDevice: Device {
    /// The seconds from the beginning of `work` to the end of all that it enqueued on the device.
    ///
    /// # Errors
    /// If the driver reports a fault of this or of anything before.
    fn seconds(&self, work: &mut dyn FnMut()) -> Result<f64, DeviceFault>;

    /// The seconds of the fastest algorithm there is for a product, of `runs` runs, whatever bits
    /// it gives. None where there is one algorithm only.
    ///
    /// # Errors
    /// If the library reports an error.
    fn fastest_product_s(
        &self,
        product: &MatrixProduct,
        runs: u32,
    ) -> Result<Option<f64>, DeviceFault>;
}

impl TimedDevice for CudaDevice {
    fn seconds(&self, work: &mut dyn FnMut()) -> Result<f64, DeviceFault> {
        let before = self.record_event()?;
        work();
        before.seconds_until(&self.record_event()?)
    }

    fn fastest_product_s(
        &self,
        product: &MatrixProduct,
        runs: u32,
    ) -> Result<Option<f64>, DeviceFault> {
        CudaDevice::fastest_product_s(self, product, runs).map(Some)
    }
}

/// A device on which operations are timed.
pub struct TimingHarness<D: TimedDevice> {
    device: Arc<D>,
    /// The backend that the operations run on.
    pub backend: CudaBackend<D>,
    runs: u32,
}

impl<D: TimedDevice> TimingHarness<D> {
    /// A harness where the fastest of `runs` runs counts.
    #[must_use]
    pub fn new(device: Arc<D>, runs: u32) -> Self {
        Self { backend: CudaBackend::new(device.clone()), device, runs }
    }

    /// Seconds of the fastest run, after one that does not count. Work that takes less than
    /// [`RUN_S_MIN`] is enqueued several times a run: what the host takes to enqueue it is hidden
    /// behind the work before.
    ///
    /// # Errors
    /// The first fault of the device.
    pub fn seconds(&self, mut work: impl FnMut(&CudaBackend<D>)) -> Result<f64, DeviceFault> {
        let mut repeated = |times: u32| {
            self.device.seconds(&mut || {
                (0..times).for_each(|_| work(&self.backend));
                self.backend.flush();
            })
        };
        repeated(1)?;
        let times = (RUN_S_MIN / repeated(1)?).ceil().clamp(1.0, TIMES_MAX) as u32;
        let mut best = f64::INFINITY;
        for _ in 0..self.runs {
            best = best.min(repeated(times)? / f64::from(times));
        }
        self.backend.fault().map_or(Ok(best), Err)
    }
    /// The seconds of the fastest algorithm there is for a product. None where there is one
    /// algorithm only.
    ///
    /// # Errors
    /// If the library reports an error.
    pub fn fastest_product_s(&self, product: &MatrixProduct) -> Result<Option<f64>, DeviceFault> {
        self.device.fastest_product_s(product, self.runs)
    }
}
