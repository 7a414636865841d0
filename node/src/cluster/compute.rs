//! The device that a worker computes on: opened on the device's thread when a job begins, because
//! the type of activations is the job's.

use std::sync::Arc;

use zbelastic_config::ArithmeticConfig;
use zbelastic_kernels::cuda::device::Device;
use zbelastic_kernels::cuda::nccl::DeviceLinks;
use zbelastic_kernels::cuda::{CudaBackend, CudaDevice, OpenError};
use zbelastic_kernels::{CpuBackend, DeviceFault, Precision};
use zbelastic_machine::{DeviceSelector, core_count, device};
use zbelastic_trainer::elastic::{BackendFactory, DeviceUse};

use super::device_error::WorkerDeviceError;

/// The device that a worker computes on.
pub trait WorkerDevice: Send + 'static {
    /// The factory of handles on it, for a job.
    type Factory: BackendFactory + Send;

    /// The name of the device, as it is typed and reported.
    fn name(&self) -> String;

    /// Threads of the host for the work on a layer before the device has it.
    fn host_threads(&self) -> usize;

    /// Opens it for a job.
    ///
    /// # Errors
    /// If it cannot be had.
    fn open(&self, arithmetic: ArithmeticConfig) -> Result<Self::Factory, WorkerDeviceError>;

    /// What begins links of the open device with those of other workers; none for processors.
    fn links(_: &Self::Factory) -> Option<Box<dyn DeviceLinks>> {
        None
    }
}

/// The processor's cores as a device.
#[derive(Clone, Copy, Debug)]
pub struct CpuCores {
    /// Number of threads that compute.
    pub threads: usize,
}

/// Makes backends of so many threads.
type CpuCoresFactory = Box<dyn Fn(DeviceUse) -> CpuBackend + Send>;

impl WorkerDevice for CpuCores {
    type Factory = CpuCoresFactory;

    fn name(&self) -> String {
        DeviceSelector::Cpu.to_string()
    }

    fn host_threads(&self) -> usize {
        self.threads
    }

    fn open(&self, arithmetic: ArithmeticConfig) -> Result<CpuCoresFactory, WorkerDeviceError> {
        let (threads, precision) = (self.threads, arithmetic.precision());
        // Memory that a copy or a stage allocates later is allocated with the same number of
        // threads.
        CpuBackend::new(threads)?;
        Ok(Box::new(move |requested| {
            let count = match requested {
                DeviceUse::Stage => threads,
                DeviceUse::Copy => 1,
            };
            let backend = CpuBackend::new(count).expect("as many threads as when the job began");
            backend.with_precision(precision)
        }))
    }
}

/// An NVIDIA device, or an emulated one: opens it for a type of activations.
pub struct CudaDeviceOpener<F> {
    /// The name of the device, as it is typed and reported.
    pub name: String,
    /// Opens the device with the precision of a job's arithmetic.
    pub open: F,
}

impl<D, F> WorkerDevice for CudaDeviceOpener<F>
where
    D: Device + Send + Sync + 'static,
    F: Fn(Precision) -> Result<Arc<D>, OpenError> + Send + 'static,
{
    type Factory = SharedCudaFactory<D>;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn host_threads(&self) -> usize {
        core_count()
    }

    fn open(
        &self,
        arithmetic: ArithmeticConfig,
    ) -> Result<SharedCudaFactory<D>, WorkerDeviceError> {
        let opened = (self.open)(arithmetic.precision());
        let opened =
            opened.map_err(|error| WorkerDeviceError::Open { device: self.name.clone(), error })?;
        Ok(SharedCudaFactory(CudaBackend::new(opened)))
    }

    fn links(factory: &SharedCudaFactory<D>) -> Option<Box<dyn DeviceLinks>> {
        factory.0.links()
    }
}

/// The function that opens a real device.
type OpenCudaDevice = Box<dyn Fn(Precision) -> Result<Arc<CudaDevice>, OpenError> + Send>;

/// The device of this number.
#[must_use]
pub fn cuda(index: usize) -> CudaDeviceOpener<OpenCudaDevice> {
    let name = DeviceSelector::Cuda(index).to_string();
    CudaDeviceOpener { name, open: Box::new(move |precision| device::open(index, precision)) }
}

/// Makes handles that share a device: its stream, its regions of memory and its end.
pub struct SharedCudaFactory<D: Device>(CudaBackend<D>);

impl<D: Device> BackendFactory for SharedCudaFactory<D> {
    type Backend = CudaBackend<D>;

    fn make(&self, _: DeviceUse) -> CudaBackend<D> {
        self.0.sibling()
    }

    fn fault(&self) -> Option<DeviceFault> {
        zbelastic_kernels::Backend::fault(&self.0)
    }
}
