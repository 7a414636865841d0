//! Tensor arithmetic of transformer training, on processors and on NVIDIA devices.
//!
//! [`Backend`] is what training needs of a device, [`CpuBackend`] does it on processor cores, and
//! [`reference`] defines in slow, plain f64 what every operation means. [`conformance`] holds a
//! backend to the reference and to its promise that no result depends on thread counts.
//!
//! This package knows no pipeline, no microbatch and no network.

mod allocate;
mod arriving;
mod backend;
pub mod conformance;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod fault;
pub mod fingerprint;
mod parcel;
mod precision;
pub mod reference;
mod scratch;
mod shapes;
mod sizes;

pub use arriving::{Arriving, HostFloats};
pub use backend::{
    Accumulate, AdamWNumbers, AdamWRun, AllocateError, AttentionShape, Backend, BackwardEpilogue,
    EarlierSlice, EmbedGradient, FormOptimizer, ForwardEpilogue, LayerCandidate, LinearGradient,
    MatrixPart, MatrixShape, Norm, NormGradient, Rows, SQUARE_SUM_CHUNK, SquareSum, Turn,
    UpdateState, View, ViewMut,
};
pub use cpu::{
    CpuBackend, CpuBuffer, CpuMatrix, HEAD_WIDTH_MAX, HostThreads, InstructionSet, Normals,
};
pub use fault::{DeviceFault, Purpose};
pub use fingerprint::{HeldSums, StateSums};
pub use parcel::{Held, HeldLoss, Loss, Numbers, Parcel};
pub use precision::Precision;
pub use scratch::Operation;
pub use sizes::{BoundaryRooms, ByteCounts, Claim, DeviceSizes};
