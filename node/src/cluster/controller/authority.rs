//! `cluster rotate-ca`: another authority replaces the one that issues, while the cluster runs.
//!
//! The next step is decided by the state that is agreed on and by the reports of members; here it
//! is carried out: keys are made and fetched, certificates issued, and folders written.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::access::{
    AccessChange, AuthorityChange, AuthorityReport, Rotation, RotationPhase, RotationStep,
    Succession, TokenId,
};
use zbelastic_consensus::core::OperatorCommand;
use zbelastic_consensus::member::{Member, Role};
use zbelastic_consensus::state::State;
use zbelastic_identity::{CertificateLife, ClusterAuthority, PeerIdentity, PeerRole, UnixSeconds};
use zbelastic_policy::authority::{
    KeyKnowledge, RotationRequest, is_certified, report, succession, updated_credentials,
};
use zbelastic_policy::roster::Roster;
use zbelastic_transport::RequestReply;
use zbelastic_types::{Digest, NodeId};
use zbelastic_wire::{NodeAnswer, NodeMessage};

use super::authority_files::{
    AuthorityFileResult, AuthorityMade, bridge, find_next, make, succeed,
};
use super::certificates::ControllerCertificates;
use super::ports::{ControllerCompletion, ControllerPorts};
use crate::cluster::authority::LOOK_TICKS;
use crate::cluster::journal::Journal;
use crate::cluster::run_log::name_of;
use zbelastic_api::{
    ApiAnswer, ApiRefusal, ChangeSummary, EventKind, RotationProgress, RotationStatus,
};
use zbelastic_policy::renewal::CredentialsChange;

/// This controller's part in a change of authority: its knowledge beside the agreed state.
#[derive(Default)]
pub(super) struct AuthorityRotation {
    /// The authority that follows, once its key is here and until it issues.
    next: Option<Arc<ClusterAuthority>>,
    /// The last report of each member.
    reports: BTreeMap<NodeId, AuthorityReport>,
    /// Ticks since the rotation was last checked.
    ticks: u32,
    /// Whether files of an authority are read or written beside the loop, and whether one is made.
    is_at_work: bool,
    is_making: bool,
    /// The key that this disk was searched for last.
    searched: Option<Digest>,
}

impl AuthorityRotation {
    /// Follows a change of authority, and advances it if this node leads.
    pub(super) fn handle_tick(
        &mut self,
        ports: &mut ControllerPorts,
        certificates: &mut ControllerCertificates,
        roster: &Roster,
    ) {
        self.ticks += 1;
        if self.ticks < LOOK_TICKS {
            return;
        }
        self.ticks = 0;
        let Some(rotation) = ports.state().access().rotation().cloned() else { return };
        let is_known = self.find_key(&rotation, (ports, certificates), roster);
        follow_authorities(&rotation, ports, certificates);
        if rotation.is_issuing() {
            self.issue_by_next(&rotation, ports, certificates);
        }
        if rotation.is_under_way() {
            if is_known {
                self.report_progress(&rotation, ports, certificates);
            }
            self.advance(&rotation, ports, certificates);
        }
    }

