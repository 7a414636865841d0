//! The identity of a peer, and its one written form:
//!
//! ```text
//!   zbe://000000000000000000000000deadbeef/worker/17
//!         cluster, 32 hexadecimal digits    role   node
//! ```
//!
//! There is exactly one text for an identity, so two texts that differ are two identities.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zbelastic_types::{ClusterId, NodeId};

use super::role::PeerRole;

pub(super) const SCHEME: &str = "zbe://";
/// The digits of a cluster. Ids have 16 today; the format has digits for twice as many.
const CLUSTER_DIGITS: usize = 32;
/// The longest text that can be an identity: scheme, cluster, the longest role, the longest number.
const IDENTITY_CHARS_MAX: usize = SCHEME.len() + CLUSTER_DIGITS + 1 + "controller".len() + 1 + 20;

/// The identity of a certificate's holder, as the certificate names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerIdentity {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Its role in the cluster.
    pub role: PeerRole,
    /// Its node id in the cluster.
    pub node: NodeId,
}

/// Why a text is no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IdentityFault {
    /// It is not of the form `zbe://<cluster>/<role>/<node>`.
    #[error("an identity has the form {SCHEME}<cluster>/<role>/<node>")]
    WrongForm,
    /// The cluster is not 32 lower-case hexadecimal digits, or a larger number than a cluster has.
    #[error("the cluster of an identity is {CLUSTER_DIGITS} lower-case hexadecimal digits")]
    WrongCluster,
    /// The role is none.
    #[error("the role of an identity is one of admin, controller, worker, viewer, operator")]
    WrongRole,
    /// The node is no decimal number, or is written with leading zeros.
    #[error("the node of an identity is a decimal number without leading zeros")]
    WrongNode,
}

/// The cluster, as every text here writes it.
pub(super) fn cluster_text(cluster: ClusterId) -> String {
    format!("{:0width$x}", cluster.0, width = CLUSTER_DIGITS)
}

/// The cluster that `text` is.
pub(super) fn cluster_from(text: &str) -> Result<ClusterId, IdentityFault> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != CLUSTER_DIGITS || !text.bytes().all(is_digit) {
        return Err(IdentityFault::WrongCluster);
    }
    u64::from_str_radix(text, 16).map(ClusterId).map_err(|_| IdentityFault::WrongCluster)
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", cluster_text(self.cluster), self.role, self.node)
    }
}

impl FromStr for PeerIdentity {
    type Err = IdentityFault;

    fn from_str(text: &str) -> Result<Self, IdentityFault> {
        if text.len() > IDENTITY_CHARS_MAX {
            return Err(IdentityFault::WrongForm);
        }
        let rest = text.strip_prefix(SCHEME).ok_or(IdentityFault::WrongForm)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let &[cluster, role, node] = parts.as_slice() else {
            return Err(IdentityFault::WrongForm);
        };
        let cluster = cluster_from(cluster)?;
        let role = role.parse().map_err(|_| IdentityFault::WrongRole)?;
        let number: u64 = node.parse().map_err(|_| IdentityFault::WrongNode)?;
        if number.to_string() != node {
            return Err(IdentityFault::WrongNode);
        }
        Ok(Self { cluster, role, node: NodeId(number) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "zbe://000000000000000000000000deadbeef/worker/17";

    #[test]
    fn an_identity_is_written_and_read_in_one_form() {
        let peer = PeerIdentity {
            cluster: ClusterId(0xdead_beef),
            role: PeerRole::Worker,
            node: NodeId(17),
        };
        assert_eq!(peer.to_string(), TEXT);
        assert_eq!(TEXT.parse(), Ok(peer));
    }

    #[test]
    fn the_longest_identity_fits() {
        let peer = PeerIdentity {
            cluster: ClusterId(u64::MAX),
            role: PeerRole::Controller,
            node: NodeId(u64::MAX),
        };
        assert_eq!(peer.to_string().len(), IDENTITY_CHARS_MAX);
        assert_eq!(peer.to_string().parse(), Ok(peer));
    }

    #[test]
    fn whatever_else_is_refused() {
        let check = |text: &str, fault| {
            assert_eq!(text.parse::<PeerIdentity>(), Err(fault), "{text}");
        };
        check("", IdentityFault::WrongForm);
        check(&TEXT.replace("zbe:", "ZBE:"), IdentityFault::WrongForm);
        check(&format!("{TEXT}/"), IdentityFault::WrongForm);
        check(&format!("{TEXT}{}", "0".repeat(40)), IdentityFault::WrongForm);
        check(&TEXT.replace("beef", "BEEF"), IdentityFault::WrongCluster);
        check(&TEXT.replace("//00", "//"), IdentityFault::WrongCluster);
        check(&TEXT.replace("//00", "//+0"), IdentityFault::WrongCluster);
        check(&TEXT.replace("//0", "//1"), IdentityFault::WrongCluster);
        check(&TEXT.replace("worker", "root"), IdentityFault::WrongRole);
        for node in ["", "017", "+17", "-1", "17 ", "18446744073709551616"] {
            check(&TEXT.replace("17", node), IdentityFault::WrongNode);
        }
    }

    proptest! {
        #[test]
        fn a_text_that_is_read_is_the_text_that_is_written(text in "(zbe://)?[0-9a-f/]{0,40}(/worker/[0-9]{1,3})?") {
            if let Ok(peer) = text.parse::<PeerIdentity>() {
                prop_assert_eq!(peer.to_string(), text);
            }
        }
    }
}
