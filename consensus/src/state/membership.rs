//! The members, and the conditions of membership: the node's credential, and that it is not
//! quarantined.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use zbelastic_types::{Incarnation, NodeId};

use super::plans::PlanSlots;
use super::{EntryRefusal, StateChange};
use crate::access::AccessRegistry;
use crate::contact::Contact;
use crate::contacts::Contacts;
use crate::entry::CHANGES_MAX;
use crate::member::{
    AdmissionRefusal, Holder, LossReason, MEMBERS_MAX, Member, MemberChange, MembershipStatus,
    Resources, Role,
};

/// The members of the cluster, lost ones included, with their credentials and contacts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterMembership {
    pub(super) members: BTreeMap<NodeId, Member>,
    quarantined: BTreeSet<NodeId>,
    pub(super) access: AccessRegistry,
    /// Index of the last entry that changed the contacts.
    pub(super) contacts_index: u64,
}

impl ClusterMembership {
    /// Adds a controller that the cluster begins with. Its number is not given again.
    pub(super) fn found(&mut self, node: NodeId, contact: Contact) {
        self.access.reserve(node);
        let controller = Member {
            incarnation: Incarnation(0),
            boot: 0,
            role: Role::Controller,
            resources: Resources::NONE,
            contact,
            status: MembershipStatus::Present,
        };
        self.members.insert(node, controller);
    }

    /// All members, lost ones included, by node.
    #[must_use]
    pub fn members(&self) -> &BTreeMap<NodeId, Member> {
        &self.members
    }

    /// Nodes that are not admitted again.
    #[must_use]
    pub fn quarantined(&self) -> &BTreeSet<NodeId> {
        &self.quarantined
    }

    /// Tokens, credentials and the last change of authority, as agreed.
    #[must_use]
    pub fn access(&self) -> &AccessRegistry {
        &self.access
    }

    /// Whether a node that is authorized and requests admission with this start would be admitted.
    #[must_use]
    pub fn admits(&self, node: NodeId, boot: u64, plans: &PlanSlots) -> bool {
        let is_new = self.members.get(&node).is_none_or(|member| boot > member.boot);
        is_new && !self.quarantined.contains(&node) && self.has_capacity(node, plans)
    }

    /// Why a worker that requests admission with this start is never admitted, if it is not.
    #[must_use]
    pub fn refusal_of(&self, node: NodeId, boot: u64) -> Option<AdmissionRefusal> {
        // The credential of an ephemeral node goes with the drain.
        if self.members.get(&node).is_some_and(|member| member.was_drained_in(boot)) {
            return Some(AdmissionRefusal::Drained);
        }
        (!self.access.authorizes(node, Role::Worker)).then_some(AdmissionRefusal::NoCredential)
    }

    /// Whether this node is authorized as a member of this role, with this contact.
    #[must_use]
    pub fn authorizes(&self, node: NodeId, role: Role, contact: &Contact) -> bool {
        self.access.authorizes(node, role) && contact.check().is_ok()
    }

    /// Whether this life of this node is counted on.
    #[must_use]
    pub fn is_live(&self, holder: Holder) -> bool {
        self.members
            .get(&holder.node)
            .is_some_and(|member| member.is_live() && member.incarnation == holder.incarnation)
    }

    /// The life of a node that is counted on.
    #[must_use]
    pub fn holder_of(&self, node: NodeId) -> Option<Holder> {
        let member = self.members.get(&node).filter(|member| member.is_live())?;
        Some(Holder { node, incarnation: member.incarnation })
    }

    /// Status of a node, if it is known.
    #[must_use]
    pub fn status_of(&self, node: NodeId) -> Option<MembershipStatus> {
        self.members.get(&node).map(|member| member.status)
    }

    /// Workers that are counted on, in the order of their ids.
    pub fn live_workers(&self) -> impl Iterator<Item = (Holder, &Member)> {
        let live = self.members.iter().filter(|(_, m)| m.is_live() && m.role == Role::Worker);
        live.map(|(node, m)| (Holder { node: *node, incarnation: m.incarnation }, m))
    }

    /// Controllers that are counted on.
    pub fn controllers(&self) -> impl Iterator<Item = NodeId> {
        self.members.keys().copied().filter(|node| self.is_controller(*node))
    }

    /// Whether a node may vote.
    #[must_use]
    pub fn is_controller(&self, node: NodeId) -> bool {
        let member = self.members.get(&node);
        member.is_some_and(|member| member.is_live() && member.role == Role::Controller)
    }

