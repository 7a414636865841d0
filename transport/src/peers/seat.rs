//! What the keeper knows of one peer.

use std::net::SocketAddr;

use tokio::time::Instant;

use super::admission::LinkFacts;
use super::wishes::Wanted;
use crate::endpoint::{Closer, DialProblem, Greeted};

/// What the keeper knows of one peer.
#[derive(Default)]
pub(super) struct Seat {
    /// That it is wanted, and where it may be found.
    pub(super) wanted: Option<Wanted>,
    /// The connection that is there.
    pub(super) present: Option<Present>,
    /// The connection that waits for it to end.
    pub(super) next: Option<(LinkFacts, Greeted)>,
    /// The latest boot ever seen.
    pub(super) newest_boot: u64,
    /// Whether and when it is dialled.
    pub(super) dial: Dial,
    /// Attempts that failed since it was there.
    pub(super) failures: u32,
    /// The address that worked last.
    pub(super) good_address: Option<SocketAddr>,
    /// The problem that was last reported to the node.
    pub(super) told: Option<DialProblem>,
}

/// A connection that is there, or about to be.
pub(super) struct Present {
    pub(super) facts: LinkFacts,
    pub(super) closer: Closer,
    pub(super) since: Instant,
}

/// Whether and when a peer is dialled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dial {
    /// Nothing is planned.
    #[default]
    Resting,
    /// Planned for a time.
    Due(Instant),
    /// A task dials it.
    UnderWay,
}

impl Seat {
    /// Whether a dial should be planned.
    pub(super) fn wants_dial(&self) -> bool {
        let is_wanted = self
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.role.serves() && !wanted.addresses.is_empty());
        is_wanted && self.present.is_none() && self.dial == Dial::Resting
    }

    /// The addresses, the one that worked last before the others.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let Some(wanted) = &self.wanted else {
            return Vec::new();
        };
        let is_good = |address: &&SocketAddr| Some(**address) == self.good_address;
        let good = wanted.addresses.iter().filter(is_good);
        let others = wanted.addresses.iter().filter(|address| !is_good(address));
        good.chain(others).copied().collect()
    }
}
