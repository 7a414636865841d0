//! The Control lane: messages between the cores of the cluster, which may be lost.
//!
//! ```text
//!   byte  0        1                                 9
//!         +--------+---------------------------------+----------------- - -
//!         | kind   | length, u64 little endian       | bytes
//!         +--------+---------------------------------+----------------- - -
//!           0 whole   the length of the message         the message
//!           1 start   the length of a long message      none; its pieces follow
//!           2 piece   the length of the piece           the piece
//! ```
//!
//! A message above [`crate::CONTROL_FRAME_BYTES_MAX`] is cut. Over QUIC its pieces take a stream of
//! their own, over a Unix socket short messages go between the pieces: a snapshot holds up no
//! heartbeat. It promises order among short messages of one connection, and among long ones; it
//! promises no delivery and no order between the two. A length is checked before anything is
//! allocated, and memory grows as bytes arrive.

mod queue;
mod receive;
mod send;
mod wire;

pub(crate) use queue::{ControlQueue, EnqueueOutcome};
pub use receive::{ControlFault, ControlReader};
pub(crate) use send::{write_all_sizes, write_long, write_short};
