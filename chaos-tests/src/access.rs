//! Which nodes are let in: all nodes of a life have their credentials from its beginning, as if
//! each had used a token before.

use zbelastic_consensus::access::{AccessRole, Credential};
use zbelastic_consensus::contact::Contact;
use zbelastic_types::{Digest, NodeId};

use crate::options::WORKERS_FEW;

/// Controllers that come later than the first are numbered from here on.
pub const LATER_CONTROLLERS: u64 = 1001;
/// Nodes of each kind that a life of a few workers may have.
const NODES_MAX: u64 = 32;

/// Nodes of each kind that a life may have that begins with so many workers: in a large one they
/// come and go as in others, each one perhaps once.
#[must_use]
pub const fn nodes_max(workers: u32) -> u64 {
    NODES_MAX + 2 * workers.saturating_sub(WORKERS_FEW) as u64
}

/// The first controllers, with where they are reached.
pub fn contacts(nodes: &[NodeId]) -> impl Iterator<Item = (NodeId, Contact)> {
    nodes.iter().map(|node| (*node, Contact::of_node(*node)))
}

/// The credentials that the first `controllers` nodes show, and the workers numbered behind them,
/// and the controllers that come later.
pub fn credentials(controllers: u64, workers: u32) -> impl Iterator<Item = (NodeId, Credential)> {
    let nodes_max = nodes_max(workers);
    let first = (1..=controllers).map(|node| credential(node, AccessRole::Controller));
    let workers = controllers + 1..=controllers + nodes_max;
    let workers = workers.map(|node| credential(node, AccessRole::Worker));
    let later = LATER_CONTROLLERS..LATER_CONTROLLERS + nodes_max;
    first.chain(workers).chain(later.map(|node| credential(node, AccessRole::Controller)))
}

/// The credential of a node, with its number.
#[must_use]
pub fn credential(node: u64, role: AccessRole) -> (NodeId, Credential) {
    let credential = Credential {
        role,
        name: format!("node-{node}"),
        key: Digest([0; 32]),
        token: None,
        issued_at_s: 0,
        expires_at_s: u64::MAX,
        is_ephemeral: false,
        is_revoked: false,
    };
    (NodeId(node), credential)
}
