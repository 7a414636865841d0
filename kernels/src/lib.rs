//! Tensor arithmetic.
//!
//! [`Backend`] is what training needs of a device, [`CpuBackend`] does it on processor cores, and
//! [`reference`] says in slow, plain f64 what every operation means. [`conformance`] holds a
//! backend to the reference and to its promise that no result depends on thread counts.
//!
//! This package knows no pipeline, no microbatch and no network.

mod allocate;
mod backend;
pub mod conformance;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod parcel;
pub mod reference;
mod shapes;

pub use backend::{
    Accumulate, AdamWNumbers, AllocateError, AttentionShape, Backend, BackwardEpilogue,
    EarlierSlice, EmbedGradient, ForwardEpilogue, LinearGradient, MatrixPart, MatrixShape, Norm,
    NormGradient, Rows, SQUARE_SUM_CHUNK, SquareSum, Turn, View, ViewMut,
};
pub use cpu::{CpuBackend, CpuBuffer, CpuMatrix, HEAD_WIDTH_MAX, InstructionSet};
pub use parcel::{Held, HeldLoss, Loss, Numbers, Parcel};
