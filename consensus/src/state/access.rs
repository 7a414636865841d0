//! Tokens and credentials: the effect of an entry about them on members.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use super::membership::ClusterMembership;
use super::plans::PlanSlots;
use super::{EntryRefusal, StateChange};
use crate::access::{AccessChange, AccessOutcome, AccessRefusal, AuthorityReport, RotationStep};
use crate::member::LossReason;

impl ClusterMembership {
    /// Whether a change of tokens and credentials would be accepted now.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_access(&self, change: &AccessChange) -> Result<(), AccessRefusal> {
        let is_member = |node| self.holder_of(node).is_some();
        match change {
            AccessChange::TokenMade { token, terms, at_s } => {
                self.access.check_made(*token, terms, *at_s)
            }
            AccessChange::TokenRevoked { token } => self.access.check_token(*token).map(|_| ()),
            AccessChange::TokenUsed { token, key, name, role, at_s, expires_at_s } => {
                let term = (*at_s, *expires_at_s);
                self.access.check_used((*token, *key), name, *role, term, is_member).map(|_| ())
            }
            AccessChange::Renewed { node, key: _, at_s, expires_at_s } => {
                self.access.check_renewed(*node, (*at_s, *expires_at_s))
            }
            AccessChange::Revoked { node } => {
                self.access.check_known(*node)?;
                self.check_not_last(*node)
            }
            AccessChange::Forgotten { node } => {
                let credential = self.access.check_known(*node)?;
                let is_free = credential.is_ephemeral && self.holder_of(*node).is_none();
                if is_free { Ok(()) } else { Err(AccessRefusal::NotForgotten { node: *node }) }
            }
            AccessChange::Authority(change) => self.access.check_authority(change),
        }
    }

    /// Checks that a controller would be left to vote.
    ///
    /// # Errors
    /// If the node is the only controller that is counted on.
    pub fn check_not_last(&self, node: NodeId) -> Result<(), AccessRefusal> {
        let is_other = |other: NodeId| other != node;
        if self.is_controller(node) && !self.controllers().any(is_other) {
            Err(AccessRefusal::LastController { node })
        } else {
            Ok(())
        }
    }

    pub(super) fn apply_access(
        &mut self,
        index: u64,
        change: AccessChange,
        plans: &PlanSlots,
    ) -> Result<StateChange, EntryRefusal> {
        self.check_access(&change)?;
        let outcome = match change {
            AccessChange::TokenMade { token, terms, at_s } => {
                self.access.make(token, terms, at_s);
                AccessOutcome::TokenMade { token }
            }
            AccessChange::TokenRevoked { token } => {
                self.access.revoke_token(token);
                AccessOutcome::TokenRevoked { token }
            }
            AccessChange::TokenUsed { token, key, name, role, at_s, expires_at_s } => {
                let by = (token, key);
                let term = (at_s, expires_at_s);
                let live = |node: NodeId| self.members.get(&node).is_some_and(|m| m.is_live());
                let known = self.access.check_used(by, &name, role, term, live)?;
                let node = match known {
                    Some(node) => node,
                    None => self.access.redeem_token(by, name, term, live),
                };
                let is_repeated = known.is_some();
                AccessOutcome::LetIn { token, key, node, is_repeated }
            }
            AccessChange::Renewed { node, key, at_s, expires_at_s } => {
                self.access.renew(node, key, (at_s, expires_at_s));
                AccessOutcome::Renewed { node }
            }
            AccessChange::Revoked { node } => {
                self.access.revoke(node);
                self.contacts_index = index;
                if self.holder_of(node).is_some() {
                    self.lose(index, node, LossReason::Removed);
                }
                AccessOutcome::Revoked { node }
            }
            AccessChange::Forgotten { node } => {
                self.access.forget_ephemeral(node);
                if !plans.names(node) {
                    self.forget(node);
                }
                AccessOutcome::Forgotten { node }
            }
            AccessChange::Authority(change) => {
                let (phase, revoked) = self.access.rotate(change);
                // The authorities that members trust travel with their contacts.
                self.contacts_index = index;
                AccessOutcome::Authority { phase, revoked }
            }
        };
        Ok(StateChange::Access(outcome))
    }

    /// The next action in a change of authority, as far as members reported.
    #[must_use]
    pub fn rotation_step(
        &self,
        reports: &BTreeMap<NodeId, AuthorityReport>,
        now_s: u64,
    ) -> RotationStep {
        let Some(rotation) = self.access.rotation() else { return RotationStep::Nothing };
        let is_let_in = |node| self.access.credential(node).is_some();
        rotation.next_step(&self.members, is_let_in, reports, now_s)
    }
}
