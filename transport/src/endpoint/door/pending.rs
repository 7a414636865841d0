//! Handshakes under way, each with the address that it comes from.

use std::future::Future;
use std::net::IpAddr;

use tokio::task::{Id, JoinError, JoinSet};

use super::{Crowd, Knock};
use crate::identity::counted;

/// Handshakes under way: at most as many as the door lets begin.
#[derive(Default)]
pub(super) struct Pending {
    tasks: JoinSet<Knock>,
    addresses: Vec<(Id, IpAddr)>,
}

impl Pending {
    /// How many there are, for somebody at `address`.
    pub(super) fn crowd(&self, address: IpAddr) -> Crowd {
        let address = counted(address);
        let of_address = self.addresses.iter().filter(|(_, found)| *found == address).count();
        Crowd { all: self.tasks.len(), of_address }
    }

    /// One more begins.
    pub(super) fn begin(
        &mut self,
        address: IpAddr,
        handshake: impl Future<Output = Knock> + Send + 'static,
    ) {
        let id = self.tasks.spawn(handshake).id();
        self.addresses.push((id, counted(address)));
    }

    /// What came of the next one that ends: nothing if it panicked. `None` while there is none. A
    /// call that is dropped before it ends loses nothing.
    pub(super) async fn next(&mut self) -> Option<Option<Knock>> {
        let ended = self.tasks.join_next_with_id().await?;
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        self.addresses.retain(|(found, _)| *found != id);
        Some(ended.ok().map(|(_, knock)| knock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn crowd(pending: &Pending, at: &str) -> (usize, usize) {
        let Crowd { all, of_address } = pending.crowd(address(at));
        (all, of_address)
    }

    #[tokio::test]
    async fn handshakes_are_counted_by_address_until_they_end() {
        let mut pending = Pending::default();
        pending.begin(address("10.0.0.1"), async { Knock::Peer });
        pending.begin(address("::ffff:10.0.0.1"), async { panic!("a handshake that panics") });
        pending.begin(address("2001:db8:1:2::1"), std::future::pending());
        pending.begin(address("2001:db8:1:2:ffff::2"), std::future::pending());
        assert_eq!(crowd(&pending, "10.0.0.1"), (4, 2));
        assert_eq!(crowd(&pending, "10.0.0.2"), (4, 0));
        assert_eq!(crowd(&pending, "2001:db8:1:2::3"), (4, 2));
        assert_eq!(crowd(&pending, "2001:db8:1:3::1"), (4, 0));
        let mut panicked = 0;
        for _ in 0..2 {
            panicked += usize::from(pending.next().await.expect("two end").is_none());
        }
        assert_eq!(panicked, 1);
        assert_eq!(crowd(&pending, "10.0.0.1"), (2, 0));
        assert_eq!(crowd(&pending, "2001:db8:1:2::1"), (2, 2));
    }
}
