//! Connections of a life, and the contacts that are sent over them.

use std::sync::Arc;

use zbelastic_consensus::contacts::Contacts;
use zbelastic_identity::CLOCK_TOLERANCE_SECONDS;
use zbelastic_policy::trust::is_removal;
use zbelastic_transport::{CloseCode, DownReason};
use zbelastic_types::NodeId;

use super::check::HousekeepingMarker;
use super::cluster::pair;
use super::member::{HousekeepingMember, MemberProcessState, peer_role};
use super::pieces::MemberCheckpoints;
use super::rotation::note_refused_authority;
use super::surroundings::HousekeepingSurroundings;
use super::world::MemberMessage;

/// Contacts are sent again to a member that has not followed them after so long.
const RESEND_US: u64 = 500_000;

/// Connects members, and sends them the contacts that are agreed on.
pub(super) struct MemberConnections {
    /// The index of the contacts that were sent last.
    contacts_sent: u64,
    /// The pieces that are copied over connections: a connection that ends decides what is next.
    pub(super) checkpoints: MemberCheckpoints,
}

impl MemberConnections {
    pub(super) fn new(checkpoints: MemberCheckpoints) -> Self {
        Self { contacts_sent: 0, checkpoints }
    }

    /// Connects each pair of members that may be connected.
    pub(super) fn connect(&self, env: &mut HousekeepingSurroundings<'_>) {
        let now = env.cluster.calendar();
        let up: Vec<NodeId> = env.cluster.up().map(|member| member.node).collect();
        let believes = |one: &HousekeepingMember, other: &HousekeepingMember| {
            let is_good = one.clock(now) <= other.window.not_after.plus(CLOCK_TOLERANCE_SECONDS);
            (is_good || one.is_hostile) && !one.process.banned.contains(&other.node)
        };
        for (index, one) in up.iter().enumerate() {
            for other in &up[index + 1..] {
                let a = &env.cluster.members[one];
                let b = &env.cluster.members[other];
                let is_new = !env.cluster.links.contains(&pair(*one, *other));
                if !is_new || !believes(a, b) || !believes(b, a) {
                    continue;
                }
                let refuses = |a: &HousekeepingMember, b: &HousekeepingMember| {
                    !a.authority.accepts(b.authority.by)
                };
                match (refuses(a, b), refuses(b, a)) {
                    (false, false) => self.link(env, *one, *other),
                    (true, _) => note_refused_authority(env, *one, *other),
                    (false, true) => note_refused_authority(env, *other, *one),
                }
            }
        }
        let leader = env.cluster.leader();
        for node in up {
            let is_led =
                leader.is_some_and(|leader| leader == node || env.cluster.is_linked(leader, node));
            if !is_led {
                env.cluster.members.get_mut(&node).expect("a member").led_since = env.cluster.now;
            }
        }
    }

    fn link(&self, env: &mut HousekeepingSurroundings<'_>, one: NodeId, other: NodeId) {
        env.cluster.links.insert(pair(one, other));
        for (node, peer) in [(one, other), (other, one)] {
            let now = env.cluster.now;
            let is_hostile = env.cluster.members[&peer].is_hostile;
            let member = env.cluster.members.get_mut(&node).expect("a member");
            member.process.roster.note_up(peer);
            if !is_hostile {
                member.able_since = now;
            }
        }
    }

    /// A connection ends: each end knows why.
    pub(super) fn unlink(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        (one, one_reason): (NodeId, DownReason),
        other: NodeId,
    ) {
        if !env.cluster.links.remove(&pair(one, other)) {
            return;
        }
        self.note_down(env, one, other, one_reason);
        let reason = match one_reason {
            DownReason::Banned => DownReason::ClosedByPeer(CloseCode::Banned),
            DownReason::ClosedByPeer(_) => DownReason::Closing,
            DownReason::Left
            | DownReason::ProcessEnded
            | DownReason::Silent
            | DownReason::Reset
            | DownReason::Replaced
            | DownReason::Forgotten
            | DownReason::Violation(_)
            | DownReason::Broken
            | DownReason::Closing => one_reason,
        };
        self.note_down(env, other, one, reason);
    }

    fn note_down(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        peer: NodeId,
        reason: DownReason,
    ) {
        let now = env.cluster.now;
        let role = env.cluster.members[&peer].role;
        let is_hostile = env.cluster.members[&peer].is_hostile;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        member.process.roster.note_down(peer);
        member.process.logs.note_down(peer);
        if !is_hostile {
            member.able_since = now;
        }
        // A hostile member goes on after it was removed.
        if !member.is_up() || member.is_hostile {
            return;
        }
        let nexts = member.process.copies.note_down(peer);
        for (piece, next) in nexts {
            self.checkpoints.continue_copying(env, node, piece, next);
        }
        if is_removal(peer_role(role), reason) {
            self.end(env, node, peer);
        }
    }

    /// A process ends because of what its peers sent.
    pub(super) fn end(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        because_of: NodeId,
    ) {
        env.line(|| format!("n{node} ends, n{because_of} says so"));
        env.check.check_end(&env.cluster, node, because_of);
        self.drop_links(env, node, DownReason::ProcessEnded);
        let member = env.cluster.members.get_mut(&node).expect("a member");
        member.running = MemberProcessState::Ended;
        member.life += 1;
    }

    /// All connections of a node end.
    pub(super) fn drop_links(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        reason: DownReason,
    ) {
        let others: Vec<NodeId> = env
            .cluster
            .members
            .keys()
            .copied()
            .filter(|other| env.cluster.is_linked(node, *other))
            .collect();
        for other in others {
            self.unlink(env, (other, reason), node);
        }
    }

    /// The leader sends where members are, and which nodes are members no more.
    pub(super) fn send_contacts(&mut self, env: &mut HousekeepingSurroundings<'_>) {
        let Some(leader) = env.cluster.leader() else { return };
        let contacts = Arc::new(env.cluster.agreed.state.membership().contacts());
        let is_again = env.cluster.now.0.is_multiple_of(RESEND_US);
        let lacking = env.cluster.agreed.members().into_iter().filter(|node| {
            let member = &env.cluster.members[node];
            let knows = member.process.contacts.index >= contacts.index
                && member.process.roster.has_applied(contacts.index);
            member.is_up() && !knows && (is_again || contacts.index > self.contacts_sent)
        });
        let lacking: Vec<NodeId> = lacking.collect();
        self.contacts_sent = contacts.index;
        for node in lacking {
            if node == leader {
                self.follow(env, node, contacts.clone());
            } else {
                env.send(leader, node, MemberMessage::Contacts(contacts.clone()));
            }
        }
    }

    /// A member applies contacts, and bans the nodes that are members no more.
    pub(super) fn follow(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        contacts: Arc<Contacts>,
    ) {
        let member = env.cluster.members.get_mut(&node).expect("a member");
        if contacts.index < member.process.contacts.index {
            return;
        }
        let change = member.process.roster.apply_contacts(&contacts);
        member.process.contacts = contacts;
        let Some(change) = change else { return };
        member.process.banned.extend(&change.banned);
        for banned in change.banned {
            env.check.markers.note(HousekeepingMarker::Banned);
            self.unlink(env, (node, DownReason::Banned), banned);
        }
    }
}