    /// The authority with this key, if it is here.
    fn authority_of<'a>(
        &'a self,
        key: Digest,
        certificates: &'a ControllerCertificates,
    ) -> Option<&'a ClusterAuthority> {
        let mut held = std::iter::once(certificates.authority()).chain(self.next.as_deref());
        held.find(|authority| authority.pin().0 == key.0)
    }

    /// The key of the authority that follows is on this disk, or with another controller. Returns
    /// whether it is known if it is here.
    fn find_key(
        &mut self,
        rotation: &Rotation,
        (ports, certificates): (&mut ControllerPorts, &mut ControllerCertificates),
        roster: &Roster,
    ) -> bool {
        let Succession { key, old, .. } = &rotation.succession;
        let is_next = |authority: &ClusterAuthority| authority.pin().0 == key.0;
        if is_next(certificates.authority()) {
            self.find_bridge_certificate(rotation, ports, certificates);
            return true;
        }
        let holds_key = |node: &NodeId| {
            let report = self.reports.get(node);
            report.is_some_and(|report| report.key == *key && report.has_key)
        };
        let mut others = ports.other_controllers().into_iter();
        let other = others.find(|node| roster.is_up(*node) && holds_key(node));
        let knowledge = KeyKnowledge {
            is_here: self.next.as_deref().is_some_and(is_next),
            follows: **certificates.authority().certificate() == **old,
            is_searched: self.searched == Some(*key),
            has_other: other.is_some(),
            is_at_work: self.is_at_work,
        };
        if knowledge.searches() {
            let (transport, key) = (ports.tasks.transport().clone(), *key);
            let find =
                find_next(transport, other, rotation.clone(), certificates.authority_folder());
            self.spawn(async move { AuthorityFileResult::Next { key, found: find.await } }, ports);
        }
        knowledge.is_complete()
    }

    /// Files are read and written by one task at a time.
    fn spawn(
        &mut self,
        work: impl Future<Output = AuthorityFileResult> + Send + 'static,
        ports: &ControllerPorts,
    ) {
        self.is_at_work = true;
        ports.tasks.spawn(async move { ControllerCompletion::AuthorityFiles(work.await) });
    }

    /// Files of an authority were read or written. Yields an authority that was made and is to be
    /// announced.
    pub(super) fn handle_files(
        &mut self,
        result: AuthorityFileResult,
        ports: &mut ControllerPorts,
        certificates: &mut ControllerCertificates,
    ) -> Option<AuthorityMade> {
        (self.is_at_work, self.is_making) = (false, false);
        match result {
            AuthorityFileResult::Next { key, found } => {
                (self.searched, self.ticks) = (Some(key), LOOK_TICKS);
                let rotation = ports.core.state().access().rotation();
                let is_due = rotation.is_some_and(|rotation| rotation.succession.key == key);
                match found {
                    Ok(Some(next)) if is_due => self.next = Some(next),
                    Ok(_) => {}
                    Err(why) => {
                        let what = "the new authority's key was not received";
                        ports.journal.log(format!("{what}: {why}"));
                    }
                }
            }
            AuthorityFileResult::Made(made) => return Some(made),
            AuthorityFileResult::Succeeded { next, outcome: Ok(()) } => {
                self.next = None;
                certificates.set_authority(next);
                self.ticks = LOOK_TICKS;
            }
            AuthorityFileResult::Succeeded { outcome: Err(why), .. } => {
                ports.journal.warn(format!("the new authority is not used: {why}"));
            }
            AuthorityFileResult::Bridged(Ok(authority)) => {
                certificates.set_authority(authority);
                certificates.renew_own(&ports.tasks, &mut ports.journal);
            }
            AuthorityFileResult::Bridged(Err(why)) => {
                ports.journal.warn(format!("the authority is not written: {why}"));
            }
        }
        None
    }

    /// Another controller requests the key of the authority that follows. It is sent to controllers
    /// only.
    pub(super) fn answer_key(
        &self,
        (from, key): (PeerIdentity, Digest),
        state: &State,
        certificates: &ControllerCertificates,
    ) -> NodeAnswer {
        let refuse = |why: &str| NodeAnswer::Refused { why: why.to_owned() };
        let is_controller = state.access().authorizes(from.node, Role::Controller);
        match self.authority_of(key, certificates) {
            Some(authority) if from.role == PeerRole::Controller && is_controller => {
                NodeAnswer::AuthorityKey(authority.secret())
            }
            Some(_) => refuse("controllers alone have an authority's key"),
            None => refuse("it is not here"),
        }
    }

    /// The authority that follows issues from now on here, for this controller first.
    fn issue_by_next(
        &mut self,
        rotation: &Rotation,
        ports: &mut ControllerPorts,
        certificates: &mut ControllerCertificates,
    ) {
        // One that is made for the next change is not agreed on yet. Members must trust what is issued here, and
        // this controller first.
        let key = rotation.succession.key.0;
        let new = rotation.succession.certificate.clone().into();
        let is_trusted = certificates.credentials().roots().contains(&new);
        let next = self.next.clone().filter(|next| is_trusted && next.pin().0 == key);
        if let Some(next) = next.filter(|_| !self.is_at_work) {
            return self.spawn(succeed(next, certificates.authority_folder()), ports);
        }
        let is_here = certificates.authority().pin().0 == key;
        let is_certified = is_certified(rotation, certificates.credentials());
        if is_here && !is_certified && !certificates.credentials.is_writing() {
            certificates.renew_own(&ports.tasks, &mut ports.journal);
        }
    }

    /// A controller that joined with the new authority received nothing of the old one.
    fn find_bridge_certificate(
        &mut self,
        rotation: &Rotation,
        ports: &ControllerPorts,
        certificates: &ControllerCertificates,
    ) {
        if self.is_at_work || !certificates.authority().bridge().is_empty() {
            return;
        }
        let authority = certificates.authority().clone();
        self.spawn(bridge(authority, rotation.clone(), certificates.authority_folder()), ports);
    }

    fn report_progress(
        &mut self,
        rotation: &Rotation,
        ports: &mut ControllerPorts,
        certificates: &ControllerCertificates,
    ) {
        let has_key = self.authority_of(rotation.succession.key, certificates).is_some();
        let report = report(rotation, certificates.credentials(), has_key);
        self.note_report(ports.me, report, ports.core.state().members());
        let others = ports.other_controllers();
        ports.outbox.send_to_all(others, &NodeMessage::Authority(report));
    }

    /// A member reports how far it is. Reports of others are dropped.
    pub(super) fn note_report(
        &mut self,
        from: NodeId,
        report: AuthorityReport,
        members: &BTreeMap<NodeId, Member>,
    ) {
        if members.contains_key(&from) {
            self.reports.insert(from, report);
        }
        if self.reports.len() > members.len() {
            self.reports.retain(|node, _| members.contains_key(node));
        }
    }

    fn advance(
        &mut self,
        rotation: &Rotation,
        ports: &mut ControllerPorts,
        certificates: &ControllerCertificates,
    ) {
        if !ports.leads() {
            return;
        }
        let key = rotation.succession.key;
        let change =
            match ports.state().membership().rotation_step(&self.reports, UnixSeconds::now().0) {
                RotationStep::Nothing | RotationStep::Wait { .. } => return,
                RotationStep::Issue => {
                    // As long as any client certificate that the old authority made may be valid.
                    let until_s = UnixSeconds::now().0 + CertificateLife::of(PeerRole::Admin).0;
                    AuthorityChange::Issues { key, until_s }
                }
                RotationStep::Retire => AuthorityChange::Retired { key },
                RotationStep::AnnounceAnew => {
                    return self.make(rotation.is_forced, None, ports, certificates);
                }
            };
        // One that is not proposed is found again at the next look, by the leader at that time.
        let _ = ports.propose(OperatorCommand::Access(AccessChange::Authority(change)));
    }

    /// Makes another authority, unless files of one are read or written: what is due is found again
    /// at the next look, and a client's request is answered by [`Self::request`].
    pub(super) fn make(
        &mut self,
        is_forced: bool,
        reply: Option<RequestReply>,
        ports: &ControllerPorts,
        certificates: &ControllerCertificates,
    ) {
        if !self.is_at_work {
            self.is_making = true;
            let authority = certificates.authority().clone();
            self.spawn(make(authority, certificates.authority_folder(), (is_forced, reply)), ports);
        }
    }

    /// The change that announces an authority whose key is on this disk; none if it is no longer due:
    /// a change is under way by now that `for_client` did not know of, or its key was found.
    ///
    /// # Errors
    /// If it could not be made.
    pub(super) fn announced(
        &mut self,
        (made, is_forced): (Result<Arc<ClusterAuthority>, String>, bool),
        for_client: bool,
        state: &State,
    ) -> Result<Option<AuthorityChange>, String> {
        let next = made?;
        let is_due = if for_client {
            !state.access().rotation().is_some_and(Rotation::is_under_way)
        } else {
            let step = state.membership().rotation_step(&self.reports, UnixSeconds::now().0);
            matches!(step, RotationStep::AnnounceAnew)
        };
        if !is_due {
            return Ok(None);
        }
        let succession = succession(&next).ok_or("it names no authority before it")?;
        self.next = Some(next);
        Ok(Some(AuthorityChange::Announced { succession: Box::new(succession), is_forced }))
    }

    /// What becomes of `cluster rotate-ca`. Requested again, it answers how far the change is.
    pub(super) fn request(&self, force: bool, state: &State) -> RotationRequest {
        RotationRequest::new(state.access().rotation(), force, self.is_making, self.is_at_work)
    }

    /// The change of authority is further: it is looked at with the next tick.
    pub(super) fn note_phase(
        &mut self,
        phase: RotationPhase,
        (index, revoked): (u64, &[TokenId]),
        journal: &mut Journal,
    ) {
        self.ticks = LOOK_TICKS;
        journal.log(format!("the change of authority is {phase}"));
        for token in revoked {
            journal.record_entry(index, EventKind::TokenRevoked { id: token.to_string() });
        }
    }

    /// How far the change of authority is, as `cluster rotate-ca` is answered.
    pub(super) fn answer(&self, state: &State) -> ApiAnswer {
        let Some(rotation) = state.access().rotation() else {
            let what = "no change of authority".to_owned();
            return ApiAnswer::Refused(ApiRefusal::Internal { what });
        };
        let key = rotation.succession.key;
        let phase = rotation.phase;
        let tokens = state.access().tokens_beside(key).count();
        let what = format!(
            "authority {key} is {phase}; `zbelastic cluster info` shows which members it waits for\n\
             tokens of the authority before, revoked when it is retired: {}; make others with \
             `zbelastic token create` once the new one issues",
            tokens,
        );
        let (nodes, _) = self.waits_for(state);
        ApiAnswer::Done(ChangeSummary { what, nodes })
    }

    /// Members that a change of authority waits for, and until which second holders of client
    /// certificates have time.
    fn waits_for(&self, state: &State) -> (Vec<NodeId>, Option<u64>) {
        match state.membership().rotation_step(&self.reports, UnixSeconds::now().0) {
            RotationStep::Wait { nodes, until_s } => (nodes, until_s),
            RotationStep::Nothing
            | RotationStep::AnnounceAnew
            | RotationStep::Issue
            | RotationStep::Retire => (Vec::new(), None),
        }
    }

    pub(super) fn status(&self, state: &State) -> Option<RotationStatus> {
        let rotation = state.access().rotation()?;
        let (nodes, until_s) = self.waits_for(state);
        Some(RotationStatus {
            authority: rotation.succession.key.to_string(),
            progress: match rotation.phase {
                RotationPhase::Announced => RotationProgress::Announced,
                RotationPhase::Issuing { .. } => RotationProgress::Issuing,
                RotationPhase::Retired => RotationProgress::Retired,
            },
            waits_for: nodes.into_iter().map(|node| name_of(state, node)).collect(),
            people_until_ms: until_s.map(|until_s| until_s * 1000),
        })
    }
}

/// Trusts the authorities that the cluster agreed to trust.
fn follow_authorities(
    rotation: &Rotation,
    ports: &mut ControllerPorts,
    certificates: &mut ControllerCertificates,
) {
    if certificates.credentials.is_writing() {
        return;
    }
    let change = CredentialsChange::Authorities { is_over: !rotation.is_under_way() };
    match updated_credentials(rotation, certificates.credentials()) {
        Some(Ok(updated)) => certificates.credentials.write(updated, change, &ports.tasks),
        Some(Err(error)) => ports.journal.warn(change.failure(&error)),
        None => {}
    }
}
