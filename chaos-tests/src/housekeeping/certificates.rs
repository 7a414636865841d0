//! Certificates of a life, renewed as time passes.

use zbelastic_consensus::member::Role;
use zbelastic_identity::{UnixSeconds, ValidityWindow};
use zbelastic_policy::renewal::{CertificateStatus, RenewalAction};
use zbelastic_types::NodeId;

use super::check::HousekeepingMarker;
use super::cluster::HousekeepingCluster;
use super::surroundings::HousekeepingSurroundings;
use super::world::HousekeepingEvent;

/// How long a certificate is good.
pub(super) const LIFE_S: u64 = 24 * 3600;

impl HousekeepingSurroundings<'_> {
    /// A look at a member's certificate.
    pub(super) fn tick_certificate(&mut self, node: NodeId) {
        let now = self.cluster.calendar();
        let member = self.cluster.members.get_mut(&node).expect("a member");
        let clock = member.clock(now);
        let window = member.window;
        let is_replaced = HousekeepingCluster::is_replaced(member);
        let look = || CertificateStatus { now: clock, window, is_replaced, is_untrusted: false };
        let next = member.process.renewal.handle_tick(look);
        let at = (node, member.life);
        let role = member.role;
        if next == RenewalAction::Wait {
            return;
        }
        // A controller has the authority, and sends no request.
        let took = if role == Role::Controller { 0 } else { 2 * self.latency() };
        let is_at_door = next == RenewalAction::RequestAsJoiner;
        self.queue
            .push(self.cluster.now.after(took), HousekeepingEvent::Renewed { at, is_at_door });
    }

    pub(super) fn handle_renewed(&mut self, at: (NodeId, u64), is_at_door: bool) {
        let node = at.0;
        let now = self.cluster.calendar();
        let leader = self.cluster.leader();
        let is_let_in = self.cluster.agreed.state.access().credential(node).is_some();
        let is_reached = leader.is_some_and(|leader| self.cluster.is_linked(leader, node));
        // The leader issues nothing by the authority before the one that is agreed to issue.
        let issuing = self.cluster.issuing();
        let holds_key =
            |node: NodeId| self.cluster.members[&node].authority.keys.contains(&issuing);
        let issues = leader.is_some_and(holds_key);
        let Some(member) = self.cluster.process(at) else { return };
        let is_answered = match member.role {
            Role::Controller => true,
            Role::Worker => is_let_in && issues && (is_reached || is_at_door),
        };
        if is_answered {
            member.window = window_from(now);
            if member.role == Role::Worker {
                member.authority.by = issuing;
            }
            let seen = if is_at_door {
                HousekeepingMarker::RenewedAtTheDoor
            } else {
                HousekeepingMarker::Renewed
            };
            self.check.markers.note(seen);
        }
    }
}

/// A certificate that was made then.
pub(super) fn window_from(not_before: UnixSeconds) -> ValidityWindow {
    ValidityWindow { not_before, not_after: not_before.plus(LIFE_S) }
}
