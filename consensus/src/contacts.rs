//! Where the members are reached, as every node is sent it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use zbelastic_types::NodeId;

use crate::access::Rotation;
use crate::contact::Contact;
use crate::member::Role;

/// Where all members that are counted on are reached, and which authority vouches for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contacts {
    /// The entry that changed them last; 0 if nothing is known.
    pub index: u64,
    /// The role of each member, and its contact.
    pub members: BTreeMap<NodeId, (Role, Contact)>,
    /// Nodes that were removed, or are not trusted: no node connects to them or lets them connect.
    pub banned: BTreeSet<NodeId>,
    /// The last change of authority: which one members believe.
    pub rotation: Option<Rotation>,
}

impl Contacts {
    /// The controllers among them.
    pub fn controllers(&self) -> impl Iterator<Item = NodeId> {
        let controllers = self.members.iter().filter(|(_, (role, _))| *role == Role::Controller);
        controllers.map(|(node, _)| *node)
    }
}
