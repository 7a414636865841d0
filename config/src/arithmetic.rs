//! On which kind of device a run computes, and in which type: part of its arithmetic, so part of
//! the job.

use serde::{Deserialize, Serialize};
use zbelastic_kernels::{DeviceSizes, Precision};

/// The device and the type that results depend on beside the model and the batch. A document older
/// than these keys is one of the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArithmeticConfig {
    /// The kind of devices.
    pub device: DeviceChoice,
    /// The type of activations.
    pub precision: PrecisionChoice,
}

/// A kind of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceChoice {
    /// The cores of the machine's CPU.
    #[default]
    Cpu,
    /// NVIDIA devices, by CUDA.
    Cuda,
}

/// The type of products' factors, and on NVIDIA devices of activations in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrecisionChoice {
    /// Floating point of 32 bits (IEEE single precision).
    #[default]
    F32,
    /// bfloat16, with sums, weights and moments in 32-bit floats.
    Bf16,
}

impl ArithmeticConfig {
    /// The type of products' factors, for kernels.
    #[must_use]
    pub const fn precision(self) -> Precision {
        match self.precision {
            PrecisionChoice::F32 => Precision::F32,
            PrecisionChoice::Bf16 => Precision::Bf16,
        }
    }

    /// Sizes in bytes there, which a plan is made with.
    #[must_use]
    pub const fn sizes(self) -> DeviceSizes {
        match self.device {
            DeviceChoice::Cpu => DeviceSizes::Processors(self.precision()),
            DeviceChoice::Cuda => DeviceSizes::Cuda(self.precision()),
        }
    }
}
