//! Under which name and at which addresses a node is reached.
//!
//! An address is text here: the node that connects parses it. Only sizes are checked, so that
//! the agreed state stays small.

use serde::{Deserialize, Serialize};
use zbelastic_types::NodeId;

/// The most bytes of a node's name, or of a zone's.
pub const NAME_BYTES_MAX: usize = 63;
/// The most addresses of a node.
pub const ADDRESSES_MAX: usize = 8;
/// The most bytes of one address.
pub const ADDRESS_BYTES_MAX: usize = 64;

/// The failure domain of a machine, as far as it is known: machines of one domain may be lost at
/// once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureDomain {
    /// The zone, as a cloud or a person calls it: up to [`NAME_BYTES_MAX`] of `a-z`, `0-9` and `-`.
    /// Empty if it was not given.
    pub zone: String,
    /// A number that all processes of one machine have, and hardly another; 0 if it is not known.
    pub host: u64,
}

impl FailureDomain {
    /// Whether both are known to stand in one zone.
    #[must_use]
    pub fn shares_zone(&self, other: &Self) -> bool {
        !self.zone.is_empty() && self.zone == other.zone
    }

    /// Whether both are known to be one machine.
    #[must_use]
    pub const fn shares_host(&self, other: &Self) -> bool {
        self.host != 0 && self.host == other.host
    }
}

/// The address and name of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// Its name: 1 to [`NAME_BYTES_MAX`] of `a-z`, `0-9` and `-`.
    pub name: String,
    /// Its addresses, the best one first: [`ADDRESSES_MAX`] of [`ADDRESS_BYTES_MAX`] bytes at most.
    pub addresses: Vec<String>,
    /// Zone and machine that it runs on, as far as they are known.
    pub place: FailureDomain,
}

/// Why a contact is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContactRefusal {
    /// The name is empty or too long.
    #[error("a name of {found} bytes, 1 to {NAME_BYTES_MAX} allowed")]
    NameSize {
        /// Length of the name in bytes.
        found: usize,
    },
    /// The zone is too long.
    #[error("a zone of {found} bytes, at most {NAME_BYTES_MAX} allowed")]
    ZoneSize {
        /// Length of the zone in bytes.
        found: usize,
    },
    /// The zone has another character than those allowed.
    #[error("a zone is made of a-z, 0-9 and -, not of {found:?}")]
    ZoneCharacter {
        /// The first character that is not allowed.
        found: char,
    },
    /// The name has another character than those allowed.
    #[error("a name is made of a-z, 0-9 and -, not of {found:?}")]
    NameCharacter {
        /// The first character that is not allowed.
        found: char,
    },
    /// There are more addresses than allowed.
    #[error("{found} addresses, at most {ADDRESSES_MAX}")]
    Addresses {
        /// Number of addresses given.
        found: usize,
    },
    /// An address is empty or too long.
    #[error("an address of {found} bytes, 1 to {ADDRESS_BYTES_MAX} allowed")]
    AddressSize {
        /// Length of the address in bytes.
        found: usize,
    },
}

impl Contact {
    /// A node that is called by its number and has no address: one that lives in this process.
    #[must_use]
    pub fn of_node(node: NodeId) -> Self {
        let place = FailureDomain::default();
        Self { name: format!("node-{node}"), addresses: Vec::new(), place }
    }

    /// Checks sizes, and the letters of the name.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), ContactRefusal> {
        check_name(&self.name)?;
        check_zone(&self.place.zone)?;
        let found = self.addresses.len();
        if found > ADDRESSES_MAX {
            return Err(ContactRefusal::Addresses { found });
        }
        let is_sized = |bytes: &usize| (1..=ADDRESS_BYTES_MAX).contains(bytes);
        match self.addresses.iter().map(String::len).find(|bytes| !is_sized(bytes)) {
            Some(found) => Err(ContactRefusal::AddressSize { found }),
            None => Ok(()),
        }
    }
}

/// Checks the name of a node.
///
/// # Errors
/// If it is empty, too long, or of other characters than `a-z`, `0-9` and `-`.
pub fn check_name(name: &str) -> Result<(), ContactRefusal> {
    let found = name.len();
    if found == 0 || found > NAME_BYTES_MAX {
        return Err(ContactRefusal::NameSize { found });
    }
    match name.chars().find(|c| !is_allowed(*c)) {
        Some(found) => Err(ContactRefusal::NameCharacter { found }),
        None => Ok(()),
    }
}

/// Checks the name of a zone.
///
/// # Errors
/// If it is too long, or of other characters than `a-z`, `0-9` and `-`.
pub fn check_zone(zone: &str) -> Result<(), ContactRefusal> {
    let found = zone.len();
    if found > NAME_BYTES_MAX {
        return Err(ContactRefusal::ZoneSize { found });
    }
    match zone.chars().find(|c| !is_allowed(*c)) {
        Some(found) => Err(ContactRefusal::ZoneCharacter { found }),
        None => Ok(()),
    }
}

const fn is_allowed(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, addresses: Vec<String>, expected: Result<(), ContactRefusal>) {
        let contact = Contact { name: name.to_owned(), addresses, place: FailureDomain::default() };
        assert_eq!(contact.check(), expected);
    }

    #[test]
    fn names_and_addresses_have_their_sizes() {
        let longest = "n".repeat(NAME_BYTES_MAX);
        let longer = "n".repeat(NAME_BYTES_MAX + 1);
        check("a-9", vec![], Ok(()));
        check(&longest, vec![], Ok(()));
        check(&longer, vec![], Err(ContactRefusal::NameSize { found: NAME_BYTES_MAX + 1 }));
        check("", vec![], Err(ContactRefusal::NameSize { found: 0 }));
        for found in ['A', '_', '.', ' ', 'é'] {
            check(&format!("a{found}"), vec![], Err(ContactRefusal::NameCharacter { found }));
        }
        let address = |bytes| "1".repeat(bytes);
        check("a", vec![address(1), address(ADDRESS_BYTES_MAX)], Ok(()));
        check("a", vec![address(1); ADDRESSES_MAX], Ok(()));
        let found = ADDRESSES_MAX + 1;
        check("a", vec![address(1); found], Err(ContactRefusal::Addresses { found }));
        for found in [0, ADDRESS_BYTES_MAX + 1] {
            check("a", vec![address(found)], Err(ContactRefusal::AddressSize { found }));
        }
        assert_eq!(Contact::of_node(NodeId(u64::MAX)).check(), Ok(()));
    }

    #[test]
    fn zones_have_their_size_and_what_is_not_known_is_shared_with_nobody() {
        let found = NAME_BYTES_MAX + 1;
        assert_eq!(check_zone(""), Ok(()));
        assert_eq!(check_zone("us-east-1a"), Ok(()));
        assert_eq!(check_zone(&"z".repeat(found)), Err(ContactRefusal::ZoneSize { found }));
        assert_eq!(check_zone("a/b"), Err(ContactRefusal::ZoneCharacter { found: '/' }));
        let place = |zone: &str, host| FailureDomain { zone: zone.to_owned(), host };
        let unknown = place("", 0);
        assert!(!unknown.shares_zone(&unknown) && !unknown.shares_host(&unknown));
        let one = place("a", 1);
        let other = place("a", 2);
        assert!(one.shares_zone(&other) && !one.shares_host(&other) && one.shares_host(&one));
    }
}
