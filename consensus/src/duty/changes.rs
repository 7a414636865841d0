//! Changes of members that are to be proposed.

use super::watch::{DutyWatch, ProposalLane};
use crate::entry::{CHANGES_MAX, Entry};
use crate::member::{MemberChange, MembershipStatus};
use crate::state::State;

/// Changes of members that wait to be agreed on, at most so many as an entry holds.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    noted: Vec<MemberChange>,
}

impl PendingChanges {
    /// Notes a change to be agreed on. One that finds no room is noted when it is reported again.
    pub(super) fn note(&mut self, change: MemberChange) {
        if self.is_noted(&change) {
            return;
        }
        // Of two reasons for one loss the first would be applied: it must be the one that counts.
        if let MemberChange::Lost { holder, .. } = change {
            self.noted.retain(|noted| match noted {
                MemberChange::Lost { holder: known, .. } => *known != holder,
                MemberChange::Admit { .. }
                | MemberChange::Drain { .. }
                | MemberChange::Moved { .. } => true,
            });
        }
        if self.noted.len() < CHANGES_MAX {
            self.noted.push(change);
        }
    }

    /// Whether a change waits that has the same outcome. Why a member is lost does not matter,
    /// unless it is not to come back.
    pub(super) fn is_noted(&self, change: &MemberChange) -> bool {
        self.noted.iter().any(|noted| match (noted, change) {
            (
                MemberChange::Admit { node: known, boot: latest, .. },
                MemberChange::Admit { node, boot, .. },
            ) => known == node && latest >= boot,
            (
                MemberChange::Lost { holder: known, reason: why },
                MemberChange::Lost { holder, reason },
            ) => known == holder && (why.is_for_good() || !reason.is_for_good()),
            (MemberChange::Drain { holder: known }, MemberChange::Drain { holder }) => {
                known == holder
            }
            (MemberChange::Moved { .. }, MemberChange::Moved { .. }) => noted == change,
            (
                MemberChange::Admit { .. }
                | MemberChange::Lost { .. }
                | MemberChange::Drain { .. }
                | MemberChange::Moved { .. },
                MemberChange::Admit { .. }
                | MemberChange::Lost { .. }
                | MemberChange::Drain { .. }
                | MemberChange::Moved { .. },
            ) => false,
        })
    }

    /// Whether there is no room for another change.
    pub(super) fn is_full(&self) -> bool {
        self.noted.len() >= CHANGES_MAX
    }

    /// Forgets changes that would change nothing any more.
    pub(super) fn retain_pending(&mut self, state: &State) {
        self.noted.retain(|change| is_pending(state, change));
    }

    /// The entry that proposes all changes, unless one is under way.
    pub(super) fn decide(&mut self, state: &State, watch: &DutyWatch) -> Option<Entry> {
        if self.noted.is_empty() || watch.is_in_flight(ProposalLane::Members) {
            return None;
        }
        self.retain_pending(state);
        (!self.noted.is_empty()).then(|| Entry::Members(self.noted.clone()))
    }
}

/// Whether a change would still change something.
pub(super) fn is_pending(state: &State, change: &MemberChange) -> bool {
    match change {
        MemberChange::Admit { node, boot, role, contact, .. } => {
            state.membership().admits(*node, *boot, state.training().plans())
                && state.membership().authorizes(*node, *role, contact)
        }
        MemberChange::Lost { holder, .. } => state.is_live(*holder),
        MemberChange::Drain { holder } => {
            let member = state.members().get(&holder.node);
            state.is_live(*holder) && member.is_some_and(|m| m.status == MembershipStatus::Present)
        }
        MemberChange::Moved { holder, contact } => {
            let member = state.members().get(&holder.node);
            state.is_live(*holder) && member.is_some_and(|m| m.contact != *contact)
        }
    }
}
