//! The peers of this process: which are desired, which are connected, the rights of each to send.
//!
//! The node's calls change which are desired, and the endpoint's supervisor applies that. Here are the
//! lists that both read, and the supervisor's decisions, which are pure functions: which of two
//! connections stays, and how long the next dial waits.

mod admission;
mod backoff;
mod desired_peers;
mod directory;
mod peer_link;
mod roles;

pub(crate) use admission::{ClientDecision, LinkDecision, LinkFacts, admit, admit_client};
pub(crate) use backoff::pause_before_dial;
pub(crate) use desired_peers::{DesiredPeer, DesiredPeers};
pub(crate) use directory::Directory;
pub(crate) use peer_link::PeerLink;

pub use admission::ProcessStart;
pub use roles::{ControlKind, MessageKind, may_send};
