//! A change of authority in a life: authorities are numbers, and a certificate names the one that
//! made it. When the next phase begins and whom a member trusts is the product's code.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::access::{
    AuthorityChange, AuthorityReport, Rotation, RotationStep, Succession,
};
use zbelastic_consensus::member::Role;
use zbelastic_policy::authority::{TrustedAuthorities, trusted_authorities};
use zbelastic_types::{Digest, NodeId};

use super::check::HousekeepingMarker;
use super::cluster::HousekeepingCluster;
use super::member::HousekeepingMember;
use super::surroundings::HousekeepingSurroundings;

/// How long members that are away have, in a life: clocks are moved by as much.
const AWAY_S: u64 = 3 * 3600;

/// The number of an authority.
pub type AuthorityNumber = u8;

/// A member's part in changes of authority, which lies on its disk.
#[derive(Clone, Debug)]
pub struct MemberAuthority {
    /// The authority that made its certificate.
    pub by: AuthorityNumber,
    /// Those that it trusts.
    pub trusts: BTreeSet<AuthorityNumber>,
    /// Those whose keys it has, to issue with. Controllers only.
    pub keys: BTreeSet<AuthorityNumber>,
    /// The change that it followed last.
    pub followed: Option<Rotation>,
}

impl MemberAuthority {
    /// A member with a certificate by this authority.
    #[must_use]
    pub fn by(by: AuthorityNumber, role: Role) -> Self {
        let keys = if role == Role::Controller { BTreeSet::from([by]) } else { BTreeSet::new() };
        Self { by, trusts: BTreeSet::from([by]), keys, followed: None }
    }

    /// Whether it trusts a certificate: its chain leads from the authority that made it to the one
    /// before.
    #[must_use]
    pub fn accepts(&self, by: AuthorityNumber) -> bool {
        self.trusts.contains(&by) || by.checked_sub(1).is_some_and(|old| self.trusts.contains(&old))
    }
}

/// The leader's reports of members about a change of authority.
#[derive(Debug, Default)]
pub struct RotationReports {
    leader: Option<NodeId>,
    reports: BTreeMap<NodeId, AuthorityReport>,
}

/// The certificate of an authority, as it is agreed on.
fn certificate(number: AuthorityNumber) -> Vec<u8> {
    vec![number + 1]
}

fn key(number: AuthorityNumber) -> Digest {
    Digest([number + 1; 32])
}

/// The authority that follows in a change.
fn number_of(rotation: &Rotation) -> AuthorityNumber {
    rotation.succession.certificate[0] - 1
}

impl HousekeepingCluster {
    /// The authority that issues by what is agreed on.
    pub(super) fn issuing(&self) -> AuthorityNumber {
        match self.agreed.state.access().rotation() {
            Some(rotation) if rotation.is_issuing() => number_of(rotation),
            Some(rotation) => number_of(rotation) - 1,
            None => 0,
        }
    }

    /// Whether another authority issues than the one that made a member's certificate, as far as the
    /// member knows.
    pub(super) fn is_replaced(member: &HousekeepingMember) -> bool {
        let rotation = member.authority.followed.as_ref().filter(|found| found.is_issuing());
        rotation.is_some_and(|rotation| number_of(rotation) != member.authority.by)
    }
}

