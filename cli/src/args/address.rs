//! Parses addresses that are typed: hosts, ports and lists of them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use zbelastic_api::ADDRESSES_MAX;

/// The port when none is said.
pub const PORT_DEFAULT: u16 = 7000;
/// Most letters of a host: the limit of DNS.
const HOST_MAX: usize = 253;

/// A host and a port, not looked up yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// A name, or an address without brackets.
    pub host: String,
    /// Number of the port.
    pub port: u16,
}

/// Addresses of one cluster: at least one, none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressList(Vec<HostPort>);

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text or the list is empty.
    #[error("there is no address: expected HOST or HOST:PORT, as in 10.0.0.1:7000")]
    Empty,
    /// Nothing stands between two commas.
    #[error("address {position} of the list is empty: two commas in a row, or one at an end")]
    EmptyItem {
        /// Position of the empty item, counted from 1.
        position: usize,
    },
    /// It is a link.
    #[error("`{found}` is a link: expected HOST or HOST:PORT, without {scheme}")]
    Link {
        /// The text that was typed.
        found: String,
        /// The scheme that it begins with.
        scheme: String,
    },
    /// It has a zone, as addresses of one link have.
    #[error(
        "`{found}` has a zone behind %, which means something on one machine only: expected an \
             address without it"
    )]
    Zone {
        /// The text that was typed.
        found: String,
    },
    /// The port is none.
    #[error("`{found}` is no port: expected a number from 1 to 65535, as in {host}:{PORT_DEFAULT}")]
    Port {
        /// The host before it.
        host: String,
        /// The text that was typed.
        found: String,
    },
    /// A number alone, which is none of a port.
    #[error("`{found}` is no port: expected a number from 0 to 65535, where 0 is any that is free")]
    ListenPort {
        /// The text that was typed.
        found: String,
    },
    /// The host is none.
    #[error("`{found}` is no host: expected a name, an IPv4 address, or an IPv6 address as [::1]")]
    Host {
        /// The text that was typed.
        found: String,
    },
    /// Nobody can be reached there.
    #[error(
        "`{found}` means every interface of this machine, and nobody can be reached at it: \
             expected the address of one, as in 10.0.0.1"
    )]
    Unspecified {
        /// The text that was typed.
        found: String,
    },
    /// An address occurs twice in the list.
    #[error("{address} is in the list twice")]
    Twice {
        /// The address that occurs twice.
        address: HostPort,
    },
    /// The list has too many addresses.
    #[error("{found} addresses, at most {ADDRESSES_MAX}: any few members of the cluster will do")]
    Many {
        /// Number of addresses in the list.
        found: usize,
    },
    /// A name where one of this machine's own addresses is needed.
    #[error("`{found}` is no address of an interface: expected as in 0.0.0.0:7000 or [::]:7000")]
    NotLiteral {
        /// The text that was typed.
        found: String,
    },
}

impl HostPort {
    /// The address that a text is.
    ///
    /// # Errors
    /// If it is none, or one that nobody can be reached at.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let address = split(text, PORT_DEFAULT)?;
        let is_unspecified =
            address.host.parse::<IpAddr>().is_ok_and(|literal| literal.is_unspecified());
        if is_unspecified {
            return Err(AddressError::Unspecified { found: text.to_owned() });
        }
        if address.port == 0 {
            return Err(AddressError::Port { host: address.host, found: "0".to_owned() });
        }
        Ok(address)
    }
}

impl AddressList {
    /// The addresses between commas.
    ///
    /// # Errors
    /// If one is none, or is there twice, or if there are too many.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.trim().is_empty() {
            return Err(AddressError::Empty);
        }
        let found = text.split(',').count();
        if found > ADDRESSES_MAX {
            return Err(AddressError::Many { found });
        }
        let mut known = BTreeSet::new();
        let mut addresses = Vec::new();
        for (index, item) in text.split(',').map(str::trim).enumerate() {
            if item.is_empty() {
                return Err(AddressError::EmptyItem { position: index + 1 });
            }
            let address = HostPort::parse(item)?;
            if !known.insert(address.clone()) {
                return Err(AddressError::Twice { address });
            }
            addresses.push(address);
        }
        Ok(Self(addresses))
    }

    /// The addresses, in the order they were typed.
    #[must_use]
    pub fn addresses(&self) -> &[HostPort] {
        &self.0
    }

    /// The addresses as texts.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

/// Where to listen: an interface, or all of them, and a port, where 0 is any that is free.
///
/// # Errors
/// If it is none.
pub fn parse_bind(text: &str) -> Result<SocketAddr, AddressError> {
    bind_address(text, PORT_DEFAULT)
}

/// The same, where `port_default` is the port when none is said.
///
/// # Errors
/// If it is none.
pub fn bind_address(text: &str, port_default: u16) -> Result<SocketAddr, AddressError> {
    let address = match text.strip_prefix(':') {
        Some(port) if !port.starts_with(':') => split(&format!("0.0.0.0:{port}"), port_default)?,
        Some(_) | None => split(text, port_default)?,
    };
    let literal = address.host.parse::<IpAddr>();
    let literal = literal.map_err(|_| AddressError::NotLiteral { found: text.to_owned() })?;
    Ok(SocketAddr::new(literal, address.port))
}