    /// Where members that are counted on are reached.
    #[must_use]
    pub fn contacts(&self) -> Contacts {
        let live = self.members.iter().filter(|(_, member)| member.is_live());
        let members = live.map(|(node, member)| (*node, (member.role, member.contact.clone())));
        let banned = self.access.revoked().collect();
        let rotation = self.access.rotation().cloned();
        Contacts { index: self.contacts_index, members: members.collect(), banned, rotation }
    }

    /// Index of the last entry that changed the contacts.
    #[must_use]
    pub fn contacts_index(&self) -> u64 {
        self.contacts_index
    }

    /// Applies those changes that fit the members.
    pub(super) fn apply(
        &mut self,
        index: u64,
        changes: Vec<MemberChange>,
        plans: &PlanSlots,
    ) -> Result<StateChange, EntryRefusal> {
        let mut fitting = Vec::new();
        for change in changes.into_iter().take(CHANGES_MAX) {
            if self.change(index, &change, plans) {
                fitting.push(change);
            }
        }
        if fitting.is_empty() {
            return Err(EntryRefusal::Members);
        }
        Ok(StateChange::Members(fitting))
    }

    fn change(&mut self, index: u64, change: &MemberChange, plans: &PlanSlots) -> bool {
        match change {
            MemberChange::Admit { node, boot, role, resources, contact } => {
                if !self.admits(*node, *boot, plans) || !self.authorizes(*node, *role, contact) {
                    return false;
                }
                self.evict_lost(*node, plans);
                let member = Member {
                    incarnation: Incarnation(index),
                    boot: *boot,
                    role: *role,
                    resources: *resources,
                    contact: contact.clone(),
                    status: MembershipStatus::Present,
                };
                self.members.insert(*node, member);
                self.contacts_index = index;
                true
            }
            MemberChange::Lost { holder, reason } => {
                self.is_live(*holder) && self.lose(index, holder.node, *reason)
            }
            MemberChange::Drain { holder } => {
                self.is_live(*holder) && self.set_status(holder.node, MembershipStatus::Draining)
            }
            MemberChange::Moved { holder, contact } => {
                let is_fitting = self.is_live(*holder) && contact.check().is_ok();
                is_fitting && self.set_contact(index, holder.node, contact)
            }
        }
    }

    /// Counts on a member no more. Yields whether it may be done without.
    pub(super) fn lose(&mut self, index: u64, node: NodeId, reason: LossReason) -> bool {
        match reason {
            LossReason::Removed if self.check_not_last(node).is_err() => return false,
            LossReason::Removed | LossReason::Untrusted { .. } => self.access.revoke(node),
            LossReason::Drained => self.access.forget_ephemeral(node),
            LossReason::Closed
            | LossReason::Silent { .. }
            | LossReason::OpOverdue { .. }
            | LossReason::NoProgress { .. }
            | LossReason::Superseded
            | LossReason::OutOfMemory => {}
        }
        if reason.is_for_good() {
            self.quarantined.insert(node);
        }
        self.contacts_index = index;
        self.set_status(node, MembershipStatus::Lost(reason))
    }

    fn set_contact(&mut self, index: u64, node: NodeId, contact: &Contact) -> bool {
        let member = self.members.get_mut(&node).expect("looked up before");
        let is_new = member.contact != *contact;
        if is_new {
            member.contact = contact.clone();
            self.contacts_index = index;
        }
        is_new
    }

    fn set_status(&mut self, node: NodeId, status: MembershipStatus) -> bool {
        let member = self.members.get_mut(&node).expect("looked up before");
        let is_new = member.status != status;
        member.status = status;
        is_new
    }

    fn has_capacity(&self, node: NodeId, plans: &PlanSlots) -> bool {
        let is_full = self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&node);
        !is_full || self.oldest_lost(plans).is_some()
    }

    /// Forgets a member that is lost, if it must.
    fn evict_lost(&mut self, node: NodeId, plans: &PlanSlots) {
        if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&node) {
            let oldest = self.oldest_lost(plans).expect("there is room");
            self.forget(oldest);
        }
    }

    /// A member that is lost and stands in no plan is not known any more. If it is ephemeral, its
    /// credential is forgotten too.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.members.remove(&node);
        self.access.forget_ephemeral(node);
    }

    /// The member that is lost and stands in no plan; of several the one that came first.
    fn oldest_lost(&self, plans: &PlanSlots) -> Option<NodeId> {
        let lost = self.members.iter().filter(|(_, member)| !member.is_live());
        let free = lost.filter(|(node, _)| !plans.names(**node));
        free.min_by_key(|(_, member)| member.incarnation).map(|(node, _)| *node)
    }
}
