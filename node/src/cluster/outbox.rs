//! Messages to other nodes, as the components of a node queue them while an event is handled. The
//! event loop sends them, in this order, before it performs anything else.

use zbelastic_transport::{ControlKind, Transport};
use zbelastic_types::NodeId;
use zbelastic_wire::{self as wire, NodeMessage};

/// The messages that wait to be sent. They are sent after each event, and one event queues a few
/// messages to each member at most.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: Vec<(NodeId, NodeMessage)>,
}

impl Outbox {
    /// Queues a message to a node.
    pub fn send(&mut self, to: NodeId, message: NodeMessage) {
        self.messages.push((to, message));
    }

    /// Queues a message to each of these nodes.
    pub fn send_to_all(&mut self, nodes: impl IntoIterator<Item = NodeId>, message: &NodeMessage) {
        self.messages.extend(nodes.into_iter().map(|node| (node, message.clone())));
    }

    /// The messages that wait, which are removed from the queue.
    pub fn take(&mut self) -> Vec<(NodeId, NodeMessage)> {
        std::mem::take(&mut self.messages)
    }

    /// Sends the messages that wait.
    pub fn flush(&mut self, transport: &Transport) {
        for (to, message) in self.take() {
            send_control(transport, to, ControlKind::Blob, &wire::encode(&message));
        }
    }
}

/// Sends a control message: its kind, and its body behind that.
pub fn send_control(transport: &Transport, to: NodeId, kind: ControlKind, body: &[u8]) {
    let mut bytes = vec![kind.byte()];
    bytes.extend(body);
    transport.send(to, bytes.into());
}
