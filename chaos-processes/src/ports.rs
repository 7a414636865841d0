//! Ports for nodes.
//!
//! A node's port has to be free again when the node comes back after it was killed. So it is chosen
//! below the range out of which the system gives ports to sockets that name none: no process
//! gets it by chance while the node is down. Other clusters of this machine are kept away by where
//! the search begins, and by trying.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

/// The first port of the system's range if the system does not show it.
const EPHEMERAL_FIRST: u16 = 32_768;
/// Below are ports of services.
const FIRST: u16 = 10_000;
/// Ports that are tried before there is none.
const TRIES_MAX: u16 = 4_000;

/// Where ports come from.
#[derive(Debug)]
pub struct PortAllocator {
    next: u16,
    end: u16,
}

impl PortAllocator {
    /// Ports, beginning somewhere that follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let end = ephemeral_first().max(FIRST + TRIES_MAX);
        let next = FIRST + (seed % u64::from(end - FIRST)) as u16;
        Self { next, end }
    }

    /// A port that no process uses.
    ///
    /// # Errors
    /// If many were tried, and each is in use.
    pub fn take(&mut self) -> io::Result<SocketAddr> {
        for _ in 0..TRIES_MAX {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.next));
            self.next = if self.next + 1 < self.end { self.next + 1 } else { FIRST };
            if UdpSocket::bind(address).is_ok() {
                return Ok(address);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}

/// An address of this machine with a port that no process uses, and that no process gets by chance until a
/// node is started there, or again. The search begins anywhere: tests of several programs run at
/// once.
///
/// # Errors
/// As [`PortAllocator::take`].
pub fn free_address() -> io::Result<SocketAddr> {
    PortAllocator::new(RandomState::new().hash_one(0)).take()
}

fn ephemeral_first() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
    first.unwrap_or(EPHEMERAL_FIRST)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::{FIRST, PortAllocator};

    #[test]
    fn a_port_that_somebody_has_is_left_out() {
        let mut ports = PortAllocator::new(77);
        let first = ports.take().expect("a port");
        let _holder = UdpSocket::bind(first).expect("free");
        let mut same = PortAllocator::new(77);
        let next = same.take().expect("a port");
        assert_ne!(next, first);
        UdpSocket::bind(next).expect("free");
    }

    #[test]
    fn the_search_goes_round() {
        let mut ports = PortAllocator { next: FIRST + 4, end: FIRST + 5 };
        ports.take().expect("a port");
        assert_eq!(ports.next, FIRST);
    }
}
