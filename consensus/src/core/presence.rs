//! How a controller makes itself known: it requests to be admitted, and reports where it is
//! reached.

use super::Core;
use crate::member::{MemberChange, Resources, Role};
use crate::message::Message;

/// Ticks between two requests of a controller that waits to be admitted, or has moved.
const REQUEST_TICKS: u64 = 10;

impl Core {
    /// A tick: counts how long no leader is known, requests to be admitted, and reports the
    /// contact.
    pub(super) fn handle_tick(&mut self) {
        self.ticks += 1;
        let is_led = self.raft.status().leader.is_some();
        self.leaderless_ticks = if is_led { 0 } else { self.leaderless_ticks.saturating_add(1) };
        self.request_admission();
        self.report_contact();
    }

    fn request_admission(&mut self) {
        let Some(admission) = &mut self.admission else { return };
        let status = self.raft.status();
        if status.members.voters.contains(&status.node) {
            self.admission = None;
            return;
        }
        admission.tick += 1;
        if admission.tick % REQUEST_TICKS != 1 {
            return;
        }
        let resources = Resources::NONE;
        let boot = admission.boot;
        let contact = self.setup.contact.clone();
        let join = Message::Join { boot, role: Role::Controller, resources, contact };
        for to in admission.controllers.clone() {
            self.send(to, join.clone());
        }
    }

    /// Reports where this node is reached, if something else is agreed on.
    fn report_contact(&mut self) {
        if self.ticks % REQUEST_TICKS != 1 {
            return;
        }
        let status = self.raft.status();
        let Some(holder) = self.state.holder_of(status.node) else { return };
        if self.state.members()[&status.node].contact == self.setup.contact {
            return;
        }
        let contact = self.setup.contact.clone();
        match (&mut self.duties, status.leader) {
            (Some(duties), _) => {
                // If there is no room for it now, it is reported again.
                let _ = duties.handle_change(&self.state, MemberChange::Moved { holder, contact });
            }
            (None, Some(leader)) => self.send(leader, Message::Moved { holder, contact }),
            (None, None) => {}
        }
    }
}
