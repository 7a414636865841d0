//! Where others reach a node that no address was configured for: by the address from which it
//! reaches them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Somewhere far away, for the way out: 192.0.2.0/24 and 2001:db8::/32 are for documentation, and
/// nothing is ever sent there (RFC 5737, RFC 3849).
const OUTSIDE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// Any port: only the route to the machine matters.
const ANY_PORT: u16 = 9;

/// Where a socket that listens at `listens` is reached by the nodes that are at `others`, or from
/// outside if no other is known. An address of its own is the answer; "every interface" is
/// unreachable for others.
#[must_use]
pub fn reachable_addresses(listens: SocketAddr, others: &[SocketAddr]) -> Vec<SocketAddr> {
    addresses_by(source_towards, listens, others)
}

/// The same with `source`, which yields the address that packets to a machine would be sent from.
fn addresses_by(
    source: impl Fn(SocketAddr) -> Option<IpAddr>,
    listens: SocketAddr,
    others: &[SocketAddr],
) -> Vec<SocketAddr> {
    if !listens.ip().is_unspecified() {
        return vec![listens];
    }
    let outside = OUTSIDE.map(|host| SocketAddr::new(host, ANY_PORT));
    let towards = if others.is_empty() { &outside[..] } else { others };
    let mut found: Vec<SocketAddr> = Vec::new();
    // A socket of IPv6 that listens everywhere receives IPv4 as well; the reverse does not hold.
    for other in towards.iter().filter(|other| listens.is_ipv6() || other.is_ipv4()) {
        let own = source(*other).filter(|own| !own.is_unspecified());
        let own = own.map(|own| SocketAddr::new(own, listens.port()));
        if let Some(own) = own.filter(|own| !found.contains(own)) {
            found.push(own);
        }
    }
    // Addresses are tried in turn, and this machine's own network leads others astray.
    found.sort_by_key(|address| address.ip().is_loopback());
    if found.is_empty() {
        found.push(SocketAddr::new(loopback(listens), listens.port()));
    }
    found
}

/// This machine, for itself.
#[must_use]
pub const fn loopback(listens: SocketAddr) -> IpAddr {
    match listens {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// The address that the system would send from; `None` if there is no way there. Nothing is sent.
fn source_towards(other: SocketAddr) -> Option<IpAddr> {
    let every: IpAddr = match other {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((every, 0)).ok()?;
    socket.connect(other).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().expect("an address")
    }

    /// A machine with a network of its own, 10.0.0.0/8 and a way out.
    fn routes(other: SocketAddr) -> Option<IpAddr> {
        let own = match other.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => "127.0.0.1",
            IpAddr::V4(ip) if ip.octets()[0] == 10 => "10.0.0.7",
            IpAddr::V4(ip) if ip.octets()[0] == 240 => return None,
            IpAddr::V4(_) => "192.168.1.7",
            IpAddr::V6(ip) if ip.is_loopback() => "::1",
            IpAddr::V6(_) => return None,
        };
        Some(own.parse().expect("an address"))
    }

    #[track_caller]
    fn check(listens: &str, others: &[&str], expected: &[&str]) {
        let others: Vec<_> = others.iter().map(|other| at(other)).collect();
        let expected: Vec<_> = expected.iter().map(|address| at(address)).collect();
        assert_eq!(addresses_by(routes, at(listens), &others), expected);
    }

    #[test]
    fn whoever_listens_at_one_address_is_reached_there() {
        check("10.0.0.9:7000", &["127.0.0.1:7000"], &["10.0.0.9:7000"]);
    }

    #[test]
    fn whoever_listens_everywhere_is_reached_where_it_reaches_others_from() {
        check("0.0.0.0:41", &["127.0.0.1:7000"], &["127.0.0.1:41"]);
        check("0.0.0.0:41", &["10.0.0.4:7000"], &["10.0.0.7:41"]);
        check("0.0.0.0:41", &["10.0.0.4:7000", "10.0.0.5:7000"], &["10.0.0.7:41"]);
        check("0.0.0.0:41", &["127.0.0.1:7", "10.0.0.5:7"], &["10.0.0.7:41", "127.0.0.1:41"]);
    }

    #[test]
    fn the_first_one_is_reached_from_outside_or_else_from_this_machine() {
        check("0.0.0.0:7000", &[], &["192.168.1.7:7000"]);
        check("0.0.0.0:7000", &["240.0.0.1:1"], &["127.0.0.1:7000"]);
        check("[::]:7000", &["240.0.0.1:1"], &["[::1]:7000"]);
    }

    #[test]
    fn a_socket_of_the_newer_kind_is_reached_both_ways_and_of_the_older_one_only_one() {
        check("[::]:41", &["10.0.0.4:7000", "[::1]:7000"], &["10.0.0.7:41", "[::1]:41"]);
        check("0.0.0.0:41", &["[::1]:7000"], &["127.0.0.1:41"]);
    }

    #[test]
    fn the_system_knows_the_way_to_itself() {
        assert_eq!(
            reachable_addresses(at("0.0.0.0:41"), &[at("127.0.0.1:9")]),
            [at("127.0.0.1:41")]
        );
    }
}