impl RotationReports {
    /// A second passes: members follow the change as far as they know it, and the leader takes it
    /// further.
    pub(super) fn tick(&mut self, env: &mut HousekeepingSurroundings<'_>) {
        let leader = env.cluster.leader();
        if self.leader != leader {
            *self = Self { leader, reports: BTreeMap::new() };
        }
        let up: Vec<NodeId> = env.cluster.up().map(|member| member.node).collect();
        for node in up {
            self.follow(env, node);
        }
        let Some(rotation) = env.cluster.agreed.state.access().rotation().cloned() else { return };
        if leader.is_none() {
            return;
        }
        let now_s = env.cluster.calendar().0;
        let membership = env.cluster.agreed.state.membership();
        let key = rotation.succession.key;
        let change = match membership.rotation_step(&self.reports, now_s) {
            RotationStep::Nothing | RotationStep::Wait { .. } | RotationStep::AnnounceAnew => {
                return;
            }
            RotationStep::Issue => AuthorityChange::Issues { key, until_s: now_s + AWAY_S },
            RotationStep::Retire => {
                env.check.markers.note(HousekeepingMarker::AuthorityRetired);
                AuthorityChange::Retired { key }
            }
        };
        env.line(|| format!("{change:?}"));
        env.cluster.agreed.rotate(change);
    }

    /// A member follows the change that came to it with the contacts, and reports it to the leader.
    fn follow(&mut self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let cluster = &env.cluster;
        let member = &cluster.members[&node];
        let Some(rotation) = member.process.contacts.rotation.clone() else { return };
        let next = number_of(&rotation);
        let others = cluster.up().filter(|other| cluster.is_linked(node, other.node));
        let is_held = others.into_iter().any(|other| other.authority.keys.contains(&next));
        let is_reached = |leader| leader == node || cluster.is_linked(leader, node);
        let reports_to = self.leader.filter(|leader| is_reached(*leader));
        let member = env.cluster.members.get_mut(&node).expect("a member");
        let authority = &mut member.authority;
        if member.role == Role::Controller && is_held {
            authority.keys.insert(next);
        }
        // A controller makes its own certificate.
        if rotation.is_issuing() && authority.keys.contains(&next) {
            authority.by = authority.by.max(next);
        }
        let is_certified = authority.by == next;
        if is_certified || authority.by + 1 == next {
            authority.trusts = match trusted_authorities(rotation.phase, is_certified) {
                TrustedAuthorities::Both => BTreeSet::from([next - 1, next]),
                TrustedAuthorities::New => BTreeSet::from([next]),
            };
        }
        let report = AuthorityReport {
            key: rotation.succession.key,
            believes: authority.trusts.contains(&next),
            is_certified,
            has_key: authority.keys.contains(&next),
        };
        authority.followed = Some(rotation);
        if HousekeepingCluster::is_replaced(member) {
            member.process.renewal.check_soon();
        }
        if reports_to.is_some() {
            self.reports.insert(node, report);
        }
    }
}

/// An operator has another authority follow, if none follows yet and a controller leads.
pub(super) fn rotate_authority(env: &mut HousekeepingSurroundings<'_>, is_forced: bool) {
    let Some(leader) = env.cluster.leader() else { return };
    let rotation = env.cluster.agreed.state.access().rotation();
    let old = env.cluster.issuing();
    let holds_key = env.cluster.members[&leader].authority.keys.contains(&old);
    if rotation.is_some_and(Rotation::is_under_way) || !holds_key {
        return;
    }
    let next = old + 1;
    let member = env.cluster.members.get_mut(&leader).expect("a member");
    member.authority.keys.insert(next);
    let succession = Succession {
        key: key(next),
        certificate: certificate(next),
        bridge: vec![0],
        old: certificate(old),
    };
    let succession = Box::new(succession);
    env.cluster.agreed.rotate(AuthorityChange::Announced { succession, is_forced });
}

/// One member refuses the certificate of another for its authority: H13 if it knows how far the
/// change is, as all that are members are waited for.
pub(super) fn note_refused_authority(
    env: &mut HousekeepingSurroundings<'_>,
    one: NodeId,
    other: NodeId,
) {
    let members = env.cluster.agreed.members();
    let agreed = env.cluster.agreed.state.access().rotation();
    let is_current = env.cluster.members[&one].authority.followed.as_ref() == agreed;
    if is_current && members.contains(&one) && members.contains(&other) {
        let phase = agreed.map(|rotation| rotation.phase);
        env.check.note_refused_authority(&env.cluster, (one, other), phase);
    }
}
