//! `cluster rotate-ca`: another authority replaces the one that issues, while the cluster runs.
//!
//! The next step is decided by the state that is agreed on and by the reports of members; here it
//! is carried out: keys are made and fetched, certificates issued, and folders written.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use zbelastic_consensus::access::{
    AccessChange, AuthorityChange, AuthorityReport, Rotation, RotationPhase, RotationStep,
    Succession, TokenId,
};
use zbelastic_consensus::core::OperatorCommand;
use zbelastic_consensus::member::{Member, Role};
use zbelastic_consensus::state::State;
use zbelastic_identity::{
    AuthoritySecret, CertificateLife, ClusterAuthority, PeerIdentity, PeerRole, UnixSeconds,
};
use zbelastic_policy::roster::Roster;
use zbelastic_types::{Digest, NodeId};
use zbelastic_wire::{self as wire, NodeAnswer, NodeMessage, NodeRequest};

use super::certificates::ControllerCertificates;
use super::ports::{ControllerCompletion, ControllerPorts};
use super::status::name_of_member;
use crate::cluster::authority::{
    CredentialsChange, LOOK_TICKS, is_certified, report, updated_credentials, warn_of,
};
use crate::cluster::journal::Journal;
use zbelastic_api::{
    ApiAnswer, ApiRefusal, ChangeSummary, EventKind, RotationProgress, RotationStatus,
};

/// This controller's part in a change of authority: its knowledge beside the agreed state.
#[derive(Default)]
pub(super) struct AuthorityRotation {
    /// The authority that follows, once its key is here and until it issues.
    next: Option<Arc<ClusterAuthority>>,
    /// The last report of each member.
    reports: BTreeMap<NodeId, AuthorityReport>,
    /// Ticks since the rotation was last checked.
    ticks: u32,
    /// Whether a request for the key to another controller is under way.
    is_key_requested: bool,
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
        self.find_key(&rotation, (ports, certificates), roster);
        follow_authorities(&rotation, ports, certificates);
        if rotation.is_issuing() {
            self.issue_by_next(&rotation, ports, certificates);
        }
        if rotation.is_under_way() {
            self.report_progress(&rotation, ports, certificates);
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

    /// The key of the authority that follows is on this disk, or with another controller.
    fn find_key(
        &mut self,
        rotation: &Rotation,
        (ports, certificates): (&mut ControllerPorts, &mut ControllerCertificates),
        roster: &Roster,
    ) {
        let Succession { key, old, .. } = &rotation.succession;
        let is_next = |authority: &ClusterAuthority| authority.pin().0 == key.0;
        if is_next(certificates.authority()) {
            return find_bridge_certificate(rotation, ports, certificates);
        }
        let is_here = self.next.as_deref().is_some_and(is_next);
        // The log is read from an earlier change of authority on.
        if is_here || **certificates.authority().certificate() != **old {
            return;
        }
        let loaded = ClusterAuthority::load_next(&certificates.authority_folder(), None);
        self.next = loaded.ok().filter(is_next).map(Arc::new);
        if self.next.is_none() {
            self.request_key(*key, ports, roster);
        }
    }

    fn request_key(&mut self, key: Digest, ports: &ControllerPorts, roster: &Roster) {
        let holds_key = |node: &NodeId| {
            let report = self.reports.get(node);
            report.is_some_and(|report| report.key == key && report.has_key)
        };
        let mut others = ports.other_controllers().into_iter();
        let found = others.find(|node| roster.is_up(*node) && holds_key(node));
        let Some(other) = found.filter(|_| !self.is_key_requested) else { return };
        self.is_key_requested = true;
        let transport = ports.tasks.transport().clone();
        ports.tasks.spawn(async move {
            let request = NodeRequest::AuthorityKey { key };
            let answer = transport.request(other, request.encode()).await;
            ControllerCompletion::AuthorityKey(match answer.map(|bytes| wire::decode(&bytes)) {
                Ok(Ok(NodeAnswer::AuthorityKey(secret))) => Ok(secret),
                Ok(Ok(NodeAnswer::Refused { why })) => Err(why),
                Ok(Ok(
                    NodeAnswer::Renewed { .. }
                    | NodeAnswer::Collected(_)
                    | NodeAnswer::CollectedWithAsides(_),
                )) => Err("it answered something else".to_owned()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            })
        });
    }

    /// Another controller sent the key of the authority that follows, or none.
    pub(super) fn handle_key(
        &mut self,
        secret: Result<AuthoritySecret, String>,
        (state, folder): (&State, &Path),
        journal: &mut Journal,
    ) {
        self.is_key_requested = false;
        let Some(rotation) = state.access().rotation() else { return };
        match secret.and_then(|secret| next_authority(&secret, rotation, folder)) {
            Ok(next) => {
                self.next = Some(Arc::new(next));
                self.ticks = LOOK_TICKS;
            }
            Err(why) => journal.log(format!("the new authority's key was not received: {why}")),
        }
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
        if let Some(next) = self.next.take_if(|next| is_trusted && next.pin().0 == key) {
            if let Err(error) = ClusterAuthority::succeed(&certificates.authority_folder()) {
                ports.journal.warn(format!("the new authority is not used: {error}"));
                self.next = Some(next);
                return;
            }
            certificates.set_authority(next);
        }
        let is_here = certificates.authority().pin().0 == key;
        let is_certified = is_certified(rotation, certificates.credentials());
        if is_here && !is_certified && !certificates.credentials.is_writing() {
            certificates.renew_own(&ports.tasks, &mut ports.journal);
        }
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
                RotationStep::AnnounceAnew => match self.announce(rotation.is_forced, certificates)
                {
                    Ok(change) => change,
                    Err(why) => {
                        return ports.journal.warn(format!("no authority is announced: {why}"));
                    }
                },
            };
        // One that is not proposed is found again at the next look, by the leader at that time.
        let _ = ports.propose(OperatorCommand::Access(AccessChange::Authority(change)));
    }

    /// Makes another authority. Its key is on this disk before it is announced.
    fn announce(
        &mut self,
        is_forced: bool,
        certificates: &ControllerCertificates,
    ) -> Result<AuthorityChange, String> {
        let now = UnixSeconds::now();
        let next = certificates.authority().successor(now).map_err(|error| error.to_string())?;
        next.save_next(&certificates.authority_folder()).map_err(|error| error.to_string())?;
        let [bridge, old] = next.bridge() else {
            return Err("it names no authority before it".to_owned());
        };
        let succession = Succession {
            key: Digest(next.pin().0),
            certificate: next.certificate().to_vec(),
            bridge: bridge.to_vec(),
            old: old.to_vec(),
        };
        self.next = Some(Arc::new(next));
        Ok(AuthorityChange::Announced { succession: Box::new(succession), is_forced })
    }

    /// The change that a leader proposes for `cluster rotate-ca`; nothing if such a change is under
    /// way.
    ///
    /// # Errors
    /// If no authority can be made.
    pub(super) fn begin(
        &mut self,
        force: bool,
        state: &State,
        certificates: &ControllerCertificates,
    ) -> Result<Option<AuthorityChange>, String> {
        match state.access().rotation().filter(|last| last.is_under_way()) {
            Some(last) if force && !last.is_forced => {
                Ok(Some(AuthorityChange::Forced { key: last.succession.key }))
            }
            Some(_) => Ok(None),
            None => self.announce(force, certificates).map(Some),
        }
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
             {tokens} tokens name the authority before and are revoked when it is retired: make others with \
             `zbelastic token create` once the new one issues"
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
            waits_for: nodes.into_iter().map(|node| name_of_member(state, node)).collect(),
            people_until_ms: until_s.map(|until_s| until_s * 1000),
        })
    }
}