/// `host`, `host:port`, `[v6]`, `[v6]:port` or `v6`.
fn split(text: &str, port_default: u16) -> Result<HostPort, AddressError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(AddressError::Empty);
    }
    if let Some((scheme, _)) = text.split_once("://") {
        let found = text.to_owned();
        let scheme = format!("{scheme}://");
        return Err(AddressError::Link { found, scheme });
    }
    if text.contains('%') {
        return Err(AddressError::Zone { found: text.to_owned() });
    }
    let with_default = |host: &str| Ok(HostPort { host: host.to_owned(), port: port_default });
    let wrong_host = || AddressError::Host { found: text.to_owned() };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(wrong_host)?;
        host.parse::<Ipv6Addr>().map_err(|_| wrong_host())?;
        return match rest.strip_prefix(':') {
            Some(port) => with_port(host, port),
            None if rest.is_empty() => with_default(host),
            None => Err(wrong_host()),
        };
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return with_default(text);
    }
    match text.split_once(':') {
        Some((host, _)) if !is_host(host) => Err(wrong_host()),
        Some((host, port)) => with_port(host, port),
        None if is_host(text) => with_default(text),
        None => Err(wrong_host()),
    }
}

fn with_port(host: &str, port: &str) -> Result<HostPort, AddressError> {
    let is_digits = !port.is_empty() && port.bytes().all(|letter| letter.is_ascii_digit());
    let number = port.parse::<u16>().ok().filter(|_| is_digits);
    match number {
        Some(port) => Ok(HostPort { host: host.to_owned(), port }),
        None => Err(AddressError::Port { host: host.to_owned(), found: port.to_owned() }),
    }
}

/// Whether it can be a name of DNS or an IPv4 address; which of its forms exist is DNS's matter.
fn is_host(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let is_number = text.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    let is_sound = !is_number || text.parse::<std::net::Ipv4Addr>().is_ok();
    !text.is_empty() && text.len() <= HOST_MAX && text.chars().all(is_letter) && is_sound
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for AddressList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressError, AddressList, HostPort, parse_bind};

    fn check(text: &str, expected: &str) {
        let found = AddressList::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found.to_string(), expected, "{text}");
    }

    #[test]
    fn addresses_have_a_port_of_their_own_or_the_usual_one() {
        check("a", "a:7000");
        check("a:1", "a:1");
        check("node-1.example.com:65535", "node-1.example.com:65535");
        check("10.0.0.1", "10.0.0.1:7000");
        check("::1", "[::1]:7000");
        check("[::1]", "[::1]:7000");
        check("[fe80::1]:8000", "[fe80::1]:8000");
        check(" a:1 , b:2 ", "a:1,b:2");
        check("a:1,a:2", "a:1,a:2");
    }

    #[test]
    fn what_is_no_address_is_explained() {
        let wrong = |text: &str| AddressList::parse(text).expect_err(text);
        let port = |host: &str, found: &str| AddressError::Port {
            host: host.to_owned(),
            found: found.to_owned(),
        };
        assert_eq!(wrong(""), AddressError::Empty);
        assert_eq!(wrong("  "), AddressError::Empty);
        assert_eq!(wrong("a,,b"), AddressError::EmptyItem { position: 2 });
        assert_eq!(wrong("a,"), AddressError::EmptyItem { position: 2 });
        assert_eq!(wrong("a:0"), port("a", "0"));
        assert_eq!(wrong("a:70000"), port("a", "70000"));
        assert_eq!(wrong("a:65536"), port("a", "65536"));
        assert_eq!(wrong("a:"), port("a", ""));
        assert_eq!(wrong("a:+1"), port("a", "+1"));
        assert_eq!(wrong("a:b:c"), port("a", "b:c"));
        for unspecified in ["::", "0.0.0.0", "[::]:7000", "0.0.0.0:7000"] {
            assert_eq!(wrong(unspecified), AddressError::Unspecified { found: unspecified.into() });
        }
        for host in ["a b", "[::1", "[::1]x", "[a]:7000", "1.2.3", "999.1.1.1:7000", "ä", ":7000"]
        {
            assert_eq!(wrong(host), AddressError::Host { found: host.into() });
        }
        let link = wrong("https://a:7000");
        assert_eq!(
            link.to_string(),
            "`https://a:7000` is a link: expected HOST or HOST:PORT, \
                                      without https://"
        );
        for zone in ["fe80::1%eth0", "[fe80::1%eth0]:7000"] {
            assert_eq!(wrong(zone), AddressError::Zone { found: zone.into() });
        }
        let twice = AddressError::Twice { address: HostPort { host: "a".into(), port: 7000 } };
        assert_eq!(wrong("a,b,a:7000"), twice);
    }

    #[test]
    fn there_are_sixteen_addresses_at_most() {
        let list = |count: u32| {
            (0..count).map(|index| format!("host-{index}")).collect::<Vec<_>>().join(",")
        };
        assert_eq!(AddressList::parse(&list(16)).expect("legal").addresses().len(), 16);
        assert_eq!(AddressList::parse(&list(17)), Err(AddressError::Many { found: 17 }));
    }

    #[test]
    fn one_listens_at_interfaces() {
        let check = |text: &str, expected: &str| {
            assert_eq!(parse_bind(text).expect(text).to_string(), expected);
        };
        check("0.0.0.0", "0.0.0.0:7000");
        check("127.0.0.1:0", "127.0.0.1:0");
        check(":8000", "0.0.0.0:8000");
        check("::", "[::]:7000");
        check("[::1]:9", "[::1]:9");
        let wrong = |text: &str| parse_bind(text).expect_err(text);
        assert_eq!(wrong("localhost"), AddressError::NotLiteral { found: "localhost".into() });
        assert!(matches!(wrong(":70000"), AddressError::Port { .. }));
        assert_eq!(wrong(""), AddressError::Empty);
    }
}
