//! The kernels for NVIDIA devices and everything above them, without a device: the same sources run
//! on processors, under the conformance suite. What is not tried here are the driver and cublasLt.

#![cfg(all(feature = "cuda", target_arch = "x86_64", unix))]

mod beyond;
mod compile;
mod device;
mod downloads;
mod graphs;
mod passes;
mod races;
mod tensor_handles;
mod times;

use zbelastic_kernels::cuda::source::Precision;

fn floats() -> Vec<zbelastic_kernels::cuda::CudaBackend<device::EmulatedDevice>> {
    device::devices(Precision::F32)
}

fn halves() -> Vec<zbelastic_kernels::cuda::CudaBackend<device::EmulatedDevice>> {
    device::devices(Precision::Bf16)
}

zbelastic_kernels::conformance!(f32, floats);
zbelastic_kernels::conformance!(bf16, halves);
