//! The peers of this process: which are wanted, which are there, which may send what.
//!
//! One task, the keeper, owns what is known of them. It dials peers that are wanted and not there, decides
//! which of two connections stays, and closes those of banned peers. What it decides is in pure functions
//! beside it.

mod admission;
mod backoff;
mod directory;
mod keeper;
mod roles;
mod seat;
mod wishes;

pub(crate) use admission::LinkFacts;
pub(crate) use directory::Directory;
pub(crate) use keeper::Keeper;
pub(crate) use wishes::Wishes;

pub use roles::{ControlKind, MessageKind, may};
