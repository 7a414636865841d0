//! The duties of decoders, parsers and importers for any bytes.
//!
//! A [`Target`] is a reader of the product and the properties that must hold of it: it does not
//! panic, a value that it accepts survives being written and read again, it refuses bytes that are
//! not of its form, and no input costs more memory than that form allows. `tests/replay.rs` holds
//! each target to that for the inputs in `corpus/` and for mutations of them; `run` searches for
//! other inputs, led by coverage.
//!
//! This package decides nothing and no other package depends on it.

pub mod memory;
pub mod mutations;
mod outcome;
mod seeds;
mod target;
mod targets;

pub use outcome::DecodeOutcome;
pub use target::Target;
