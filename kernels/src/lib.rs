//! Tensor arithmetic of transformer training, on processors and on NVIDIA devices.
//!
//! [`Backend`] and the small traits that it stands on are what training needs of a device, [`CpuBackend`] does it on processor cores, and
//! [`reference`] defines in slow, plain f64 what every operation means. [`conformance`] holds a
//! backend to the reference and to its promise that no result depends on thread counts.
//!
//! This package knows no pipeline, no microbatch and no network.

mod allocate;
mod backend;
pub mod conformance;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod fault;
pub mod fingerprint;
mod host_floats;
mod host_memory;
mod panels;
mod pending;
mod precision;
pub mod reference;
mod scratch;
mod shapes;
mod sizes;
mod tensor_handle;

pub use backend::{
    Accumulate, AdamWCoefficients, AdamWRange, AdapterArithmetic, AdapterView, AllocateError,
    AsyncOptimizer, AttentionMask, AttentionShape, Backend, BackwardEpilogue, BufferView,
    BufferViewMut, DeviceClock, DeviceMemory, EarlierSlice, EmbedGradient, ForwardEpilogue,
    IGNORED_TARGET, LayerCandidate, LinearGradient, LossScale, MatrixPart, MatrixShape,
    MuonCoefficients, MuonMatrix, MuonRange, NEWTON_SCHULZ_ITERATIONS, Norm, NormGradient, Offload,
    Optimizer, PackedWeightsOptimizer, RotaryDirection, RowPositions, RowsShape, SQUARE_SUM_CHUNK,
    SquareSum, StateRange, TensorTransfer, UpdateState,
};
pub use cpu::{
    CPU_VARIABLE, CpuBackend, CpuBuffer, CpuMatrix, HEAD_WIDTH_MAX, HostThreads, InstructionSet,
    InstructionSetError, LowRankProduct, NormalDraws,
};
pub use fault::{AllocationPurpose, DeviceFault};
pub use host_floats::{HostFloats, PendingFloats};
pub use pending::{DeviceValue, Pending};
pub use precision::{Precision, bf16_bits, float_of_bf16};
pub use scratch::ScratchOperation;
pub use sizes::{ByteCounts, DeviceSizes, MemoryClaim, StagingReservation};
pub use tensor_handle::{HostTensor, TensorHandle};
