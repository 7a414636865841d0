//! The backend for NVIDIA devices.
//!
//! Nothing of CUDA is needed to build this: its libraries are looked up when a device is opened,
//! and what is missing is a typed error with the remedy in it. Kernels are CUDA C++ under
//! `kernels/cu/`, compiled for the device's architecture at first use and kept on disk
//! ([`compiler`]); matrix products are cublasLt's.
//!
//! No operation uses an atomic on floats, and kernels of ours split no sum by anything but the operands'
//! shape. How products split theirs is cublasLt's choice for a shape, a model of device and a version
//! of the library. Results do not depend on what else runs.

mod activation;
mod adapter;
mod architecture;
mod attention;
mod backend;
pub mod cache;
mod clock;
mod columns;
pub mod compiler;
mod cublas;
pub mod device;
mod devices;
mod download;
mod driver;
mod embed;
mod error;
mod graphs;
mod head;
pub mod kernel;
pub mod library;
pub mod limits;
mod linear;
mod losses;
mod memory;
mod muon;
pub mod nccl;
mod norm;
mod offload;
mod optimizer;
mod pinned;
mod pinned_buffers;
mod probe;
mod recorder;
mod segments;
pub mod source;
mod squares;
mod staging;
mod state_sums;
mod streams;
mod timestamps;
pub mod timing;
mod transfer;
mod versions;

pub use architecture::Architecture;
pub use attention::{HEAD_WIDTH_MAX, SLICES_MAX};
pub use backend::{CudaBackend, CudaMatrix};
pub use clock::TimingEvent;
pub use cublas::AlgorithmPin;
pub use devices::{DRIVER_OLDEST, DeviceProperties, MemoryInfo, choose, devices, driver_version};
pub use download::{DOWNLOAD_BYTES_MAX, DOWNLOADS_MAX};
pub use driver::{CudaDevice, OpenedDevice};
pub use error::{
    CacheWarning, CompileError, CudaVersion, DeviceFault, Library, LibraryError, OpenError,
};
pub use memory::CudaBuffer;
pub use offload::CudaOffloadBuffer;
pub use probe::{DeviceProbe, compile_kernels, probe};
pub use recorder::{GraphCounts, GraphMode};
pub use segments::GraphLimits;
pub use streams::{CudaFence, PrimaryContext};
