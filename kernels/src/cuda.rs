//! NVIDIA devices.
//!
//! Nothing of CUDA is needed to build this: its libraries are looked up when a device is opened,
//! and what is missing is a typed error with the remedy in it. Kernels are CUDA C++ under
//! `kernels/cu/`, compiled for the device's architecture at first use and kept on disk
//! ([`compiler`]); matrix products are cublasLt's.
//!
//! No operation uses an atomic on floats, and none splits a sum by anything but the operands' shape:
//! results depend neither on the number of multiprocessors nor on what else runs. They do depend on
//! the device's model and on the version of cublasLt.

mod activation;
mod architecture;
mod attention;
mod away;
mod backend;
pub mod cache;
mod clock;
mod columns;
pub mod compiler;
mod copies;
pub mod device;
mod driver;
mod embed;
mod error;
mod graphs;
mod head;
pub mod kernel;
mod leaving;
pub mod library;
pub mod limits;
mod linear;
mod listing;
mod losses;
mod memory;
mod norm;
mod optimizer;
mod parcel;
mod pinned;
mod probe;
mod products;
mod recorder;
mod segments;
mod sheets;
pub mod source;
mod squares;
mod stamps;
mod state_sums;
pub mod times;
mod transfer;
mod versions;

pub use architecture::Architecture;
pub use attention::{HEAD_WIDTH_MAX, SLICES_MAX};
pub use away::CudaAway;
pub use backend::{CudaBackend, CudaMatrix};
pub use clock::Mark;
pub use copies::CudaFence;
pub use driver::{CudaDevice, Opened};
pub use error::{
    CacheWarning, CompileError, DeviceFault, Library, LibraryError, OpenError, Version,
};
pub use leaving::{LEAVING_BYTES_MAX, LEAVING_MAX};
pub use listing::{DRIVER_OLDEST, DeviceInfo, MemoryInfo, choose, devices, driver_version};
pub use memory::CudaBuffer;
pub use probe::{Probe, compile_kernels, probe};
pub use products::Pin;
pub use recorder::{GraphCounts, Graphs};
pub use segments::Limits as GraphLimits;