/// A controller that joined with the new authority received nothing of the old one.
fn find_bridge_certificate(
    rotation: &Rotation,
    ports: &mut ControllerPorts,
    certificates: &mut ControllerCertificates,
) {
    if !certificates.authority().bridge().is_empty() {
        return;
    }
    let authority = bridged(certificates.authority().clone(), rotation);
    if let Err(error) = authority.save(&certificates.authority_folder()) {
        return ports.journal.warn(format!("the authority is not written: {error}"));
    }
    certificates.set_authority(Arc::new(authority));
    certificates.renew_own(&ports.tasks, &mut ports.journal);
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
        Some(Err(error)) => warn_of(change, &error, &mut ports.journal),
        None => {}
    }
}

/// The authority with the key that another controller sent, written to `folder`.
fn next_authority(
    secret: &AuthoritySecret,
    rotation: &Rotation,
    folder: &Path,
) -> Result<ClusterAuthority, String> {
    let next = ClusterAuthority::from_secret(secret).map_err(|error| error.to_string())?;
    if next.pin().0 != rotation.succession.key.0 {
        return Err("it is of another authority than the one announced".to_owned());
    }
    let next = bridged(next, rotation);
    next.save_next(folder).map_err(|error| error.to_string())?;
    Ok(next)
}

/// An authority with the certificates that lead from it to the one before.
fn bridged(authority: ClusterAuthority, rotation: &Rotation) -> ClusterAuthority {
    let Succession { bridge, old, .. } = rotation.succession.clone();
    authority.with_bridge(vec![bridge.into(), old.into()])
}
