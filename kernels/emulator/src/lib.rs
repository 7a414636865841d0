//! NVIDIA's driver, its compiler of kernels, its library of products and NCCL, made of this machine's
//! processors: for tests, on machines that have none of it.
//!
//! The shared library of this package has the calls of `libcuda`, `libnvrtc`, `libcublasLt` and `libnccl`
//! that zbelastic makes, under their names and with their types. [`EmulatedToolkit`] lays it into a
//! folder under the four names; a program that finds that folder first runs on it without knowing,
//! from `cuInit` to the last product. Its promises:
//!
//! * Kernels are the real sources, compiled by this machine's C++ compiler and run thread by
//!   thread.
//! * Work enqueued in a stream is done when the driver may do it, and in the worst order that it
//!   may ([`ExecutionOrder`]): a reader that did not wait reads NaNs.
//! * A call that the driver's manual forbids is refused as the driver refuses it: a stream of
//!   another context, a wait within a capture, threads beyond a kernel's bounds.
//! * Memory begins as NaNs, and a write beside it ends the process.
//!
//! It allows no conclusion about speed, nor about the conduct of a real driver beside its manual.

mod code;
mod communicators;
mod compiler;
mod driver;
mod machine;
mod names;
mod products;
mod settings;
mod toolkit;

pub use code::{KernelEntry, KernelLibrary, build};
pub use settings::{EmulatorSettings, ExecutionOrder, VARIABLE};
pub use toolkit::{EmulatedLibrary, EmulatedToolkit};
