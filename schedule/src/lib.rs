//! Pipeline schedules as data.
//!
//! A [`Program`] lists, for every stage, the operations of one step in the order in which the
//! stage runs them. Everything else here reads or writes that data: generators make it, `check`
//! proves it legal, `lower` adds what arithmetic alone leaves out, `simulate` gives it times, and
//! `render` draws it. This package knows no tensor, no address, no clock and no consensus.

mod kind;
mod op;
mod placement;
mod program;

pub use kind::{ScheduleKind, UnknownKind};
pub use op::{Compute, Flow, Op, OpParseError, Pass, Transfer, Update};
pub use placement::{Placement, PlacementShape};
pub use program::{Program, ProgramParseError, TEXT_COUNT_MAX, Window};
