//! Placeholder until the identity part is merged.

use zbelastic_types::{ClusterId, NodeId};

/// Placeholder.
#[derive(Clone, Debug)]
pub struct Credentials {}

/// What a certificate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerRole {
    /// A person.
    Admin,
    /// Keeps the log.
    Controller,
    /// Trains.
    Worker,
    /// Looks.
    Observer,
}

/// Who a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The role.
    pub role: PeerRole,
    /// The node.
    pub node: NodeId,
}

/// Placeholder.
#[derive(Debug)]
pub struct JoinAttempt {}

/// Placeholder.
#[derive(Debug)]
pub struct JoinReply {}
