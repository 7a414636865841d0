//! What a worker computes on: opened on the device's thread when a job begins, because the type of
//! activations is the job's.

use std::sync::Arc;

use zbelastic_kernels::cuda::device::Device;
use zbelastic_kernels::cuda::{CudaBackend, CudaDevice, OpenError};
use zbelastic_kernels::{CpuBackend, DeviceFault, Precision};
use zbelastic_trainer::elastic::{DeviceUse, MakeBackend};

use super::device::DeviceTrouble;
use crate::args;
use crate::config::ArithmeticConfig;
use crate::device;

/// What a worker computes on.
pub trait Machine: Send + 'static {
    /// What makes handles on it, for a job.
    type Make: MakeBackend + Send;

    /// What a person calls it.
    fn name(&self) -> String;

    /// Threads of the host for what is done to a layer before the device has it.
    fn host_threads(&self) -> usize;

    /// Opens it for a job.
    ///
    /// # Errors
    /// If it cannot be had.
    fn open(&self, arithmetic: ArithmeticConfig) -> Result<Self::Make, DeviceTrouble>;
}

/// The processor's cores as a device.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Number of threads that compute.
    pub threads: usize,
}

/// Makes backends of so many threads.
type MakeCores = Box<dyn Fn(DeviceUse) -> CpuBackend + Send>;

impl Machine for Cores {
    type Make = MakeCores;

    fn name(&self) -> String {
        args::Device::Cpu.to_string()
    }

    fn host_threads(&self) -> usize {
        self.threads
    }

    fn open(&self, _: ArithmeticConfig) -> Result<MakeCores, DeviceTrouble> {
        let threads = self.threads;
        // What a copy or a stage takes later is taken with the same number of threads.
        CpuBackend::new(threads)?;
        Ok(Box::new(move |wanted| {
            let count = match wanted {
                DeviceUse::Stage => threads,
                DeviceUse::Copy => 1,
            };
            CpuBackend::new(count).expect("as many threads were had when the job began")
        }))
    }
}

/// A device of NVIDIA's, or what stands for one: opens it for a type of activations.
pub struct Opener<F> {
    /// What a person calls it.
    pub name: String,
    /// Opens the device.
    pub open: F,
}

impl<D, F> Machine for Opener<F>
where
    D: Device + Send + Sync + 'static,
    F: Fn(Precision) -> Result<Arc<D>, OpenError> + Send + 'static,
{
    type Make = Beside<D>;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn host_threads(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn open(&self, arithmetic: ArithmeticConfig) -> Result<Beside<D>, DeviceTrouble> {
        let opened = (self.open)(arithmetic.precision());
        let opened =
            opened.map_err(|error| DeviceTrouble::Open { device: self.name.clone(), error })?;
        Ok(Beside(CudaBackend::new(opened)))
    }
}

/// What opens a real device.
type OpenCuda = Box<dyn Fn(Precision) -> Result<Arc<CudaDevice>, OpenError> + Send>;

/// The device of this number.
#[must_use]
pub fn cuda(index: usize) -> Opener<OpenCuda> {
    let name = args::Device::Cuda(index).to_string();
    Opener { name, open: Box::new(move |precision| device::open(index, precision)) }
}

/// Makes handles that share a device: its stream, its regions of memory and its end.
pub struct Beside<D: Device>(CudaBackend<D>);

impl<D: Device> MakeBackend for Beside<D> {
    type Backend = CudaBackend<D>;

    fn make(&self, _: DeviceUse) -> CudaBackend<D> {
        self.0.beside()
    }

    fn fault(&self) -> Option<DeviceFault> {
        zbelastic_kernels::Backend::fault(&self.0)
    }
}
