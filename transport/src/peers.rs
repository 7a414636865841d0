//! The peers of this process: which are wanted, which are there, which may send what.
//!
//! One task, the keeper, owns what is known of them. It dials peers that are wanted and not there, decides
//! which of two connections stays, and closes those of banned peers. What it decides is in pure functions
//! beside it.

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
