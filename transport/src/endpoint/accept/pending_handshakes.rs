//! Handshakes under way, each with the address that it comes from.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use zbelastic_identity::network_of;

use super::{HandshakeCounts, HandshakeOutcome};

/// How long a handshake is left alone by newer ones: it needs three round trips and some
/// milliseconds of two processors. A dialler that is not answered meanwhile sends again by itself.
const EVICTION_AGE_MIN: Duration = Duration::from_secs(1);

/// Limits on handshakes or joiners, above which one of them is evicted.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrowdLimits {
    pub(super) all_max: usize,
    pub(super) of_address_max: usize,
}

/// Of which address one is evicted before one more comes from `address`: of its own if that has as
/// many as it may, of the one that has the most if there are too many altogether.
pub(super) fn most_crowded(
    open: &[IpAddr],
    address: IpAddr,
    CrowdLimits { all_max, of_address_max }: CrowdLimits,
) -> Option<IpAddr> {
    let count = |of: IpAddr| open.iter().filter(|found| **found == of).count();
    if count(address) >= of_address_max {
        return Some(address);
    }
    if open.len() < all_max {
        return None;
    }
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for found in open {
        *counts.entry(*found).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(found, _)| found)
}

/// Handshakes under way: at most as many as [`super::decide`] accepts, the oldest first.
#[derive(Default)]
pub(super) struct PendingHandshakes {
    tasks: JoinSet<HandshakeOutcome>,
    handshakes: Vec<PendingHandshake>,
}

struct PendingHandshake {
    task: AbortHandle,
    address: IpAddr,
    began: Instant,
}

impl PendingHandshakes {
    /// How many there are, in all and from `address`.
    pub(super) fn counts(&self, address: IpAddr) -> HandshakeCounts {
        let address = network_of(address);
        let of_address = self.handshakes.iter().filter(|found| found.address == address).count();
        HandshakeCounts { all: self.handshakes.len(), of_address }
    }

    /// Starts a handshake, and counts it by its address.
    pub(super) fn begin(
        &mut self,
        address: IpAddr,
        handshake: impl Future<Output = HandshakeOutcome> + Send + 'static,
    ) {
        let task = self.tasks.spawn(handshake);
        self.handshakes.push(PendingHandshake {
            task,
            address: network_of(address),
            began: Instant::now(),
        });
    }

    /// Ends the oldest handshake of the address at its limit, if it has had its time.
    pub(super) fn evict_oldest(
        &mut self,
        address: IpAddr,
        crowd_limits: CrowdLimits,
        now: Instant,
    ) -> bool {
        let open: Vec<IpAddr> = self.handshakes.iter().map(|found| found.address).collect();
        let victim = most_crowded(&open, network_of(address), crowd_limits);
        let oldest = self.handshakes.iter().position(|found| Some(found.address) == victim);
        let Some(oldest) = oldest else { return true };
        if now < self.handshakes[oldest].began + EVICTION_AGE_MIN {
            return false;
        }
        self.handshakes.remove(oldest).task.abort();
        true
    }

    /// The outcome of the next one that ends: nothing if it panicked. `None` while there is none. A
    /// call that is dropped before it ends loses nothing.
    pub(super) async fn next(&mut self) -> Option<Option<HandshakeOutcome>> {
        let ended = self.tasks.join_next_with_id().await?;
        let id: Id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        self.handshakes.retain(|found| found.task.id() != id);
        Some(ended.ok().map(|(_, outcome)| outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn counts(pending: &PendingHandshakes, at: &str) -> (usize, usize) {
        let HandshakeCounts { all, of_address } = pending.counts(address(at));
        (all, of_address)
    }

    #[tokio::test]
    async fn handshakes_are_counted_by_address_until_they_end() {
        let mut pending = PendingHandshakes::default();
        pending.begin(address("10.0.0.1"), async { HandshakeOutcome::Peer });
        pending.begin(address("::ffff:10.0.0.1"), async { panic!("a handshake that panics") });
        pending.begin(address("2001:db8:1:2::1"), std::future::pending());
        pending.begin(address("2001:db8:1:2:ffff::2"), std::future::pending());
        assert_eq!(counts(&pending, "10.0.0.1"), (4, 2));
        assert_eq!(counts(&pending, "10.0.0.2"), (4, 0));
        assert_eq!(counts(&pending, "2001:db8:1:2::3"), (4, 2));
        assert_eq!(counts(&pending, "2001:db8:1:3::1"), (4, 0));
        let mut panicked = 0;
        for _ in 0..2 {
            panicked += usize::from(pending.next().await.expect("two end").is_none());
        }
        assert_eq!(panicked, 1);
        assert_eq!(counts(&pending, "10.0.0.1"), (2, 0));
        assert_eq!(counts(&pending, "2001:db8:1:2::1"), (2, 2));
    }

    #[test]
    fn the_most_crowded_address_is_evicted_from() {
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(address);
        let crowd_limits = CrowdLimits { all_max: 4, of_address_max: 3 };
        assert_eq!(most_crowded(&[a, a, b], a, crowd_limits), None);
        assert_eq!(most_crowded(&[a, a, a], a, crowd_limits), Some(a));
        assert_eq!(most_crowded(&[a, a, a], b, crowd_limits), None);
        assert_eq!(most_crowded(&[b, a, a, a], c, crowd_limits), Some(a));
        assert_eq!(most_crowded(&[b, b, a, c], c, crowd_limits), Some(b));
    }

    #[tokio::test]
    async fn the_oldest_handshake_of_an_address_is_evicted() {
        let mut pending = PendingHandshakes::default();
        pending.begin(address("10.0.0.1"), std::future::pending());
        pending.begin(address("10.0.0.2"), std::future::pending());
        pending.begin(address("10.0.0.1"), async { HandshakeOutcome::Peer });
        let crowd_limits = CrowdLimits { all_max: 9, of_address_max: 2 };
        let now = Instant::now();
        assert!(
            pending.evict_oldest(address("10.0.0.2"), crowd_limits, now),
            "the address is below its limit"
        );
        assert!(
            !pending.evict_oldest(address("10.0.0.1"), crowd_limits, now),
            "none has had its time"
        );
        assert_eq!(counts(&pending, "10.0.0.1"), (3, 2));
        assert!(pending.evict_oldest(address("10.0.0.1"), crowd_limits, now + EVICTION_AGE_MIN));
        assert_eq!(counts(&pending, "10.0.0.1"), (2, 1));
        let mut ended = Vec::new();
        for _ in 0..2 {
            ended.push(pending.next().await.expect("two end").is_some());
        }
        ended.sort_unstable();
        assert_eq!(ended, [false, true]);
        assert_eq!(counts(&pending, "10.0.0.1"), (1, 0));
    }
}
