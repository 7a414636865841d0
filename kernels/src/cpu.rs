//! The processor as a device.
//!
//! Matrix products, attention and the optimizer are our own code because they carry the promise
//! this project is about: the same bits for any number of threads, any partition and any vector
//! width. `docs/decisions/0002-own-matrix-kernel.md` gives the figures.

mod activation;
mod adapter;
mod attention;
mod backend;
mod bf16;
mod buffer;
mod draw;
mod elementwise;
mod embed;
mod fingerprint;
mod head;
mod instruction_set;
mod lanes;
mod linear;
mod math;
mod matmul;
mod muon;
mod norm;
mod optimizer;
mod probe;
mod qk_norm;
mod rotate;
mod shared;
mod threads;
mod versions;

pub use adapter::LowRankProduct;
pub use attention::HEAD_WIDTH_MAX;
pub use backend::{CpuBackend, CpuMatrix};
pub use buffer::CpuBuffer;
pub use draw::{HostThreads, NormalDraws};
pub use instruction_set::{CPU_VARIABLE, InstructionSet, InstructionSetError};
