//! The state that the cluster agrees on, and the protocol by which it does.
//!
//! Two pure cores: [`Core`] is a controller, a voter of the Raft group that decides;
//! [`WorkerSession`] is the part of a worker that exchanges messages with it. Both accept inputs
//! and return outputs. They know no tensor, device, socket or clock, draw nothing at random, and
//! solve no schedule: a leader requests a plan and gets it as an input, and every node only checks
//! it.
//!
//! [`validation`] is how a step that was applied optimistically is kept, clipped, skipped or
//! replayed; [`State`] follows from the log; [`duty`] is a leader's work on it.

pub mod access;
pub mod checkpoint;
pub mod class;
pub mod codec;
pub mod contact;
pub mod contacts;
pub mod controller_drain;
pub mod core;
pub mod duty;
pub mod entry;
#[cfg(test)]
mod fixture;
pub mod history;
pub mod job;
pub mod member;
pub mod message;
pub mod mutant;
pub mod plan;
pub mod pre_copy;
pub mod pre_encoded;
pub mod raft;
pub mod run;
pub mod run_record;
pub mod session;
pub mod state;
pub mod tick;
pub mod training_status;
pub mod validation;

pub use self::core::Core;
pub use entry::Entry;
pub use member::Holder;
pub use session::WorkerSession;
pub use state::State;
