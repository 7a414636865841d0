//! The state of one peer, as the supervisor keeps it.

use std::net::SocketAddr;

use tokio::time::Instant;

use crate::dial_problem::DialProblem;
use crate::endpoint::greeting::{ConnectionCloser, PeerConnection};
use crate::peers::{DesiredPeer, LinkFacts};

/// The state of one peer, as the supervisor keeps it.
#[derive(Default)]
pub(super) struct PeerState {
    /// Its role and addresses, if it is desired.
    pub(super) desired: Option<DesiredPeer>,
    /// The connection that is there.
    pub(super) present: Option<PresentLink>,
    /// The connection that waits for it to end.
    pub(super) next: Option<(LinkFacts, PeerConnection)>,
    /// The latest boot ever seen.
    pub(super) newest_boot: u64,
    /// Whether and when it is dialled.
    pub(super) dial: DialState,
    /// Attempts that failed since it was there.
    pub(super) failures: u32,
    /// The address that worked last.
    pub(super) good_address: Option<SocketAddr>,
    /// The problem that was last reported to the node.
    pub(super) reported_problem: Option<DialProblem>,
}

/// A connection that is there, or about to be.
pub(super) struct PresentLink {
    pub(super) facts: LinkFacts,
    pub(super) closer: ConnectionCloser,
    pub(super) since: Instant,
}

/// Whether and when a peer is dialled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DialState {
    /// No dial is planned.
    #[default]
    Idle,
    /// Planned for a time.
    Due(Instant),
    /// A task dials it now.
    UnderWay,
}

impl PeerState {
    /// Whether a dial should be planned.
    pub(super) fn should_dial(&self) -> bool {
        let is_desired = self
            .desired
            .as_ref()
            .is_some_and(|desired| desired.role.serves() && !desired.addresses.is_empty());
        is_desired && self.present.is_none() && self.dial == DialState::Idle
    }

    /// The addresses, the one that worked last before the others.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let Some(desired) = &self.desired else {
            return Vec::new();
        };
        let is_good = |address: &&SocketAddr| Some(**address) == self.good_address;
        let good = desired.addresses.iter().filter(is_good);
        let others = desired.addresses.iter().filter(|address| !is_good(address));
        good.chain(others).copied().collect()
    }
}
