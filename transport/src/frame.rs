//! The tensor lane: frames of floats whose lengths the receiver knows before they come.
//!
//! ```text
//!   byte  0        4             8              16           16+meta
//!         +--------+-------------+--------------+-------------+----------------- - -
//!         | class  | meta length | body length  | meta        | parts, one after another
//!         +--------+-------------+--------------+-------------+----------------- - -
//!           u32      u32           u64, in bytes               f32 each
//!                    everything little endian
//! ```
//!
//! It promises that nothing is allocated for a body before its length is what the rule of its class
//! sets, that floats arrive bit for bit, that a frame is one write which is flushed at once, and
//! that of two frames that wait the one goes first for which a receiver waits. It promises no
//! delivery: what lies in a queue when a path breaks is lost. Memory of parts is used again.

#[cfg(target_endian = "big")]
compile_error!("floats travel as they lie in memory, which must be little endian");

mod header;
mod message;
mod pool;
mod queue;
mod read;
mod rules;
mod write;

pub use header::{FRAME_BYTES_MAX, FrameRejection, META_BYTES_MAX};
pub use message::{FrameBody, FrameTooLarge, OutgoingFrame, ReceivedFrame, Urgency};
pub use pool::{FramePart, PART_POOL_BYTES, PartPool};
pub use queue::{FRAME_QUEUE_BYTES, FrameNotQueued, FrameOutlet, FrameQueue, frame_queue};
pub use read::{FrameArrival, FrameReader, ReadFrameError};
pub use rules::{FRAME_PARTS_MAX, FrameClass, FrameRules, RuleError};
pub use write::{WriteFrameError, write_frame};
