//! What decoders, parsers and importers must do with any bytes.
//!
//! A [`Target`] is a reader of the product and what must hold of it: it does not panic, what it
//! accepts survives being written and read again, what is not of its form it refuses, and no input
//! costs more memory than that form allows. `tests/replay.rs` holds each target to that for the
//! inputs in `corpus/` and for mutations of them; `run` searches for other inputs, led by coverage.
//!
//! This package decides nothing and no other package depends on it.

pub mod memory;
pub mod mutations;
mod seeds;
mod target;
mod targets;

pub use target::{DecodeOutcome, Target};
