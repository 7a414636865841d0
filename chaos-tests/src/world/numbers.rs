//! The numbers of nodes and starts.

use zbelastic_consensus::member::BOOTS_PER_START;
use zbelastic_types::NodeId;

use crate::access::{LATER_CONTROLLERS, nodes_max};
use crate::options::LifeOptions;

/// The numbers that were given so far.
pub(super) struct NodeNumbers {
    /// Controllers and workers that a life begins with.
    controllers: u32,
    workers: u32,
    node_next: u64,
    controller_next: u64,
    boot_next: u64,
}

impl NodeNumbers {
    pub(super) fn new(options: &LifeOptions) -> Self {
        let LifeOptions { controllers, workers, .. } = *options;
        let node_next = 1 + u64::from(controllers);
        Self { controllers, workers, node_next, controller_next: 1, boot_next: 1 }
    }

    pub(super) fn new_node(&mut self) -> NodeId {
        let node = NodeId(self.node_next);
        let last = u64::from(self.controllers) + nodes_max(self.workers);
        assert!(node.0 <= last, "no node {node} was let in");
        self.node_next += 1;
        node
    }

    /// The first controllers are numbered before the workers, later ones far behind them.
    pub(super) fn new_controller(&mut self) -> NodeId {
        let node = NodeId(self.controller_next);
        let end = LATER_CONTROLLERS + nodes_max(self.workers);
        assert!(node.0 < end, "no node {node} was let in");
        let is_last = node.0 == u64::from(self.controllers);
        self.controller_next = if is_last { LATER_CONTROLLERS } else { node.0 + 1 };
        node
    }

    /// A start's number: as from a clock, so that a process can count on from it.
    pub(super) fn new_boot(&mut self) -> u64 {
        self.boot_next += BOOTS_PER_START;
        self.boot_next
    }
}
