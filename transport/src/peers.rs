//! The peers of this process: which are desired, which are connected, the rights of each to send.
//!
//! One task, the [`PeerSupervisor`], owns their state. It dials peers that are desired and not
//! connected, decides which of two connections stays, and closes those of banned peers. Its
//! decisions are in pure functions beside it.

mod admission;
mod backoff;
mod desired_peers;
mod directory;
mod peer_state;
mod roles;
mod supervisor;

pub(crate) use admission::LinkFacts;
pub(crate) use desired_peers::DesiredPeers;
pub(crate) use directory::Directory;
pub(crate) use supervisor::PeerSupervisor;

pub use roles::{ControlKind, MessageKind, may_send};
