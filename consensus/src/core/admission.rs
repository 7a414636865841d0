//! How a controller that is no voter makes itself known: it sends requests to be admitted.

use zbelastic_types::NodeId;

use super::REQUEST_TICKS;
use crate::contact::Contact;
use crate::member::{Resources, Role};
use crate::message::Message;

/// Requests to be admitted, which a controller sends while it is no voter.
#[derive(Debug)]
pub(super) struct AdmissionRequests {
    controllers: Vec<NodeId>,
    boot: u64,
    tick: u64,
}

impl AdmissionRequests {
    /// Requests of this start of the node, to these controllers.
    pub(super) fn new(controllers: Vec<NodeId>, boot: u64) -> Self {
        Self { controllers, boot, tick: 0 }
    }

    /// Counts a tick. Yields the controllers that a request is sent to now.
    pub(super) fn tick(&mut self) -> &[NodeId] {
        self.tick += 1;
        if self.tick % REQUEST_TICKS == 1 { &self.controllers } else { &[] }
    }

    /// The request of a node that is reached there.
    pub(super) fn request(&self, contact: Contact) -> Message {
        let resources = Resources::NONE;
        Message::Join { boot: self.boot, role: Role::Controller, resources, contact }
    }
}
