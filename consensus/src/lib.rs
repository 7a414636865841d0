//! What the cluster agrees on.
//!
//! So far this is [`validation`]: how a step that was applied optimistically is kept, clipped,
//! skipped or replayed. The package is pure. It knows no tensor, device, socket or clock; it sees
//! sums and decides.

pub mod raft;
pub mod validation;
